"""After the warm-up nothing compiles: later plans call only what it has called."""

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
from joulecut_engine.graph.pipeline import Pipeline

menu = tuple(ClockOption(1400 - 50 * k, 1.0 + 0.05 * k, 90.0 - 5 * k) for k in range(8))
for microbatches in (2, 40):
    graph = build(Pipeline("1f1b", 4, microbatches))
    problem = Problem(graph, (menu,) * len(graph.operations), (10.0,) * 4)
    for granularity in ("gpu", "changes", "computation"):
        solve(problem, Goal(1e9), granularity)
        frontier(problem, 3, granularity)
    fastest_s = baseline(problem).iteration_time_s
    for factor, waits in ((1.0, False), (1.02, False), (1.02, True)):
        solve(problem, Goal(factor * fastest_s, waits), "computation")
"""


WARM_UP = """
from joulecut_engine.optimize.warmup import warm_up

warm_up()
"""
TELL = """
import json
from joulecut_engine.optimize.compiled import _compiled

called = (
    f"{one.py_func.__module__}.{one.py_func.__qualname__}{types}"
    for one in _compiled
    for types in getattr(one, "signatures", ())
)
print(json.dumps(sorted(called)))
"""


@pytest.mark.long
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
