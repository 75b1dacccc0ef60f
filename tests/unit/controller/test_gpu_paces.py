"""Shifts of one GPU's operations, told from noise and from what the whole job has in common."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.observe.gpu_paces import (
    IN_ROW,
    READINGS_MIN,
    SHIFT_RATIO_MIN,
    GpuPaces,
)
from joulecut_controller.view import GpuShift

COUNT = 96.0
LEARNT = 1 + READINGS_MIN  # iterations, of however few GPUs


def shifts(
    ratios: list[list[float]], noise: float, seed: int = 1, common: float = 0.0
) -> list[GpuShift | None]:
    """What each iteration shows; `ratios` are by iteration and GPU, `common` what all GPUs vary."""
    dice, paces = np.random.default_rng(seed), GpuPaces()
    found = []
    for row in ratios:
        together = 1.0 + common * dice.normal()
        operations = {
            f"G{gpu}": {
                kind: (COUNT * usual_s * ratio * together * (1.0 + noise * dice.normal()), COUNT)
                for kind, usual_s in (("forward", 0.02), ("backward", 0.04))
            }
            for gpu, ratio in enumerate(row)
        }
        found.append(paces.take(operations))
    return found


@pytest.mark.parametrize("gpus", [2, 8, 256])
def test_a_faster_or_a_slower_gpu_shows_soon(gpus: int) -> None:
    usual = [[1.0 + 0.01 * (gpu % 5) for gpu in range(gpus)]] * LEARNT
    for ratio in (1.0 / 1.2, 1.2):
        changed = [ratio * usual[0][0], *usual[0][1:]]
        found = shifts([*usual, *[changed] * IN_ROW], 0.002)
        assert not any(found[:-1])
        seen = found[-1]
        assert seen is not None
        if gpus > 2:  # of two, nothing says which one it was
            assert seen.uuids == ("G0",)
            assert seen.ratio == pytest.approx(ratio, rel=0.02)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.0, 0.05), gpus=st.integers(1, 12))
def test_noise_and_other_work_are_no_shift(seed: int, noise: float, gpus: int) -> None:
    assert not any(shifts([[1.0] * gpus] * 90, noise, seed, common=0.1))


@pytest.mark.parametrize("ratio", [0.7, 1.5])
def test_one_iteration_is_a_pause_or_a_late_clock_change(ratio: float) -> None:
    usual = [[1.0] * 4] * LEARNT
    other = [[1.0, ratio, 1.0, 1.0]]
    back = [[1.0, 1.0 / ratio, 1.0, 1.0]]
    assert not any(shifts([*usual, *other, *usual[:2], *other, *usual], 0.001))
    assert not any(shifts([*usual, *other * (IN_ROW - 1), *back, *other], 0.001))
    assert any(shifts([*usual, *other * IN_ROW], 0.001))


def test_small_shifts_and_missing_gpus_say_nothing() -> None:
    less = 1.0 - SHIFT_RATIO_MIN / 2
    assert not any(shifts([[1.0] * 4] * LEARNT + [[less, 1.0, 1.0, 1.0]] * 8, 0.0005))
    paces = GpuPaces()
    for _ in range(LEARNT):
        paces.take({uuid: {"forward": (1.0, 8.0)} for uuid in "abc"})
    assert paces.take({"a": {"forward": (0.5, 8.0)}, "b": {"forward": (1.0, 8.0)}}) is None
    assert paces.take({uuid: {} for uuid in "abc"}) is None
