"""Slowdowns of windows of noisy iterations, told by power as well."""

from collections.abc import Callable

import numpy as np

from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.learn.power_pace import with_power

TOP, WAITING_W, NOISE, WINDOW = 1410, 80.0, 0.02, 12
WORK = (0.93, 0.93, 0.93, 1.0)
CLOCKS = [
    (TOP, TOP, TOP, TOP),
    (1350, 1350, TOP, TOP),
    (1290, 1350, TOP, TOP),
    (1290, 1290, 1350, TOP),
    (1260, 1290, 1350, 1380),
    (1260, 1260, 1350, 1380),
    (1230, 1260, 1320, 1350),
    (1230, 1230, 1320, 1350),
]


def slowdown(clocks: tuple[int, ...]) -> float:
    """Of a job whose last stage is the slowest, by 7 %."""
    return max(w * (0.2 + 0.8 * TOP / f) for w, f in zip(WORK, clocks, strict=True)) - 1.0


def windows(rng: np.random.Generator, *, waiting: bool) -> tuple[Measurement, ...]:
    """The luck of a window makes work slow; or, with `waiting`, stages wait for it."""
    found = []
    for clocks in CLOCKS:
        luck = float(rng.normal(0.0, 2.0 * NOISE / WINDOW**0.5))
        longer = 1.0 + slowdown(clocks)
        time_s = 7.0 * longer * (1.0 + luck)
        pace = longer * (1.0 + luck if waiting else 1.0)
        energy = []
        for weight, mhz in zip(WORK, clocks, strict=True):
            busy = weight * (0.2 + 0.8 * TOP / mhz) / pace
            work_w = 60.0 + 340.0 * (mhz / TOP) ** 2.4
            energy.append((WAITING_W + (work_w - WAITING_W) * busy) * time_s)
        energy = [joules * (1.0 + rng.normal(0.0, 0.002)) for joules in energy]
        found.append(Measurement(clocks, WINDOW, time_s, NOISE * time_s, tuple(energy)))
    return tuple(found)


def errors(
    told: Callable[[tuple[Measurement, ...]], tuple[Measurement, ...]], *, waiting: bool
) -> tuple[float, float]:
    """Root mean square error of slowdowns, and of those in their own standard errors."""
    rng, off, in_stderrs = np.random.default_rng(5), [], []
    for _ in range(40):
        first, *others = told(windows(rng, waiting=waiting))
        for one, clocks in zip(others, CLOCKS[1:], strict=True):
            error = one.time_s / first.time_s - 1.0 - slowdown(clocks)
            off.append(error)
            in_stderrs.append(error / float(np.hypot(one.stderr_ratio, first.stderr_ratio)))
    return float(np.sqrt(np.mean(np.square(off)))), float(np.sqrt(np.mean(np.square(in_stderrs))))


def fused(measurements: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    return with_power(measurements, WAITING_W, (0,) * 4)


def test_power_tells_slowdowns_closer_than_a_dozen_iterations() -> None:
    (by_rate, _), (by_both, in_stderrs) = errors(tuple, waiting=False), errors(fused, waiting=False)
    assert by_both < 0.5 * by_rate, (by_both, by_rate)
    assert in_stderrs < 1.2


def test_power_that_follows_the_noise_of_iterations_is_not_believed() -> None:
    (by_rate, _), (by_both, in_stderrs) = errors(tuple, waiting=True), errors(fused, waiting=True)
    assert by_both < 1.05 * by_rate, (by_both, by_rate)
    assert in_stderrs < 1.4
