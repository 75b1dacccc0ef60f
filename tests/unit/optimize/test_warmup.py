"""After the warm-up nobody waits for a compiler: later plans call only what it has called."""

import json
import subprocess
import sys

import pytest

PLANS = """
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import frontier, solve
from joulecut_engine.graph.pipeline import SENDS, Pipeline

menu = tuple(ClockOption(1400 - 50 * k, 1.0 + 0.05 * k, 90.0 - 5 * k) for k in range(8))
for microbatches in (2, 40):
    graph = build(Pipeline("1f1b", 4, microbatches))
    problem = Problem(graph, (menu,) * len(graph.operations), (10.0,) * 4)
    goal = Goal(1e9)
    for granularity in ("gpu", "edge", "computation"):
        for effort in ("usual", "thorough"):
            solve(problem, goal, granularity, effort=effort)
        frontier(problem, 3, granularity)
    fastest_s = baseline(problem).iteration_time_s
    solve(problem, Goal(fastest_s), "computation", effort="thorough")
    for waits in (False, True):
        for effort in ("usual", "thorough"):
            solve(problem, Goal(1.02 * fastest_s, waits), "computation", effort=effort)
sent = (ClockOption(0, 0.02, 0.1),)
for transfers, stages, microbatches in (("overlapped", 2, 24), ("synchronous", 4, 40)):
    graph = build(Pipeline("1f1b", stages, microbatches, transfers=transfers))
    menus = tuple(
        sent if o.kind in SENDS else menu[o.stage % 2 : 7 + o.stage % 2] for o in graph.operations
    )
    problem = Problem(graph, menus, (10.0,) * stages)
    fastest_s = baseline(problem).iteration_time_s
    for factor in (1.0, 1.02):
        solve(problem, Goal(factor * fastest_s), "computation", effort="thorough")
"""


WARM_UP = """
from joulecut_engine.optimize.warmup import warm_up

warm_up()
"""
TELL = """
import json
from joulecut_engine.optimize.compiled import versions

print(json.dumps(sorted(versions())))
"""


@pytest.mark.slow
def test_the_warm_up_compiles_everything() -> None:
    """Each in a process of its own. What the first compiles stays on disk: of it the second loads
    what it calls, and not what that calls in turn."""

    def called(work: str) -> set[str]:
        argv = [sys.executable, "-c", work + TELL]
        told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return set(json.loads(told))

    warm, later = called(WARM_UP), called(PLANS)
    assert later
    assert later - warm == set()
