// The page of one job: as it stands now, its history, its GPUs and decisions.

import { HistoryChart } from "./chart.js";
import { Decisions } from "./decisions.js";
import { h, show } from "./dom.js";
import { known, seconds, watts } from "./format.js";
import { Gpus } from "./gpus.js";
import { runbookOf } from "./home.js";
import { Job } from "./job.js";

const EVENTS_SHOWN = 40;
const LIVE_MAX = 180; // passes kept for the small lines; a quarter of an hour at 5 s
const HOUR_S = 3600;

export class JobPage {
  constructor(name, arrivedS) {
    this.name = name;
    this.url = `/api/v1/jobs/${encodeURIComponent(name)}`;
    this.job = new Job();
    this.history = [];
    this.gpus = new Gpus({ job: name }, arrivedS);
    this.decisions = h("div", { class: "decisions-box", tabindex: "0", role: "region", "aria-label": "Decisions" });
    this.lines = new Decisions(this.decisions);
    const chart = (title, key, colour, format) => new HistoryChart({
      title, query: { job: name }, format: (value) => format(value),
      series: [{ key, name: key, label: title, colour }],
      say: (data) => `${title}: ${format(data[key].filter(known).at(-1))} at the end. Numbers: /api/v1/history.`,
    });
    this.charts = [
      chart("Iteration time", "iteration_time_s", "--plan", seconds),
      chart("Power of the job", "power_w", "--now", watts),
    ];
    this.root = h("div", { class: "job-page" }, this.job.root,
      h("div", { class: "pair even" }, ...this.charts.map((one) => one.root)),
      h("div", { class: "pair fleet-pair" },
        h("section", { class: "card table-card" }, h("h2", {}, "GPUs"), this.gpus.root),
        h("section", { class: "card" }, h("h2", {}, "Decisions"), this.decisions)));
    this.seed();
  }

  /** The hour before the page was opened, for the small lines. */
  async seed() {
    const query = new URLSearchParams({ span_s: HOUR_S, job: this.name });
    const answer = await fetch(`/api/v1/history?${query}`).catch(() => null);
    if (!answer?.ok) return;
    const data = await answer.json();
    const before = data.at_unix_s.map((_, i) => ({ time: data.iteration_time_s[i], energy: data.energy_j[i], power: data.power_w[i] }));
    this.history.unshift(...before.filter((point) => known(point.time)).slice(-LIVE_MAX));
  }

  /** Resolves to the job; null where there is none of that name, undefined where nothing answers. */
  async update(cluster) {
    const [answer, events] = await Promise.all([
      fetch(this.url).catch(() => null),
      fetch(`/api/v1/events?detail=0&limit=${EVENTS_SHOWN}&job=${encodeURIComponent(this.name)}`).catch(() => null),
    ]);
    if (answer?.status === 404) return null;
    if (!answer?.ok) return undefined;
    const job = await answer.json();
    const { current } = job;
    this.history.push({ time: current?.iteration_time_s, energy: current?.energy_j, power: current?.power_w });
    if (this.history.length > 2 * LIVE_MAX) this.history.shift();
    this.job.update(job, this.history, linksOf(cluster.links, job));
    if (events?.ok) this.lines.update(await events.json());
    this.charts.forEach((one) => one.refresh());
    this.gpus.refresh();
    return job;
  }

  tick() {
    this.gpus.tick();
  }
}

/** [text, address] of what else knows about this job. */
function linksOf(links, job) {
  const name = encodeURIComponent(job.name);
  const found = [];
  if (links.grafana) found.push(["Grafana", links.grafana.replaceAll("{job}", name)]);
  if (links.runbook) found.push(["runbook", runbookOf(links.runbook, RUNBOOKS[job.state] ?? "Job")]);
  found.push(["audit log", links.audit_log ? links.audit_log.replaceAll("{job}", name) : `/api/v1/events?job=${name}`]);
  return found;
}

const RUNBOOKS = { tripped: "JoulecutBreakerTripped", paused: "JoulecutPauseForgotten", silent: "JoulecutJobSilent", recommended: "JoulecutDryRunForgotten" };

/** One node: its agent, and its GPUs. */
export class NodePage {
  constructor(name, arrivedS) {
    this.name = name;
    this.about = h("p", { class: "facts" });
    this.gpus = new Gpus({ node: name }, arrivedS);
    this.root = h("article", {}, h("div", { class: "job-head" }, h("h2", { class: "job-name" }, name), this.about),
      h("section", { class: "card table-card" }, h("h2", {}, "GPUs"), this.gpus.root));
  }

  /** Resolves to the node; null where there is none of that name, undefined where nothing answers. */
  async update() {
    const answer = await fetch(`/api/v1/cluster/nodes?${new URLSearchParams({ search: this.name, size: 200 })}`).catch(() => null);
    if (!answer?.ok) return undefined;
    const row = (await answer.json()).rows.find((one) => one.node === this.name);
    if (!row) return null;
    this.gpus.refresh();
    this.about.textContent = [`agent at ${row.address}, ${row.state}${row.error ? ` (${row.error})` : ""}`, `${row.controlled_gpus} of ${row.gpus} GPUs controlled`, watts(row.power_w), row.jobs || "no job"].join(" · ");
    return row;
  }

  tick() {
    this.gpus.tick();
  }
}
