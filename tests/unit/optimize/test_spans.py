"""Spans: walks against all combinations of ticks, and what passing on proves."""

import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, SCHEDULES, Pipeline, Profile, Schedule
from joulecut_engine.optimize.ascent import dual, paths_of, through
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.curves import Curve
from joulecut_engine.optimize.events import events_of
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.relaxation import Interior
from joulecut_engine.optimize.spans import Spans
from joulecut_engine.optimize.ticks import Ticks
from joulecut_engine.optimize.walks import walked

LOSS = st.integers(-3, 9).map(float)
ROW = st.lists(LOSS, min_size=1, max_size=4)
WIDTH = 10


class Run(NamedTuple):
    rows: list[list[float]]
    prices: list[list[float]]
    meets: list[bool]
    sign: list[float]
    shift: list[int]
    gives: list[bool]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    rows = draw(st.lists(ROW, min_size=2, max_size=4))
    prices = draw(st.lists(st.lists(LOSS, min_size=WIDTH, max_size=WIDTH), min_size=3, max_size=3))
    meets = [draw(st.booleans()) for _ in rows[1:]]
    sign = [draw(st.sampled_from([-1.0, 1.0])) for _ in rows[1:]]
    shift = [draw(st.integers(0, 2)) for _ in rows[1:]]
    gives = [draw(st.booleans()) and meet for meet in meets]
    return Run(rows, prices, meets, sign, shift, gives)


def asked(run: Run, price: np.ndarray, gives: list[bool], share: float) -> float:
    rows, _, meets, sign, shift, _ = run
    value = np.full((len(rows), max(map(len, rows))), np.inf)
    for line, row in zip(value, rows, strict=True):
        line[: len(row)] = row
    span = [k if meet else -1 for k, meet in enumerate(meets)]
    return walked(
        value,
        np.array([len(row) for row in rows]),
        np.array([*span, -1]),
        np.array([*sign, 0.0]),
        np.array([*shift, 0]),
        price,
        np.array([*gives, False]),
        (share, 5.0),
        np.empty_like(value),
    )


def every(run: Run, price: np.ndarray) -> float:
    """Written without looking at the walk: the last tick of a row is any length from there on,
    and so is the length of a span it belongs to."""
    rows, _, meets, sign, shift, _ = run
    best = math.inf
    for ticks in itertools.product(*(range(len(row)) for row in rows)):
        total = sum(row[k] for row, k in zip(rows, ticks, strict=True))
        for i, meet in enumerate(meets):
            if not meet:
                continue
            last = [ticks[j] == len(rows[j]) - 1 for j in (i, i + 1)]
            length = min(ticks[i] + ticks[i + 1] + shift[i], WIDTH - 1)
            lengths = range(length, WIDTH) if any(last) else [length]
            total += min(sign[i] * price[i][k] for k in lengths)
        best = min(best, total)
    return best


@settings(max_examples=150, deadline=None)
@given(runs())
def test_the_walk_finds_the_least_of_all_combinations(run: Run) -> None:
    price = np.array(run[1])
    assert asked(run, price, [False] * len(run[2]), 0.0) == pytest.approx(every(run, price))


@settings(max_examples=150, deadline=None)
@given(runs(), st.sampled_from([0.5, 1.0]))
def test_who_passes_on_loses_no_less(run: Run, share: float) -> None:
    """All that is passed on is what lengths lose beyond the least."""
    before, price = np.array(run[1]), np.array(run[1])
    least = every(run, before)
    assert asked(run, price, run[5], share) == pytest.approx(least)
    assert every(run, price) == pytest.approx(least)
    for k, (gives, sign) in enumerate(zip(run[5], run[3], strict=True)):
        paid = sign * (before[k] - price[k])  # to the other stage
        assert (paid >= 0.0).all()
        assert gives or not paid.any()


