"""The simulated card as a value: energy is an integral, whoever looks and however often."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_sim.physics import (
    LATE_S_MAX,
    Card,
    Change,
    Work,
    advance,
    clock_mhz,
    fresh,
    power_shown_w,
    settled_until_s,
    work_at,
)
from joulecut_sim.skus import A40, A100_SXM, CARDS, Sku

SPAN_S = 20.0

times = st.floats(0.0, SPAN_S, allow_nan=False)
skus = st.sampled_from(sorted(CARDS.values(), key=lambda sku: sku.name))


@st.composite
def cards(draw: st.DrawFn) -> tuple[Sku, Card]:
    """A card with a few pieces of work, clock changes and a load, from time 0 on."""
    sku = draw(skus)
    edges = sorted(draw(st.lists(times, min_size=0, max_size=8, unique=True)))
    works = []
    for begin_s, end_s in zip(edges[::2], edges[1::2], strict=False):
        if end_s - begin_s > 1e-3:
            power_w = draw(st.floats(sku.idle_power_w, 500.0))
            cap = draw(st.sampled_from(sku.clocks_mhz))
            works.append(Work(begin_s, end_s, power_w * (end_s - begin_s), cap))
    changes = tuple(
        Change(when_s, sku.clock_min_mhz, draw(st.sampled_from(sku.clocks_mhz)))
        for when_s in sorted(draw(st.lists(times, max_size=4)))
    )
    load = draw(st.sampled_from([0.0, 0.3, 1.0]))
    card = replace(fresh(sku, 0.0), load_ratio=load, works=tuple(works), changes=changes)
    return sku, card


@given(cards(), st.lists(times, max_size=6))
def test_energy_does_not_depend_on_who_looks_when(
    made: tuple[Sku, Card], looks_s: list[float]
) -> None:
    sku, card = made
    at_once = advance(sku, card, SPAN_S)
    step = card
    for look_s in sorted(looks_s):
        step = advance(sku, step, look_s)
    step = advance(sku, step, SPAN_S)
    assert step.energy_j == pytest.approx(at_once.energy_j, rel=1e-9)
    assert step.temperature_celsius == pytest.approx(at_once.temperature_celsius, rel=1e-6)
    assert step.average_w == pytest.approx(at_once.average_w, rel=1e-6)


@given(cards())
def test_energy_is_the_sum_of_work_and_the_rest(made: tuple[Sku, Card]) -> None:
    sku, card = made
    card = replace(card, load_ratio=0.0)
    worked_s = sum(work.end_s - work.begin_s for work in card.works)
    expected = sum(work.energy_j for work in card.works)
    expected += sku.idle_power_w * (SPAN_S - worked_s)
    assert advance(sku, card, SPAN_S).energy_j == pytest.approx(expected, rel=1e-9)


def test_the_counter_never_falls_however_writers_split_the_sum() -> None:
    """Its last bits did, within one step, and the agent saw a driver reload that never was."""
    rng = random.Random(5)
    card, now_s, done_s, counter_j = fresh(A100_SXM, 0.0), 0.0, 0.0, 0.0
    for _ in range(5000):
        now_s += rng.choice((0.002, 0.03, 0.1)) * rng.random()
        act = rng.random()
        if act < 0.3:  # another writer settles what is final
            card = advance(A100_SXM, card, settled_until_s(card, now_s))
        elif act < 0.5 and now_s > done_s:
            card = advance(A100_SXM, card, done_s)
            energy_j = rng.uniform(60.0, 450.0) * (now_s - done_s)
            work = Work(done_s, now_s, energy_j, 1365)
            card, done_s = replace(card, works=(*card.works[-2:], work)), now_s
        else:
            shown_j = advance(A100_SXM, card, now_s).latched_j
            assert shown_j >= counter_j
            counter_j = shown_j


@given(cards(), times)
def test_the_clock_shown_is_one_the_card_has_and_within_its_lock(
    made: tuple[Sku, Card], when_s: float
) -> None:
    sku, card = made
    shown = clock_mhz(sku, card, when_s)
    assert shown in sku.clocks_mhz
    in_force = [change for change in card.changes if change.effective_s <= when_s]
    if in_force:
        assert shown <= max(in_force[-1].clock_max_mhz, sku.clock_min_mhz)


def test_the_power_cap_holds_the_a40_back_and_not_the_a100() -> None:
    card = replace(fresh(A40, 0.0), load_ratio=1.0)
    shown = clock_mhz(A40, card, 1.0)
    assert 1380 <= shown <= 1500  # the public sweep is flat from about 1440 MHz on
    assert A40.load_power_w(shown, 1.0) <= A40.power_limit_w
    assert clock_mhz(A100_SXM, replace(fresh(A100_SXM, 0.0), load_ratio=1.0), 1.0) == 1410


def test_work_that_comes_late_does_not_look_idle_for_a_while() -> None:
    work = Work(1.0, 2.0, 400.0, 1365)
    card = replace(fresh(A100_SXM, 0.0), works=(work,))
    assert work_at(card, 2.0 + 0.5 * LATE_S_MAX) == work
    assert power_shown_w(A100_SXM, card, 2.5) == pytest.approx(400.0)
    assert settled_until_s(card, 2.5) == 2.0  # the piece to come may begin right there
    assert work_at(card, 2.0 + 2.0 * LATE_S_MAX) is None
    assert settled_until_s(card, 10.0) == 10.0


@given(st.floats(0.05, LATE_S_MAX - 0.1))
def test_the_averaged_power_is_that_of_work_that_comes_late(late_s: float) -> None:
    """As the counter's, once the work is handed in: the reading stood 3-12 % below it."""
    work = Work(0.0, 10.0, 3000.0, 1410)
    card = replace(fresh(A100_SXM, 0.0), works=(work,))
    seen = advance(A100_SXM, card, 10.0 + late_s)
    assert seen.average_w == pytest.approx(300.0, rel=1e-6)
    ended = advance(A100_SXM, card, 30.0)
    assert ended.average_w == pytest.approx(A100_SXM.idle_power_w, rel=1e-6)


def test_heat_rises_towards_what_the_power_keeps_up() -> None:
    card = replace(fresh(A100_SXM, 0.0), load_ratio=1.0)
    power_w = A100_SXM.load_power_w(1410, 1.0)
    hot = advance(A100_SXM, card, 1000.0).temperature_celsius
    assert hot == pytest.approx(A100_SXM.ambient_celsius + A100_SXM.heating_celsius_per_w * power_w)
    assert advance(A100_SXM, card, 5.0).temperature_celsius < hot
