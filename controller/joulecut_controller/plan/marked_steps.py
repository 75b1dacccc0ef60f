"""The clock of each operation of a plan, tied to the marks that the job sends where it begins.

Marks name kind and microbatch. A step down follows its mark by the set latency, so an operation has
to be several times as long. The agent sends a raise ahead of the mark that it expects next.
"""

from bisect import bisect_left
from collections import Counter

from joulecut_engine.optimize.problem import Problem, Solution
from joulecut_wire.messages import ScheduleStep

Marks = tuple[ScheduleStep, ...]

CLOCKS_MAX = 32  # of one GPU: what an agent's message to its keeper holds


def marked_steps(problem: Problem, plan: Solution) -> tuple[Marks, ...]:
    """By stage, one step per operation, so that a lost mark costs one operation; empty for a stage
    that keeps one clock. Of a pipeline whose operations are all forwards and backwards.
    """
    found: list[Marks] = []
    for indices in problem.graph.order:
        clocks = [plan.clocks[i].clock_mhz for i in indices]
        kept = _kept(clocks)
        named = (problem.graph.operations[i] for i in indices)
        found.append(
            tuple(
                ScheduleStep(operation.kind, kept[bisect_left(kept, mhz)], operation.microbatch)
                for operation, mhz in zip(named, clocks, strict=True)
            )
            if len(kept) > 1
            else ()
        )
    return tuple(found)


def _kept(clocks_mhz: list[int]) -> list[int]:
    """The distinct clocks, ascending; beyond CLOCKS_MAX the rarest give way to the next higher."""
    counts = Counter(clocks_mhz)
    highest = max(counts)
    often = sorted(counts, key=lambda mhz: (mhz == highest, counts[mhz]), reverse=True)
    return sorted(often[:CLOCKS_MAX])