def coarse(stages: int, microbatches: int, schedule: Schedule = "1f1b") -> Computation:
    """Few clocks, stages apart: nothing fits anything."""
    menus = {}
    for stage in range(stages):
        for kind, base_s in zip(KINDS, (0.08, 0.17, 0.09, 0.05), strict=False):
            scale = base_s * (0.9 + 0.07 * ((stage * 5) % 4))
            clocks = (600, 900, 1200, 1500, 1800)
            times = [scale * (0.25 + 0.75 * 1800 / clock) for clock in clocks]
            powers = [80 + 60 * (c / 1800) + 220 * (c / 1800) ** 3 for c in clocks]
            menus[stage, kind] = tuple(
                ClockOption(c, t, t * p) for c, t, p in zip(clocks, times, powers, strict=True)
            )
    return Computation(build(Pipeline(schedule, stages, microbatches), Profile(menus), 75.0))


def asked_of(computation: Computation, factor: float) -> tuple[Spans, np.ndarray, float, float]:
    """Spans, the relaxation's flow, the time price and the deadline."""
    network, goal = computation.network, Goal(computation.fastest_s * factor)
    events, price_w = events_of(network), computation.time_price_w(goal)
    lines = [network.row[list(order)].tolist() for order in computation.problem.graph.order]
    runs = []
    for line in lines:
        runs.append(line[:1])
        for before, after in itertools.pairwise(line):
            if events.done[before] == events.begin[after]:
                runs[-1].append(after)
            else:
                runs.append([after])
    link_w = Interior(network).relax(goal.deadline_s, price_w).link_w
    assert link_w is not None
    return Spans(network, events, runs), link_w, price_w, goal.deadline_s


