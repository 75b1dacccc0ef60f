// One job, from its target down to single operations.

import { Clocks } from "./clocks.js";
import { h, keyed, setText, show } from "./dom.js";
import { ago, clock, known, percent, plural } from "./format.js";
import { Frontier, sloText } from "./frontier.js";
import { Tiles } from "./tiles.js";
import { term } from "./terms.js";
import { Timeline } from "./timeline.js";

const MODES = {
  recommend: "recommending, no command is sent",
  off: "off",
};

// The headline of each state; the next step follows it.
const STANDING = {
  enforced: "Enforced", recommended: "Recommended, not enforced", steady: "No change", default: "At default clocks",
  measuring: "Measuring", learning: "Learning", silent: "Silent", unplaced: "Not placed", paused: "Paused",
  tripped: "Released by the breaker", parked: "Parked: nothing uses its GPUs", off: "Off",
};

/** Why the job is held, in a word; null where it is not. */
function heldAs(job) {
  const kinds = (job.holds ?? []).map((hold) => hold.kind);
  if (kinds.includes("breaker")) return "released by the breaker";
  return kinds.length ? "paused" : null;
}

/** `enforced`: whether a plan is in force now, or the policy would only allow it. */
export const modeText = (mode, enforced) => mode === "enforce" ? (enforced ? "enforcing" : "enforce, no plan in force") : MODES[mode] ?? mode;

export class Job {
  constructor() {
    this.name = h("h2", { class: "job-name" });
    this.mode = h("span", { class: "chip" });
    this.shape = h("p", { class: "facts" });
    this.sentence = h("p", { class: "job-sentence" });
    this.reason = h("p", { class: "reason" });
    this.saving = h("p", { class: "facts", hidden: true }, term("hold-out", "Hold-outs:"), " ");
    this.states = h("ul", { class: "states" });
    this.links = h("p", { class: "job-links" });
    this.complaint = h("p", { class: "banner warn", hidden: true });
    this.tiles = new Tiles();
    this.frontier = new Frontier();
    this.clocks = new Clocks();
    this.timeline = new Timeline();
    this.root = h("article", {},
      h("div", { class: "job-head" },
        h("div", { class: "job-title" }, this.name, this.mode, this.links), this.sentence, this.reason, this.states, this.shape, this.saving, this.complaint),
      this.tiles.root,
      h("div", { class: "pair" }, this.frontier.root, this.clocks.root),
      this.timeline.root);
  }

  /** `links` are [text, address] pairs. */
  update(job, history, links) {
    setText(this.name, job.name);
    setText(this.mode, heldAs(job) ?? modeText(job.mode, job.state === "enforced"));
    this.mode.className = `chip ${job.mode}`;
    setText(this.sentence, headline(job));
    keyed(this.links, links, ([text]) => text, () => h("a"), (node, [text, address]) => {
      setText(node, text);
      node.href = address;
    });
    const reason = reasonOf(job);
    show(this.reason, reason !== "");
    setText(this.reason, reason);
    keyed(this.states, statesOf(job), ([name, text]) => `${name} ${text}`, () => h("li", {}, h("b"), " ", h("span")), (node, [name, text]) => {
      setText(node.children[0], name);
      setText(node.children[1], text);
    });
    const shape = shapeOf(job);
    if (shape !== this.shapeText) {
      this.shapeText = shape;
      const [before, after] = shape.split("granularity ");
      this.shape.replaceChildren(before, term("granularity"), ` ${after}`);
    }
    const saving = savingOf(job);
    show(this.saving, saving !== "");
    this.saving.lastChild.textContent = ` ${saving}`;
    show(this.complaint, job.complaint !== "" && job.state !== "silent");
    setText(this.complaint, `The job’s GPUs cannot be assigned to its stages: ${job.complaint}`);
    this.tiles.update(job, history);
    this.frontier.update(job);
    this.clocks.update(job);
    this.timeline.update(job);
  }
}

