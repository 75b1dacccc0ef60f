"""A fixed clock (`clocks.lock_mhz`, `idle.lock_mhz`) or power limit: a plan without a solver.

The operator asks for it, so nothing is predicted. Each GPU has its highest supported clock that is
no higher, and the limit where it is below the one in force. Lease, guard and bounds are those of
every plan. A target beside it is kept by the breaker, and needs reports and a baseline. Pure.
"""

import math
from dataclasses import replace

from joulecut_controller.plan.plan import Action, Basis, Plan, Verb
from joulecut_controller.plan.planner import Decision, vetoes
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.veto import first
from joulecut_controller.policy.policy import Fixed
from joulecut_controller.view import GpuView, View

# Vetoes that do not apply: nothing is predicted, and an order rests on no reports of the job.
UNPREDICTED = frozenset(("pipeline", "profile", "unready"))
UNREPORTED = frozenset(("baseline", "silent", "phase"))


def fixed_decision(inputs: PlanningInput, state: PlannerState) -> Decision:
    """The fixed clock and limit on all GPUs of the job, or default clocks and why."""
    policy, mode = inputs.job.policy, inputs.mode
    fixed = policy.fixed
    state = replace(state, clocks=None, goal=None, costs=None, suspended="")
    given_back = replace(state, asked={}, asked_w={})
    needless = UNPREDICTED | (UNREPORTED if policy.is_order else frozenset())
    against = tuple(veto for veto in vetoes(inputs) if veto.kind not in needless)
    if (veto := first(against)) is not None:
        return Decision("default", veto.kind, veto.text, given_back)
    words, actions = f"the policy asks for {fixed}", list[Action]()
    for stage, uuids in enumerate(inputs.job.placement.stages):
        for uuid in uuids:
            gpu = inputs.view.gpus[uuid]
            if why := _beyond(gpu, fixed) or _held(inputs.view, gpu, fixed):
                return Decision("default", "bounds", f"{words}, and {why}", given_back)
            clock_mhz, limit_w, unused_mhz = _clock_mhz(gpu, fixed), None, 0
            if fixed.unused:
                clock_mhz, unused_mhz = _unused_mhz(gpu, fixed, policy.clocks.min_mhz)
            if not inputs.power_budget:  # which sets all limits, and none above this one
                limit_w = _limit_w(gpu, fixed)
            before = (inputs.running.get(uuid, 0), inputs.limits_w.get(uuid, 0.0))
            verb = _verb(before, (clock_mhz or 0, limit_w or 0.0))
            made = Action(uuid, stage, verb, clock_mhz, words, power_limit_w=limit_w)
            actions.append(replace(made, unused_mhz=unused_mhz))
    asked = {action.uuid: action.lowest_mhz or 0 for action in actions}
    asked_w = {one.uuid: one.power_limit_w for one in actions if one.power_limit_w}
    runs = state.mode == mode
    if mode == "enforce":
        locks = {action.uuid: action.clock_mhz or 0 for action in actions}
        runs = (locks, asked_w) == (dict(inputs.running), dict(inputs.limits_w))
    if (asked, asked_w) == (state.asked, state.asked_w) and runs:
        return Decision("keep", "steady", "plan unchanged", state)
    plan = Plan(
        job=policy.name,
        mode=mode,
        actions=tuple(actions),
        reason=words,
        basis=Basis(fixed=fixed),
    )
    now_s = inputs.view.now_s
    state = replace(state, mode=mode, asked=asked, asked_w=asked_w, changed_s=now_s)
    return Decision("change", "plan", words, state, plan)


def _held(view: View, gpu: GpuView, fixed: Fixed) -> str:
    """Why the node cannot hold a clock for as long as nothing uses the GPU; empty where it can."""
    node = view.node_at.get(gpu.address)
    if not fixed.unused or (node is not None and node.lowers_unused):
        return ""
    version = f" ({node.agent_version})" if node is not None and node.agent_version else ""
    return f"the agent of GPU {gpu.place}{version} cannot end it at the first work: default clocks"


def _unused_mhz(gpu: GpuView, fixed: Fixed, min_mhz: int) -> tuple[int | None, int]:
    """The clock at work and the one before it; none where the lowest one allowed is no lower."""
    site = gpu.description
    floor_mhz, top_mhz = max(site.clock_min_mhz, min_mhz), site.clock_max_mhz or math.inf
    allowed = [mhz for mhz in site.clocks_mhz if floor_mhz <= mhz <= top_mhz]
    up_to = [mhz for mhz in allowed if mhz <= fixed.clock_mhz]
    low_mhz = max(up_to, default=min(allowed, default=0))
    return (allowed[-1], low_mhz) if allowed and low_mhz < allowed[-1] else (None, 0)


def _beyond(gpu: GpuView, fixed: Fixed) -> str:
    """Why the card cannot go so low; empty where it can."""
    if fixed.unused:
        return ""
    site = gpu.description
    each = (
        (fixed.clock_mhz, min(site.clocks_mhz, default=0), "clock", "MHz"),
        (fixed.power_w, site.power_limit_min_w, "power limit", "W"),
    )
    low = (f"{what} of GPU {gpu.place} is {least:g} {unit}" for asked, least, what, unit in each
           if 0 < asked < least)  # fmt: skip
    return next((f"the lowest {one}: default clocks" for one in low), "")


def _clock_mhz(gpu: GpuView, fixed: Fixed) -> int | None:
    """None where the clock is the card's highest, or free."""
    clocks_mhz = gpu.description.clocks_mhz
    clock_mhz = max((mhz for mhz in clocks_mhz if mhz <= fixed.clock_mhz), default=0)
    return clock_mhz if 0 < clock_mhz < max(clocks_mhz) else None


def _limit_w(gpu: GpuView, fixed: Fixed) -> float | None:
    """None where the limit in force is as low: one that another writer lowered is never raised."""
    shown = gpu.snapshot
    if not fixed.power_w or shown is None:
        return None
    found_w = shown.power_limit_enforced_w or gpu.description.power_limit_default_w
    ours = shown.lease is not None and shown.lease.power_limit_w is not None
    return fixed.power_w if ours or fixed.power_w < found_w else None


def _verb(before: tuple[int, float], after: tuple[int, float]) -> Verb:
    """From one clock and limit to another; 0 is none."""
    if before == after:
        return "hold"
    if not any(after):
        return "clear"
    low = [now or math.inf for now in before]
    raised = all((then or math.inf) >= now for then, now in zip(after, low, strict=True))
    return "raise" if raised else "lower"
