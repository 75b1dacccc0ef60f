// Current values against the baseline; each says whether it is measured or predicted.

import { h, s, setText, show } from "./dom.js";
import { joules, known, NONE, percent, seconds, wattHours, watts } from "./format.js";
import { term } from "./terms.js";

const GRANULARITIES = [
  ["gpu", "granularity gpu: one clock per GPU"],
  ["changes", "granularity changes: two clock changes per GPU and iteration, anywhere"],
  ["changes:4", "granularity changes: four clock changes per GPU and iteration, anywhere"],
  ["computation", "granularity computation: one clock per operation"],
];

const NOISE = 0.005; // Differences of half a percent are neither good nor bad news.

/** The tolerated slowdown, however the target is written. */
function toleratedOf(job) {
  const { deadline_s: deadline } = job.slo;
  const before = job.baseline?.iteration_time_s;
  return known(deadline) && known(before) ? Math.max(0, deadline / before - 1) : 0;
}

/** Sum of the GPUs’ own readings, until a window of iterations is complete. */
function readings(job) {
  const all = job.gpus.map((gpu) => gpu.power_w);
  return all.length && all.every(known) ? all.reduce((sum, watt) => sum + watt, 0) : null;
}

export class Tiles {
  constructor() {
    this.time = new Tile("Iteration time");
    this.energy = new Tile("Energy per iteration");
    this.power = new Tile("Power of the job");
    this.saved = new Savings();
    this.root = h("div", { class: "tiles" }, this.time.root, this.energy.root, this.power.root, this.saved.root);
  }

  /** `history` are the values of earlier boards, oldest first. */
  update(job, history) {
    const { baseline, current, measured } = job;
    const plan = job.decision?.actions.length ? job.decision.forecast : null;
    const planPower = plan ? plan.energy_j / plan.iteration_time_s : null;
    this.time.update({
      now: seconds(current?.iteration_time_s, 4),
      change: known(current?.iteration_time_s) ? measured.slowdown_ratio : null, better: (r) => r < 0,
      // Beyond the target is only our doing where no sibling is waited for.
      tolerated: known(job.peer_iteration_time_s) ? Infinity : toleratedOf(job),
      baseline: seconds(baseline?.iteration_time_s, 4),
      plan: seconds(plan?.iteration_time_s, 4),
      line: history.map((point) => point.time), base: baseline?.iteration_time_s, limit: job.slo.deadline_s,
    });
    this.energy.update({
      now: joules(current?.energy_j, 4),
      change: known(measured.saved_ratio) ? -measured.saved_ratio : null, better: (r) => r < 0, tolerated: 0,
      baseline: joules(baseline?.energy_j, 4),
      plan: joules(plan?.energy_j, 4),
      line: history.map((point) => point.energy), base: baseline?.energy_j,
    });
    const power = current?.power_w, powerBefore = baseline?.power_w;
    this.power.update({
      // Readings differ from the energy counters of the baseline by some percent: no change from them.
      now: watts(power ?? readings(job), 4),
      change: known(power) && known(powerBefore) ? power / powerBefore - 1 : null, better: (r) => r < 0, tolerated: 0,
      baseline: watts(powerBefore, 4),
      plan: watts(planPower, 4),
      line: history.map((point) => point.power), base: powerBefore,
    });
    this.saved.update(job);
  }
}

