"""The actions of a plan, GPU by GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from joulecut_controller.plan.clock_reason import sentence_of
from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import Clocks
from joulecut_controller.plan.granularity import Steps
from joulecut_controller.plan.plan import Action, ClockReason, verb_of
from joulecut_controller.view import JobState


def actions_for(
    costs: Costs,
    clocks: Clocks,
    running: Mapping[str, int],
    *,
    steps: Sequence[Steps],
    reasons: Sequence[tuple[ClockReason, ...]],
) -> tuple[Action, ...]:
    """One action per GPU, by stage. `running` maps GPUs to the clock their lease allows (0:
    none). A GPU that should run at its default clock gets no lock: `clear`, or `hold`
    without a clock where none is in force. Changes within an iteration (`steps`)
    and `reasons` are by stage, as the costs' graph counts them.
    """
    actions = []
    for stage, uuids in enumerate(costs.gpus):
        default_mhz = costs.default_mhz[stage]
        stage_mhz = sorted({clocks[i] for i in costs.problem.graph.order[stage]})
        why = sentence_of(reasons[stage])
        for uuid in uuids:
            own_steps = tuple(
                replace(step, clock_max_mhz=costs.clock_of(uuid, step.clock_max_mhz))
                for step in steps[stage]
            )
            # The highest that a GPU needs within an iteration.
            asked_mhz = costs.clock_of(uuid, stage_mhz[-1])
            reason = why
            if len(stage_mhz) == 1 and asked_mhz < stage_mhz[-1]:
                faster = 1.0 - costs.ratios[uuid]
                reason = f"{faster:.1%} faster than its slowest GPU at {stage_mhz[-1]} MHz; {why}"
            now_mhz = running.get(uuid, 0) or default_mhz
            verb, clock_mhz = verb_of(asked_mhz, now_mhz, default_mhz, bool(running.get(uuid)))
            if own_steps:  # under a lease, whatever its highest clock
                verb, clock_mhz = ("raise" if asked_mhz > now_mhz else "lower"), asked_mhz
            actions.append(Action(uuid, stage, verb, clock_mhz, reason, own_steps))
    return tuple(actions)


def release_actions(job: JobState, running: Mapping[str, int], reason: str) -> tuple[Action, ...]:
    """Default clocks for every GPU of the job that has a lock."""
    stage_of = {uuid: stage for stage, uuids in enumerate(job.placement.stages) for uuid in uuids}
    return tuple(
        Action(uuid, stage_of.get(uuid, 0), "clear", None, reason)
        for uuid, clock_mhz in running.items()
        if clock_mhz
    )


def counted(actions: tuple[Action, ...]) -> str:
    """`5 lowered, 1 raised, 2 at default clocks`, of what happened."""
    words = {"lower": "lowered", "raise": "raised", "hold": "held", "clear": "back to default"}
    counts = {verb: sum(action.verb == verb for action in actions) for verb in words}
    return ", ".join(f"{n} {words[verb]}" for verb, n in counts.items() if n) + " (GPUs)"
