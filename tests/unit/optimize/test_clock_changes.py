"""Clock changes that cost, come late and are limited: what is run, and the best of it."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pipelines
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from joulecut_engine.graph import graph_of
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Operation, Pipeline, Profile
from joulecut_engine.optimize.clock_change_check import check
from joulecut_engine.optimize.clock_change_moves import realise
from joulecut_engine.optimize.clock_change_search import ClockChangeSearch
from joulecut_engine.optimize.clock_changes import (
    UNLIMITED,
    Late,
    Switched,
    Switching,
    columns_of,
    limits_of,
    run_of,
    track_of,
)
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.k_change_dp import cheapest
from joulecut_engine.optimize.problem import Goal, Infeasible, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve

FAST, SLOW = ClockOption(1400, 1.0, 100.0), ClockOption(900, 2.0, 60.0)
FEW = 300  # plans that a property tries one by one


def line_of(count: int, gap: bool = False) -> Problem:
    """`count` operations on one GPU; with a gap a second GPU's three come before the last."""
    operations = [Operation(0, k, "forward") for k in range(count)]
    edges = {(k, k + 1) for k in range(count - 1)}
    if gap:
        operations += [Operation(1, k, "forward") for k in range(3)]
        edges |= {(count, count + 1), (count + 1, count + 2), (count + 2, count - 1)}
    graph = graph_of(operations, edges, 1 + gap)
    return priced(graph, [(FAST, SLOW)] * len(operations), 10.0)


def ran(problem: Problem, switching: Switching, asked_mhz: list[int]) -> tuple[float, list[float]]:
    track = track_of(problem)
    asked = columns_of(track, asked_mhz)
    assert asked is not None
    run = run_of(track)
    seconds, _, _ = realise(track, limits_of(switching), asked, run)
    return seconds, run.duration.tolist()


@pytest.mark.parametrize(
    ("switching", "seconds", "durations"),
    [
        (Switching(), 6.0, [1, 2, 2, 1]),
        # The change back lands while the last operation runs, which is slow to its end.
        (Switching(latency_s=0.1), 6.0, [1, 1, 2, 2]),
        # A tenth of a second at the old clock: a tenth of a fast one, a twentieth of a slow one.
        (Switching(latency_s=0.1, late="within"), 5.95, [1, 1.9, 2, 1.05]),
        (Switching(cost_s=0.5), 7.0, [1, 2, 2, 1]),
        # Who waits for the change has it in time.
        (Switching(cost_s=0.5, latency_s=0.5), 7.0, [1, 2, 2, 1]),
        (Switching(max_per_iteration=2, min_dwell_s=2.0), 6.0, [1, 2, 2, 1]),
        (Switching(max_per_iteration=1), math.inf, None),
        (Switching(min_dwell_s=2.5), math.inf, None),  # back after 2 s in the next iteration
        (Switching(latency_s=3.0), math.inf, None),  # the way back has not come by the end
    ],
)
def test_what_is_asked_for_is_run_like_this(
    switching: Switching, seconds: float, durations: list[float] | None
) -> None:
    took_s, each_s = ran(line_of(4), switching, [1400, 900, 900, 1400])
    assert took_s == pytest.approx(seconds, rel=1e-12)
    if durations is not None:
        assert each_s == pytest.approx(durations, rel=1e-12)


def test_where_a_gpu_waits_anyway_a_change_is_free_and_in_time() -> None:
    problem = line_of(2, gap=True)
    asked = [900 if str(o) == "forward 1 of stage 0" else 1400 for o in problem.graph.operations]
    # Asked at 1 s, needed at 3 s; and back at the beginning, where there is no gap.
    took_s, _ = ran(problem, Switching(cost_s=0.25, latency_s=0.25), asked)
    assert took_s == pytest.approx(5.0, rel=1e-12)
    took_s, _ = ran(problem, Switching(cost_s=0.25), asked)
    assert took_s == pytest.approx(5.0, rel=1e-12)


switchings = st.builds(
    Switching,
    min_dwell_s=st.sampled_from([0.0, 0.0, 0.1, 0.4]),
    max_per_iteration=st.sampled_from([0, 2, 3, 4, UNLIMITED]),
    cost_s=st.sampled_from([0.0, 0.01, 0.05]),
    cost_j=st.sampled_from([0.0, 0.5]),
    latency_s=st.sampled_from([0.0, 0.01, 0.15]),
    late=st.sampled_from(["next", "within"]),
)


