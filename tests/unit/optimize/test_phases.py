"""Phases: no plan's moments are nearer than they say, and the longest way is exact."""

import numpy as np
import pytest

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, SCHEDULES, Pipeline, Profile, Schedule
from joulecut_engine.optimize.ascent import pressed, through
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.events import events_of
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.phases import Phases, fitted, none
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.relaxation import Interior
from joulecut_engine.optimize.ticks import Ticks

CAP_J = 3.0


def computation_of(schedule: Schedule = "1f1b") -> Computation:
    """Times that are no multiples of anything."""
    menus = {
        (stage, kind): tuple(
            ClockOption(1400 - 100 * k, (1 + 0.213 * k) * (0.1 + 0.0317 * stage), 20.0 - 3 * k)
            for k in range(4)
        )
        for stage in range(4)
        for kind in KINDS
    }
    return Computation(build(Pipeline(schedule, 4, 6), Profile(menus), 12.0))


def flow_of(computation: Computation, factor: float) -> np.ndarray:
    price_w = computation.time_price_w(Goal(1.0))
    found = Interior(computation.network).relax(computation.fastest_s * factor, price_w)
    assert found.link_w is not None
    return found.link_w


def phases_of(computation: Computation, link_w: np.ndarray, tick_s: float) -> Phases:
    network = computation.network
    menu = Ticks(network).near(through(network, link_w), CAP_J)
    return fitted(network, events_of(network), link_w, menu, tick_s)


def lost_j(computation: Computation, link_w: np.ndarray, tick_s: float, phases: Phases) -> float:
    """By all rows without spans and all waits, with their best options."""
    network, price_w = computation.network, through(computation.network, link_w)
    rows = np.arange(network.size)
    given_j = Ticks(network).given_j(rows, price_w, tick_s, phases.offset_s)
    return given_j + float(phases.short_s @ link_w)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("tick_s", [0.0031, 0.0173])
def test_ticks_are_never_more_than_a_plan_has(schedule: Schedule, tick_s: float) -> None:
    """Any plan: what its rows and waits count in ticks, by themselves, sums to no more than its
    moments say, priced by a flow: else the bound would be above it."""
    computation = computation_of(schedule)
    network, link_w = computation.network, flow_of(computation, 1.02)
    phases, random = phases_of(computation, link_w, tick_s), np.random.default_rng(5)
    assert phases.offset_s.any()
    assert (phases.short_s <= 0.0).all()
    assert (phases.short_s >= -tick_s).all()
    price_w = through(network, link_w)
    arrives_w = float(np.bincount(network.heads, link_w)[network.size])
    for _ in range(20):
        duration_s = np.array(
            [random.choice(network.curves.distinct[k].time_s) for k in network.curve]
        )
        whole = np.floor((duration_s + phases.offset_s) / tick_s)
        counted_j = float(price_w @ (whole * tick_s - phases.offset_s))
        counted_j += float(phases.short_s @ link_w)
        assert counted_j <= arrives_w * float(network.ends(duration_s).max()) * (1 + 1e-12)


def test_rounding_gives_less_away_than_from_one_zero() -> None:
    computation = computation_of()
    link_w = flow_of(computation, 1.02)
    for tick_s in (0.0031, 0.0072, 0.0173):
        found_j = lost_j(computation, link_w, tick_s, phases_of(computation, link_w, tick_s))
        assert 0.7 * lost_j(computation, link_w, tick_s, none(computation.network)) < found_j <= 0.0


def test_what_is_pressed_through_the_longest_way_is_not_rounded() -> None:
    computation = computation_of()
    deadline_s, tick_s = computation.fastest_s, 0.0173
    link_w = flow_of(computation, 1.0)
    pressed_w = pressed(computation.network, link_w, deadline_s, 1.0)
    assert pressed_w.max() > 10 * link_w.max()
    phases = phases_of(computation, pressed_w, tick_s)
    plain_j = lost_j(computation, link_w, tick_s, phases)
    assert lost_j(computation, pressed_w, tick_s, phases) == pytest.approx(plain_j, rel=0.01)
    assert lost_j(computation, pressed_w, tick_s, none(computation.network)) < 10 * plain_j
