// Entry point of the page: passes each board of the stream to the page’s parts.

import { Decisions } from "./decisions.js";
import { byId, h, keyed, setText, show } from "./dom.js";
import { Fleet } from "./fleet.js";
import { ago, percent, plural } from "./format.js";
import { Job, modeText, sentence } from "./job.js";
import { Boards } from "./stream.js";

const HISTORY_MAX = 180; // Passes kept per job for the small lines; a quarter of an hour at 5 s.
const LOST_PASSES = 4; // One pass may be slow; four missing mean a lost controller.
const LOST_S_MIN = 8;
const BLINK_S = 2; // A stream that comes back sooner is not worth a red banner.

const fleet = new Fleet(byId("fleet"));
const decisions = new Decisions(byId("decisions"));
const histories = new Map(); // job name -> values of the passes seen since the page was opened
let job = null;
let board = null;

const boards = new Boards("/api/v1/stream", (arrived) => {
  board = arrived;
  remember(arrived);
  draw();
}, drawLive);

addEventListener("hashchange", () => board && draw());
setInterval(() => {
  drawLive();
  if (board && boards.connected) fleet.update(board, boards.ageS() ?? 0);
}, 500);

function remember(arrived) {
  const names = new Set(arrived.jobs.map((one) => one.name));
  for (const name of histories.keys()) if (!names.has(name)) histories.delete(name);
  for (const { name, current } of arrived.jobs) {
    const history = histories.get(name) ?? [];
    history.push({ time: current?.iteration_time_s, energy: current?.energy_j, power: current?.power_w });
    if (history.length > HISTORY_MAX) history.shift();
    histories.set(name, history);
  }
}

function draw() {
  drawHead();
  drawJob();
  fleet.update(board, 0);
  decisions.update(board);
  drawLive();
}

function drawHead() {
  const enforced = board.jobs.filter((one) => one.mode === "enforce").length;
  const mode = byId("mode");
  show(mode, board.jobs.length > 0);
  mode.className = `chip ${board.mode}`;
  setText(mode, board.jobs.length > 1 && enforced ? `enforcing ${enforced} of ${board.jobs.length} jobs` : modeText(board.mode));
  show(byId("simulated"), board.simulated);
  setText(byId("sentence"), sentence(board.sentence, board.jobs.map((job) => job.name)));
  const up = board.nodes.filter((node) => node.connected).length;
  setText(byId("facts"), [
    board.policy.source ? `policy ${board.policy.source}${board.policy.digest ? ` (${board.policy.digest.slice(0, 8)})` : ""}` : "no policy file",
    `epoch ${board.epoch}`,
    `${up} of ${plural(board.nodes.length, "agent")} connected`,
    `a pass every ${ago(board.interval_s)}`,
  ].join(" · "));
  const fault = byId("policy-error");
  show(fault, board.policy.error !== "");
  setText(fault, `The policy file on disk is not in force; the previous policy still is. ${board.policy.error}`);
  const budget = board.power_budget;
  const limits = byId("power-budget");
  show(limits, Boolean(budget));
  limits.className = `banner ${budget?.best_effort ? "warn" : "info"}`;
  setText(limits, budget ? sentence(budget.sentence) : "");
  const away = board.nodes.filter((node) => !node.connected);
  const lost = byId("agents-lost");
  show(lost, away.length > 0 && board.gpus.length > 0);
  setText(lost, `${plural(away.length, "agent")} lost: ${away.map((node) => `${node.node || node.address} (${node.error || "no answer"})`).join(", ")}. Their leases expire, and those GPUs return to default clocks.`);
}

function drawJob() {
  const root = byId("job");
  const names = board.jobs.map((one) => one.name);
  const asked = decodeURIComponent(location.hash.slice(1));
  const chosen = board.jobs.find((one) => one.name === asked) ?? board.jobs[0];
  const nav = byId("jobs-nav");
  show(nav, names.length > 1);
  keyed(nav, names.length > 1 ? board.jobs : [], (one) => one.name, () => h("a"), (node, one) => {
    node.setAttribute("href", `#${encodeURIComponent(one.name)}`);
    if (one === chosen) node.setAttribute("aria-current", "true");
    else node.removeAttribute("aria-current");
    setText(node, one.name);
  });
  if (!chosen) {
    job = null;
    const where = board.policy.source ? ` in ${board.policy.source}` : "";
    root.replaceChildren(h("p", { class: "card empty large" },
      `No jobs in the policy. GPUs are measured and left at default clocks; add a job under “jobs:”${where}.`));
    document.title = "Joulecut";
    return;
  }
  if (!job || job.of !== chosen.name) {
    job = new Job();
    job.of = chosen.name;
    root.replaceChildren(job.root);
  }
  job.update(chosen, histories.get(chosen.name) ?? []);
  const saved = chosen.measured.saved_ratio;
  document.title = `${chosen.name}${saved > 0.001 && chosen.generation_running ? ` saves ${percent(saved)}` : ""} | Joulecut`;
}

/** Connected and fresh, or lost and for how long: old numbers must never look new. */
function drawLive() {
  const age = boards.ageS();
  const silent = board && age > Math.max(LOST_S_MIN, LOST_PASSES * board.interval_s);
  const lost = Boolean(board) && (silent || boards.awayS() > BLINK_S);
  byId("live").className = `live ${lost ? "lost" : boards.connected && board ? "fresh" : ""}`;
  document.body.classList.toggle("stale", lost);
  let text = "connecting";
  if (board) text = lost ? `lost, last seen ${ago(age)} ago` : `live, pass ${board.pass_number}, ${ago(age)} ago`;
  else if (boards.connected) text = "connected, no pass yet";
  setText(byId("live-text"), text);
  const banner = byId("lost");
  show(banner, lost);
  if (lost) {
    setText(banner, `Controller lost, last seen ${ago(age)} ago. ${boards.connected ? "The connection is open, but no pass has ended since." : "Trying to reconnect."} Everything below is old. Leases expire, and every GPU returns to default clocks.`);
  }
}