def choices(problem: Problem) -> list[tuple[int, ...]] | None:
    """All clocks that can be asked for; None where they are too many to try."""
    menus = [sorted({o.clock_mhz for o in menu}) for menu in problem.measured or problem.options]
    if math.prod(map(len, menus)) > FEW:
        return None
    return list(itertools.product(*menus))


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(pipelines.problems(2, 2, 3, same_clocks=True), switchings, st.data())
def test_brute_force_agrees_and_never_beats_the_bound(
    problem: Problem, switching: Switching, data: st.DataObject
) -> None:
    goal = data.draw(pipelines.goals(baseline(problem).iteration_time_s))
    every = choices(problem)
    assume(every is not None)
    assert every is not None
    least_j = math.inf
    for asked_mhz in every:
        if _keeps(problem, goal, switching, asked_mhz):
            least_j = min(least_j, _energy_j(problem, goal, switching, asked_mhz))
    for combinations_all in (0, FEW):
        search = ClockChangeSearch(problem, switching, combinations_all=combinations_all)
        try:
            found = search.solve(goal, quick=True)
        except Infeasible:
            assert least_j == math.inf
            continue
        assert check(problem, goal, switching, found) == ()
        assert found.plan.lower_bound_j <= least_j * (1 + 1e-9)
        assert found.plan.energy_j >= least_j * (1 - 1e-9)
        assert found.plan.energy_j <= least_j * (1 + found.plan.gap + 1e-9)
        if combinations_all:
            assert found.plan.energy_j == pytest.approx(least_j, rel=1e-9)


def _asked(
    problem: Problem, switching: Switching, asked_mhz: tuple[int, ...]
) -> tuple[float, float]:
    """Seconds (infinite where a limit is broken) and effective joules."""
    track = track_of(problem)
    asked = columns_of(track, asked_mhz)
    assert asked is not None
    seconds, cost_j, _ = realise(track, limits_of(switching), asked, run_of(track))
    return seconds, cost_j


def _keeps(problem: Problem, goal: Goal, switching: Switching, asked_mhz: tuple[int, ...]) -> bool:
    return _asked(problem, switching, asked_mhz)[0] <= goal.deadline_s * (1 + 1e-10)


def _energy_j(
    problem: Problem, goal: Goal, switching: Switching, asked_mhz: tuple[int, ...]
) -> float:
    seconds, cost_j = _asked(problem, switching, asked_mhz)
    return cost_j + problem.time_price_w * (goal.deadline_s if goal.waits else seconds)


@settings(deadline=None, max_examples=12)
@given(pipelines.problems(3, 4, 3), st.data())
def test_where_nothing_limits_the_plan_is_the_free_one(
    problem: Problem, data: st.DataObject
) -> None:
    goal = data.draw(pipelines.goals(baseline(problem).iteration_time_s))
    found = ClockChangeSearch(problem, Switching()).solve(goal, quick=True)
    free = solve(problem, goal, "computation")
    assert found.plan.clocks == free.clocks
    assert found.plan.energy_j == free.energy_j
    assert found.plan.lower_bound_j == pytest.approx(free.lower_bound_j, rel=1e-12)


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


@pytest.mark.parametrize("late", ["next", "within"])
@pytest.mark.parametrize("latency_s", [0.0, 0.015])
def test_more_changes_never_cost_and_coarser_plans_never_win(latency_s: float, late: Late) -> None:
    problem = wavy()
    goal = Goal(1.02 * baseline(problem).iteration_time_s)
    energies_j, bounds_j = [], []
    for most in (0, 2, 4, 8, UNLIMITED):
        switching = Switching(max_per_iteration=most, latency_s=latency_s, late=late)
        found = ClockChangeSearch(problem, switching).solve(goal, quick=True)
        assert check(problem, goal, switching, found) == ()
        energies_j.append(found.plan.energy_j)
        bounds_j.append(found.plan.lower_bound_j)
    assert energies_j == sorted(energies_j, reverse=True)
    assert max(bounds_j) <= energies_j[0]
    assert bounds_j[0] > bounds_j[-1]  # a limit raises it
    gpu, edge = (solve(problem, goal, granularity) for granularity in ("gpu", "edge"))
    assert energies_j[0] <= gpu.energy_j * (1 + 1e-9)
    if latency_s == 0.0:
        assert energies_j[1] <= edge.energy_j * (1 + 1e-9)
    assert energies_j[-1] < 0.999 * energies_j[0]


@pytest.mark.parametrize("granularity", ["edge", "gpu"])
def test_tied_clocks_are_asked_for_tied(granularity: str) -> None:
    problem = wavy()
    goal = Goal(1.02 * baseline(problem).iteration_time_s)
    switching = Switching(cost_s=0.002, cost_j=0.1, latency_s=0.015)
    found = ClockChangeSearch(problem, switching, granularity).solve(goal, quick=True)  # type: ignore[arg-type]
    assert check(problem, goal, switching, found) == ()
    assert {len(changes) for changes in found.changes} <= ({0, 2} if granularity == "edge" else {0})
    finer = ClockChangeSearch(problem, switching).solve(goal, quick=True)
    assert finer.plan.energy_j <= found.plan.energy_j * (1 + 1e-9)


def test_more_search_never_costs() -> None:
    problem = wavy()
    goal = Goal(1.02 * baseline(problem).iteration_time_s)
    switching = Switching(max_per_iteration=4, latency_s=0.015, late="within")
    search = ClockChangeSearch(problem, switching)
    before = search.solve(goal, quick=True)
    for after in itertools.islice(search.improvements(goal, before), 2):
        assert check(problem, goal, switching, after) == ()
        assert after.plan.energy_j <= before.plan.energy_j
        assert after.plan.lower_bound_j >= min(before.plan.lower_bound_j, after.plan.energy_j)
        before = after


