// Every GPU: the clock set, the clock seen, and the remaining time of its lease.

import { h, keyed, setText, show } from "./dom.js";
import { ago, gpuName, known, mhz, NONE, watts } from "./format.js";

const ROWS_MAX = 256; // A browser stays quick; larger fleets are read from the API.

const TITLES = {
  Set: "Highest clock allowed by the lease",
  Seen: "Clock the device shows",
  Lease: "Time until the GPU returns to its default clocks unless the lease is renewed",
  "Event reasons": "Why the device is below its maximum clock, as its driver says",
};
const COLUMNS = ["GPU", "Job, stage", "Set", "Seen", "Power", "Lease", "Event reasons", "Age"];

export class Fleet {
  constructor(root) {
    this.body = h("tbody");
    this.table = h("table", { class: "fleet" },
      h("thead", {}, h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col", title: TITLES[name] }, name)))), this.body);
    this.scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "fleet-title" }, this.table);
    this.none = h("p", { class: "empty" });
    this.note = h("p", { class: "empty small" });
    root.append(this.none, this.scroll, this.note);
    this.longest = new Map(); // longest remaining time seen per lease: the full bar
  }

  /** `sinceS`: seconds since the board arrived; leases and ages run on meanwhile. */
  update(board, sinceS) {
    const gpus = board.gpus.slice(0, ROWS_MAX);
    show(this.scroll, gpus.length > 0);
    show(this.none, gpus.length === 0);
    setText(this.none, noGpus(board));
    show(this.note, board.gpus.length > gpus.length || models(board) !== "");
    const more = board.gpus.length - gpus.length;
    setText(this.note, `${models(board)}${more > 0 ? `; ${more} more in /api/v1/board` : ""}`);
    this.remember(gpus);
    keyed(this.body, gpus, (gpu) => gpu.uuid, make, (node, gpu) => this.fill(node, gpu, sinceS));
  }

  remember(gpus) {
    const kept = new Map();
    for (const { uuid, lease } of gpus) {
      if (!lease) continue;
      const name = `${uuid} ${lease.epoch} ${lease.generation}`;
      kept.set(name, Math.max(this.longest.get(name) ?? 0, lease.remaining_s ?? 0));
    }
    this.longest = kept;
  }

  fill(node, gpu, sinceS) {
    const [name, job, asked, seen, power, lease, events, age] = node.children;
    const old = !known(gpu.age_s);
    node.classList.toggle("silent", old);
    setText(name, gpuName(gpu));
    name.title = `${gpu.model}, ${gpu.uuid}${gpu.controllable ? "" : `, not controllable: ${gpu.why_not_controllable}`}`;
    name.classList.toggle("watched", !gpu.controllable);
    setText(job, gpu.job === null ? "none" : `${gpu.job}, ${gpu.stage}`);
    setText(asked, known(gpu.clock_asked_mhz) ? mhz(gpu.clock_asked_mhz) : old ? NONE : "default");
    setText(seen, mhz(gpu.clock_seen_mhz));
    const apart = known(gpu.clock_asked_mhz) && known(gpu.clock_seen_mhz) && gpu.clock_seen_mhz > gpu.clock_asked_mhz;
    seen.classList.toggle("apart", apart);
    seen.title = apart ? "above the clock that was set" : "";
    this.power(power, gpu);
    this.lease(lease, gpu, sinceS);
    setText(events, gpu.event_reasons.map((reason) => reason.replaceAll("_", " ")).join(", ") || NONE);
    setText(age, old ? "silent" : ago(gpu.age_s + sinceS));
  }

  power(cell, gpu) {
    const [bar, text] = cell.children;
    setText(text, watts(gpu.power_average_w));
    const share = known(gpu.power_average_w) && gpu.power_limit_w ? gpu.power_average_w / gpu.power_limit_w : 0;
    bar.firstChild.style.width = `${Math.min(100, 100 * share)}%`;
    cell.title = known(gpu.power_limit_w) ? `limit ${watts(gpu.power_limit_w)}` : "";
  }

  lease(cell, gpu, sinceS) {
    const [bar, text] = cell.children;
    const { lease } = gpu;
    show(bar, Boolean(lease));
    if (!lease) return void setText(text, known(gpu.age_s) ? "none" : NONE);
    const left = Math.max(0, (lease.remaining_s ?? 0) - sinceS);
    // The job column names the holder already, unless another job holds the GPU.
    const holder = lease.job === gpu.job ? "" : `${lease.job}, `;
    const whole = this.longest.get(`${gpu.uuid} ${lease.epoch} ${lease.generation}`) || 1;
    bar.firstChild.style.width = `${Math.min(100, (100 * left) / whole)}%`;
    setText(text, left > 0 ? `${holder}${left.toFixed(0)}\u202fs` : `${holder}expired`);
    cell.title = `held by ${lease.job}, plan ${lease.generation}, epoch ${lease.epoch}`;
    return undefined;
  }
}

function make() {
  const bar = (name) => h("span", { class: `meter ${name}`, "aria-hidden": "true" }, h("span"));
  return h("tr", {},
    h("th", { scope: "row" }), h("td"), h("td"), h("td"),
    h("td", {}, bar("power"), h("span")), h("td", {}, bar("lease"), h("span")), h("td"), h("td"));
}

function noGpus(board) {
  const agents = board.nodes.length;
  if (!agents) return "No agents are configured.";
  const lost = board.nodes.filter((node) => !node.connected);
  if (!lost.length) return "The agents report no GPU.";
  return `No GPU is known: ${lost.map((node) => `${node.node || node.address} ${node.error || "does not answer"}`).join("; ")}.`;
}

function models(board) {
  const counts = new Map();
  for (const gpu of board.gpus) counts.set(gpu.model, (counts.get(gpu.model) ?? 0) + 1);
  return [...counts].map(([model, count]) => `${count} × ${model}`).join(", ");
}
