"""The clock changes of each stage within an iteration, at measured times.

A plan is timed by the model. Where an iteration really takes longer, nothing says at which of its
operations; so a lower clock begins late and a higher one early rather than the other way round.
"""

from joulecut_controller.plan.granularity import stretches_s
from joulecut_engine.optimize.change_timing import changes_of
from joulecut_engine.optimize.problem import Problem, Solution
from joulecut_wire.messages import TimedStep

Steps = tuple[TimedStep, ...]


def timed_steps(
    problem: Problem, plan: Solution, *, own_s: float, iteration_s: float, shortest_s: float
) -> tuple[Steps, ...]:
    """By stage, ascending; empty for a stage that keeps one clock.

    `own_s` is the real time of the plan's own work, `iteration_s` that of an iteration, waiting
    included. Where the cautious times leave a clock for less than `shortest_s`, all are scaled
    alike.
    """
    ratio = own_s / plan.iteration_time_s
    cyclic: list[list[tuple[float, int]]] = [[] for _ in problem.graph.order]
    for change in changes_of(problem, plan):
        cyclic[change.stage].append((change.offset_s, change.clock_mhz))
    found: list[Steps] = []
    for steps in cyclic:
        if len(steps) > 1 and steps[0][1] == steps[-1][1]:
            del steps[0]  # the clock that the iteration before ended with
        if len(steps) < 2:
            found.append(())
            continue
        cautious = _scaled(steps, slower=max(ratio, 1.0), faster=min(ratio, 1.0))
        keeps = min(stretches_s(tuple(one.offset_s for one in cautious), iteration_s)) >= shortest_s
        found.append(cautious if keeps else _scaled(steps, slower=ratio, faster=ratio))
    return tuple(found)


def _scaled(steps: list[tuple[float, int]], *, slower: float, faster: float) -> Steps:
    """With the offsets of lower clocks times `slower`, of higher ones times `faster`."""
    before = [steps[-1], *steps[:-1]]
    return tuple(
        TimedStep(offset_s * (slower if mhz < earlier_mhz else faster), mhz)
        for (_, earlier_mhz), (offset_s, mhz) in zip(before, steps, strict=True)
    )