def test_a_deadline_that_changes_cannot_keep_names_the_fastest_found() -> None:
    problem = wavy()
    with pytest.raises(Infeasible) as none:
        ClockChangeSearch(problem, Switching(max_per_iteration=2)).solve(Goal(0.5))
    assert none.value.fastest_s == pytest.approx(baseline(problem).iteration_time_s, rel=1e-9)


def test_a_frontier_under_switching_falls() -> None:
    problem = wavy(3)
    until_s = 1.2 * baseline(problem).iteration_time_s
    found = ClockChangeSearch(problem, Switching(max_per_iteration=2)).points(5, until_s)
    energies_j = [each.plan.energy_j for each in found]
    assert len(found) > 2
    assert energies_j == sorted(energies_j, reverse=True)


FAULTS: dict[str, tuple[Callable[[Switched], Switched], str]] = {
    "another clock than is asked for": (
        lambda s: replace(s, asked_mhz=(1050, *s.asked_mhz[1:])),
        "is said to run as",
    ),
    "a clock nobody measured": (
        lambda s: replace(s, asked_mhz=(1, *s.asked_mhz[1:])),
        "",
    ),
    "a time that is too good": (
        lambda s: replace(
            s, plan=replace(s.plan, iteration_time_s=s.plan.iteration_time_s * (1 - 1e-6))
        ),
        "iteration time",
    ),
    "changes that cost nothing": (
        lambda s: replace(s, plan=replace(s.plan, energy_j=s.plan.energy_j - 0.1)),
        "adds up to",
    ),
    "a bound above the energy": (
        lambda s: replace(s, plan=replace(s.plan, lower_bound_j=s.plan.energy_j * 1.01)),
        "lower bound",
    ),
    "a change that is not named": (
        lambda s: replace(s, changes=((), *s.changes[1:])),
        "changes are named",
    ),
    "a start too early": (
        lambda s: replace(
            s, plan=replace(s.plan, start_s=(*s.plan.start_s[:-1], s.plan.start_s[-1] - 0.01))
        ),
        "starts at",
    ),
    "an operation too few": (
        lambda s: replace(s, asked_mhz=s.asked_mhz[1:]),
        "operations, but",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_second_opinion_sees(fault: str) -> None:
    problem = wavy(3)
    goal = Goal(1.05 * baseline(problem).iteration_time_s)
    switching = Switching(max_per_iteration=4, cost_j=0.1, min_dwell_s=0.2)
    found = ClockChangeSearch(problem, switching).solve(goal, quick=True)
    assert check(problem, goal, switching, found) == ()
    assert found.changes[0]
    spoil, said = FAULTS[fault]
    complaints = check(problem, goal, switching, spoil(found))
    assert any(said in complaint for complaint in complaints)


def test_the_second_opinion_knows_the_limits() -> None:
    problem = wavy(3)
    goal = Goal(1.05 * baseline(problem).iteration_time_s)
    found = ClockChangeSearch(problem, Switching()).solve(goal, quick=True)
    for tighter, said in (
        (Switching(max_per_iteration=2), "times, at most 2"),
        (Switching(min_dwell_s=1.0), "keeps a clock for"),
        (Switching(latency_s=5.0), "has not come by the end"),
    ):
        assert any(said in complaint for complaint in check(problem, goal, tighter, found))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_walks_are_the_cheapest_of_all(data: st.DataObject) -> None:
    size, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    amount = st.sampled_from([0.0, 1.0, 2.0, 5.0, math.inf])
    cost = np.array([[data.draw(amount) for _ in range(columns)] for _ in range(size)])
    change = np.array([data.draw(st.sampled_from([0.0, 0.5, 3.0])) for _ in range(size)])
    most = data.draw(st.integers(0, 3))
    counted = data.draw(st.booleans())
    reach = data.draw(st.integers(1, 3))
    free = np.minimum(np.arange(size) + reach, size)
    tied = data.draw(st.integers(-1, columns - 1))
    value, walk = cheapest(cost, change, most, counted, free, tied)
    best = math.inf
    for clocks in itertools.product(range(columns), repeat=size):
        changed = [k for k in range(1, size) if clocks[k] != clocks[k - 1]]
        few = not counted or len(changed) <= most
        apart = all(b >= free[a] for a, b in itertools.pairwise(changed))
        if few and apart and tied in (-1, clocks[0]) and tied in (-1, clocks[-1]):
            total = sum(cost[k, f] for k, f in enumerate(clocks))
            best = min(best, total + sum(change[k] for k in changed))
    assert value == best
    if best < math.inf:
        changed = [k for k in range(1, size) if walk[k] != walk[k - 1]]
        paid = sum(cost[k, f] for k, f in enumerate(walk)) + sum(change[k] for k in changed)
        assert paid == best
