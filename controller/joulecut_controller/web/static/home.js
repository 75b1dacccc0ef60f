// The home page: the cluster in a few numbers, what needs a person, its jobs and nodes.

import { HistoryChart } from "./chart.js";
import { Decisions } from "./decisions.js";
import { h, keyed, setText, show } from "./dom.js";
import { amount, known, NONE, percent, wattHours, watts } from "./format.js";
import { PagedTable } from "./table.js";
import { term } from "./terms.js";

const JOULES_PER_KWH = 3.6e6;
const NODES_SIZE = 25;

export const jobLink = (name) => `#/job/${encodeURIComponent(name)}`;
export const nodeLink = (name) => `#/node/${encodeURIComponent(name)}`;

export const STATES = {
  enforced: "enforced", recommended: "recommended", steady: "no saving", default: "at default",
  measuring: "measuring", silent: "silent", unplaced: "not placed",
  paused: "paused", tripped: "breaker", parked: "parked", off: "off",
};

export class Home {
  constructor() {
    this.power = new Stat(["Power of all GPUs ", h("small", {}, "now, measured")]);
    this.saved = new Stat([term("measured saving", "Saved"), " ", h("small", { class: "since" })]);
    this.gpus = new Stat(["GPUs ", term("controlled")]);
    this.budget = new Stat([term("power budget", "Power budget")]);
    this.stats = h("div", { class: "stats" }, this.power.root, this.saved.root, this.gpus.root, this.budget.root);
    this.needs = new Needs();
    this.chart = new HistoryChart({
      title: ["Power ", h("small", {}, "measured, against default clocks")], query: {},
      series: [
        { key: "without_w", name: "without", label: "without Joulecut (estimate)", colour: "--base", dash: [4, 3] },
        { key: "power_w", name: "with", label: "measured", colour: "--now" },
      ],
      band: [1, 2], format: (value) => watts(value), say: powerText,
    });
    this.jobs = jobsTable();
    this.nodes = nodesTable();
    this.decisions = h("div", { class: "decisions-box", tabindex: "0", role: "region", "aria-label": "Decisions" });
    this.lines = new Decisions(this.decisions);
    this.top = h("div", { class: "top-row" }, this.chart.root, h("div", { class: "side" }, this.needs.root,
      h("section", { class: "card decisions-card" }, h("h2", {}, "Decisions"), this.decisions)));
    this.root = h("article", { class: "home" },
      this.stats, this.top,
      h("section", { class: "card table-card" }, h("h2", {}, "Jobs"), this.jobs.root),
      h("section", { class: "card table-card" }, h("h2", {}, "Nodes"), this.nodes.root));
  }

  update(cluster) {
    this.drawPower(cluster);
    this.drawSaved(cluster);
    this.drawGpus(cluster);
    this.drawBudget(cluster.power_budget);
    this.needs.update(cluster);
    this.lines.update(cluster);
    this.chart.refresh();
    this.jobs.refresh();
    this.nodes.refresh();
  }

  drawPower({ power }) {
    const saved = power.without_w - power.now_w;
    const changed = Math.abs(saved) > 0.001 * power.without_w;
    this.power.update(watts(power.now_w), changed ? percent(-saved / power.without_w, { signed: true }) : "", saved > 0 ? "good" : "");
    this.power.facts([
      [["without Joulecut ", h("small", {}, power.without_is_predicted ? "partly predicted" : "estimate")], watts(power.without_w)],
      power.available_w > 0.5 ? [["plans available ", h("small", {}, "predicted")], `−${watts(power.available_w)}`] : null,
    ]);
  }

  drawSaved({ savings, savings_week: week, prices }) {
    const measured = week?.saved_kwh;
    const kwh = measured ? measured.mid : (savings.measured_j ?? NaN) / JOULES_PER_KWH;
    const same = measured ? week.predicted_kwh * JOULES_PER_KWH : savings.promised_j;
    setText(this.saved.root.querySelector(".since"), measured ? "last 7 days, at the ratio that hold-outs measured" : "since the controller began, measured");
    this.saved.update(energyText(kwh), measured ? `${energyText(measured.low)} to ${energyText(measured.high)}` : "", "plain");
    this.saved.facts([
      measured ? [["in measured windows"], energyText(week.measured_kwh.mid)] : null,
      measured ? [["between them ", h("small", {}, "assumed alike")], energyText(kwh - week.measured_kwh.mid)] : null,
      known(same) ? [["for the same time ", h("small", {}, "predicted")], wattHours(same)] : null,
      measured ? null : [["for all time under plans ", h("small", {}, "predicted")], wattHours(savings.predicted_j)],
      worth("money", week?.energy_money, prices.money_per_kwh, kwh, (value) => amount(value) + (prices.currency ? ` ${prices.currency}` : "")),
      worth("CO₂", week?.co2_kg, prices.co2_kg_per_kwh, kwh, (value) => `${value < 10 ? amount(value) : Math.round(value)}\u202fkg`),
      measured ? null : [[h("small", {}, "no interval yet: hold-outs measure it")], ""],
    ]);
  }

