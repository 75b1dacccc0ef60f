"""A trial: the plan of a job without a profile, made from the explorer's advice.

Without a profile the plan has no solution and no bound; its reason says which clocks are tried, and
why. Pure.
"""

from collections.abc import Mapping

from joulecut_controller.learn.advice import STEP_RATIO, Advice, ExplorerInput
from joulecut_controller.plan.own_clocks import own_clock_unmodelled
from joulecut_controller.plan.plan import Action, Basis, Forecast, Plan, verb_of
from joulecut_controller.view import JobState

UNBOUNDED_GAP = 1.0  # nothing is known about how good the best plan would be


def trial_of(
    job: JobState, facts: ExplorerInput, advice: Advice, running: Mapping[str, int]
) -> Plan | None:
    """Clocks to run for at least a window; None where the advice has no change or no figures."""
    figures = (advice.time_s, advice.energy_j, advice.baseline_time_s, advice.baseline_energy_j)
    time_s, energy_j, base_s, base_j = figures
    if not advice.changes or advice.deadline_s is None:
        return None
    if time_s is None or energy_j is None or base_s is None or base_j is None:
        return None
    width = max(map(len, job.placement.stages))
    top = facts.constants.clock_max_mhz
    lowest = min(advice.lowest_mhz)
    reach_mhz = tuple(min(int(low - STEP_RATIO * top), lowest) for low in advice.lowest_mhz)
    if facts.begins:
        reach_mhz = tuple(grid[0] for grid in facts.grids)
    actions = []
    for stage, uuids in enumerate(job.placement.stages):
        asked_mhz, default_mhz = advice.clocks_mhz[stage], facts.constants.default_mhz[stage]
        why = advice.reason if stage in advice.stages else f"{advice.verdict}: as learned so far"
        in_reach = [mhz for mhz in facts.grids[stage] if mhz >= reach_mhz[stage]]
        for uuid in uuids:
            held_mhz = running.get(uuid, 0)
            ratio = job.measured.time_ratios.get(uuid, 1.0)
            own_mhz = own_clock_unmodelled(ratio, asked_mhz, in_reach)
            verb, clock_mhz = verb_of(own_mhz, held_mhz or default_mhz, default_mhz, bool(held_mhz))
            faster = f"; {1.0 - ratio:.1%} faster than its slowest GPU at {asked_mhz} MHz"
            reason = why + faster if own_mhz < asked_mhz else why
            actions.append(Action(uuid, stage, verb, clock_mhz, reason))
    if all(action.verb == "hold" for action in actions):
        return None
    return Plan(
        job=job.policy.name,
        mode=job.policy.mode,
        actions=tuple(actions),
        reason=advice.reason,
        forecast=Forecast(
            iteration_time_s=time_s,
            energy_j=width * energy_j,
            baseline_time_s=base_s,
            baseline_energy_j=width * base_j,
            lower_bound_j=0.0,
            gap_ratio=UNBOUNDED_GAP,
            operations=advice.operations,
        ),
        deadline_s=advice.deadline_s,
        basis=Basis(reach_mhz=reach_mhz),
    )
