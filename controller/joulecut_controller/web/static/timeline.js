// The iteration as planned, one row a stage: every operation a box, stronger the higher its
// clock. Above it the same pipeline with every operation at its fastest: what is white
// there is the slack that the plan turns into lower clocks.

import { decimals, scale, ticks, timeUnit } from "./axis.js";
import { h, keyed, s, setText, show } from "./dom.js";
import { joules, mhz, percent, seconds } from "./format.js";

const LEFT = 64;
const RIGHT = 12;
const AXIS = 26;
const TITLE = 20;
const GAP = 14;

export class Timeline {
  constructor() {
    this.canvas = h("canvas", { role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.plot = h("div", { class: "plot" }, this.canvas, this.tip);
    this.none = h("p", { class: "empty" });
    this.lead = h("p", { class: "lead" });
    this.legend = h("p", { class: "timeline-key" });
    this.body = h("tbody");
    this.table = h("details", {}, h("summary", {}, "The same as a table"),
      h("table", {}, h("thead", {}, h("tr", {},
        ...["Stage", "Forward clock", "Backward clock", "Busy", "Waiting", "Energy of its operations"].map((t) => h("th", { scope: "col" }, t)))),
      this.body));
    this.root = h("section", { class: "card timeline-card" },
      h("h2", {}, "One iteration, stage by stage ", h("small", {}, "predicted")),
      this.lead, this.none, this.plot, this.legend, this.table);
    this.data = null;
    this.wanted = null;
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => show(this.tip, false));
    new ResizeObserver(() => this.draw()).observe(this.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Fetches the operations once per generation; they are too many for every pass. */
  async update(job) {
    const generation = job.decision?.generation ?? null;
    const wanted = `${job.name} ${generation} ${job.decision?.forecast ? 1 : 0}`;
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    let data = null;
    if (job.decision?.forecast) {
      const answer = await fetch(`/api/v1/jobs/${encodeURIComponent(job.name)}/timeline`).catch(() => null);
      if (answer?.ok) data = await answer.json();
      else this.wanted = null; // asked again at the next pass
    }
    this.data = data;
    this.show(job);
  }

  show(job) {
    const data = this.data;
    for (const node of [this.plot, this.lead, this.legend, this.table]) show(node, Boolean(data));
    show(this.none, !data);
    setText(this.none, job.decision?.generation
      ? "No timeline: the newest decision changes no clock."
      : "No timeline while there is no plan.");
    if (!data) return;
    this.layers = layersOf(data);
    const all = this.layers.flatMap((layer) => layer.operations);
    this.end = Math.max(...this.layers.map((layer) => layer.end), data.deadline_s ?? 0);
    this.clocks = [Math.min(...all.map((o) => o.clock_mhz)), Math.max(...all.map((o) => o.clock_mhz))];
    this.stages = 1 + all.reduce((most, o) => Math.max(most, o.stage), 0);
    this.describe();
    // A plan that waits for a sibling ends with it, later than the job's own deadline.
    this.limit = job.slo.deadline_s && data.deadline_s > job.slo.deadline_s * 1.001 ? "sibling pipeline" : "deadline";
    this.draw();
  }

  describe() {
    const [fast, plan] = [this.layers.find((l) => l.fastest), this.layers.find((l) => !l.fastest)];
    const text = fast
      ? `Plan ${this.data.generation} takes ${seconds(plan.end, 4)}, ${percent(plan.end / fast.end - 1, { signed: true })} against ${seconds(fast.end, 4)} with every operation at its fastest; ` +
        `stages wait ${percent(waiting(plan, this.stages))} of the time instead of ${percent(waiting(fast, this.stages))}.`
      : `Plan ${this.data.generation} takes ${seconds(plan.end, 4)}; stages wait ${percent(waiting(plan, this.stages))} of the time.`;
    setText(this.lead, text);
    this.canvas.setAttribute("aria-label", `${text} The table below has the numbers of each stage.`);
    const kinds = [["forward", "forward"], ["backward", "backward"]].map(([kind, name]) =>
      h("span", { class: "kind" }, ramp(kind), name));
    const [low, high] = this.clocks;
    this.legend.replaceChildren(...kinds, h("span", { class: "kind" },
      low === high ? `all at ${mhz(high)}` : `faint ${mhz(low)}, strong ${mhz(high)}`));
    const rows = Array.from({ length: this.stages }, (_, stage) => summary(plan, stage));
    keyed(this.body, rows, (r) => r.stage, () => h("tr", {}, ...Array.from({ length: 6 }, () => h("td"))), (node, r) => {
      [String(r.stage), r.forward, r.backward, seconds(r.busy), percent(1 - r.busy / plan.end), joules(r.energy, 4)]
        .forEach((text, i) => setText(node.children[i], text));
    });
  }

  draw() {
    if (!this.data || !this.plot.clientWidth) return;
    const width = this.plot.clientWidth;
    const row = Math.max(5, Math.min(17, Math.floor(150 / this.stages)));
    const block = TITLE + this.stages * row;
    const height = this.layers.length * (block + GAP) + AXIS - GAP;
    const dense = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * dense);
    this.canvas.height = Math.round(height * dense);
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(dense, dense);
    const look = lookOf(this.canvas);
    const x = scale(0, this.end, LEFT, width - RIGHT);
    this.view = { x, row, block };
    this.layers.forEach((layer, i) => drawLayer(pen, look, layer, { x, top: i * (block + GAP), row, stages: this.stages, clocks: this.clocks, width }));
    drawAxis(pen, look, { x, end: this.end, bottom: height - AXIS, width, deadline: this.data.deadline_s, name: this.limit });
  }

  point(event) {
    if (!this.view) return;
    const box = this.plot.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const { x, row, block } = this.view;
    const layer = this.layers[Math.floor(top / (block + GAP))];
    const inside = (top % (block + GAP)) - TITLE;
    const stage = Math.floor(inside / row);
    const hit = inside < 0 ? null : layer?.operations.find((o) =>
      o.stage === stage && x(o.start_s) <= left && left < x(o.start_s + o.duration_s));
    show(this.tip, Boolean(hit));
    if (!hit) return;
    setText(this.tip, `stage ${hit.stage}, ${hit.kind} ${hit.microbatch}: ${mhz(hit.clock_mhz)}, ${seconds(hit.duration_s)}, ${joules(hit.energy_j)}, starts at ${seconds(hit.start_s, 4)}`);
    this.tip.style.left = `${Math.max(4, Math.min(box.width - this.tip.offsetWidth - 4, left + 12))}px`;
    this.tip.style.top = `${Math.max(0, top - 38)}px`;
  }
}

function layersOf(data) {
  const plan = {
    title: `plan ${data.generation}, granularity ${data.granularity}`,
    operations: data.operations, end: data.iteration_time_s, fastest: false,
  };
  if (!data.fastest) return [plan];
  return [{ title: "every operation at its fastest", operations: data.fastest.operations, end: data.fastest.iteration_time_s, fastest: true }, plan];
}

const waiting = (layer, stages) =>
  1 - layer.operations.reduce((sum, o) => sum + o.duration_s, 0) / (stages * layer.end);

function summary(layer, stage) {
  const mine = layer.operations.filter((o) => o.stage === stage);
  const clocks = (kind) => {
    const all = mine.filter((o) => o.kind === kind).map((o) => o.clock_mhz);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return low === high ? mhz(low) : `${low} to ${mhz(high)}`;
  };
  return {
    stage, forward: clocks("forward"), backward: clocks("backward"),
    busy: mine.reduce((sum, o) => sum + o.duration_s, 0),
    energy: mine.reduce((sum, o) => sum + o.energy_j, 0),
  };
}

function ramp(kind) {
  const steps = [0, 0.25, 0.5, 0.75, 1].map((level, i) =>
    s("rect", { class: `ramp ${kind} level${i}`, x: 9 * i, y: 0, width: 9, height: 11 }));
  return s("svg", { class: "ramp-box", viewBox: "0 0 45 11", width: 45, height: 11, "aria-hidden": "true" }, ...steps);
}

/** Colours come from the style sheet, so that light and dark are decided in one place. */
function lookOf(node) {
  const style = getComputedStyle(node);
  const of = (name) => style.getPropertyValue(name).trim();
  const numbers = (name) => of(name).split(/\s+/).map(Number);
  return {
    forward: numbers("--forward-ramp"), backward: numbers("--backward-ramp"),
    ink: of("--muted"), line: of("--line"), idle: of("--idle"), deadline: of("--deadline"),
    font: `12px ${style.fontFamily}`,
  };
}

/** ramp: hue, saturation %, lightness % at the lowest and at the highest clock. */
const colour = ([hue, saturation, low, high], level) =>
  `hsl(${hue} ${saturation}% ${low + (high - low) * level}%)`;

function drawLayer(pen, look, layer, { x, top, row, stages, clocks, width }) {
  const [low, high] = clocks;
  pen.font = look.font;
  pen.textBaseline = "middle";
  pen.fillStyle = look.ink;
  pen.textAlign = "left";
  pen.fillText(layer.title, LEFT, top + TITLE / 2 - 1);
  pen.textAlign = "right";
  const every = Math.ceil(12 / row);
  for (let stage = 0; stage < stages; stage++) {
    const y = top + TITLE + stage * row;
    pen.fillStyle = look.idle;
    pen.fillRect(x(0), y, x(layer.end) - x(0), row - 1);
    pen.fillStyle = look.ink;
    if (stage % every === 0) pen.fillText(stage === 0 ? "stage 0" : String(stage), LEFT - 8, y + row / 2);
  }
  for (const o of layer.operations) {
    const level = high > low ? (o.clock_mhz - low) / (high - low) : 1;
    const [from, to] = [x(o.start_s), x(o.start_s + o.duration_s)];
    pen.fillStyle = colour(look[o.kind] ?? look.forward, level);
    pen.fillRect(from, top + TITLE + o.stage * row, Math.max(0.5, to - from - (to - from > 3 ? 0.75 : 0)), row - 1);
  }
}

function drawAxis(pen, look, { x, end, bottom, width, deadline, name }) {
  pen.font = look.font;
  pen.strokeStyle = look.line;
  pen.fillStyle = look.ink;
  pen.textAlign = "center";
  const [size, unit] = timeUnit(end);
  const marks = ticks(0, end / size, width / 120);
  for (const value of marks) {
    if (x(value * size) > width - 46) continue;
    pen.fillText(value.toFixed(decimals(marks)), x(value * size), bottom + 15);
  }
  pen.textAlign = "right";
  pen.fillText(unit, width - RIGHT, bottom + 15);
  if (deadline === null) return;
  pen.fillStyle = look.deadline;
  pen.fillText(name, x(deadline) - 6, TITLE / 2 - 1);
  pen.strokeStyle = look.deadline;
  pen.setLineDash([4, 3]);
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x(deadline), 2);
  pen.lineTo(x(deadline), bottom);
  pen.stroke();
  pen.setLineDash([]);
}
