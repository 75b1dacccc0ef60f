"""Clocks tied to the marks of operations: those of the plan, and never a lower one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.plan.steps import CLOCKS_MAX, marked_steps
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Goal, Solution
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver

CLOCKS_MHZ = tuple(range(900, 1411, 10))
OPTIONS = tuple(ClockOption(mhz, 100.0 / mhz, mhz / 10.0) for mhz in CLOCKS_MHZ)
PROBLEM = problem(
    Pipeline("1f1b", 2, 20), Profile({(s, k): OPTIONS for s in (0, 1) for k in KINDS}), 50.0
)
_FASTEST = baseline(PROBLEM)
PLAN = Solver(PROBLEM, "gpu").solve(Goal(_FASTEST.iteration_time_s))
assert isinstance(PLAN, Solution)


@given(st.lists(st.sampled_from(OPTIONS), min_size=80, max_size=80), st.integers(1, 52))
def test_each_mark_has_the_clock_of_its_operation(drawn: list[ClockOption], few: int) -> None:
    clocks = tuple(OPTIONS[OPTIONS.index(one) % few] for one in drawn)
    plan = replace(PLAN, clocks=clocks)
    for indices, marks in zip(PROBLEM.graph.order, marked_steps(PROBLEM, plan), strict=True):
        planned = {clocks[i].clock_mhz for i in indices}
        assert bool(marks) == (len(planned) > 1)
        assert len({one.clock_max_mhz for one in marks}) <= CLOCKS_MAX
        for i, mark in zip(indices, marks, strict=False):
            operation = PROBLEM.graph.operations[i]
            assert (mark.kind, mark.microbatch) == (operation.kind, operation.microbatch)
            assert not mark.at_end
            assert mark.clock_max_mhz >= clocks[i].clock_mhz
            if len(planned) <= CLOCKS_MAX:
                assert mark.clock_max_mhz == clocks[i].clock_mhz