def loss_j(curve: Curve, price_w: float, tick_s: float, ticks: int) -> float:
    """Of an operation that is given so many ticks, beyond the least without any."""
    options = list(zip(curve.time_s.tolist(), curve.cost_j.tolist(), strict=True))
    fit = [cost for time, cost in options if time // tick_s <= ticks]
    least_j = min(cost + price_w * time for time, cost in options)
    return float(min(fit, default=math.inf) + price_w * tick_s * ticks - least_j)


@pytest.mark.parametrize("tick_s", [0.00311, 0.0103, 0.0717])
def test_tables_are_the_least_of_what_fits_in_whole_ticks(tick_s: float) -> None:
    computation = coarse(3, 4)
    network = computation.network
    spans, link_w, _, _ = asked_of(computation, 1.02)
    price_w, rows = through(network, link_w), np.arange(network.size)
    tables = Ticks(network).tables(rows, price_w, tick_s, spans.cap_j, np.zeros(network.size))
    shorter = 0
    for row in rows:
        curve = network.curves.distinct[network.curve[row]]
        price = float(price_w[row])
        base, count = int(tables.base[row]), int(tables.counts[row])
        assert base == min(curve.time_s) // tick_s
        for k in range(count - 1):
            assert tables.value[row, k] == pytest.approx(loss_j(curve, price, tick_s, base + k))
        longest = int(max(curve.time_s) // tick_s) + 1
        beyond = [
            loss_j(curve, price, tick_s, k)
            for k in range(base + count - 1, max(longest, base + count) + 1)
        ]
        assert tables.value[row, count - 1] == pytest.approx(min(beyond))
        shorter += base + count <= longest
    assert tick_s > 0.05 or shorter  # some rows have options that lose too much to be counted


def test_passing_on_raises_the_bound_and_is_what_it_says() -> None:
    """Never above a plan, and beyond strips and ladders where stages are many and clocks few."""
    computation = coarse(5, 16)
    goal = Goal(computation.fastest_s * 1.01)
    relaxed = computation.relax(goal)
    assert relaxed.link_w is not None
    raised = computation.raised(goal, relaxed)
    plan = computation.solve(goal, raised, rolls=100, moves=200_000)
    spans, _, price_w, deadline_s = asked_of(computation, 1.01)
    plain_j, _ = dual(computation.network, relaxed.link_w, price_w, deadline_s)
    found_j, link_w = spans.proven([relaxed.link_w], price_w, deadline_s, np.inf)
    assert link_w is relaxed.link_w
    assert plain_j < found_j <= plan.energy_j
    assert found_j - plain_j > 1.1 * (raised.bound_j - plain_j)
    enough_j, _ = spans.proven([relaxed.link_w], price_w, deadline_s, plain_j)
    assert plain_j <= enough_j <= found_j  # less work where less is asked for


def test_passing_on_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the fastest deadline, where flow is not moved; once, and for the same flow only."""
    monkeypatch.setattr("joulecut_engine.optimize.spans.SWEEPS_FIRST", 1)
    monkeypatch.setattr("joulecut_engine.optimize.spans.SWEEPS_LAST", 1)
    computation = coarse(4, 8)
    goal = Goal(computation.fastest_s)
    relaxed = computation.relax(goal)
    plan = computation.solve(goal, relaxed, rolls=50)
    spans, link_w, price_w, deadline_s = asked_of(computation, 1.0)
    assert spans.further(link_w, np.inf) == -np.inf  # nothing was asked yet
    found_j, at_w = spans.proven([link_w], price_w, deadline_s, np.inf)
    more_j = spans.further(at_w, np.inf)
    assert found_j < more_j <= plan.energy_j
    assert spans.further(at_w, np.inf) == -np.inf
    spans.proven([link_w], price_w, deadline_s, np.inf)
    assert spans.further(link_w.copy(), np.inf) == -np.inf

    finer = computation._strips.finer(relaxed, relaxed, price_w, np.inf)
    more = computation._strips.climbed(relaxed, finer, price_w, np.inf)
    assert finer.bound_j < more.bound_j <= plan.energy_j


def test_flow_is_moved_to_where_passing_on_proves_more() -> None:
    """And what is proven there is below every plan, too."""
    computation = coarse(3, 3)
    spans, link_w, price_w, deadline_s = asked_of(computation, 1.02)
    goal = Goal(deadline_s)
    plan = computation.solve(goal, computation.relax(goal), rolls=50, moves=200_000)
    network = computation.network
    lines = [network.row[list(order)] for order in computation.problem.graph.order]
    before_j, _ = spans.proven([link_w], price_w, deadline_s, np.inf)
    paths = paths_of(network, lines, link_w)
    found_j, moved_w = spans.proven([link_w], price_w, deadline_s, np.inf, paths)
    assert (moved_w != link_w).any()
    assert before_j < found_j <= plan.energy_j
    through_w = through(network, moved_w)
    leaves_w = np.bincount(network.tails + 1, moved_w)[1:]
    assert leaves_w == pytest.approx(through_w)  # balanced, or it would bound nothing


def test_what_is_insisted_on_is_searched_on() -> None:
    """GPipe has no spans to prove anything by; the plan for a sooner end is bettered."""
    computation = coarse(3, 5, "gpipe")
    goal = Goal(computation.fastest_s * 1.02)
    relaxed = computation.relax(goal)
    bound_j = computation.bound_j(goal, relaxed)
    sooner = Goal(computation.fastest_s)
    found = replace(computation.solve(sooner, computation.relax(sooner)), lower_bound_j=bound_j)
    more = computation.insisted(goal, relaxed, relaxed, found, bar=0.0, reach=1.0)
    assert bound_j <= more.lower_bound_j <= more.energy_j < found.energy_j
    assert check(computation.problem, goal, more) == ()
    assert computation.insisted(goal, relaxed, relaxed, found, bar=found.gap, reach=1.0) == found
    assert computation.insisted(goal, relaxed, relaxed, found, bar=0.0, reach=0.0) == found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_schedule_keeps_its_plans_above_it(schedule: Schedule) -> None:
    computation = coarse(4, 8, schedule)
    spans, link_w, price_w, deadline_s = asked_of(computation, 1.02)
    goal = Goal(deadline_s)
    plan = computation.solve(goal, computation.relax(goal), rolls=50)
    found_j, _ = spans.proven([link_w], price_w, deadline_s, np.inf)
    assert found_j <= plan.energy_j


def test_ticks_fit_the_clocks_that_matter() -> None:
    """One option of a tenth of a second: some tick near a hundredth divides it, none is wider
    than asked for by a third."""
    menu = (ClockOption(1400, 0.1, 50.0),)
    problem = build(
        Pipeline("1f1b", 2, 4), Profile({(s, k): menu for s in (0, 1) for k in KINDS}), 0.0
    )
    network = Computation(problem).network
    tick_s = Ticks(network).fitting_s(np.ones(network.size), 0.0091, 1.0)
    assert 0.0091 <= tick_s <= 0.0091 * 1.3
    assert 0.1 % tick_s < 0.02 * tick_s
