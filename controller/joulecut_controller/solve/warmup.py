"""Compiles every inner loop of the solver before somebody waits for it.

    python -m joulecut_controller.solve.warmup

For set-ups and image builds: machine code stays on disk, so that later runs only load it.
"""

from joulecut_controller.graph import build
from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.computation import Computation
from joulecut_controller.solve.problem import Goal, Problem
from joulecut_controller.workload import Pipeline


def warm_up() -> None:
    """Solves a small problem in every way there is, and a smaller one by trying everything."""
    menu = tuple(ClockOption(1400 - 100 * k, 1.0 + 0.1 * k, 90.0 - 9 * k) for k in range(4))
    for microbatches, combinations_all in ((3, 0), (1, 4**2)):
        graph = build(Pipeline("1f1b", 1, microbatches))
        problem = Problem(graph, (menu,) * len(graph.operations), (10.0,))
        computation = Computation(problem, combinations_all)
        goal = Goal(1.1 * computation.fastest_s)
        for near in (False, True):
            computation.solve(goal, computation.relax(goal, near=near), rolls=1)


if __name__ == "__main__":
    warm_up()
