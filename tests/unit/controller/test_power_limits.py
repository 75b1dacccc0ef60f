"""Limits that keep a budget: their allocation, and steps that keep it on the way."""

import random

import pytest
from draws import SAFE
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.power.limits import (
    RAMP_S,
    LimitedGpu,
    allocate_limits,
    next_limits,
    next_raises,
)


@st.composite
def gpus(draw: st.DrawFn) -> list[LimitedGpu]:
    made = []
    for n in range(draw(st.integers(1, 6))):
        least_w = draw(st.floats(50.0, 200.0))
        most_w = draw(st.floats(200.0, 700.0))
        made.append(
            LimitedGpu(
                uuid=f"GPU-{n}",
                least_w=least_w,
                most_w=most_w,
                wanted_w=draw(st.floats(0.0, 1000.0)),
                in_force_w=draw(st.floats(least_w, most_w)),
                fixed=draw(st.sampled_from(["", "", "unreachable"])),
            )
        )
    return made


@given(gpus(), st.floats(100.0, 4000.0))
def test_limits_stay_within_card_and_budget(made: list[LimitedGpu], capacity_w: float) -> None:
    found = allocate_limits(made, capacity_w)
    fixed_w = sum(gpu.in_force_w for gpu in made if gpu.fixed)
    total_w = sum(found.limits_w.values()) + fixed_w
    assert bool(found.complaint) is (found.least_w > capacity_w)
    assert total_w <= max(capacity_w, found.least_w) + 1e-6
    for gpu in made:
        if not gpu.fixed:
            assert gpu.least_w <= found.limits_w[gpu.uuid] <= max(gpu.most_w, gpu.least_w + 1.0)
        else:
            assert gpu.uuid not in found.limits_w


@given(gpus(), st.floats(100.0, 4000.0))
def test_what_work_needs_comes_before_the_rest(made: list[LimitedGpu], capacity_w: float) -> None:
    found = allocate_limits(made, capacity_w)
    free = [gpu for gpu in made if not gpu.fixed]
    needs = {g.uuid: min(max(g.wanted_w, g.least_w), g.most_w) for g in free}
    short = [u for u, need_w in needs.items() if found.limits_w[u] < need_w - 1.0]
    above = [u for u, need_w in needs.items() if found.limits_w[u] > need_w + 1.0]
    assert not (short and above)


@SAFE
@given(gpus(), st.floats(100.0, 4000.0), st.randoms())
def test_no_step_of_a_change_exceeds_the_budget(
    made: list[LimitedGpu], capacity_w: float, dice: random.Random
) -> None:
    """Each command takes effect or not; only a reading says which."""
    found = allocate_limits(made, capacity_w)
    if found.complaint:
        return
    now_w = {gpu.uuid: gpu.in_force_w for gpu in made}
    within = sum(now_w.values()) <= capacity_w
    for _ in range(40):
        shown = [
            LimitedGpu(g.uuid, g.least_w, g.most_w, g.wanted_w, now_w[g.uuid], g.fixed)
            for g in made
        ]
        steps = next_limits(shown, found.limits_w, capacity_w)
        bound_w = sum(max(now_w[g.uuid], steps.get(g.uuid, 0.0)) for g in made)
        assert bound_w <= max(capacity_w, sum(now_w.values())) + 1e-6
        now_w |= {uuid: limit_w for uuid, limit_w in steps.items() if dice.random() < 0.7}
        within = within or sum(now_w.values()) <= capacity_w
        assert not within or sum(now_w.values()) <= capacity_w + 1e-6
    assert all(abs(now_w[u] - w) <= 1.0 for u, w in found.limits_w.items())


@given(gpus(), st.floats(0.5, 10.0))
def test_limits_go_back_evenly_and_in_time(made: list[LimitedGpu], interval_s: float) -> None:
    now_w = {gpu.uuid: gpu.in_force_w for gpu in made}
    gap_w = sum(gpu.most_w - gpu.in_force_w for gpu in made)
    before_w, elapsed_s, sent_all = sum(now_w.values()), 0.0, set[str]()
    while elapsed_s <= RAMP_S + interval_s:
        left = [
            LimitedGpu(g.uuid, 0.0, g.most_w, g.most_w, now_w[g.uuid])
            for g in made
            if g.uuid not in sent_all
        ]
        sent, _ = next_raises(left, gap_w, elapsed_s)
        now_w |= sent
        sent_all |= sent.keys()
        risen_w = sum(now_w.values()) - before_w
        assert risen_w <= gap_w * min(1.0, elapsed_s / RAMP_S) + 1e-6
        elapsed_s += interval_s
    assert now_w == pytest.approx({gpu.uuid: gpu.most_w for gpu in made})
