"""A fixed clock of the policy (`clocks.lock_mhz`): a plan without a solver, a profile or reports.

The operator asks for the clock, so nothing is predicted and there is no deadline. Each GPU has its
highest supported clock that is no higher; lease, guard and budget are those of every plan. Pure.
"""

from dataclasses import replace

from joulecut_controller.plan.plan import Action, Basis, Plan, verb_of
from joulecut_controller.plan.planner import Decision, vetoes
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.veto import first

# Vetoes that do not apply: a fixed clock needs neither measurements nor reports of the job.
NEEDLESS = frozenset(("pipeline", "profile", "baseline", "silent", "phase"))


def fixed_decision(inputs: PlanningInput, state: PlannerState) -> Decision:
    """The fixed clock on all GPUs of the job, or default clocks and why."""
    policy, mode = inputs.job.policy, inputs.mode
    state = replace(state, clocks=None, goal=None, costs=None, suspended=None)
    against = tuple(veto for veto in vetoes(inputs) if veto.kind not in NEEDLESS)
    if (veto := first(against)) is not None:
        return Decision("default", veto.kind, veto.text, replace(state, asked={}))
    lock_mhz, actions = policy.clocks.lock_mhz, []
    words = f"the policy asks for {lock_mhz} MHz (clocks.lock_mhz)"
    for uuid in sorted(inputs.job.placement.uuids):
        site = inputs.view.gpus[uuid].description
        mhz = max((mhz for mhz in site.clocks_mhz if mhz <= lock_mhz), default=None)
        if mhz is None:
            lowest_mhz = min(site.clocks_mhz, default=0)
            why = f"{words}, and the lowest clock of GPU {uuid} is {lowest_mhz} MHz: default clocks"
            return Decision("default", "bounds", why, replace(state, asked={}))
        default_mhz, held_mhz = max(site.clocks_mhz), inputs.running.get(uuid, 0)
        verb, clock_mhz = verb_of(mhz, held_mhz or default_mhz, default_mhz, bool(held_mhz))
        actions.append(Action(uuid, 0, verb, clock_mhz, words))
    asked = {action.uuid: action.clock_mhz or 0 for action in actions}
    runs = asked == dict(inputs.running) if mode == "enforce" else state.mode == mode
    if asked == state.asked and runs:
        return Decision("keep", "steady", "plan unchanged", state)
    plan = Plan(
        job=policy.name,
        generation=0,
        parent=0,
        mode=mode,
        granularity="gpu",
        actions=tuple(actions),
        reason=words,
        made_at_unix_s=0.0,
        basis=Basis(fixed_mhz=lock_mhz),
    )
    state = replace(state, mode=mode, asked=asked, changed_s=inputs.view.now_s)
    return Decision("change", "plan", words, state, plan)
