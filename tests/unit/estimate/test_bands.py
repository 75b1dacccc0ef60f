"""How wide bands are where the measured clocks are too few to judge themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.sweep_fit import BETWEEN_SHARE, CLOCKS_MIN, between, floor_of

CLOCKS = st.lists(st.integers(200, 2500), min_size=2, max_size=3, unique=True).map(sorted)
STRETCHES = st.lists(st.floats(1.0, 2.5), min_size=3, max_size=3)


def _times(clocks: list[int], stretches: list[float]) -> np.ndarray:
    """Longer and longer towards lower clocks."""
    steps = np.log(stretches[: len(clocks) - 1])
    return np.asarray(np.exp(np.concatenate([[0.0], np.cumsum(steps)])[::-1]))


@given(clocks=CLOCKS, stretches=STRETCHES)
def test_between_two_clocks_it_is_a_share_of_what_the_time_changes(
    clocks: list[int], stretches: list[float]
) -> None:
    at = np.arange(100.0, 2600.0, 7.0)
    at = np.unique(np.concatenate([at, clocks]))
    known = np.array(clocks, dtype=np.float64)
    times = _times(clocks, stretches)
    half = between(known, times, at)
    for clock, found in zip(at, half, strict=True):
        if clock <= known[0] or clock >= known[-1] or clock in known:
            assert found == 0.0
        else:
            place = int(np.searchsorted(known, clock))
            gap = abs(np.log(times[place - 1] / times[place]))
            assert found == pytest.approx(BETWEEN_SHARE * gap)


@given(clocks=st.lists(st.integers(200, 2500), min_size=CLOCKS_MIN, max_size=9, unique=True))
def test_enough_clocks_judge_themselves(clocks: list[int]) -> None:
    known = np.array(sorted(clocks), dtype=np.float64)
    half = between(known, np.linspace(2.0, 1.0, known.size), np.linspace(100.0, 2600.0, 99))
    assert not half.any()


def test_more_clocks_and_other_work_never_widen_a_band() -> None:
    for taught in (False, True):
        floors = [floor_of(count, swept=taught) for count in range(1, 20)]
        assert floors == sorted(floors, reverse=True)
    assert all(
        floor_of(count, swept=True) <= floor_of(count, swept=False) for count in range(1, 20)
    )
