"""The guard: checks a plan against the freshest view before any GPU is touched.

Independent of the planner: it reads bounds from policy, site and profile themselves and has the
plan verified by an independent checker, so that a fault of planner or estimator ends in "no change"
and not in a slow job.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from joulecut_controller.plan.costs import keys_of, reach_mhz
from joulecut_controller.plan.granularity import shortest_s, stretches_s
from joulecut_controller.plan.pace import EXPLAINED_RATIO
from joulecut_controller.plan.plan import Action, Forecast, Plan
from joulecut_controller.policy.owner import foreign
from joulecut_controller.policy.policy import Fixed
from joulecut_controller.view import BUDGET_JOB, GpuView, JobState, NodeView, View
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_wire.messages import GpuDescription

Check = Callable[[Problem, Goal, Solution], tuple[str, ...]]

# One clock per GPU lies up to some 15 % above the bound of `computation`, which is the one
# printed; a plan that lies half above it is a fault, not a plan.
GAP_RATIO_MAX = 0.5
# Deadlines agree to 1e-9 and more; this only absorbs the change from model to real seconds.
DEADLINE_ROUNDING = 1e-6
GENERATION_MAX = 2**63 - 1  # what every store and language can carry


@dataclass(frozen=True, slots=True)
class Authority:
    """Limits of this controller: epoch, lease length, and how old observations may be.

    `generation_last` is the newest generation given to the job before.
    """

    epoch: int
    generation_last: int
    ttl_s: float
    snapshot_age_max_s: float
    report_age_max_s: float


def refusal(plan: Plan, view: View, authority: Authority, check: Check) -> str:
    """Why this plan must not be applied; empty where it may be. Never raises on content."""
    newer = next((node for node in view.nodes if node.epoch_seen > authority.epoch), None)
    if newer is not None:
        return f"agent {newer.address} has seen epoch {newer.epoch_seen}: another leads"
    if plan.generation <= authority.generation_last or plan.generation > GENERATION_MAX:
        return f"generation {plan.generation} is not newer than {authority.generation_last}"
    locks = [action for action in plan.actions if action.leased]
    if not locks:
        # Releasing GPUs is always allowed. A plan per operation may need every GPU's highest clock
        # somewhere, which does not make it applicable.
        return ""
    job = next((job for job in view.jobs if job.policy.name == plan.job), None)
    if job is None:
        return "the job is not in the policy"
    return (
        _evidence(plan, job, authority)
        or _whole(plan, job)
        or _alone(job, view)
        or _ours(plan, job, view, authority)
        or (_timed(plan, job, view) if plan.mode == "enforce" else "")
        or next((why for one in locks if (why := _bounds(plan, one, job, view, authority))), "")
        or _sound(plan, job, view, check)
    )


def _evidence(plan: Plan, job: JobState, authority: Authority) -> str:
    fixed = bool(plan.basis and plan.basis.fixed)
    if plan.basis and fixed and plan.basis.fixed != job.policy.fixed:
        return "the policy asks for no such clock or power limit"
    if fixed and job.policy.is_order:
        return job.placement.complaint
    if job.policy.profile is None and not fixed:
        return "no profile: no evidence about other clocks"
    if job.measured.baseline is None:
        return "no baseline was measured"
    if not job.placement.report_age_s <= authority.report_age_max_s:
        return f"the job's last report is {job.placement.report_age_s:.0f} s old"
    return job.placement.complaint


def _whole(plan: Plan, job: JobState) -> str:
    """Every GPU of the job stands in the plan once, under its own stage."""
    pipeline, stages = job.policy.pipeline, job.placement.stages
    fixed = plan.basis is not None and plan.basis.fixed
    if not fixed and (pipeline is None or len(stages) != pipeline.stages or not all(stages)):
        return "a stage of the pipeline is missing"
    planned = sorted((action.stage, action.uuid) for action in plan.actions)
    placed = sorted((s, uuid) for s, uuids in enumerate(job.placement.stages) for uuid in uuids)
    return "" if planned == placed else "the plan does not cover the job's GPUs one by one"


def _alone(job: JobState, view: View) -> str:
    mine = set(job.placement.uuids)
    for other in view.jobs:
        if other.policy.name == job.policy.name:
            continue
        if shared := mine.intersection(other.placement.uuids):
            return f"GPU {min(shared)} is shared with job {other.policy.name}"
    return ""


def _ours(plan: Plan, job: JobState, view: View, authority: Authority) -> str:
    """Whether each GPU is the job's to set, and its agent is there and would let us, as of this
    moment. A recommendation needs no more than the agents: what only keeps commands from being
    sent (no keeper, another writer, a lease of another job) is no reason against it.
    """
    enforced = plan.mode == "enforce"
    if enforced and job.reservation:
        return job.reservation
    for action in plan.actions:
        gpu = view.gpus.get(action.uuid)
        node = view.node_at.get(gpu.address) if gpu else None
        if gpu is None or node is None:
            return f"GPU {action.uuid} is not known"
        why = foreign(job.policy, job.running, gpu.allocation) or node.hindrance or gpu.hindrance
        if action.unused_mhz and not node.lowers_unused:
            why = why or "its agent cannot end the lease at the first work"
        if enforced and why:
            return f"GPU {gpu.place}: {why}"
        if not node.connected:
            return f"agent {node.address} cannot be reached"
        if enforced and not 0.0 < authority.ttl_s <= node.ttl_max_s:
            return (
                f"a lease of {authority.ttl_s:g} s is longer than agent {node.address} "
                f"allows ({node.ttl_max_s:g} s)"
            )
    return ""


def _timed(plan: Plan, job: JobState, view: View) -> str:
    """Whether the clock changes of an iteration come in order, and far enough apart for what is
    measured of their timing."""
    timed = [action for action in plan.actions if action.steps]
    if not timed:
        return ""
    if plan.forecast is None:
        return "the plan has no forecast"
    least_s, iteration_s = shortest_s(job, view.gpus), plan.forecast.iteration_time_s
    for action in timed:
        gpu = view.gpus[action.uuid]
        why = next(_untimed(action, view.node_at[gpu.address], least_s, iteration_s), "")
        if why:
            return f"GPU {gpu.place}: {why}"
    return ""


def _untimed(action: Action, node: NodeView, least_s: float, iteration_s: float) -> Iterator[str]:
    offsets_s = tuple(step.offset_s for step in action.steps)
    if not 0.0 <= offsets_s[0] < offsets_s[-1] < iteration_s < math.inf:
        yield "a clock change outside of the iteration"
    stretch_s = min(stretches_s(offsets_s, iteration_s))
    if not stretch_s >= least_s:
        kept = f"a clock is kept for {stretch_s:.3g} s; set latency and jitter of iteration starts"
        yield f"{kept} allow {least_s:.3g} s at least"
    if len(action.steps) > node.timed_steps_max:
        yield f"its agent cannot time {len(action.steps)} changes"
    if any(step.clock_max_mhz > (action.clock_mhz or 0) for step in action.steps):
        yield "a step above the clock where it rests"


def _bounds(plan: Plan, action: Action, job: JobState, view: View, authority: Authority) -> str:
    gpu = view.gpus[action.uuid]
    why = next(_outside(plan, action, job, gpu, authority), "")
    return why and f"GPU {gpu.place}: {why}"


def _outside(
    plan: Plan, action: Action, job: JobState, gpu: GpuView, authority: Authority
) -> Iterator[str]:
    steps = (step.clock_max_mhz for step in action.steps)
    clocks = {action.clock_mhz, action.lowest_mhz, *steps}
    asked = sorted(mhz for mhz in clocks if mhz is not None)
    site, shown = gpu.description, gpu.snapshot
    enforced = plan.mode == "enforce"
    if shown is None or not gpu.age_s <= authority.snapshot_age_max_s:
        yield "there is no current reading"
    if enforced and not site.controllable:
        yield f"not controllable: {site.reason or 'no reason given'}"
    lease = shown.lease if shown else None
    if enforced and lease and lease.job not in (job.policy.name, BUDGET_JOB):
        yield f"its lease belongs to job {lease.job}"
    for mhz in asked:
        if mhz not in site.clocks_mhz:
            yield f"{mhz} MHz is not a supported clock"
        if mhz < max(job.policy.clocks.min_mhz, site.clock_min_mhz):
            yield f"{mhz} MHz is below what policy or site allow"
        if 0 < site.clock_max_mhz < mhz:
            yield f"{mhz} MHz is above what the site allows"
    fixed = plan.basis.fixed if plan.basis else None
    if fixed or action.unused_mhz or action.power_limit_w is not None:
        yield from _not_as_asked(action, asked, fixed or Fixed(), site)
    elif enforced or not plan.predicted_from:  # of other jobs nothing was measured of this one
        yield from _unmeasured(action, job, gpu, asked)


def _unmeasured(action: Action, job: JobState, gpu: GpuView, asked: list[int]) -> Iterator[str]:
    """A clock below those that were measured, or beyond a step of them."""
    lowest_mhz = _lowest_profiled_mhz(job, action.stage)
    step_mhz = reach_mhz(job, gpu)
    if lowest_mhz is None:
        yield f"no clock of stage {action.stage} is known"
    elif asked[0] < max(lowest_mhz, step_mhz):
        known = f"the lowest clock measured ({lowest_mhz} MHz)"
        if step_mhz > lowest_mhz:
            known = f"a step under the lowest clock that ran ({step_mhz:.0f} MHz)"
        yield f"{asked[0]} MHz is below {known}"


def _not_as_asked(
    action: Action, asked: list[int], fixed: Fixed, site: GpuDescription
) -> Iterator[str]:
    """What of a plan without a solver is not what the policy fixes, or not possible."""
    limit_w = action.power_limit_w
    nearest = [max((mhz for mhz in site.clocks_mhz if mhz <= fixed.clock_mhz), default=0)]
    if fixed.unused:  # the highest at work, so that the agent's raise is no slowdown
        top_mhz = site.clock_max_mhz or math.inf
        nearest = [action.unused_mhz, *[mhz for mhz in site.clocks_mhz if mhz <= top_mhz][-1:]]
    if action.steps or (asked and asked != nearest) or limit_w not in (None, fixed.power_w):
        yield f"a clock or power limit that is not the {fixed} that the policy asks for"
    if limit_w is not None and not site.power_controllable:
        yield f"its power limit cannot be set: {site.reason or 'the card has none'}"
    if limit_w and not site.power_limit_min_w <= limit_w <= site.power_limit_max_w:
        yield f"{limit_w:g} W is no power limit that the card takes"


def _lowest_profiled_mhz(job: JobState, stage: int) -> int | None:
    profile = job.policy.profile
    assert profile is not None
    pipeline = job.policy.pipeline
    assert pipeline is not None
    keys = keys_of(pipeline, stage, by_part=profile.stages > pipeline.stages)
    measured = [profile.options.get(key, ()) for key in keys]
    if not all(measured):
        return None
    return max(min(option.clock_mhz for option in options) for options in measured)


def _sound(plan: Plan, job: JobState, view: View, check: Check) -> str:
    """Whether the figures are finite and keep the deadline, and the solution passes the check."""
    forecast, basis = plan.forecast, plan.basis
    if basis is not None and basis.fixed:
        return ""  # nothing is predicted of it
    if forecast is None or plan.deadline_s is None:
        return "the plan has no forecast"
    figures = (forecast.iteration_time_s, forecast.energy_j, plan.deadline_s)
    if not all(math.isfinite(figure) and figure > 0.0 for figure in figures):
        return "the forecast is not made of numbers"
    if forecast.iteration_time_s > plan.deadline_s * (1.0 + DEADLINE_ROUNDING):
        return (
            f"predicted {forecast.iteration_time_s:.6g} s an iteration, later than the deadline "
            f"of {plan.deadline_s:.6g} s"
        )
    return _solved(plan, forecast, job, check, limited=_limited(job, view))


def _limited(job: JobState, view: View) -> bool:
    """Whether a power limit slows default clocks, so that lower ones may be faster."""
    known = (view.gpus.get(uuid) for uuid in job.placement.uuids)
    return any(gpu is not None and gpu.power_limited for gpu in known)


def _solved(plan: Plan, forecast: Forecast, job: JobState, check: Check, *, limited: bool) -> str:
    """Whether the whole iteration was predicted, communication and optimizer included, and the
    solution passes the check.
    """
    solution, basis = plan.solution, plan.basis
    if solution is None or basis is None or basis.problem is None or basis.goal is None:
        return "the plan answers no question"
    if not 0.0 <= forecast.gap_ratio <= GAP_RATIO_MAX:  # not a number too
        return f"the gap of {forecast.gap_ratio:.0%} to the lower bound is absurd"
    assert job.measured.baseline is not None  # `_evidence`
    default_s, current = job.measured.baseline.time_mean_s, job.measured.current
    if current is not None:  # its work may be less, and its clocks are no faster than default ones
        default_s = min(default_s, current.time_mean_s)
    if not limited and forecast.iteration_time_s < default_s * (1.0 - EXPLAINED_RATIO):
        return (
            f"predicted {forecast.iteration_time_s:.6g} s an iteration, but default clocks took "
            f"{default_s:.6g} s"
        )
    return next(iter(check(basis.problem, basis.goal, solution)), "")
