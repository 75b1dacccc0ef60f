"""What needs a person: faults that no pass mends, and decisions that only a person takes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.job_faults import job_faults
from joulecut_controller.cluster.state import (
    budget_ratio,
    next_step,
    predicted_saved_ratio,
    state_of,
)
from joulecut_controller.cluster.worth import job_worth
from joulecut_controller.policy.policy import Policy
from joulecut_controller.trust.energy_ledger import Payer, payer_of
from joulecut_controller.view import NOT_REPORTED, GpuView
from joulecut_engine.money import SECONDS_PER_HOUR
from joulecut_wire.messages import profile_of

# `fault`: something is wrong. `decision`: a person may go on. `note`: the controller copes.
Severity = Literal["fault", "decision", "note"]
SEVERITIES: tuple[Severity, ...] = ("fault", "decision", "note")

OVER_BUDGET_RATIO = 0.005  # above the tolerated slowdown: half a percent is noise of a window
# Of a full window. A plan for a straggler that recovered goes within fewer iterations, and the
# breaker trips within half as many.
JUDGED_ITERATIONS = 64
MENDED = ("", "driver_reload", "persistence_lost")  # drift: none, or what the agent mends at once
LISTED_MAX = 3  # names in one line


@dataclass(frozen=True, slots=True)
class Need:
    """One line. `runbook` is the heading of docs/runbook.md that says what to do; empty without.

    `job` and `node` are set where the line is about one of them.
    """

    severity: Severity
    text: str
    job: str = ""
    node: str = ""
    runbook: str = ""


def cluster_needs(board: Board) -> tuple[Need, ...]:
    """Those of controller, nodes and GPUs."""
    gpus = board.view.gpus.values()
    return (*_of_controller(board), *_of_nodes(board), *_of_gpus(gpus), *_of_unused(board))


def job_needs(board: Board) -> tuple[Need, ...]:
    """Those of this controller's jobs."""
    return tuple(need for job in board.jobs for need in (*_of_job(job), *_of_entry(job, board)))


def _of_controller(board: Board) -> Iterator[Need]:
    for warning in board.warnings:
        yield Need("fault", warning, runbook="JoulecutReconcileFailing")
    if board.policy_error:
        text = f"the policy file on disk is not in force: {board.policy_error}"
        yield Need("fault", text, runbook="JoulecutReconcileFailing")
    if board.policy and board.policy.cost.stale:
        yield Need("note", f"prices: {board.policy.cost.hour}")
    limits = board.power_limits
    if limits and limits.best_effort and limits.state != "recommended":
        yield Need("fault", limits.sentence, runbook="JoulecutPowerBudgetBestEffort")
    shown = {gpu.place: gpu.snapshot for gpu in board.view.gpus.values() if gpu.snapshot}
    kept_w = {gpu: w for gpu, one in shown.items() if (w := one.power_limit_kept_w)}
    if kept_w and limits is None:
        what = f"power limits of {sum(kept_w.values()):.6g} W on {_gpus(len(kept_w))} outlive their"
        ends = "until power.keep_hours of the node, or joulecut-agent restore there"
        yield Need("decision", f"{what} leases without a budget: {listed(list(kept_w))}; {ends}")


def _of_nodes(board: Board) -> Iterator[Need]:
    lost = [node for node in board.view.nodes if not (node.connected or node.quarantine)]
    if len(lost) == 1:
        name, error = lost[0].node or lost[0].address, lost[0].error or "no answer"
        yield Need("fault", f"agent lost ({error})", node=name, runbook="JoulecutAgentLost")
    elif lost:
        names = listed([node.node or node.address for node in lost])
        text = f"{len(lost)} of {len(board.view.nodes)} agents lost: {names}"
        yield Need("fault", text, runbook="JoulecutAgentLost")
    for node in board.view.nodes:
        name = node.node or node.address
        if node.quarantine:
            yield Need("fault", node.hindrance, node=name, runbook="JoulecutAgentDistrusted")
        elif node.conflict:
            yield Need("fault", node.conflict, node=name, runbook="JoulecutAgentDistrusted")
        elif node.connected and node.hindrance:
            yield Need("fault", node.hindrance, node=node.node)


def _of_gpus(gpus: Iterable[GpuView]) -> Iterator[Need]:
    drifting: list[GpuView] = []
    fixed, profiled = Counter[str](), Counter[str]()
    for gpu in gpus:
        shown = gpu.snapshot
        if shown is not None and (profile := profile_of(shown)):
            profiled[profile] += 1
        if shown is not None and (shown.drift not in MENDED or shown.backoff_s > 0.0):
            drifting.append(gpu)
        if not gpu.description.controllable:
            fixed[gpu.description.reason or "no reason given"] += 1
    if drifting:
        names = listed([gpu.place for gpu in drifting])
        text = f"clocks of {_gpus(len(drifting))} are set by another writer or do not hold: {names}"
        yield Need("fault", text, node=drifting[0].node, runbook="JoulecutClockDrift")
    for profile, count in profiled.most_common(LISTED_MAX):
        under = f"{_gpus(count)} under the vendor's power profile {profile}"
        yield Need("note", f"{under}: clocks are planned on top of it")
    for reason, count in fixed.most_common(LISTED_MAX):
        yield Need("note", f"{_gpus(count)} not controllable: {reason}")


