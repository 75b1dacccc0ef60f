"""Warm-up after a change of clocks: as long as the heat sinks need, found from temperatures."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.trust.heat_sink import time_constant_s, warm_up_s
from joulecut_controller.trust.switchback import WARM_UP_S

GPUS = 8


def trace(
    heat_sink_s: float, change_celsius: float, seed: int = 1, until_s: float = 390.0
) -> list[tuple[float, float]]:
    """Means over GPUs with sensors of whole degrees, from half a minute after the change on."""
    chance = random.Random(seed)
    at_s = [30.0 + 2.0 * number for number in range(int((until_s - 30.0) / 2.0))]
    return [
        (
            one_s,
            sum(
                round(
                    65.0 + gpu - change_celsius * math.exp(-one_s / heat_sink_s) + chance.random()
                )
                for gpu in range(GPUS)
            )
            / GPUS,
        )
        for one_s in at_s
    ]


@given(st.floats(30.0, 100.0), st.sampled_from([-15.0, -8.0, 8.0, 15.0]), st.integers(0, 99))
def test_the_time_constant_of_a_change_is_found(
    heat_sink_s: float, change_celsius: float, seed: int
) -> None:
    found_s = time_constant_s(trace(heat_sink_s, change_celsius, seed))
    assert found_s == pytest.approx(heat_sink_s, rel=0.35)


@given(st.floats(0.0, 0.4), st.floats(20.0, 200.0), st.integers(0, 99))
def test_noise_is_no_change(change_celsius: float, heat_sink_s: float, seed: int) -> None:
    assert time_constant_s(trace(heat_sink_s, change_celsius, seed)) is None


def test_without_temperatures_the_usual_warm_up_holds() -> None:
    assert time_constant_s([]) is None
    assert time_constant_s([(1000.0, 61.0)] * 100) is None
    assert warm_up_s([]) == warm_up_s([None, None]) == WARM_UP_S


@given(st.lists(st.floats(5.0, 100.0), min_size=1, max_size=9))
def test_a_twentieth_of_the_change_is_left_after_it(heat_sinks_s: list[float]) -> None:
    chosen_s = warm_up_s([*heat_sinks_s, None])
    usual_s = sorted(heat_sinks_s)[(len(heat_sinks_s) - 1) // 2]
    assert math.exp(-chosen_s / usual_s) <= 0.05
    assert chosen_s in (WARM_UP_S, 2 * WARM_UP_S, 4 * WARM_UP_S)
