"""Slowdowns of windows of long iterations, from iteration times and from power.

A dozen iterations that vary by 2 % tell a slowdown to about a percent. Power tells more: a GPU
whose clock did not change waits longer where other stages became slower, and draws less. Whether
power is independent of what makes iterations vary is seen in the windows themselves: waiting for a
network lowers power as waiting for a stage does.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joulecut_controller.learn.clock_curves import ClockCurves, CurvePrior, CurveValues
from joulecut_controller.learn.measurement_log import LONG_ITERATION_S, Measurement

# Mean power, waiting included, over the clock; a window's counters are good to 0.4 %.
POWER = CurvePrior(-1.5, 0.5, 0.15, residual_sd=0.01, reach=0.15, noise=0.004)
CURVED_SD = 2.0  # of the slope, per unit of log clock: GPUs of a kind bend alike
POWER_COMMON_SD = 0.001  # of all GPUs in one window, beside what a slowdown explains
UNKNOWN_SD = 0.1  # of a slowdown, before power says anything: more than any budget
BLOCKING_UNKNOWN = 0.25  # of the mean power, where the policy does not give it
FOLLOWS_MIN = 0.1  # part of the power that ends with the work, whatever blocking power is given
# Windows that count for power having no say of its own, before others show that it has.
DEPENDENT_WINDOWS = 3.0
DRIFT_SD = 0.002  # of a job's own pace from window to window: 0.02 % an iteration
# No work slows by more than its clock, or becomes faster: half of the stretch, give or take half.
STRETCH_PART, STRETCH_SD = 0.5, 0.002
BASELINE_STDERR = 0.0005  # slowdowns are against it, so its own error is in theirs


def with_power(
    measurements: Sequence[Measurement], blocking_power_w: float, alike: Sequence[int]
) -> tuple[Measurement, ...]:
    """The same windows with their likeliest times and the error of these. The first is at default
    clocks; `alike` numbers the kind of GPU by stage. Short iterations stay as measured.
    """
    first, count = measurements[0], len(measurements)
    if count < 2 or first.time_s < LONG_ITERATION_S:
        return tuple(measurements)
    watts = np.array([np.array(m.energy_j) / m.time_s for m in measurements]).T
    clocks = np.array([m.clocks_mhz for m in measurements], dtype=np.float64).T
    fall = np.log(clocks[:, :1] / np.minimum(clocks, clocks[:, :1]))
    waiting_w = blocking_power_w or BLOCKING_UNKNOWN * float(watts[:, 0].mean())
    follows = np.clip(1.0 - waiting_w / watts[:, 0], FOLLOWS_MIN, 1.0)
    kinds = np.unique(alike, return_inverse=True)[1]
    waits = -follows[:, None, None] * np.eye(count)[None, :, 1:]
    curves = ClockCurves(
        CurveValues(
            fall,
            np.log(watts),
            kinds,
            common_sd=np.full(count, POWER_COMMON_SD),
            columns=np.concatenate([waits, 0.5 * fall[:, :, None] ** 2], axis=2),
            columns_sd=np.append(np.full(count - 1, UNKNOWN_SD), CURVED_SD),
        ),
        POWER,
        np.zeros(int(kinds.max()) + 1),
    )
    by_power, covariance = curves.factors[:-1], curves.factors_covariance[:-1, :-1]
    by_rate = np.log([m.time_s / first.time_s for m in measurements[1:]])
    noise = np.array([m.stderr_ratio for m in measurements]) ** 2
    stray = np.diag(noise[1:]) + noise[0]
    # If power followed what makes iterations vary, both would differ by little. Differences from
    # window to window leave out the drift.
    apart = np.diff(by_rate - by_power, prepend=0.0) ** 2 / (noise[1:] + noise[:-1])
    independent = min(1.0, float(apart.sum()) / (count - 1 + DEPENDENT_WINDOWS))
    age = DRIFT_SD * np.arange(1, count)
    least = STRETCH_PART * fall.max(axis=0)[1:]
    of_power = np.linalg.inv(covariance + (1.0 - independent) * stray)
    of_rate = np.linalg.inv(stray + np.outer(age, age))
    of_clocks = np.diag((least + STRETCH_SD) ** -2.0)
    covariance = np.linalg.inv(of_power + of_rate + of_clocks)
    slower = covariance @ (of_power @ by_power + of_rate @ by_rate + of_clocks @ least)
    return (
        replace(first, known_stderr_ratio=BASELINE_STDERR),
        *(
            replace(
                one.scaled(float(np.exp(log_ratio)) * first.time_s / one.time_s),
                known_stderr_ratio=float(variance**0.5),
            )
            for one, log_ratio, variance in zip(
                measurements[1:], slower, np.diag(covariance), strict=True
            )
        ),
    )
