"""Pinned pairs: nothing real is charged for, and what misses by a hair is no longer let in."""

import itertools
import math

import numpy as np
import pytest

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, SCHEDULES, Pipeline, Profile, Schedule
from joulecut_engine.optimize.ascent import pressed
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.events import Events, events_of
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.network import Network
from joulecut_engine.optimize.pinned import (
    LATE,
    SOON,
    Moments,
    Pairs,
    charged,
    moments,
    ticked,
)
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.relaxation import Interior
from joulecut_engine.optimize.spans import Spans
from joulecut_engine.optimize.strips import Strips
from joulecut_engine.optimize.ticks import EDGE, Options

CAP_J = 50.0


def drawn(
    seed: int,
    stages: int = 4,
    microbatches: int = 5,
    schedule: Schedule = "1f1b",
    clocks: int = 4,
    combinations_all: int = 20_000,
) -> Computation:
    """The last stage is the slowest, so that it sets the pace."""
    random = np.random.default_rng(seed)
    menus = {}
    for stage, kind in itertools.product(range(stages), KINDS):
        first_s = (0.3 if kind == "forward" else 0.6) * (1.0 + 0.04 * (stage == stages - 1))
        times = first_s * (1.0 + np.cumsum([0.0, *random.uniform(0.01, 0.06, clocks - 1)]))
        joules = 90.0 - np.cumsum([0.0, *random.uniform(0.5, 6.0, clocks - 1)])
        menus[stage, kind] = tuple(
            ClockOption(1400 - 100 * k, float(t), float(j))
            for k, (t, j) in enumerate(zip(times, joules, strict=True))
        )
    asked = build(Pipeline(schedule, stages, microbatches), Profile(menus), 20.0)
    return Computation(asked, combinations_all)


def runs_of(computation: Computation, events: Events) -> list[list[int]]:
    network, found = computation.network, []
    for order in computation.problem.graph.order:
        line = network.row[list(order)].tolist()
        found.append(line[:1])
        for before, after in itertools.pairwise(line):
            if events.done[before] == events.begin[after]:
                found[-1].append(after)
            else:
                found.append([after])
    return [run for run in found if len(run) > 1]


def happens_s(network: Network, events: Events, duration_s: np.ndarray) -> np.ndarray:
    """When each moment is, as early as may be."""
    when_s, ends_s = np.zeros(events.count), network.ends(duration_s)
    np.maximum.at(when_s, events.begin, network.starts(ends_s))
    np.maximum.at(when_s, events.done, ends_s)
    return when_s


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_moments_are_when_plans_may_be_there(schedule: Schedule) -> None:
    computation = drawn(3, schedule=schedule)
    network, random = computation.network, np.random.default_rng(4)
    events, deadline_s = events_of(network), computation.fastest_s * 1.05
    when = moments(network, events, deadline_s)
    fastest_s = happens_s(network, events, network.fastest / network.second)
    assert when.early_s == pytest.approx(fastest_s, rel=1e-9)
    kept = 0
    for _ in range(400):
        slower = random.choice([1.0, 1.02, 1.1], network.size)
        duration_s = network.fastest / network.second * slower
        if float(network.ends(duration_s).max()) > deadline_s:
            continue
        kept += 1
        at_s = happens_s(network, events, duration_s)
        assert (when.early_s <= at_s).all()
        assert (at_s <= when.late_s).all()
    assert kept > 0
    nothing = moments(network, events, computation.fastest_s)
    assert (nothing.late_s - nothing.early_s).min() < 1e-7 * deadline_s  # the longest way
    assert (nothing.late_s >= nothing.early_s).all()


BEGIN_S, TICK_S = 1.0, 0.0113
ONE, OTHER = (0.1, 0.1241, 0.1302, 0.1455), (0.2, 0.2101, 0.2339, 0.2507)
COSTS = (9.0, 6.5, 3.0, 1.0), (20.0, 14.0, 13.0, 5.0)


def tables(zeros: tuple[float, float, float], room_s: float) -> tuple[np.ndarray, ...]:
    """Of two rows between known moments, in joules without a price; before and after."""
    done_s = BEGIN_S + room_s
    time_s, cost_j = np.array(ONE + OTHER), np.array(COSTS[0] + COSTS[1])
    options = Options(np.array([0, 4, 8]), time_s, cost_j)
    known_s = np.array([BEGIN_S, 0.0, done_s])  # a hair wider, as `moments` has them
    at_s = Moments(known_s * (1.0 - SOON), known_s * (1.0 + LATE))
    zero_s = np.array(zeros)
    whole = ticked(at_s.early_s, zero_s, TICK_S)
    ticks = np.floor(time_s * (1.0 - EDGE) / TICK_S + np.repeat(-np.diff(zero_s), 4) / TICK_S)
    base = ticks.reshape(2, 4)[:, 0].astype(np.int64)
    value = np.array(
        [
            [
                min(c for t, c in zip(ticks[own], cost_j[own], strict=True) if t <= first + k)
                for k in range(20)
            ]
            for own, first in ((slice(0, 4), base[0]), (slice(4, 8), base[1]))
        ]
    )
    before = value.copy()
    pair = Pairs(np.array([0]), np.array([1]), np.array([[0, 1, 2]]))
    count = np.array([20, 20])
    charged(options, np.array([0, 1]), pair, at_s, zero_s, TICK_S, whole, CAP_J, base, value, count)
    return before, value, base, whole, zero_s


