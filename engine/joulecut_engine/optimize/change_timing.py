"""When each GPU changes its clock, counted from the start of the iteration."""

from typing import NamedTuple

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.problem import Problem, Solution

# A change comes early or late by the spread of the set latency and the jitter of starts together.
# That is to be at most half of a stretch at one clock, or the stretch may not be there at all.
STRETCHES_MIN = 2.0
STRETCH_S_MIN = 0.1  # agents step no GPU more often


class ClockChange(NamedTuple):
    """From `offset_s` on, the GPU of a stage has this clock."""

    stage: int
    offset_s: float
    clock_mhz: int


def changes_of(problem: Problem, plan: Solution) -> tuple[ClockChange, ...]:
    """By stage, ascending; the first of each stage is at offset 0. A change stands where the
    first operation at its clock starts."""
    found = []
    for stage, indices in enumerate(problem.graph.order):
        now: int | None = None
        for i in indices:
            mhz = plan.clocks[i].clock_mhz
            if mhz in (now, ANY_CLOCK_MHZ) or problem.graph.operations[i].kind in SENDS:
                continue
            found.append(ClockChange(stage, 0.0 if now is None else plan.start_s[i], mhz))
            now = mhz
    return tuple(found)
