// Entry point of the page: the address chooses a view, each pass updates it.

import { byId, h, setText, show } from "./dom.js";
import { ago, percent, seconds } from "./format.js";
import { Home } from "./home.js";
import { modeText } from "./job.js";
import { JobPage, NodePage } from "./jobpage.js";
import { Newest } from "./newest.js";
import { explainTerms } from "./terms.js";

const LOST_PASSES = 4; // One pass may be slow; four missing mean a lost controller.
const LOST_S_MIN = 8;
const BLINK_S = 2; // A connection that comes back sooner is not worth a red banner.

let cluster = null;
let view = null;

const boards = new Newest("/api/v1/cluster", (arrived) => {
  cluster = arrived;
  drawHead();
  drawView();
  drawLive();
}, drawLive);

explainTerms();
addEventListener("hashchange", () => {
  if (!cluster) return;
  view = null; // the words behind `?` may differ
  drawView();
  scrollTo(0, 0);
});
setInterval(() => {
  drawLive();
  if (boards.connected) view?.page.tick?.();
}, 500);

/** #/job/NAME and #/node/NAME; #NAME of earlier versions is a job. Words after `?` are the table’s. */
function asked() {
  const hash = location.hash.slice(1).split("?")[0];
  const [, kind, name] = /^\/(job|node)\/(.+)$/.exec(hash) ?? [];
  if (kind) return { kind, name: decoded(name) };
  if (["", "/", "content"].includes(hash)) return { kind: "home", name: "" };
  return { kind: hash.startsWith("/") ? "page" : "job", name: decoded(hash) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function drawHead() {
  const enforced = cluster.job_counts.enforced ?? 0;
  const { all } = cluster.job_counts;
  const mode = byId("mode");
  show(mode, all > 0);
  mode.className = `chip ${cluster.mode}`;
  setText(mode, all > 1 && enforced ? `enforcing ${enforced} of ${all} jobs` : modeText(cluster.mode, enforced > 0));
  show(byId("simulated"), cluster.simulated);
  setText(byId("sentence"), cluster.headline);
  const { all: nodes, lost } = cluster.node_counts;
  setText(byId("facts"), [
    cluster.policy.source ? `policy ${cluster.policy.source}${cluster.policy.digest ? ` (${cluster.policy.digest.slice(0, 8)})` : ""}` : "no policy file",
    `epoch ${cluster.epoch}`,
    `${nodes - lost} of ${nodes} agent${nodes === 1 ? "" : "s"} connected`,
    `a pass every ${cluster.interval_s < 1 ? seconds(cluster.interval_s) : ago(cluster.interval_s)}`,
  ].join(" · "));
  const fault = byId("policy-error");
  show(fault, cluster.policy.error !== "");
  setText(fault, `The policy file on disk is not in force; the previous policy still is. ${cluster.policy.error}`);
  const { grafana, audit_log: log } = cluster.links;
  const link = byId("grafana");
  show(link, Boolean(grafana));
  if (grafana) link.href = grafana.replaceAll("{job}", "");
  if (log) byId("audit-log").href = log.replaceAll("{job}", "");
}

async function drawView() {
  const { kind, name } = asked();
  if (!view || view.kind !== kind || view.name !== name) {
    view = { kind, name, page: pageOf(kind, name) };
    byId("view").replaceChildren(view.page.root);
    drawPath(kind, name);
  }
  const mine = view;
  const job = await mine.page.update(cluster);
  if (mine !== view) return;
  if (job === null) {
    const missing = kind === "job" ? `No job ${name} in the policy. ` : kind === "node" ? `No agent of the name ${name}. ` : `No page ${name}. `;
    byId("view").replaceChildren(h("p", { class: "card empty large" }, missing, h("a", { href: "#/" }, "All jobs")));
    view = null;
  }
  document.title = titleOf(kind, name, job);
}

function pageOf(kind, name) {
  const arrivedS = () => boards.ageS();
  if (kind === "job") return new JobPage(name, arrivedS);
  if (kind === "page") return { root: h("p"), update: () => null };
  return kind === "node" ? new NodePage(name, arrivedS) : new Home();
}

function drawPath(kind, name) {
  const home = kind === "home";
  show(byId("path"), !home);
  byId("path-name").textContent = home ? "" : `${kind} ${name}`;
}

function titleOf(kind, name, job) {
  if (kind === "home") {
    const faults = cluster.need_counts.fault;
    return faults ? `(${faults}) Joulecut` : "Joulecut";
  }
  const saved = job?.measured?.saved_ratio;
  return `${name}${saved > 0.001 && job.generation_running ? ` saves ${percent(saved)}` : ""} | Joulecut`;
}

/** Connected and fresh, or lost and for how long: old numbers must never look new. */
function drawLive() {
  const age = boards.ageS();
  const silent = cluster && age > Math.max(LOST_S_MIN, LOST_PASSES * cluster.interval_s);
  const lost = Boolean(cluster) && (silent || boards.awayS() > BLINK_S);
  byId("live").className = `live ${lost ? "lost" : boards.connected && cluster ? "fresh" : ""}`;
  document.body.classList.toggle("stale", lost);
  let text = "connecting";
  if (cluster) text = lost ? `lost, last seen ${ago(age)} ago` : `live, pass ${cluster.pass_number}, ${ago(age)} ago`;
  else if (boards.connected) text = "connected, no pass yet";
  setText(byId("live-text"), text);
  const banner = byId("lost");
  show(banner, lost);
  // What held at the last pass is no headline while nobody knows whether it still does.
  show(byId("sentence"), !lost);
  if (lost) {
    setText(banner, `Controller lost, last seen ${ago(age)} ago. ${boards.connected ? "The connection is open, but no pass has ended since." : "Trying to reconnect."} Everything below is old. Leases expire, and every GPU returns to default clocks.`);
  }
}