/** Capitalised, with a full stop; a key of the policy (max_slowdown) or one of `names` keeps its case. */
export function sentence(text, names = []) {
  if (!text) return "";
  const word = text.split(" ")[0];
  const fixed = word.includes("_") || names.includes(word.replace(/[:,]+$/, ""));
  const first = fixed ? text : text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/** From the job’s state alone: what the last pass did may not hold any more. */
function headline(job) {
  const peer = known(job.peer_iteration_time_s) ? " Waits for a slower sibling pipeline." : "";
  const next = job.next_step ? ` ${sentence(job.next_step, [job.name])}` : "";
  const delay = job.delay ? ` ${sentence(job.delay.text)}` : "";
  const state = STANDING[job.state] ?? job.state;
  return next.startsWith(` ${state} `) ? `${peer}${delay}${next}`.trim() : `${state}.${peer}${delay}${next}`;
}

/** Reason of the newest plan, and whether it is applied. */
function reasonOf(job) {
  const plan = job.decision;
  if (!plan) return "";
  // Without a number nothing was planned; only what the last pass says still holds.
  if (!plan.generation) return plan.reason === job.sentence && plan.reason !== job.next_step ? sentence(plan.reason, [job.name]) : "";
  const parts = [`Plan ${plan.generation}, made ${clock(plan.made_at_unix_s)}: ${sentence(plan.reason, [job.name])}`];
  if (plan.refused) parts.push(`Refused by the guard: ${sentence(plan.refused, [job.name])}`);
  else if (!plan.actions.length) parts.push("No change.");
  else if (job.applied?.generation === plan.generation) parts.push("Applied under leases.");
  else if (job.mode === "recommend") parts.push("Not applied: only recommended.");
  else if (job.applied) parts.push(`Not applied yet: plan ${job.applied.generation} is held.`);
  else parts.push("Not applied: clocks are at default.");
  return parts.join(" ");
}

/** What hold-out windows measured, and when the next one runs; empty without any. */
function savingOf(job) {
  const parts = [];
  const { saving, holdout } = job;
  if (saving?.saved_ratio) {
    const { mid, low, high } = saving.saved_ratio;
    const held = plural(saving.holdouts, "hold-out");
    parts.push(`saving ${percent(mid)} (${percent(low)} to ${percent(high)}), measured in ${held}`);
    if (saving.point_in_s > 0) parts.push(`1 point wide in about ${ago(saving.point_in_s)}`);
  } else if (saving) {
    parts.push(`saving not measured yet: ${saving.reason}`);
  }
  if (holdout) parts.push(holdout.text);
  if (job.baseline_look?.text) parts.push(job.baseline_look.text);
  return parts.join(" · ");
}

const WORK_VARIES = 0.005; // less is the noise of times

/** [name, text] of what the job does now, and of everything that stands against a plan but the first, which the headline has. */
function statesOf(job) {
  const { phase } = job;
  const spent = Object.entries(phase?.seconds_by_kind ?? {}).map(([kind, seconds]) => `${ago(seconds)} of ${kind}`);
  const states = [];
  if (spent.length) states.push(["Phase", `${phase.kind}${phase.operations ? ` (${phase.operations})` : ""}; so far ${spent.join(", ")}`]);
  if (phase?.work_sd_ratio >= WORK_VARIES) states.push(["Work", `varies by ${percent(phase.work_sd_ratio)} between iterations; they are judged at equal work`]);
  const plan = job.decision?.actions.length ? job.decision.forecast : null;
  if (plan?.band) {
    const range = (low, high) => `${percent(low, { signed: true })} to ${percent(high, { signed: true })}`;
    const { slowdown_low_ratio, slowdown_high_ratio, saved_low_ratio, saved_high_ratio } = plan.band;
    states.push(["Band", `nine in ten stay within ${range(slowdown_low_ratio, slowdown_high_ratio)} time and ${range(-saved_high_ratio, -saved_low_ratio)} energy (predicted)`]);
  }
  const { money } = job;
  if (money) {
    const least = money.least_cost ? `; energy and time cost least at ${percent(money.least_cost.slowdown_ratio, { signed: true })} time` : "";
    const assumed = money.prices.assumed.length ? " (assumed: the policy’s cluster.cost has none)" : "";
    states.push(["Worth", `${money.plan.text} (${money.basis})${least}; at ${money.prices.text}${assumed}`]);
    if (money.warning) states.push(["Limit", money.warning]);
  }
  for (const { text, action } of (job.vetoes ?? []).slice(1)) {
    states.push(["Also against a plan", action === "release" ? text : `${text} (the plan before comes back after it)`]);
  }
  return states;
}

function timingText(timing) {
  const error = known(timing.change_error_s) ? `, changes ${Math.round(timing.change_error_s * 1e3)}\u202fms off` : "";
  return `starts from ${timing.source}: ${timing.starts_per_minute.toFixed(1)} a minute, ${percent(timing.missed_ratio)} missed, ${Math.round(timing.start_jitter_s * 1e3)}\u202fms jitter${error}`;
}

function shapeOf(job) {
  const parts = [];
  const pipe = job.pipeline;
  if (pipe) {
    parts.push(`${pipe.schedule === "1f1b" ? "1F1B" : "GPipe"}, ${plural(pipe.stages, "stage")} × ${plural(pipe.microbatches, "microbatch").replace("microbatchs", "microbatches")}`);
    if (pipe.tensor_parallel > 1) parts.push(`tensor parallel ${pipe.tensor_parallel}`);
    if (pipe.data_parallel > 1) parts.push(`data parallel ${pipe.data_parallel}`);
  }
  parts.push(`granularity ${job.granularity}${job.granularity_why ? ` (${job.granularity_why})` : ""}`, sloText(job));
  if (job.timing) parts.push(timingText(job.timing));
  parts.push(job.profile === null ? "no profile" : `profile ${job.profile.split("/").pop()}`);
  parts.push(job.evidence.text);
  if (known(job.report_age_s)) parts.push(`last report ${ago(job.report_age_s)} ago`);
  const { error_time_ratio: time, error_power_ratio: power } = job.predicted;
  if (known(time) && known(power)) {
    parts.push(`prediction error ${percent(time)} in time, ${percent(power)} in power`);
  }
  return parts.join(" · ");
}
