// GPUs of a job or of a node: the clock set, the clock seen, and the remaining time of the lease.

import { h, setText, show } from "./dom.js";
import { ago, known, mhz, NONE, watts } from "./format.js";
import { jobLink } from "./home.js";
import { PagedTable } from "./table.js";

export class Gpus {
  /** `query` is {node} or {job}; `arrivedS()` the seconds since the newest board. */
  constructor(query, arrivedS) {
    this.arrivedS = arrivedS;
    this.longest = new Map(); // longest remaining time seen per lease: the full bar
    this.table = new PagedTable({
      url: `/api/v1/gpus?${new URLSearchParams(query)}`, label: "GPUs", key: (row) => row.uuid,
      empty: () => "No GPU is known here.",
      columns: [
        { label: "GPU", sort: "place", fill: name },
        query.job
          ? { label: "Stage", sort: "stage", number: true, fill: (cell, gpu) => setText(cell, gpu.stage ?? NONE) }
          : { label: "Job, stage", sort: "job", make: () => [h("a"), h("span")], fill: job },
        { label: "Set", sort: "clock_asked_mhz", number: true, term: "clock set", fill: (cell, gpu) => setText(cell, known(gpu.clock_asked_mhz) ? mhz(gpu.clock_asked_mhz) : known(gpu.age_s) ? "default" : NONE) },
        { label: "Seen", sort: "clock_seen_mhz", number: true, term: "clock seen", fill: seen },
        { label: "Power", sort: "power_average_w", number: true, make: () => [bar("power"), h("span")], fill: power },
        { label: "Lease", term: "lease", make: () => [bar("lease"), h("span")], fill: (cell, gpu) => this.lease(cell, gpu) },
        { label: "Event reasons", term: "event reasons", wide: true, low: true, fill: (cell, gpu) => setText(cell, gpu.event_reasons.map((reason) => reason.replaceAll("_", " ")).join(", ") || NONE) },
        { label: "Age", sort: "age_s", number: true, low: true, fill: (cell, gpu) => setText(cell, known(gpu.age_s) ? ago(gpu.age_s) : "silent") },
      ],
      fill: (node, gpu) => node.classList.toggle("silent", !known(gpu.age_s)),
      shown: (page) => { this.rows = page.rows; },
    });
    this.table.table.classList.add("fleet");
    this.root = this.table.root;
  }

  refresh() {
    return this.table.refresh();
  }

  /** Leases run on between two boards. */
  tick() {
    const nodes = this.table.body.children;
    (this.rows ?? []).forEach((gpu, i) => nodes[i] && this.lease(nodes[i].children[5], gpu));
  }

  lease(cell, gpu) {
    const [meter, text] = cell.children;
    const { lease } = gpu;
    show(meter, Boolean(lease));
    if (!lease) return void setText(text, known(gpu.age_s) ? "none" : NONE);
    const left = Math.max(0, (lease.remaining_s ?? 0) - (this.arrivedS() ?? 0));
    const name = `${gpu.uuid} ${lease.epoch} ${lease.generation}`;
    const whole = Math.max(this.longest.get(name) ?? 0, lease.remaining_s ?? 0) || 1;
    this.longest.set(name, whole);
    // The job column names the holder already, unless another job holds the GPU.
    const holder = lease.job === gpu.job ? "" : `${lease.job}, `;
    meter.firstChild.style.width = `${Math.min(100, (100 * left) / whole)}%`;
    setText(text, left > 0 ? `${holder}${left.toFixed(0)}\u202fs` : `${holder}expired`);
    cell.title = `held by ${lease.job}, plan ${lease.generation}, epoch ${lease.epoch}`;
    return undefined;
  }
}

const bar = (name) => h("span", { class: `meter ${name}`, "aria-hidden": "true" }, h("span"));

function name(cell, gpu) {
  setText(cell, gpu.place);
  cell.title = `${gpu.model}, ${gpu.uuid}${gpu.controllable ? "" : `, not controllable: ${gpu.why_not_controllable}`}`;
  cell.classList.toggle("watched", !gpu.controllable);
}

function job(cell, gpu) {
  const [link, stage] = cell.children;
  show(link, gpu.job !== null);
  setText(link, gpu.job ?? "");
  if (gpu.job !== null) link.href = jobLink(gpu.job);
  setText(stage, gpu.job === null ? "none" : `, ${gpu.stage}`);
}

function seen(cell, gpu) {
  setText(cell, mhz(gpu.clock_seen_mhz));
  const apart = known(gpu.clock_asked_mhz) && known(gpu.clock_seen_mhz) && gpu.clock_seen_mhz > gpu.clock_asked_mhz;
  cell.classList.toggle("apart", apart);
  cell.title = apart ? "above the clock that was set" : "";
}

function power(cell, gpu) {
  const [meter, text] = cell.children;
  setText(text, watts(gpu.power_average_w));
  const share = known(gpu.power_average_w) && gpu.power_limit_w ? gpu.power_average_w / gpu.power_limit_w : 0;
  meter.firstChild.style.width = `${Math.min(100, 100 * share)}%`;
  cell.title = known(gpu.power_limit_w) ? `limit ${watts(gpu.power_limit_w)}` : "";
}
