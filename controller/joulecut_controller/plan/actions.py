"""The actions of a plan, GPU by GPU."""

from collections.abc import Mapping

from joulecut_controller.plan.plan import Action, verb_of
from joulecut_controller.plan.planner import Choice
from joulecut_controller.view import JobView


def actions_for(job: JobView, choice: Choice, running: Mapping[str, int]) -> tuple[Action, ...]:
    """One action per GPU, by stage. `running` maps GPUs to the clock their lease allows (0:
    none). A GPU that should run at its default clock gets no lock: `clear`, or `hold`
    without a clock where none is in force.
    """
    actions = []
    for stage, uuids in enumerate(job.stages):
        default_mhz = choice.costs.default_mhz[stage]
        clocks = sorted({choice.clocks[i] for i in choice.costs.problem.graph.order[stage]})
        asked_mhz = clocks[-1]  # per operation: the highest that a GPU needs within an iteration
        span = f"{clocks[0]}-{asked_mhz} MHz by operation" if len(clocks) > 1 else ""
        for uuid in uuids:
            now_mhz = running.get(uuid, 0) or default_mhz
            verb, clock_mhz = verb_of(asked_mhz, now_mhz, default_mhz, bool(running.get(uuid)))
            reason = f"stage {stage} is busy {choice.busy_ratio[stage]:.0%} of the iteration"
            actions.append(
                Action(uuid, stage, verb, clock_mhz, f"{reason}; {span}" if span else reason)
            )
    return tuple(actions)


def release_actions(job: JobView, running: Mapping[str, int], reason: str) -> tuple[Action, ...]:
    """Default clocks for every GPU of the job that has a lock."""
    stage_of = {uuid: stage for stage, uuids in enumerate(job.stages) for uuid in uuids}
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
