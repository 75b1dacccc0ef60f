// Clocks per GPU: in the plan, set by the lease, and seen on the device.

import { h, keyed, setText, show } from "./dom.js";
import { gpuName, joules, known, mhz, NONE, seconds } from "./format.js";
import { term } from "./terms.js";

const SHOWN_RATIO = 0.75; // At least the top quarter of the clocks, or noise looks like a cut.
const ROWS_MAX = 64; // More than a screen says nothing; the API has them all.

export class Clocks {
  constructor() {
    this.rows = h("ol", { class: "clocks", tabindex: "0", "aria-label": "Clocks of each GPU" });
    this.head = h("p", { class: "clock-row clock-head" },
      h("span", {}, "stage, GPU"), h("span"), h("span", { class: "numbers" }, h("span", {}, "plan"), h("span", {}, "set"), h("span", {}, "seen")));
    this.note = h("p", { class: "empty small" });
    this.scale = h("p", { class: "clock-scale", "aria-hidden": "true" }, h("span"), h("span"));
    this.reasons = h("ul");
    this.details = h("details", { open: true }, h("summary", {}, "Why these clocks"), this.reasons);
    this.steps = h("tbody");
    this.prices = h("details", {}, h("summary", {}, "What one step costs ", h("small", {}, "an iteration of the job, predicted")),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What one step costs" },
        h("table", {}, h("thead", {}, h("tr", {}, ...["Stage", "From", "Clock", "Waits", "One step lower", "One step higher"].map((t) => h("th", { scope: "col" }, t)))), this.steps)));
    this.root = h("section", { class: "card clocks-card" },
      h("h2", {}, "Clocks: recommended against applied"),
      h("p", { class: "clock-key" },
        h("span", { class: "want-key" }, "recommended"), h("span", { class: "ask-key" }, "set, under a ", term("lease")),
        h("span", { class: "see-key" }, term("clock seen", "seen on the device"))),
      this.head, this.rows, this.scale, this.note, this.details, this.prices);
  }

  update(job) {
    const rows = job.gpus.slice(0, ROWS_MAX);
    const clocks = rows.flatMap((g) => [g.clock_recommended_mhz, g.clock_asked_mhz, g.clock_seen_mhz]).filter(known);
    const high = Math.max(...rows.map((g) => g.clock_highest_mhz).filter(known), ...clocks);
    const floor = Math.min(...clocks, job.clock_min_mhz || high, SHOWN_RATIO * high);
    const low = Math.max(0, Math.floor((floor - 0.1 * (high - floor) - 1) / 50) * 50);
    keyed(this.rows, rows, (g) => g.uuid, make, (node, g) => update(node, g, low, high));
    const drawable = Number.isFinite(high) && rows.length > 0;
    show(this.scale, drawable);
    show(this.head, drawable);
    setText(this.scale.children[0], mhz(low));
    setText(this.scale.children[1], mhz(high));
    const hidden = job.gpus.length - rows.length;
    show(this.note, !rows.length || hidden > 0);
    setText(this.note, rows.length
      ? `${hidden} more in the job’s JSON.`
      : job.complaint || "No GPU has reported this job yet.");
    const steps = job.decision?.clock_reasons ?? [];
    show(this.prices, steps.length > 0);
    keyed(this.steps, steps, (one) => `${one.stage} ${one.offset_s} ${one.clock_mhz}`, () => h("tr", {}, ...[1, 2, 3, 4, 5, 6].map(() => h("td"))), (node, one) => {
      const cells = [one.stage, seconds(one.offset_s), mhz(one.clock_mhz), seconds(one.slack_s), stepText(one.lower), stepText(one.higher)];
      cells.forEach((text, i) => setText(node.children[i], String(text)));
    });
    const reasons = byReason(rows);
    show(this.details, reasons.length > 0);
    keyed(this.reasons, reasons, ([reason]) => reason, () => h("li", {}, h("b"), " ", h("span")), (node, [reason, of]) => {
      setText(node.children[0], of.map(gpuName).join(", "));
      setText(node.children[1], reason);
    });
  }
}

const stepText = (step) => (step ? `${mhz(step.clock_mhz)}: ${change(step.time_s, seconds)}, ${change(step.energy_j, joules)}` : NONE);
const change = (value, text) => `${value > 0 ? "+" : ""}${text(value)}`;

/** [reason, GPUs] pairs: stages in the middle of a pipeline mostly share theirs. */
function byReason(rows) {
  const groups = new Map();
  for (const gpu of rows) {
    if (gpu.reason) groups.set(gpu.reason, [...(groups.get(gpu.reason) ?? []), gpu]);
  }
  return [...groups];
}

/** No clock means the default clocks, where it is certain that none is set. */
const clockText = (clock, certain) => (known(clock) ? String(clock) : certain ? "default" : NONE);

/** `1245–1410`: the clocks of an iteration, where they change in it. */
export const rangeText = (lowest, highest) => (known(lowest) && String(lowest) !== highest ? `${lowest}–${highest}` : highest);

function make() {
  return h("li", {},
    h("span", { class: "who" }),
    h("span", { class: "track" }, h("span", { class: "ask" }), h("span", { class: "want" }), h("span", { class: "see" })),
    h("span", { class: "numbers" }));
}

function update(node, gpu, low, high) {
  const [who, track, numbers] = node.children;
  const [ask, want, see] = track.children;
  const at = (clock) => `${(100 * (clock - low)) / (high - low)}%`;
  who.replaceChildren(h("b", {}, String(gpu.stage)), h("span", { class: "name" }, h("bdi", {}, gpuName(gpu))));
  who.title = gpu.uuid;
  show(ask, known(gpu.clock_asked_mhz));
  if (known(gpu.clock_asked_mhz)) ask.style.width = at(gpu.clock_asked_mhz);
  show(want, known(gpu.clock_recommended_mhz));
  if (known(gpu.clock_recommended_mhz)) want.style.left = at(gpu.clock_recommended_mhz);
  show(see, known(gpu.clock_seen_mhz) && gpu.clock_seen_mhz >= low);
  if (known(gpu.clock_seen_mhz)) see.style.left = at(gpu.clock_seen_mhz);
  const wanted = rangeText(gpu.clock_lowest_recommended_mhz, clockText(gpu.clock_recommended_mhz, gpu.verb !== null));
  const asked = clockText(gpu.clock_asked_mhz, known(gpu.age_s));
  const seen = clockText(gpu.clock_seen_mhz, false);
  numbers.replaceChildren(
    h("span", { class: "want-number", title: "recommended, MHz" }, wanted),
    h("span", { class: "ask-number", title: "set, MHz" }, asked),
    h("span", { class: "see-number", title: "seen, MHz" }, seen));
}
