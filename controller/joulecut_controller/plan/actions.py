"""The actions of a plan, GPU by GPU."""

from collections.abc import Mapping
from dataclasses import replace

from joulecut_controller.plan.clock_reason import sentence_of
from joulecut_controller.plan.plan import Action, verb_of
from joulecut_controller.plan.planner import Choice
from joulecut_controller.view import JobState


def actions_for(job: JobState, choice: Choice, running: Mapping[str, int]) -> tuple[Action, ...]:
    """One action per GPU, by stage. `running` maps GPUs to the clock their lease allows (0:
    none). A GPU that should run at its default clock gets no lock: `clear`, or `hold`
    without a clock where none is in force.
    """
    actions = []
    for row, uuids in enumerate(choice.costs.gpus):
        stage = row % len(job.placement.stages)
        default_mhz = choice.costs.default_mhz[row]
        clocks = sorted({choice.clocks[i] for i in choice.costs.problem.graph.order[row]})
        why = sentence_of(choice.reasons[row], marked=bool(choice.marks[row]))
        for uuid in uuids:
            steps = tuple(
                replace(step, clock_max_mhz=choice.costs.clock_of(uuid, step.clock_max_mhz))
                for step in choice.steps[row]
            )
            marks = tuple(
                replace(step, clock_max_mhz=choice.costs.clock_of(uuid, step.clock_max_mhz))
                for step in choice.marks[row]
            )
            # The highest that a GPU needs within an iteration.
            asked_mhz = choice.costs.clock_of(uuid, clocks[-1])
            reason = why
            if len(clocks) == 1 and asked_mhz < clocks[-1]:
                faster = 1.0 - choice.costs.ratios[uuid]
                reason = f"{faster:.1%} faster than its slowest GPU at {clocks[-1]} MHz; {why}"
            now_mhz = running.get(uuid, 0) or default_mhz
            verb, clock_mhz = verb_of(asked_mhz, now_mhz, default_mhz, bool(running.get(uuid)))
            if steps or marks:  # under a lease, whatever its highest clock
                verb, clock_mhz = ("raise" if asked_mhz > now_mhz else "lower"), asked_mhz
            actions.append(Action(uuid, stage, verb, clock_mhz, reason, steps, marks))
    return tuple(sorted(actions, key=lambda action: action.stage))


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
