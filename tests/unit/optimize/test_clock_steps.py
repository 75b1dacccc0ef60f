"""One clock step of a stretch, against the iteration written down and added up again."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import priced, problems, profiled, run_times, with_sends

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.clock_steps import stretches_of
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.solver import solve


def moved(
    problem: Problem, clocks: tuple[ClockOption, ...], stage: int, mhz: int
) -> tuple[ClockOption, ...]:
    """The clocks with a whole stage at another one."""
    menus = problem.measured or problem.options
    return tuple(
        next(one for one in menus[i] if one.clock_mhz == mhz) if operation.stage == stage else now
        for i, (operation, now) in enumerate(zip(problem.graph.operations, clocks, strict=True))
    )


@given(
    problems(stages_max=3, microbatches_max=3, options_max=4, same_clocks=True),
    st.booleans(),
    st.data(),
)
def test_a_step_costs_what_the_moved_plan_costs(
    problem: Problem, waits: bool, data: st.DataObject
) -> None:
    menus = problem.measured or problem.options
    by_stage = [
        data.draw(st.sampled_from(menus[order[0]])).clock_mhz for order in problem.graph.order
    ]
    clocks = tuple(
        next(one for one in menu if one.clock_mhz == by_stage[operation.stage])
        for menu, operation in zip(menus, problem.graph.operations, strict=True)
    )
    before_s = run_times(problem, clocks)
    goal = Goal(before_s * data.draw(st.sampled_from([1.0, 1.3, 9.0])), waits)
    late = replace(goal, deadline_s=1e9) if not waits else goal  # prices, whatever is late
    before_j = priced(problem, late, clocks)
    assert before_j is not None
    for one in stretches_of(problem, clocks, goal):
        assert one.clock_mhz == by_stage[one.stage]
        known = sorted(o.clock_mhz for o in menus[problem.graph.order[one.stage][0]])
        at = known.index(one.clock_mhz)
        assert (one.lower is None) == (at == 0)
        assert (one.higher is None) == (at == len(known) - 1)
        for step in filter(None, (one.lower, one.higher)):
            assert abs(known.index(step.clock_mhz) - at) == 1
            after = moved(problem, clocks, one.stage, step.clock_mhz)
            assert step.time_s == pytest.approx(run_times(problem, after) - before_s, abs=1e-12)
            if (after_j := priced(problem, late, after)) is not None:
                assert step.energy_j == pytest.approx(after_j - before_j, abs=1e-9)


@given(problems(stages_max=3, microbatches_max=3, options_max=3))
def test_slack_is_used_up_before_the_iteration_is_longer(problem: Problem) -> None:
    clocks = tuple(menu[0] for menu in problem.options)
    before_s = run_times(problem, clocks)
    found = stretches_of(problem, clocks, Goal(before_s))
    named = Counter((one.stage, one.clock_mhz) for one in found)
    for one in (one for one in found if named[one.stage, one.clock_mhz] == 1):
        part = [i for i in problem.graph.order[one.stage] if clocks[i].clock_mhz == one.clock_mhz]
        ends = []
        for i in part:
            longer = replace(clocks[i], time_s=clocks[i].time_s + one.slack_s)
            ends.append(run_times(problem, (*clocks[:i], longer, *clocks[i + 1 :])))
        assert max(ends) <= before_s + 1e-12
        beyond = [
            run_times(
                problem,
                (
                    *clocks[:i],
                    replace(clocks[i], time_s=clocks[i].time_s + one.slack_s + 0.1),
                    *clocks[i + 1 :],
                ),
            )
            for i in part
        ]
        assert max(beyond) == pytest.approx(before_s + 0.1, abs=1e-12)


def test_stretches_of_changes_repeat_with_the_iteration() -> None:
    """The last stretch of an iteration goes on with the first of the next at the same clock."""
    problem = profiled("simulated a100", 12, stages=4)
    fastest_s = solve(problem, Goal(1e9, waits=True), "gpu").iteration_time_s
    plan = solve(problem, Goal(0.97 * fastest_s), "changes")
    for stage, found in itertools.groupby(
        stretches_of(problem, plan.clocks, Goal(0.97 * fastest_s)), key=lambda one: one.stage
    ):
        clocks = [one.clock_mhz for one in found]
        assert clocks[0] != clocks[-1] or len(clocks) == 1, stage
        assert len(clocks) <= 2


def test_sends_have_no_clock_of_their_own() -> None:
    problem = with_sends(Pipeline("1f1b", 2, 3), 3, seed=1)
    clocks = tuple(menu[0] for menu in problem.options)
    found = stretches_of(problem, clocks, Goal(1.0))
    assert {one.clock_mhz for one in found} == {o.clock_mhz for o in clocks if o.clock_mhz > 1000}