  drawGpus({ gpu_counts: gpus, node_counts: nodes, job_counts: jobs }) {
    this.gpus.update(gpus.all ? percent(gpus.controlled / gpus.all, { decimals: 0 }) : NONE, `${gpus.controlled} of ${gpus.all}`, "plain");
    const odd = [gpus.silent ? `${gpus.silent} silent` : "", gpus.not_controllable ? `${gpus.not_controllable} not controllable` : ""].filter(Boolean);
    this.gpus.facts([
      [["jobs"], jobs.all ? `${jobs.enforced ?? 0} of ${jobs.all} enforced` : "none"],
      [["nodes"], nodes.lost ? `${nodes.all}, ${nodes.lost} lost` : String(nodes.all)],
      odd.length ? [[odd.join(", ")], ""] : null,
    ]);
  }

  drawBudget(budget) {
    if (!budget?.budget_w) {
      this.budget.update(budget ? "lifted" : "none", "", "none");
      this.budget.facts([[[h("small", {}, budget ? budget.sentence : "cluster.power_budget_w in the policy sets one")], ""]]);
      return;
    }
    this.budget.update(watts(budget.budget_w), budget.best_effort ? "best effort" : budget.state, budget.best_effort ? "bad" : "plain");
    this.budget.facts([[["limits in force"], watts(budget.in_force_w)]]);
  }
}

/** An amount in money or CO₂; nothing without a price. The interval where hold-outs give one. */
function worth(name, interval, price, kwh, text) {
  if (!known(price)) return null;
  if (!interval) return [[name, " ", h("small", {}, "at the wall")], known(kwh) ? text(kwh * price) : NONE];
  return [[name, " ", h("small", {}, `${text(interval.low)} to ${text(interval.high)}`)], text(interval.mid)];
}

const energyText = (kwh) => wattHours(kwh * JOULES_PER_KWH);

function powerText(data) {
  const last = (values) => values.filter(known).at(-1);
  return `Power of all GPUs: ${watts(last(data.power_w))} at the end, ${watts(last(data.without_w))} without Joulecut. Numbers: /api/v1/history.`;
}

class Stat {
  constructor(title) {
    this.big = h("p", { class: "big" });
    this.change = h("span", { class: "change" });
    this.list = h("dl");
    this.root = h("section", { class: "card tile stat" }, h("h2", {}, ...title), h("div", { class: "headline" }, this.big, this.change), this.list);
  }

  update(big, change, look) {
    setText(this.big, big);
    this.big.classList.toggle("none", look === "none" || big === NONE);
    setText(this.change, change);
    this.change.className = `change ${look}`;
  }

  facts(rows) {
    this.list.replaceChildren(...rows.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, ...name), h("dd", {}, value))));
  }
}

const SEVERITY = { fault: "fault", decision: "decide", note: "note" };

class Needs {
  constructor() {
    this.count = h("small");
    this.list = h("ul", { class: "needs" });
    this.none = h("p", { class: "empty" }, "Nothing needs a person.");
    this.root = h("section", { class: "card needs-card" }, h("h2", {}, "Needs a person ", this.count), this.none, this.list);
  }

  update({ needs, need_counts: counts, links }) {
    const all = counts.fault + counts.decision + counts.note;
    show(this.none, counts.fault + counts.decision === 0);
    setText(this.count, all > needs.length ? `${all}, the first ${needs.length}` : "");
    keyed(this.list, needs, (need) => `${need.severity} ${need.job} ${need.text}`, makeNeed, (node, need) => {
      const [kind, words] = node.children;
      setText(kind, SEVERITY[need.severity]);
      kind.className = `kind-chip ${need.severity}`;
      const about = need.job ? h("a", { href: jobLink(need.job) }, need.job) : need.node ? h("a", { href: nodeLink(need.node) }, need.node) : null;
      const book = need.runbook && links.runbook ? h("a", { href: runbookOf(links.runbook, need.runbook), class: "book" }, "runbook") : null;
      words.replaceChildren(...[about, about ? " " : null, need.text, book ? " " : null, book].filter((part) => part !== null));
    });
  }
}

const makeNeed = () => h("li", {}, h("span"), h("span", { class: "words" }));

export const runbookOf = (address, alert) => address.includes("{alert}")
  ? address.replaceAll("{alert}", alert.toLowerCase()) : `${address}#${alert.toLowerCase()}`;

