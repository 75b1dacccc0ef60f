"""Compiles every inner loop of the solver ahead of the first question.

    python -m joulecut_engine.optimize.warmup

For set-ups and image builds: machine code stays on disk, so that later runs only load it.
"""

from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.clock_changes import ClockChanges
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.jitter import Noise, Trials
from joulecut_engine.optimize.problem import ChangeLimits, Goal, Problem


def warm_up() -> None:
    """Solves a small problem in every way there is."""
    menu = (ClockOption(1400, 1.0, 90.0), ClockOption(1000, 1.3, 60.0))
    graph = build(Pipeline("1f1b", 2, 6))
    problem = Problem(graph, (menu,) * len(graph.operations), (10.0,) * 2)
    computation = Computation(problem, combinations_all=0)
    goal = Goal(1.1 * computation.fastest_s)
    relaxed = computation.relax(goal)
    trials = Trials(problem, Noise(operation=0.01), draws=1)
    trials.times_s(computation.solve(goal, relaxed).clocks)
    for limits in (ChangeLimits(2), ChangeLimits(2, min_dwell_s=1.5)):
        ClockChanges(computation, limits).solve(goal, relaxed)


if __name__ == "__main__":
    warm_up()
