"""What an iteration cannot exceed: the program is solved, and no schedule breaks it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.time_bounds import ceiling_s, floor_s
from joulecut_engine.graph.pipeline import Pipeline

CLOCKS = np.arange(900, 1411, 15)


def drawn(seed: int, stages: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.choice(CLOCKS, (count, stages)).astype(np.float64)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), stages=st.integers(1, 8), windows=st.integers(1, 40))
def test_it_is_the_least_that_a_linear_program_finds(seed: int, stages: int, windows: int) -> None:
    times_s = np.random.default_rng(seed).uniform(1.0, 1.1, windows)
    measured, asked = drawn(seed + 1, stages, windows), drawn(seed + 2, stages, 4)
    found = ceiling_s(times_s, measured, asked)
    for row, ceiling in zip(asked, found, strict=True):
        kept = -np.vstack([(row / measured).T, np.ones(windows)])
        exact = linprog(times_s, A_ub=kept, b_ub=-np.ones(stages + 1))
        assert ceiling == pytest.approx(exact.fun, rel=1e-9)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    stages=st.integers(1, 4),
    windows=st.integers(1, 12),
    cap_mhz=st.sampled_from([1410, 1305]),
)
def test_no_schedule_whose_work_follows_its_clock_at_most_is_longer_or_shorter(
    seed: int, stages: int, windows: int, cap_mhz: int
) -> None:
    rng = np.random.default_rng(seed)
    paths = LongestPaths(Pipeline("1f1b", stages, 6))
    still, moved = rng.uniform(0.0, 1.0, (2, stages, 2, 1))
    luck = float(rng.uniform(0.0, 0.1))

    def time_s(clocks_mhz: np.ndarray) -> np.ndarray:
        each = still + moved * 1410.0 / np.minimum(clocks_mhz, cap_mhz).T[:, None, :]
        return np.asarray(paths.jittered_s(each, luck).mean(axis=0))

    measured, asked = drawn(seed + 1, stages, windows), drawn(seed + 2, stages, 6)
    ceilings = ceiling_s(time_s(measured), measured, asked)
    assert (time_s(asked) <= ceilings * (1.0 + 1e-9)).all()
    floors = floor_s(time_s(measured), measured, asked)
    assert (time_s(asked) >= floors * (1.0 - 1e-9)).all()
    assert floor_s(time_s(measured), measured, measured) == pytest.approx(time_s(measured))
    assert ceiling_s(time_s(measured), measured, measured) == pytest.approx(
        np.minimum(time_s(measured), ceiling_s(time_s(measured), measured, measured))
    )


def test_what_lies_between_two_windows_is_bounded_by_both() -> None:
    measured = np.array([[1410.0, 1200.0], [1200.0, 1410.0]])
    asked = 2.0 / (1.0 / measured).sum(axis=0)
    found = ceiling_s(np.array([1.02, 1.04]), measured, asked[None, :])[0]
    assert found == pytest.approx(1.03)
    assert found < 1.02 * (1200.0 / asked[0]) ** -1 * (1410.0 / asked[0])


def test_a_window_alone_is_stretched_by_the_stage_lowered_most() -> None:
    measured, asked = np.array([[1400.0, 1400.0]]), np.array([[1330.0, 1260.0], [1410.0, 1400.0]])
    assert ceiling_s(np.array([2.0]), measured, asked) == pytest.approx([2.0 * 1400 / 1260, 2.0])


def test_clocks_that_are_nowhere_higher_take_no_less_and_higher_ones_no_less_than_the_stretch() -> (
    None
):
    measured = np.array([[1400.0, 1200.0], [1300.0, 1400.0]])
    asked = np.array([[1400.0, 1190.0], [1290.0, 1200.0], [1400.0, 1260.0]])
    found = floor_s(np.array([2.0, 2.1]), measured, asked)
    assert found == pytest.approx([2.0, 2.1, 2.1 * 1300 / 1400])
