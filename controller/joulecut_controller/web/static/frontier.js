// The frontier: least energy per iteration for each iteration time, and the job’s place on it.
//
// Filled marks are measured, hollow ones and lines predicted. Nothing can lie below the
// lower bound for the profile the plan was made from.

import { decimals, scale, ticks, timeUnit } from "./axis.js";
import { h, keyed, s, setText, show } from "./dom.js";
import { joules, known, percent, seconds } from "./format.js";
import { term } from "./terms.js";

const HEIGHT_MIN = 318;
const MARGIN = { top: 34, right: 18, bottom: 44, left: 58 };

// Names in the key, and their words in the glossary.
const WORDS = { baseline: "baseline", curve: "frontier", bound: "lower bound", deadline: "deadline", peer: "straggler" };

export class Frontier {
  constructor() {
    this.svg = s("svg", { class: "frontier", role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.key = h("ul", { class: "key" });
    this.none = h("p", { class: "empty" });
    this.plot = h("div", { class: "plot frontier-plot" }, this.svg, this.tip);
    this.root = h(
      "section", { class: "card frontier-card" },
      h("h2", {}, "Energy against iteration time ", h("small", {}, "above the frontier is ", term("bloat"))),
      this.none, this.plot, this.key,
    );
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.unpoint());
    new ResizeObserver(() => this.job && isDrawable(this.job) && this.draw()).observe(this.plot);
  }

  update(job) {
    this.job = job;
    const marks = marksOf(job);
    const drawable = isDrawable(job);
    show(this.plot, drawable);
    show(this.none, !job.frontier.length);
    setText(this.none, drawable ? WITHOUT_FRONTIER(job) : `${WITHOUT_FRONTIER(job)} Nothing is measured yet.`);
    if (drawable) this.draw();
    this.list(marks);
  }

  draw() {
    const width = Math.max(300, this.plot.clientWidth);
    const height = Math.max(HEIGHT_MIN, this.plot.clientHeight);
    const bottom = height - MARGIN.bottom;
    const job = this.job;
    const marks = marksOf(job);
    const range = rangeOf(job, marks);
    const x = scale(range.left, range.right, MARGIN.left, width - MARGIN.right);
    const y = scale(range.low, range.high, bottom, MARGIN.top);
    this.view = { x, y, width, height, bottom, range };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", describe(job));
    this.svg.replaceChildren(
      s("defs", {}, s("clipPath", { id: "frontier-clip" }, s("rect", {
        x: MARGIN.left, y: MARGIN.top - 6,
        width: width - MARGIN.left - MARGIN.right, height: bottom - MARGIN.top + 6,
      }))),
      ...axes(this.view, job),
      ...deadline(this.view, job),
      ...curves(this.view, job),
      ...peer(this.view, job),
      ...points(this.view, marks),
      (this.cross = s("g", { class: "cross", visibility: "hidden" }, s("circle", { r: 4 }))),
    );
  }

  list(marks) {
    const items = [
      ...marks,
      ...(this.job.frontier.length
        ? [
            { id: "curve", name: "frontier", basis: "predicted", text: "best found" },
            { id: "bound", name: "lower bound", basis: "predicted", text: "no plan uses less" },
          ]
        : []),
      ...(known(this.job.slo.deadline_s)
        ? [{ id: "deadline", name: "deadline", basis: sloText(this.job), text: seconds(this.job.slo.deadline_s, 4) }]
        : []),
      ...(known(this.job.peer_iteration_time_s)
        ? [{ id: "peer", name: "sibling pipeline", basis: "reported", text: seconds(this.job.peer_iteration_time_s, 4) }]
        : []),
    ];
    keyed(this.key, items, (item) => item.id, (item) =>
      h("li", {}, swatch(item.id), h("b", {}, WORDS[item.id] ? term(WORDS[item.id], item.name) : null), h("span", { class: "basis" }), h("span", { class: "value" })),
    (node, item) => {
      setText(node.children[1].firstElementChild ?? node.children[1], item.name);
      setText(node.children[2], item.basis);
      setText(node.children[3], item.text ?? `${seconds(item.time, 4)}, ${joules(item.energy, 4)}`);
    });
  }

  /** Shows the frontier point nearest to the pointer. */
  point(event) {
    const points = this.job?.frontier ?? [];
    if (!this.view || !points.length) return;
    const left = event.clientX - this.plot.getBoundingClientRect().left;
    const { x, y, range, width } = this.view;
    const nearest = points
      .filter((p) => p.iteration_time_s <= range.right)
      .reduce((a, b) => (Math.abs(x(a.iteration_time_s) - left) <= Math.abs(x(b.iteration_time_s) - left) ? a : b), points[0]);
    const [px, py] = [x(nearest.iteration_time_s), y(nearest.energy_j)];
    this.cross.setAttribute("visibility", "visible");
    this.cross.setAttribute("transform", `translate(${px},${py})`);
    const base = this.job.baseline?.iteration_time_s;
    const slow = known(base) ? ` (${percent(nearest.iteration_time_s / base - 1, { signed: true })})` : "";
    setText(this.tip, `${seconds(nearest.iteration_time_s, 4)}${slow}: ${joules(nearest.energy_j, 4)} predicted, at least ${joules(nearest.lower_bound_j, 4)}`);
    show(this.tip, true);
    const room = width - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(4, Math.min(room, px - this.tip.offsetWidth / 2))}px`;
    this.tip.style.top = `${Math.max(0, py - 44)}px`;
  }

  unpoint() {
    show(this.tip, false);
    this.cross?.setAttribute("visibility", "hidden");
  }
}

const isDrawable = (job) => job.frontier.length > 0 || marksOf(job).length > 0;

const WITHOUT_FRONTIER = (job) =>
  !job.baseline ? "No frontier yet: it follows the baseline."
    : job.profile === null && !job.decision?.forecast
      ? "No frontier yet: it follows the first plan that is predicted from other jobs."
      : "The frontier is being computed.";

export const sloText = (job) =>
  (job.slo.least_cost ? "least cost, now " : "") +
  (known(job.slo.max_slowdown_ratio)
    ? `max_slowdown ${percent(job.slo.max_slowdown_ratio, { decimals: 2 }).replace(/0+(?=\u202f)/, "").replace(/\.(?=\u202f)/, "")}`
    : job.slo.given_as) + (job.slo.statistic === "p95" ? " of P95" : "");

/** Points on the chart: baseline and now are measured, the plan is predicted. */
function marksOf(job) {
  const marks = [];
  const add = (id, name, basis, window) => {
    if (known(window?.iteration_time_s) && known(window?.energy_j)) {
      marks.push({ id, name, basis, time: window.iteration_time_s, energy: window.energy_j, sd: window.iteration_time_sd_s });
    }
  };
  add("baseline", "baseline", "measured", job.baseline);
  const plan = job.decision;
  if (plan?.actions.length) {
    add("plan", `plan ${plan.generation}${plan.refused ? ", refused" : ""}`, "predicted", plan.forecast);
  }
  add("now", "now", "measured", job.current);
  return marks;
}

function rangeOf(job, marks) {
  const times = marks.map((mark) => mark.time);
  for (const t of [job.slo.deadline_s, job.peer_iteration_time_s]) if (known(t)) times.push(t);
  const curve = job.frontier;
  if (curve.length) times.push(curve[0].iteration_time_s);
  const first = Math.min(...times);
  const last = Math.max(...times);
  const end = curve.length ? curve[curve.length - 1].iteration_time_s : last;
  // The far end of the frontier is long and flat; what matters is around the deadline.
  const right = Math.max(last, Math.min(end, last + Math.max(0.9 * (last - first), 0.02 * first)));
  const pad = Math.max(0.05 * (right - first), 0.002 * first);
  const range = { left: first - pad, right: right + pad };
  const energies = marks.map((mark) => mark.energy);
  for (const p of curve) {
    if (p.iteration_time_s <= range.right) energies.push(p.energy_j, p.lower_bound_j);
  }
  const shown = energies.filter(known);
  const [low, high] = [Math.min(...shown), Math.max(...shown)];
  const room = Math.max(0.1 * (high - low), 0.01 * high);
  return { ...range, low: low - room, high: high + room };
}

function axes({ x, y, width, height, bottom, range }, job) {
  const parts = [];
  const unit = range.high >= 2000 ? [1000, "kJ"] : [1, "J"];
  const rows = ticks(range.low / unit[0], range.high / unit[0], 5);
  for (const value of rows) {
    const at = y(value * unit[0]);
    parts.push(
      s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
      s("text", { class: "tick", x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, value.toFixed(decimals(rows))),
    );
  }
  const [size, time] = timeUnit(range.right);
  const columns = ticks(range.left / size, range.right / size, width / 95);
  for (const value of columns) {
    const at = x(value * size);
    parts.push(
      s("text", { class: "tick", x: at, y: bottom + 18, "text-anchor": "middle" }, value.toFixed(decimals(columns))),
      s("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }),
    );
  }
  parts.push(
    s("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
    s("text", { class: "label", x: width - MARGIN.right, y: height - 8, "text-anchor": "end" }, `iteration time, ${time}`),
    s("text", { class: "label", x: 2, y: 12 }, `energy per iteration, ${unit[1]}`),
  );
  const base = job.baseline?.iteration_time_s;
  if (known(base)) {
    const slow = ticks((range.left / base - 1) * 100, (range.right / base - 1) * 100, width / 110);
    for (const value of slow) {
      const at = x(base * (1 + value / 100));
      parts.push(s("text", { class: "tick faint", x: at, y: MARGIN.top - 8, "text-anchor": "middle" },
        percent(value / 100, { signed: true, decimals: decimals(slow) })));
    }
    parts.push(s("text", { class: "label", x: width - MARGIN.right, y: 12, "text-anchor": "end" }, "slowdown against baseline"));
  }
  return parts;
}

function deadline({ x, width, bottom }, job) {
  if (!known(job.slo.deadline_s)) return [];
  const at = x(job.slo.deadline_s);
  if (at < MARGIN.left || at > width - MARGIN.right) return [];
  return [
    s("rect", { class: "late", x: at, y: MARGIN.top, width: width - MARGIN.right - at, height: bottom - MARGIN.top }),
    s("line", { class: "deadline", x1: at, x2: at, y1: MARGIN.top, y2: bottom }),
    s("text", { class: "deadline-name", x: at + 6, y: bottom - 8 }, "deadline"),
  ];
}

/**
 * The points of both lines: the frontier’s, and the plan’s own. Its bound is evaluated there, and
 * where the plan needs less than the line between two others, the line goes through it. A bound for
 * a longer time holds for a shorter one, so that none rises with time.
 */
function linesOf(job) {
  const plan = job.decision?.actions.length ? job.decision.forecast : null;
  if (!known(plan?.iteration_time_s) || !known(plan.lower_bound_j)) return job.frontier;
  const at = plan.iteration_time_s;
  const [left, right] = [job.frontier.findLast((p) => p.iteration_time_s <= at), job.frontier.find((p) => p.iteration_time_s > at)];
  const share = left && right ? (at - left.iteration_time_s) / (right.iteration_time_s - left.iteration_time_s) : 0;
  const line = left ? left.energy_j + share * ((right ?? left).energy_j - left.energy_j) : Infinity;
  const own = { ...plan, energy_j: plan.energy_j < line ? plan.energy_j : null };
  const points = [...job.frontier, own].sort((a, b) => b.iteration_time_s - a.iteration_time_s);
  let most = -Infinity;
  return points.map((p) => ({ ...p, lower_bound_j: (most = Math.max(most, p.lower_bound_j ?? most)) })).reverse();
}

function curves({ x, y, bottom }, job) {
  if (!job.frontier.length) return [];
  const drawn = linesOf(job);
  const path = (key) => drawn
    .filter((p) => known(p[key]))
    .map((p, i) => `${i ? "L" : "M"}${x(p.iteration_time_s).toFixed(1)},${y(p[key]).toFixed(1)}`).join("");
  const ends = [drawn[0], drawn.at(-1)].map((p) => x(p.iteration_time_s).toFixed(1));
  return [s("g", { "clip-path": "url(#frontier-clip)" },
    s("path", { class: "impossible", d: `${path("lower_bound_j")}L${ends[1]},${bottom}L${ends[0]},${bottom}Z` }),
    s("path", { class: "bound", d: path("lower_bound_j") }),
    s("path", { class: "curve", d: path("energy_j") }),
  )];
}

function peer({ x, bottom }, job) {
  if (!known(job.peer_iteration_time_s)) return [];
  const at = x(job.peer_iteration_time_s);
  return [
    s("line", { class: "peer", x1: at, x2: at, y1: MARGIN.top, y2: bottom }),
    s("text", { class: "peer-name", x: at - 6, y: MARGIN.top + 14, "text-anchor": "end" }, "sibling pipeline"),
  ];
}

// Where each name goes, so that now and plan, which should coincide, stay readable.
const NAME_AT = { baseline: [10, -9, "start"], now: [12, -8, "start"], plan: [-11, 18, "end"] };
const NAMES_APART = 70; // pixels below which the names of baseline and now would overlap
const NAME_WIDTH = 56; // pixels left of a mark that its name takes

function nameAt(id, px, { beside, below }) {
  if (id === "baseline" && beside) return [10, 18, "start"];
  if (id === "now" && below) return [11, 18, "start"];
  if (id === "plan" && below) return [-11, -9, "end"];
  if (id === "plan" && px - NAME_WIDTH < MARGIN.left) return [12, 18, "start"];
  return NAME_AT[id];
}

function points({ x, y }, marks) {
  const parts = [];
  const [base, now] = ["baseline", "now"].map((id) => marks.find((mark) => mark.id === id));
  if (base && now) {
    parts.push(s("line", { class: "way", x1: x(base.time), y1: y(base.energy), x2: x(now.time), y2: y(now.energy) }));
  }
  const plan = marks.find((mark) => mark.id === "plan");
  const near = (a, b) => a && b && Math.abs(x(a.time) - x(b.time)) < NAMES_APART && Math.abs(y(a.energy) - y(b.energy)) < 20;
  const crowd = { beside: near(base, now), below: near(plan, now) && y(now.energy) > y(plan.energy) };
  for (const mark of marks) {
    const [px, py] = [x(mark.time), y(mark.energy)];
    const [dx, dy, anchor] = nameAt(mark.id, px, crowd);
    const spread = mark.id === "now" && known(mark.sd)
      ? s("line", { class: "spread", x1: x(mark.time - mark.sd), x2: x(mark.time + mark.sd), y1: py, y2: py })
      : null;
    const group = s("g", { class: `mark ${mark.id}` });
    if (spread) group.append(spread);
    group.append(
      s("circle", { cx: px, cy: py, r: mark.id === "plan" ? 7.5 : 5 }),
      s("text", { x: px + dx, y: py + dy, "text-anchor": anchor }, mark.name),
    );
    parts.push(group);
  }
  return parts;
}

function swatch(id) {
  const line = id === "curve" || id === "bound" || id === "deadline" || id === "peer";
  return s("svg", { class: "swatch", viewBox: "0 0 18 14", width: 18, height: 14, "aria-hidden": "true" },
    line
      ? s("line", { class: id, x1: 1, x2: 17, y1: 7, y2: 7 })
      : s("g", { class: `mark ${id}` }, s("circle", { cx: 9, cy: 7, r: id === "plan" ? 5 : 4.5 })));
}

/** The picture in words, for screen readers. */
function describe(job) {
  const parts = marksOf(job).map((m) => `${m.name} (${m.basis}): ${seconds(m.time, 4)} and ${joules(m.energy, 4)} per iteration`);
  if (known(job.slo.deadline_s)) parts.push(`deadline: ${seconds(job.slo.deadline_s, 4)}`);
  const curve = job.frontier;
  if (curve.length) {
    const [a, b] = [curve[0], curve[curve.length - 1]];
    parts.push(`the predicted frontier runs from ${seconds(a.iteration_time_s, 4)} and ${joules(a.energy_j, 4)} to ${seconds(b.iteration_time_s, 4)} and ${joules(b.energy_j, 4)}`);
  }
  return `${parts.join("; ")}.`;
}
