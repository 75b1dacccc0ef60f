"""A few clock changes of each GPU, anywhere: the best of them, the bound, and the timetable."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pipelines
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, SENDS, Pipeline, Profile
from joulecut_engine.optimize.change_timing import changes_of
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.k_change_dp import LAYERS_MAX, cheapest
from joulecut_engine.optimize.levels import levels_of
from joulecut_engine.optimize.problem import (
    ChangeLimits,
    Goal,
    Infeasible,
    NoCommonClock,
    Problem,
    Solution,
)
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver, solve

FEW = 400  # plans that a property tries one by one
limits = st.builds(
    ChangeLimits,
    per_iteration=st.sampled_from([0, 1, 2, 3, 4]),
    cost_j=st.sampled_from([0.0, 0.5]),
    min_dwell_s=st.sampled_from([0.0, 0.0, 1.0, 2.5, 6.0]),
)


def changed(problem: Problem, clocks: tuple[ClockOption, ...], stage: int) -> int:
    """How often the GPU of a stage changes its clock, the way back to the first one counted."""
    operations = problem.graph.operations
    asked = [
        clocks[i].clock_mhz
        for i in problem.graph.order[stage]
        if operations[i].kind not in SENDS and clocks[i].clock_mhz
    ]
    return sum(a != b for a, b in zip(asked, asked[1:] + asked[:1], strict=True))


def shortest_stretch_s(problem: Problem, plan: Solution) -> float:
    """The shortest time for which a GPU keeps a clock; iterations repeat. The iteration's own
    where no clock changes."""
    shortest_s = plan.iteration_time_s
    for _, group in itertools.groupby(changes_of(problem, plan), key=lambda one: one.stage):
        changes = list(group)
        at_s = [change.offset_s for change in changes]
        if len(changes) > 1 and changes[0].clock_mhz == changes[-1].clock_mhz:
            del at_s[0]  # the clock that the iteration before ended with
        if len(at_s) > 1:
            gaps = [b - a for a, b in itertools.pairwise([*at_s, at_s[0] + plan.iteration_time_s])]
            shortest_s = min(shortest_s, *gaps)
    return shortest_s


def dwells(problem: Problem, clocks: tuple[ClockOption, ...], dwell_s: float) -> bool:
    """Whether each GPU keeps its clocks so long where operations start as early as they can."""
    end_s = [0.0] * len(clocks)
    for i, option in enumerate(clocks):
        before = [end_s[a] for a, b in problem.graph.edges if b == i]
        end_s[i] = max(before, default=0.0) + option.time_s
    for indices in problem.graph.order:
        work = [i for i in indices if clocks[i].clock_mhz]
        work = [i for i in work if problem.graph.operations[i].kind not in SENDS]
        pairs = zip(work, work[-1:] + work[:-1], strict=True)
        at_s = [
            end_s[i] - clocks[i].time_s
            for i, k in pairs
            if clocks[i].clock_mhz != clocks[k].clock_mhz
        ]
        again_s = [*at_s[1:], *(at + max(end_s) for at in at_s[:1])]
        if any(b - a < dwell_s * (1 - 1e-9) for a, b in zip(at_s, again_s, strict=True)):
            return False
    return True


def least_j(problem: Problem, goal: Goal, allowed: ChangeLimits) -> float:
    """Least energy of all plans within the limits, written out."""
    menus = problem.measured or problem.options
    best = math.inf
    for clocks in itertools.product(*menus):
        counts = [changed(problem, clocks, stage) for stage in range(len(problem.graph.order))]
        if max(counts) <= allowed.per_iteration and dwells(problem, clocks, allowed.min_dwell_s):
            energy_j = pipelines.priced(problem, goal, clocks)
            if energy_j is not None:
                best = min(best, energy_j + allowed.cost_j * sum(counts))
    return best


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much])
@given(pipelines.problems(2, 2, 3, same_clocks=True), limits, st.data())
def test_brute_force_agrees_and_never_beats_the_bound(
    problem: Problem, allowed: ChangeLimits, data: st.DataObject
) -> None:
    if math.prod(map(len, problem.measured or problem.options)) > FEW:
        return
    goal = data.draw(pipelines.goals(baseline(problem).iteration_time_s))
    truth_j = least_j(problem, goal, allowed)
    try:
        found = solve(problem, goal, "changes", limits=allowed)
    except Infeasible:  # a dwell is kept whatever the other GPUs do, or not at all
        assert truth_j == math.inf or allowed.min_dwell_s
        return
    assert check(problem, goal, found) == ()
    assert found.lower_bound_j <= truth_j * (1 + 1e-9)
    assert truth_j * (1 - 1e-9) <= found.energy_j <= truth_j * (1 + found.gap + 1e-9)


def wavy(microbatches: int = 6) -> Problem:
    """Three unequal stages with eight clocks, of which the fastest costs most."""
    menus = {
        (stage, kind): tuple(
            ClockOption(
                1400 - 50 * k,
                (0.1 + 0.01 * stage) * work * (1 + 0.05 * k),
                (10.0 + stage) * work * (1 - 0.09 * k + 0.006 * k * k),
            )
            for k in range(8)
        )
        for stage in range(3)
        for kind, work in zip(KINDS, (1.0, 1.9), strict=True)
    }
    return build(Pipeline("1f1b", 3, microbatches), Profile(menus), 20.0)


def test_more_changes_never_cost_and_coarser_plans_never_win() -> None:
    problem = wavy(3)
    goal = Goal(1.02 * baseline(problem).iteration_time_s)
    energies_j, bounds_j = [], []
    for most in (0, 2, 4, 1_000_000):
        allowed = ChangeLimits(most, cost_j=0.1)
        found = solve(problem, goal, "changes", limits=allowed)
        assert check(problem, goal, found) == ()
        energies_j.append(found.energy_j)
        bounds_j.append(found.lower_bound_j)
    assert energies_j == sorted(energies_j, reverse=True)
    assert max(bounds_j) <= energies_j[0]
    assert bounds_j[0] > bounds_j[-1]  # a limit raises it
    gpu = solve(problem, goal, "gpu")
    assert energies_j[0] <= gpu.energy_j * (1 + 1e-9)
    assert energies_j[-1] < 0.999 * energies_j[0]


@pytest.mark.parametrize(
    ("name", "slowdown"),
    [
        ("simulated a40", 0.01),
        *(
            pytest.param(name, slowdown, marks=pytest.mark.long)
            for name, slowdown in (
                ("simulated a100", 0.0),
                ("simulated a100", 0.01),
                ("simulated a100", 0.05),
                ("simulated a40", 0.0),
                ("simulated a40", 0.05),
            )
        ),
    ],
)
def test_two_changes_keep_most_of_what_a_clock_per_operation_saves(
    name: str, slowdown: float
) -> None:
    problem = pipelines.profiled(name, microbatches=24)
    start = baseline(problem)
    goal = Goal(start.iteration_time_s * (1 + slowdown))
    finest, found = (solve(problem, goal, g) for g in ("computation", "changes"))
    assert check(problem, goal, found) == ()
    assert found.gap <= 0.02
    assert start.energy_j - found.energy_j >= 0.65 * (start.energy_j - finest.energy_j)


def test_limits_of_time_are_kept() -> None:
    problem = wavy()
    goal = Goal(1.1 * baseline(problem).iteration_time_s)
    free = solve(problem, goal, "changes", limits=ChangeLimits(4))
    for allowed in (ChangeLimits(4, min_dwell_s=0.7), ChangeLimits(4, cost_s=0.02)):
        found = solve(problem, goal, "changes", limits=allowed)
        assert check(problem, goal, found) == ()
        assert found.lower_bound_j <= found.energy_j
        assert free.energy_j <= found.energy_j * (1 + 1e-3)
        assert shortest_stretch_s(problem, found) >= allowed.min_dwell_s


def fastest_s(problem: Problem, most: int) -> float:
    """The least iteration time of all plans of at most so many changes, written out."""
    orders, menus = problem.graph.order, problem.measured or problem.options
    legal = [
        [
            dict(zip(order, mine, strict=True))
            for mine in itertools.product(*(menus[i] for i in order))
            if sum(
                a.clock_mhz != b.clock_mhz for a, b in zip(mine, mine[1:] + mine[:1], strict=True)
            )
            <= most
        ]
        for order in orders
    ]
    seconds = []
    for schedules in itertools.product(*legal):
        clocks = {i: option for one in schedules for i, option in one.items()}
        seconds.append([clocks[i].time_s for i in range(len(menus))])
    return float(levels_of(problem.graph).iteration_times(np.array(seconds).T).min())


def test_the_fastest_plan_where_times_do_not_fall_with_the_clock() -> None:
    """Menus like dice: the fastest plan is the fastest of all."""
    dice = np.random.default_rng(11)
    for _ in range(6):
        menus = {
            (stage, kind): tuple(
                ClockOption(1400 - 100 * k, float(dice.uniform(1.0, 1.6)), 50.0 - k)
                for k in range(3)
            )
            for stage in range(2)
            for kind in KINDS
        }
        problem = build(Pipeline("1f1b", 2, 2), Profile(menus), 20.0)
        found = Solver(problem, "changes", ChangeLimits(2)).fastest_s
        assert found == pytest.approx(fastest_s(problem, 2), rel=1e-9)


def test_the_timetable_says_what_runs() -> None:
    """At the start of each operation its GPU has had its clock since a change, or from the
    beginning on."""
    problem = wavy()
    goal = Goal(1.02 * baseline(problem).iteration_time_s)
    found = solve(problem, goal, "changes")
    changes = changes_of(problem, found)
    for stage, indices in enumerate(problem.graph.order):
        mine = [change for change in changes if change.stage == stage]
        offsets_s = [change.offset_s for change in mine]
        assert offsets_s[0] == 0.0
        assert offsets_s == sorted(offsets_s)
        assert len(mine) <= 3
        for i in indices:
            clock_mhz = [c.clock_mhz for c in mine if c.offset_s <= found.start_s[i]][-1]
            assert clock_mhz == found.clocks[i].clock_mhz
    assert shortest_stretch_s(problem, found) <= found.iteration_time_s


def test_a_gpu_that_cannot_keep_any_schedule_is_named() -> None:
    menus = {
        (stage, kind): (ClockOption(clock_mhz + 10 * stage, 1.0, 50.0),)
        for stage in range(2)
        for kind, clock_mhz in zip(KINDS, (1400, 1000), strict=True)
    }
    problem = build(Pipeline("1f1b", 2, 3), Profile(menus), 20.0)
    with pytest.raises(NoCommonClock):
        solve(problem, Goal(1e9), "changes")
    assert solve(problem, Goal(1e9), "changes", limits=ChangeLimits(8)).limits == ChangeLimits(8)


FAULTS: dict[str, tuple[Callable[[Solution], Solution], str]] = {
    "fewer changes allowed": (
        lambda s: replace(s, limits=replace(s.limits, per_iteration=1)),
        "times, at most 1",
    ),
    "no limits": (lambda s: replace(s, limits=None), "without its limits"),
    "longer stretches asked for": (
        lambda s: replace(s, limits=replace(s.limits, min_dwell_s=s.iteration_time_s)),
        "keeps a clock for",
    ),
    "changes that cost nothing": (
        lambda s: replace(s, energy_j=s.energy_j - 0.1),
        "adds up to",
    ),
    "changes that stop no GPU": (
        lambda s: replace(s, limits=replace(s.limits, cost_s=0.01)),
        "longest path",
    ),
    "a bound above the energy": (
        lambda s: replace(s, lower_bound_j=s.energy_j * 1.01),
        "lower bound",
    ),
}


def test_the_second_opinion_sees_each_fault() -> None:
    problem = wavy(3)
    goal = Goal(1.05 * baseline(problem).iteration_time_s)
    found = solve(problem, goal, "changes", limits=ChangeLimits(4, cost_j=0.1))
    assert check(problem, goal, found) == ()
    for fault, (spoil, said) in FAULTS.items():
        assert any(said in complaint for complaint in check(problem, goal, spoil(found))), fault


@given(st.data())
def test_walks_are_the_cheapest_of_all(data: st.DataObject) -> None:
    size, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    amount = st.sampled_from([0.0, 1.0, 2.0, 5.0, math.inf])
    cost = np.array([[data.draw(amount) for _ in range(columns)] for _ in range(size)])
    steps = [[data.draw(st.integers(1, 3)) for _ in range(columns)] for _ in range(size)]
    until = np.maximum.accumulate(np.arange(size)[:, None] + np.array(steps), axis=0)
    change = data.draw(st.sampled_from([0.0, 0.5, 3.0]))
    most = data.draw(st.sampled_from([0, 1, 2, 3, LAYERS_MAX + 1]))
    closed = data.draw(st.booleans())
    ends = [[data.draw(st.integers(0, 5)) for _ in range(columns)] for _ in range(size)]
    latest = np.minimum(size, np.maximum.accumulate(np.array(ends) + 2, axis=0))
    value, walk = cheapest(cost, until, latest, most, change, closed)

    def paid(clocks: tuple[int, ...]) -> float:
        at = [k for k in range(1, size) if clocks[k] != clocks[k - 1]]
        count = len(at) + (clocks[-1] != clocks[0])
        ends = [*at[1:], size][: len(at)]
        kept = all(until[a, clocks[a]] <= b for a, b in zip(at, ends, strict=True))
        kept &= all(b <= latest[a, clocks[a]] for a, b in itertools.pairwise([0, *at, size]))
        if count > most or not kept or (closed and clocks[-1] != clocks[0]):
            return math.inf
        return float(sum(cost[k, f] for k, f in enumerate(clocks))) + change * count

    best = min(map(paid, itertools.product(range(columns), repeat=size)))
    assert value == best
    if best < math.inf:
        assert paid(tuple(walk.tolist())) == best
