"""Executes one iteration of a simulated pipeline: the plant, written without the model.

Nothing is shared with the controller's graph or predictors, so that an error in those
shows as a plan that does not keep its word, and not as agreement with itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from joulecut_sim.gpt3 import Instruction
from joulecut_wire.errors import BadInput

Schedule = Literal["1f1b", "gpipe"]
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe")
OPERATIONS_MAX = 1_000_000  # 64 stages of 4,096 microbatches, twice over


@dataclass(frozen=True, slots=True)
class Step:
    """One operation in a stage's program; `needs` indexes the step it waits for, -1 none."""

    stage: int
    microbatch: int
    instruction: Instruction
    needs: int


@dataclass(frozen=True, slots=True)
class Played:
    """One iteration: when each step began, how long all took, how long each stage worked."""

    begin_s: tuple[float, ...]
    duration_s: float
    busy_s: tuple[float, ...]


def program(schedule: Schedule, stages: int, microbatches: int) -> tuple[Step, ...]:
    """All steps in an order in which each comes after everything it waits for.

    1F1B: stage s starts with min(S-s-1, M) forwards, then alternates forward and backward
    until the forwards run out, then does the backwards left. GPipe: all forwards, then all
    backwards. A forward waits for the stage before, a backward for the stage after.
    """
    if stages < 1 or microbatches < 1 or 2 * stages * microbatches > OPERATIONS_MAX:
        raise BadInput(
            "pipeline",
            f"{stages} stages x {microbatches} microbatches",
            f"at least 1 each, and {OPERATIONS_MAX} operations",
        )
    queues = [_stage_order(schedule, stage, stages, microbatches) for stage in range(stages)]
    place: dict[tuple[int, int, Instruction], int] = {}
    steps: list[Step] = []
    heads = [0] * stages
    while len(steps) < 2 * stages * microbatches:
        for stage, queue in enumerate(queues):
            while heads[stage] < len(queue):
                instruction, microbatch = queue[heads[stage]]
                before = _before(stage, stages, microbatch, instruction)
                if before is not None and before not in place:
                    break
                place[stage, microbatch, instruction] = len(steps)
                needs = -1 if before is None else place[before]
                steps.append(Step(stage, microbatch, instruction, needs))
                heads[stage] += 1
    return tuple(steps)


def play(steps: Sequence[Step], durations_s: Sequence[float], stages: int) -> Played:
    """Runs the steps as early as they can, each taking its duration in seconds."""
    begins: list[float] = []
    ends: list[float] = []
    free = [0.0] * stages
    busy = [0.0] * stages
    for step, duration_s in zip(steps, durations_s, strict=True):
        begin = free[step.stage]
        if step.needs >= 0 and ends[step.needs] > begin:
            begin = ends[step.needs]
        end = begin + duration_s
        begins.append(begin)
        ends.append(end)
        free[step.stage] = end
        busy[step.stage] += duration_s
    return Played(tuple(begins), max(free), tuple(busy))


def _stage_order(
    schedule: Schedule, stage: int, stages: int, microbatches: int
) -> list[tuple[Instruction, int]]:
    warm = microbatches if schedule == "gpipe" else min(stages - stage - 1, microbatches)
    order: list[tuple[Instruction, int]] = [("forward", m) for m in range(warm)]
    for backward, forward in enumerate(range(warm, microbatches)):
        order += [("forward", forward), ("backward", backward)]
    order += [("backward", m) for m in range(microbatches - warm, microbatches)]
    return order


def _before(
    stage: int, stages: int, microbatch: int, instruction: Instruction
) -> tuple[int, int, Instruction] | None:
    """What a step waits for besides its own stage."""
    if instruction == "forward":
        return (stage - 1, microbatch, "forward") if stage else None
    if stage == stages - 1:
        return (stage, microbatch, "forward")
    return (stage + 1, microbatch, "backward")