class Tile {
  constructor(title) {
    this.now = h("p", { class: "big" });
    this.change = h("span", { class: "change" });
    this.spark = s("svg", { class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" });
    this.baseline = h("dd");
    this.plan = h("dd");
    this.root = h("section", { class: "card tile" },
      h("h3", {}, title, " ", h("small", {}, "now, measured")),
      h("div", { class: "headline" }, this.now, this.change),
      this.spark,
      h("dl", {},
        h("div", {}, h("dt", {}, term("baseline"), " ", h("small", {}, "measured")), this.baseline),
        h("div", {}, h("dt", {}, term("plan"), " ", h("small", {}, "predicted")), this.plan)));
  }

  update({ now, change, better, tolerated, baseline, plan, line, base, limit }) {
    setText(this.now, now !== NONE ? now : baseline === NONE ? "not measured yet" : "measuring");
    this.now.classList.toggle("none", now === NONE);
    show(this.change, known(change));
    setText(this.change, percent(change, { signed: true }));
    const flat = known(change) && Math.abs(change) < NOISE;
    this.change.className = `change ${flat ? "" : better(change) ? "good" : change <= tolerated + NOISE / 5 ? "" : "bad"}`;
    setText(this.baseline, baseline);
    setText(this.plan, plan);
    spark(this.spark, line, base, limit);
  }
}

const SPARK = { width: 220, height: 30 };
const SPARK_RANGE_MIN = 0.02; // Less than two percent must not look like a mountain.

/** The last passes as a line; the thin line is the baseline, the dashed one the deadline. */
function spark(svg, values, base, limit) {
  svg.setAttribute("viewBox", `0 0 ${SPARK.width} ${SPARK.height}`);
  const all = [...values, base, limit].filter(known);
  if (values.filter(known).length < 2) return svg.replaceChildren();
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const room = Math.max(high - low, SPARK_RANGE_MIN * high);
  const y = (v) => 3 + (SPARK.height - 6) * (1 - (v - (low + high - room) / 2) / room);
  const x = (i) => (i / (values.length - 1)) * SPARK.width;
  const level = (v, name) => known(v) ? [s("line", { class: name, x1: 0, x2: SPARK.width, y1: y(v), y2: y(v) })] : [];
  let pen = "M";
  let path = "";
  values.forEach((v, i) => {
    if (!known(v)) return void (pen = "M");
    path += `${pen}${x(i).toFixed(1)},${y(v).toFixed(1)}`;
    pen = "L";
  });
  svg.replaceChildren(...level(base, "base"), ...level(limit, "limit"), s("path", { d: path }));
  return undefined;
}

const KINDS = ["intrinsic", "extrinsic", "variability"];

/** Power above the frontier; `wattsOf` a kind. "" before it is known. */
function bloatText(wattsOf) {
  return KINDS.filter((kind) => known(wattsOf(kind))).map((kind) => `${watts(wattsOf(kind))} ${kind}`).join(", ");
}

/** A row that is absent while its text is empty. */
class Row {
  constructor(...name) {
    this.text = h("dd");
    this.root = h("div", { class: "bloat" }, h("dt", {}, ...name, " ", h("small", {}, "predicted")), this.text);
  }

  update(text) {
    show(this.root, text);
    setText(this.text, text);
  }
}

class Savings {
  constructor() {
    this.measured = h("p", { class: "big" });
    this.promised = new Row("for the same time");
    this.predicted = h("dd");
    this.known = h("small");
    this.bloat = new Row(term("bloat", "bloat now"));
    this.before = new Row("bloat before the plan");
    this.bars = h("ul", { class: "bars" });
    this.none = h("p", { class: "empty small" });
    this.root = h("section", { class: "card tile savings" },
      h("h3", {}, term("measured saving", "Saved so far"), " ", this.known),
      h("div", { class: "headline" }, this.measured),
      h("dl", {}, this.promised.root,
        h("div", {}, h("dt", {}, "for all time under plans ", h("small", {}, "predicted")), this.predicted), this.bloat.root, this.before.root),
      h("h4", {}, "What each ", term("granularity"), " saves ", h("small", {}, "predicted")),
      this.bars, this.none);
  }

  update(job) {
    const { saved_j: saved, promised_j: promised, saved_known_ratio: share } = job.measured;
    setText(this.measured, known(saved) ? wattHours(saved) : "unknown");
    setText(this.known, known(share) ? `measured, for ${percent(share, { decimals: 0 })} of the time under plans` : "measured");
    this.promised.update(known(promised) ? wattHours(promised) : "");
    setText(this.predicted, wattHours(job.predicted.saved_j));
    this.bloat.update(bloatText((kind) => job.bloat_w[kind]));
    const running = job.applied && job.applied.generation === job.decision?.generation;
    this.before.update(running ? bloatText((kind) => job.decision.forecast?.[`${kind}_bloat_w`]) : "");
    const savings = job.decision?.forecast?.saved_ratio_by_granularity ?? {};
    const best = Math.max(0.01, ...Object.values(savings));
    const rows = GRANULARITIES.filter(([name]) => known(savings[name]));
    show(this.none, !rows.length);
    setText(this.none, "Unknown while there is no plan.");
    this.bars.replaceChildren(...rows.map(([name, meaning]) => {
      const bar = h("span", { class: "fill" });
      bar.style.width = `${Math.max(0, savings[name] / best) * 100}%`;
      return h("li", { class: name === job.granularity ? "chosen" : "", title: meaning },
        h("span", { class: "name" }, name), h("span", { class: "bar" }, bar), h("b", {}, percent(savings[name])));
    }));
  }
}