def _of_unused(board: Board) -> Iterator[Need]:
    """GPUs that are held and not used, by owner, with their watts and money."""
    owners: dict[Payer, list[str]] = {}
    for uuid in board.unused_s:
        if gpu := board.view.gpus.get(uuid):
            owners.setdefault(payer_of(gpu.allocation), []).append(uuid)
    policy = board.policy or Policy()
    prices = policy.cost.prices()
    for payer, uuids in sorted(owners.items(), key=lambda one: -len(one[1]))[:LISTED_MAX]:
        shown = [board.view.gpus[uuid].snapshot for uuid in uuids]
        power_w = sum((one.power_average_w or 0.0) for one in shown if one is not None)
        minutes = min(board.unused_s[uuid] for uuid in uuids) / 60.0
        text = f"{_gpus(len(uuids))} held by {payer.name} and not used for {minutes:.0f} min"
        cost = prices.cost(SECONDS_PER_HOUR, power_w * SECONDS_PER_HOUR, len(uuids))
        word = f" {prices.currency}" if prices.currency else ""
        money = "" if prices.assumed else f", {cost:.3g}{word} an hour"
        leases = [one.lease for one in shown if one is not None and one.lease is not None]
        low = sum(lease.clock_lowest_mhz > 0 for lease in leases)
        lowered = f"; {low} at the clock of unused GPUs" if policy.idle.mode == "enforce" else ""
        yield Need("note", f"{text}: {power_w:.0f} W{money}{lowered}")


def _of_job(job: JobBoard) -> Iterator[Need]:
    name, view, state = job.view.policy.name, job.view, state_of(job)
    if state == "tripped":
        ends_itself = all(hold.ends_itself for hold in job.holds if hold.kind == "breaker")
        severity: Severity = "note" if ends_itself else "fault"
        yield Need(severity, next_step(job), job=name, runbook="JoulecutBreakerTripped")
    elif state == "paused":
        yield Need("decision", next_step(job), job=name, runbook="JoulecutPauseForgotten")
    elif state == "unplaced":
        yield Need("fault", next_step(job), job=name)
    elif state == "silent" or (state == "enforced" and math.isinf(view.placement.report_age_s)):
        # A job that the policy names may not run at all.
        never = state == "silent" and view.placement.complaint == NOT_REPORTED
        text = "has not reported yet" if never else "no report: no clock is changed for it"
        yield Need("note" if never else "fault", text, job=name, runbook="JoulecutJobSilent")
    elif view.measured.external_lock:
        text = f"no baseline is measured: {view.measured.external_lock}"
        yield Need("fault", text, job=name, runbook="JoulecutSecondWriter")
    peer_s, baseline = view.measured.peer_iteration_time_s, view.measured.baseline
    if peer_s is not None and math.isfinite(peer_s):
        slower = ""
        if baseline is not None and baseline.time_mean_s > 0.0:
            ratio = peer_s / baseline.time_mean_s - 1.0
            slower = f" takes {100.0 * ratio:.0f} % longer than this job's baseline"
        text = f"straggler: a sibling pipeline{slower}; this job waits for it"
        yield Need("note", text, job=name)
    elif _over_budget(job):
        ratio, budget = job.slowdown_ratio or 0.0, budget_ratio(job) or 0.0
        text = f"slowdown {100.0 * ratio:.1f} %, above the tolerated {100.0 * budget:.1f} %"
        yield Need("fault", text, job=name, runbook="JoulecutSlowdownAboveBudget")
    if job.delay is not None:
        yield Need("note", job.delay.text, job=name)
    if state == "recommended" and job.advisable is not None and job.advisable.yes:
        saved = predicted_saved_ratio(job)
        gain = f" (-{100.0 * saved:.1f} % energy, predicted)" if saved is not None else ""
        text = f"ready to be enforced{gain}"
        yield Need("decision", text, job=name, runbook="JoulecutDryRunForgotten")
    for text in job.learnt.drifting:
        yield Need("note", text, job=name, runbook="JoulecutPredictorDrifted")


def _of_entry(job: JobBoard, board: Board) -> Iterator[Need]:
    """Its reports, its policy, and a limit that loses money at the site's own prices; usual prices
    are no reason to warn.
    """
    name = job.view.policy.name
    for fault in job_faults(job.view, board.view)[:1]:
        text = f"its reports cannot be used as they are ({fault.count} so far): {fault.text}"
        yield Need("fault", text, job=name, node=fault.node)
    if warning := job.view.policy.warning:
        yield Need("note", warning, job=name)
    found = job_worth(job, board.policy)
    if found is not None and found.warning and not found.prices.assumed:
        yield Need("note", found.warning, job=name)


def _over_budget(job: JobBoard) -> bool:
    """Whether a job under a plan is slower than tolerated, unless its plan was made for a straggler
    that has just recovered.
    """
    slowdown, budget = job.slowdown_ratio, budget_ratio(job)
    baseline, current = job.view.measured.baseline, job.view.measured.current
    if state_of(job) != "enforced" or slowdown is None or budget is None or baseline is None:
        return False
    limit = 1.0 + budget + OVER_BUDGET_RATIO
    planned_s = job.applied.forecast.iteration_time_s if job.applied and job.applied.forecast else 0
    young = current is not None and current.iterations < JUDGED_ITERATIONS
    recovered = young and planned_s > limit * baseline.time_mean_s
    return 1.0 + slowdown > limit and not recovered


def listed(names: Sequence[str]) -> str:
    """A few names, and the count of the rest."""
    shown = ", ".join(names[:LISTED_MAX])
    more = len(names) - LISTED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