const text = (key) => (cell, row) => setText(cell, row[key] ?? NONE);

export function stateChip(cell, state) {
  const chip = cell.firstChild;
  setText(chip, STATES[state] ?? state);
  chip.className = `state ${state}`;
}

function jobsTable() {
  return new PagedTable({
    url: "/api/v1/cluster/jobs", label: "Jobs", key: (row) => row.name,
    empty: () => "No jobs in the policy. GPUs are measured and left at default clocks; add a job under “jobs:”.",
    columns: [
      { label: "Job", sort: "name", make: () => [h("a")], fill: (cell, row) => { cell.firstChild.href = jobLink(row.name); setText(cell.firstChild, row.name); cell.firstChild.title = row.name; } },
      { label: "State", sort: "state", term: "state", make: () => [h("span")], fill: (cell, row) => stateChip(cell, row.state) },
      { label: "GPUs", sort: "gpus", number: true, low: true, fill: text("gpus") },
      { label: "Rate from", sort: "rate_source", term: "rate source", low: true, fill: text("rate_source") },
      { label: "Granularity", sort: "granularity", term: "granularity", low: true, fill: text("granularity") },
      { label: "Power", sort: "power_w", number: true, low: true, fill: (cell, row) => setText(cell, watts(row.power_w)) },
      { label: "Slowdown of budget", sort: "slowdown_ratio", number: true, term: "slowdown", make: () => [h("span"), meter()], fill: slowdown },
      { label: "Predicted", sort: "predicted_saved_ratio", number: true, term: "predicted saving", fill: (cell, row) => setText(cell, percent(row.predicted_saved_ratio)) },
      { label: "Measured", sort: "saved_ratio", number: true, term: "measured saving", make: () => [h("span"), h("small")], fill: measured },
      { label: "Saved", sort: "saved_measured_j", number: true, low: true, fill: (cell, row) => setText(cell, energyText((row.saved_measured_j ?? NaN) / JOULES_PER_KWH)) },
      { label: "Next step", term: "next step", wide: true, fill: (cell, row) => { const step = row.next_step.replaceAll("`", ""); setText(cell, step || "none"); cell.title = step; } },
    ],
  });
}

const meter = () => h("span", { class: "meter", "aria-hidden": "true" }, h("span"));

function slowdown(cell, row) {
  const [words, bar] = cell.children;
  const { slowdown_ratio: now, budget_ratio: budget } = row;
  setText(words, known(now) ? `${percent(now, { signed: true })} ${row.straggler ? "straggler" : `of ${percent(budget)}`}` : known(budget) ? `of ${percent(budget)}` : NONE);
  show(bar, known(now) && budget > 0 && row.state === "enforced" && !row.straggler);
  bar.firstChild.style.width = `${Math.max(0, Math.min(100, (100 * now) / budget))}%`;
  bar.classList.toggle("over", now > budget + 0.005);
}

function measured(cell, row) {
  const [words, more] = cell.children;
  const interval = row.saved_ratio;
  const now = row.state === "enforced" ? row.saved_now_ratio : null;
  setText(words, percent(interval ? interval.mid : now));
  setText(more, interval ? ` ${(100 * interval.low).toFixed(1)} to ${(100 * interval.high).toFixed(1)}` : known(now) ? " now" : "");
}

function nodesTable() {
  return new PagedTable({
    url: "/api/v1/cluster/nodes", label: "Nodes", key: (row) => row.address, size: NODES_SIZE,
    empty: () => "No agents are configured.",
    columns: [
      { label: "Node", sort: "node", make: () => [h("a")], fill: (cell, row) => { cell.firstChild.href = nodeLink(row.node); setText(cell.firstChild, row.node); cell.title = row.address; } },
      { label: "Agent", sort: "state", make: () => [h("span")], fill: (cell, row) => { setText(cell.firstChild, row.state); cell.firstChild.className = `state ${row.state}`; cell.title = row.error; } },
      { label: "GPUs", sort: "gpus", number: true, fill: text("gpus") },
      { label: "Controlled", sort: "controlled_gpus", number: true, term: "controlled", fill: text("controlled_gpus") },
      { label: "Power", sort: "power_w", number: true, fill: (cell, row) => setText(cell, watts(row.power_w)) },
      { label: "Hottest", sort: "temperature_celsius", number: true, low: true, fill: (cell, row) => setText(cell, known(row.temperature_celsius) ? `${Math.round(row.temperature_celsius)}\u202f°C` : NONE) },
      { label: "Jobs", sort: "jobs", wide: true, low: true, fill: (cell, row) => { setText(cell, row.jobs || "none"); cell.title = row.jobs; } },
    ],
  });
}