@pytest.mark.parametrize("zeros", [(0.0, 0.0, 0.0), (0.002, 0.0091, 0.0044), (0.01, 0.0003, 0.0)])
def test_both_are_told_the_least_that_really_fits(zeros: tuple[float, float, float]) -> None:
    rooms_s = (0.3001, 0.33, 0.3339, 0.3643, 0.38)
    assert sum(charged_of(zeros, room_s) for room_s in rooms_s) > len(rooms_s)


def charged_of(zeros: tuple[float, float, float], room_s: float) -> int:
    """How many ticks of the moment between are charged for, all of them as they have to be."""
    before, value, base, whole, zero_s = tables(zeros, room_s)
    least: dict[int, float] = {}
    for (t, c), (u, d) in itertools.product(
        zip(ONE, COSTS[0], strict=True), zip(OTHER, COSTS[1], strict=True)
    ):
        if t + u <= room_s:
            # Between the earliest end of the one and the latest begin of the other.
            for at_s in np.linspace(BEGIN_S + t, BEGIN_S + room_s - u, 200):
                tick = int(ticked(at_s, zero_s[1], TICK_S)) - int(whole[0])
                least[tick] = min(least.get(tick, math.inf), c + d)
    assert least
    raised = 0
    for tick, real_j in least.items():
        k, left = tick - base[0], whole[2] - whole[0] - tick - base[1]
        assert value[1, left] == before[1, left]
        assert value[0, k] + value[1, left] == pytest.approx(real_j)
        raised += before[0, k] + before[1, left] < real_j - 1e-9
    for k in range(19):  # no plan is there at all
        left = whole[2] - whole[0] - base[0] - k - base[1]
        if left >= 0 and base[0] + k not in least:
            raised += 1
            assert value[0, k] == before[0, k] + CAP_J
    return raised


def near_miss(stages: int, microbatches: int) -> Computation:
    """All but the last stage could do with 0.1 and 0.200005 s, cheapest by far, if a period of
    the last were not 0.3."""
    slow = {"forward": ((0.1, 5.0),), "backward": ((0.2, 9.0),)}
    other = {
        "forward": ((0.09, 6.0), (0.1, 5.0), (0.11, 4.0)),
        "backward": ((0.18, 20.0), (0.19, 19.0), (0.200005, 9.0)),
    }
    menus = {
        (stage, kind): tuple(
            ClockOption(1400 - 100 * k, t, j)
            for k, (t, j) in enumerate((slow if stage == stages - 1 else other)[kind])
        )
        for stage in range(stages)
        for kind in KINDS
    }
    return Computation(build(Pipeline("1f1b", stages, microbatches), Profile(menus), 1.0))


def spans_of(computation: Computation) -> tuple[Spans, np.ndarray, float, float]:
    network, goal = computation.network, Goal(computation.fastest_s)
    events, price_w = events_of(network), computation.time_price_w(goal)
    relaxed = Interior(network).relax(goal.deadline_s, price_w)
    assert relaxed.link_w is not None
    link_w = pressed(network, relaxed.link_w, goal.deadline_s, 1e-6 * abs(relaxed.bound_j))
    assert link_w is not relaxed.link_w
    return Spans(network, events, runs_of(computation, events)), link_w, price_w, goal.deadline_s


def test_a_pair_that_misses_its_period_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By 5 us, less than a tick: without pins it counts as fitting."""
    computation = near_miss(2, 9)
    goal = Goal(computation.fastest_s)
    plan = computation.solve(goal, computation.relax(goal), rolls=50, moves=50_000)
    spans, link_w, price_w, deadline_s = spans_of(computation)
    found_j, _ = spans.proven([link_w], price_w, deadline_s, np.inf)
    assert found_j == pytest.approx(plan.energy_j, rel=5e-7)
    assert found_j <= plan.energy_j
    monkeypatch.setattr("joulecut_engine.optimize.spans.charged", lambda *_: None)
    missed_j, _ = spans.proven([link_w], price_w, deadline_s, np.inf)
    assert missed_j < found_j - 1.0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_plan_is_below_it(seed: int, schedule: Schedule) -> None:
    computation = drawn(seed, schedule=schedule)
    goal = Goal(computation.fastest_s)
    plan = computation.solve(goal, computation.relax(goal), rolls=50, moves=20_000)
    spans, link_w, price_w, deadline_s = spans_of(computation)
    found_j, _ = spans.proven([link_w], price_w, deadline_s, np.inf)
    assert found_j <= plan.energy_j * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_of_all_is_below_it(seed: int) -> None:
    """Two stages, three microbatches, three clocks: half a million plans, the best one known."""
    computation = drawn(seed, 2, 3, clocks=3, combinations_all=3**12)
    goal = Goal(computation.fastest_s)
    plan = computation.solve(goal, computation.relax(goal))
    spans, link_w, price_w, deadline_s = spans_of(computation)
    found_j, _ = spans.proven([link_w], price_w, deadline_s, np.inf)
    assert found_j <= plan.energy_j * (1 + 1e-12)
    assert found_j == pytest.approx(plan.energy_j, rel=2e-7)  # two stages: nothing else is open
    assert computation.bound_j(goal, computation.relax(goal)) < found_j - 0.5


def test_flow_is_not_moved_where_moments_cannot_move() -> None:
    computation = near_miss(2, 3)
    network, price_w = computation.network, computation.time_price_w(Goal(1.0))
    strips = Strips(network, [network.row[list(o)] for o in computation.problem.graph.order])
    relaxed = Interior(network).relax(computation.fastest_s, price_w)
    assert strips.climbed(relaxed, relaxed, price_w, np.inf) is relaxed  # more could be proven
