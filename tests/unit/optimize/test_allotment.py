"""Shares of waits fixed: such plans are plans of the real problem, no later and no dearer."""

from dataclasses import replace

import numpy as np
import pytest
from pipelines import with_sends

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import SENDS, Pipeline
from joulecut_engine.optimize.allotment import Allotment, allotment_of, allotted
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.contraction import Contracted
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline, solution
from joulecut_engine.optimize.solver import Solver

SHAPES = [
    Pipeline("1f1b", 2, 3, transfers="overlapped"),
    Pipeline("1f1b", 4, 9, transfers="overlapped"),
    Pipeline("1f1b", 3, 5, transfers="overlapped", optimizer=True, data_collective=True),
]


def _of(problem: Problem) -> Allotment:
    found = allotment_of(Computation(problem))
    assert found is not None
    return found


def _clocks(fixed: Contracted, picks: list[int]) -> tuple[ClockOption, ...]:
    clocks = [menu[0] for menu in fixed.whole.options]
    for k, pick in zip(fixed.kept.tolist(), picks, strict=True):
        clocks[k] = fixed.whole.options[k][pick]
    return tuple(clocks)


@pytest.mark.parametrize("send_s", [0.004, 0.04])
@pytest.mark.parametrize("pipeline", SHAPES, ids=str)
def test_plans_are_no_later_and_no_dearer_than_with_shares_fixed(
    pipeline: Pipeline, send_s: float
) -> None:
    """Whatever the shares; and with those that a plan has by itself just as long, just as dear."""
    problem = with_sends(pipeline, 4, 1, send_s)
    allotment, goal = _of(problem), Goal(1e9)
    dice, later = np.random.default_rng(2), 0
    for _ in range(20):
        where = dice.uniform(size=len(allotment.least_s))
        share_s = allotment.least_s + where * (allotment.most_s - allotment.least_s)
        fixed = allotment.fixed(share_s)
        assert fixed is not None
        assert len(fixed.problem.options) < len(problem.options)
        picks = [int(dice.integers(len(menu))) for menu in fixed.problem.options]
        whole = solution(problem, goal, "computation", _clocks(fixed, picks), 0.0)
        inside = fixed.inside(whole, goal)
        assert inside is not None
        assert whole.iteration_time_s <= inside.iteration_time_s * (1 + 1e-12)
        assert whole.energy_j <= inside.energy_j * (1 + 1e-12)
        later += inside.iteration_time_s > whole.iteration_time_s * (1 + 1e-6)
        own = allotment.fixed(allotment.shares_s(whole))
        assert own is not None
        alike = own.inside(whole, goal)
        assert alike is not None
        assert alike.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-12)
        assert alike.energy_j == pytest.approx(whole.energy_j, rel=1e-12)
    assert later > 0


@pytest.mark.parametrize(
    "pipeline", [Pipeline("1f1b", 3, 4), Pipeline("1f1b", 3, 4, transfers="synchronous")], ids=str
)
def test_where_nothing_is_shared_hints_are_all_there_is(pipeline: Pipeline) -> None:
    computation = Computation(with_sends(pipeline, 3, 1))
    goal = Goal(1.1 * computation.fastest_s)
    hints = (computation.solve(goal, computation.relax(goal)),)
    assert allotment_of(computation) is None
    assert allotted(computation, goal, hints, 2, 1) is hints


def test_a_send_longer_than_what_waits_for_it_is_left_alone() -> None:
    """A share at its least would leave the operation after the send less than no time."""
    problem = with_sends(Pipeline("1f1b", 3, 5, transfers="overlapped"), 3, 1, send_s=0.2)
    allotment = _of(problem)
    assert allotment.fixed(allotment.least_s) is None
    found = Solver(problem, "computation", "thorough").solve(
        Goal(1.05 * baseline(problem).iteration_time_s)
    )
    assert check(problem, Goal(1.05 * baseline(problem).iteration_time_s), found) == ()


@pytest.mark.parametrize("waits", [False, True])
def test_plans_with_shares_fixed_compete(waits: bool) -> None:
    """In time, real, cheaper than what windows find at once; and no bound of theirs is kept."""
    problem = with_sends(Pipeline("1f1b", 4, 12, transfers="overlapped"), 12, 3)
    computation = Computation(problem)
    goal = Goal(1.01 * computation.fastest_s, waits)
    relaxed = computation.relax(goal)
    first = computation.solve(goal, relaxed, (), 10)
    both = allotted(computation, goal, (first,), 10, 20_000)
    assert len(both) == 2
    assert min(found.energy_j for found in both) < first.energy_j * (1 - 1e-6)
    for found in both:
        assert found.lower_bound_j <= computation.bound_j(goal, relaxed) * (1 + 1e-12)
        assert check(problem, goal, found) == ()


def test_the_cheaper_side_is_where_the_bottleneck_does_not_wait() -> None:
    """Sends on the side of the slow stage cost it time that nobody else has to spare."""
    for slow in (0, 2):
        problem = with_sends(Pipeline("1f1b", 3, 8, transfers="overlapped"), 6, 4)
        menus = tuple(
            tuple(ClockOption(o.clock_mhz, 1.3 * o.time_s, 1.3 * o.energy_j) for o in menu)
            if operation.stage == slow and operation.kind not in SENDS
            else menu
            for operation, menu in zip(problem.graph.operations, problem.options, strict=True)
        )
        problem = replace(problem, options=menus, measured=())
        allotment = _of(problem)
        goal = Goal(1.1 * baseline(problem).iteration_time_s)
        looser = allotment.looser(goal, baseline(problem))
        assert looser is not None
        extreme = allotment.fixed(allotment.least_s if slow else allotment.most_s)
        assert extreme is not None
        assert looser[0].problem.options == extreme.problem.options
