"""Compiles every inner loop of the solver before somebody waits for it.

    python -m joulecut_engine.optimize.warmup

For set-ups and image builds: machine code stays on disk, so that later runs only load it.
"""

from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import SENDS, Pipeline, Transfers
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.jitter import Noise, Trials
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.relaxation import Interior
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import Switching
from joulecut_engine.optimize.tied import Tied

TRANSFERS: tuple[tuple[Transfers, float], ...] = (("free", 1.0), ("overlapped", 1.1))


def warm_up() -> None:
    """Solves a small problem in every way there is, and a smaller one by trying everything.

    Two options far apart leave a gap that no search closes: so all of it runs. At the fastest
    deadline a first stage with time to spare fits pairs between moments that cannot move; where
    sends overlap stages share waits.
    """
    menu = (ClockOption(1400, 1.0, 90.0), ClockOption(1000, 1.3, 60.0))
    sooner = (ClockOption(1400, 0.9, 90.0), ClockOption(1000, 1.17, 60.0))
    sent = (ClockOption(0, 0.01, 0.1),)
    for transfers, factor in TRANSFERS:
        graph = build(Pipeline("1f1b", 2, 6, transfers=transfers))
        menus = [
            sent if operation.kind in SENDS else (menu if operation.stage else sooner)
            for operation in graph.operations
        ]
        computation = Computation(Problem(graph, tuple(menus), (10.0,) * 2), 0)
        goal = Goal(factor * computation.fastest_s)
        relaxed = computation.relax(goal)
        computation.finer(goal, relaxed, relaxed, enough_j=0.0)
    for stages, microbatches, combinations_all in ((2, 6, 0), (1, 1, 2**2)):
        graph = build(Pipeline("1f1b", stages, microbatches))
        problem = Problem(graph, (menu,) * len(graph.operations), (10.0,) * stages)
        computation = Computation(problem, combinations_all)
        goal = Goal(1.1 * computation.fastest_s)
        # A problem so small is walked; the interior point is met through its own door.
        direct = Interior(computation.network).relax(goal.deadline_s, problem.time_price_w)
        for relaxed in (direct, computation.relax(goal)):
            computation.solve(goal, relaxed, rolls=2, moves=1, chains=1.0)
            raised = computation.raised(goal, relaxed)
            # Any bound is enough: a controller that starts waits for this.
            computation.finer(goal, relaxed, raised, enough_j=0.0)
        clocks = computation.solve(goal, computation.relax(goal)).clocks
        Trials(problem, Noise(operation=0.01), draws=1).times_s(clocks)
        Tied(computation, "gpu", combinations_all=0).solve(goal, direct)
        switching = Switching(max_per_iteration=2, latency_s=0.01)
        ClockChangeSearch(problem, switching, combinations_all=0).solve(goal, effort="quick")


if __name__ == "__main__":
    warm_up()
