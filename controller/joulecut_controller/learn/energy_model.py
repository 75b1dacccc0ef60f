"""Joules per iteration of a job without a profile: power while working and while waiting, fitted.

Power while working is a static share plus one that follows clock and voltage (docs/predictors.md);
while waiting it is the blocking power. Busy and iteration times come from the fit to times.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_controller.learn import work_prior
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.learn.regression import (
    Block,
    ClockKernel,
    Fitted,
    Floats,
    Prior,
    fit,
    slopes_of,
)
from joulecut_controller.learn.work_prior import WorkPrior

# Prior mean and standard deviation.
POWER_SD = 0.5  # of the logarithm; the first measurement settles it
STATIC_SHARE = (0.22, 0.12)  # of the power while working: 0.09 on A100, 0.34 on A40
KNEE = (0.72, 0.09)  # of the highest clock: 0.79, 0.65, Hopper 0.51
VOLT_SLOPE = (1.0, 0.3)  # per highest clock: 1.03 and 1.14, Hopper 0.8
# Under a power cap: how far below the lowest ineffective clock (a logarithm) the lock takes hold;
# anywhere within the next step of 4.5 %.
LATE_KNEE = (0.02, 0.02)
GPU_POWER_SD = 0.08  # GPUs of one kind differ by 8 % (public sweeps)
BLOCKING_SD = 0.05
BLOCKING_UNKNOWN = (0.25, 0.35)  # of the mean power, if the policy does not give it
# Residual of the form, and its correlation length as a share of the highest clock.
ENERGY_RESIDUAL, ENERGY_REACH = 0.005, 0.08
ENERGY_NOISE = 0.004  # a counter steps every 100 ms, of a window of tens of seconds
# Joules of a longer iteration grow with its time, or with its waiting alone: by 1 to 0.2 of it.
STRAY_J = 0.5
POWER_MIN_W = 1.0  # keeps logarithms of a bad guess finite


class EnergyModel:
    """Joules per iteration of one GPU per stage, fitted to measurements.

    `time_s` (n,) and `busy_s` (n, stages) are iteration and busy times by the fit to times.
    """

    def __init__(
        self,
        constants: JobConstants,
        measurements: Sequence[Measurement],
        near: ClockKernel,
        time_s: Floats,
        busy_s: Floats,
    ) -> None:
        self._near, self._top = near, float(constants.clock_max_mhz)
        self._default = np.array(constants.default_mhz, dtype=np.float64)
        self._stages = stages = len(self._default)
        clocks = np.array([m.clocks_mhz for m in measurements], dtype=np.float64)
        count, first = len(measurements), measurements[0]
        mean_w = float(np.mean(first.energy_j)) / first.time_s
        known = constants.blocking_power_w > 0.0
        self._blocking_w = constants.blocking_power_w if known else BLOCKING_UNKNOWN[0] * mean_w
        late = LATE_KNEE if (clocks > self._default).any() else (0.0, 1e-9)
        mean = np.concatenate(
            [
                [np.log(mean_w), STATIC_SHARE[0], KNEE[0], VOLT_SLOPE[0]],
                np.zeros(2 * stages),
                [late[0]],
            ]
        )
        sd = np.concatenate(
            [
                [POWER_SD, STATIC_SHARE[1], KNEE[1], VOLT_SLOPE[1]],
                [GPU_POWER_SD] * stages,
                [BLOCKING_SD if known else BLOCKING_UNKNOWN[1]] * stages,
                [late[1]],
            ]
        )
        if constants.prior is not None:
            curve = _predicted(constants.prior, self._top, Prior(mean[1:4].copy(), sd[1:4].copy()))
            mean[1:4], sd[1:4] = curve.numbers, np.sqrt(np.diag(curve.covariance))
        # Joules of a window include the noise of its iteration times; divide it out.
        excess = np.array([m.time_s for m in measurements]) / time_s

        def model(numbers: Floats) -> Floats:
            logs = self._logs(numbers, clocks, time_s, busy_s)
            return logs.reshape(stages * count, -1)

        noise = [ENERGY_NOISE**2 + (STRAY_J * r.stderr_ratio) ** 2 for r in measurements]
        blocks = [
            Block(
                np.arange(stage * count, (stage + 1) * count),
                np.log([m.energy_j[stage] for m in measurements]) - np.log(excess),
                np.array(noise),
                near.one(clocks, stage, ENERGY_RESIDUAL, ENERGY_REACH),
            )
            for stage in range(stages)
        ]
        self._fitted = fit(model, Prior(mean, sd), blocks)

    def energy_j(self, clocks_mhz: Floats, time_s: Floats, busy_s: Floats) -> Floats:
        """At each row of clocks (m, stages), residual included: (m, stages)."""
        logs = self._logs(self._fitted.numbers[:, None], clocks_mhz, time_s, busy_s)[:, :, 0]
        for stage in range(self._stages):
            near = self._near.one(clocks_mhz, stage, ENERGY_RESIDUAL, ENERGY_REACH)
            logs[stage] += self._fitted.residual(stage, near)
        return np.asarray(np.exp(logs).T)

    def working_power_w(self, clocks_mhz: Floats) -> Floats:
        """Power of one GPU while it works, by stage, at each row of clocks: (m, stages)."""
        return np.asarray(self._working_w(self._fitted.numbers[:, None], clocks_mhz)[..., 0].T)

    @property
    def blocking_power_w(self) -> float:
        """Mean power of one GPU while it waits."""
        return float(self._blocking_w * np.exp(self._fitted.numbers[4 + self._stages : -1]).mean())

    def doubt_j(self, clocks_mhz: Floats, time_s: Floats, busy_s: Floats) -> Floats:
        """Standard deviation of their sum, in joules: (m,)."""
        count = len(clocks_mhz)

        def model(numbers: Floats) -> Floats:
            logs = self._logs(numbers, clocks_mhz, time_s, busy_s)
            return np.asarray(logs.reshape(self._stages * count, -1))

        slopes = slopes_of(model, self._fitted.numbers, self._fitted.steps)
        mean_j = self.energy_j(clocks_mhz, time_s, busy_s)
        variance = np.zeros(count)
        for stage in range(self._stages):
            near = self._near.one(clocks_mhz, stage, ENERGY_RESIDUAL, ENERGY_REACH)
            rows = slice(stage * count, (stage + 1) * count)
            own = self._fitted.variance(stage, near, ENERGY_RESIDUAL**2, slopes[rows])
            variance += own * mean_j[:, stage] ** 2
        return np.asarray(np.sqrt(variance))

    def _logs(self, numbers: Floats, clocks_mhz: Floats, time_s: Floats, busy_s: Floats) -> Floats:
        """log joules per iteration: (stages, m, guesses)."""
        blocking = numbers[4 + self._stages : -1]
        watts = self._working_w(numbers, clocks_mhz)
        works_s = np.minimum(busy_s, time_s[:, None]).T[:, :, None]
        waiting_w = self._blocking_w * np.exp(blocking)[:, None, :]
        joules = watts * works_s + waiting_w * (time_s[None, :, None] - works_s)
        return np.asarray(np.log(np.maximum(joules, POWER_MIN_W * time_s[None, :, None])))

    def _working_w(self, numbers: Floats, clocks_mhz: Floats) -> Floats:
        """Power while working: (stages, m, guesses)."""
        scale, static, knee, slope = numbers[:4]
        own = numbers[4 : 4 + self._stages]
        held = np.exp(-np.maximum(0.0, numbers[-1]))
        default = (self._default / self._top)[:, None, None] * held
        ratio = np.minimum(clocks_mhz.T[:, :, None] / self._top, default)
        return np.asarray(
            np.exp(scale + own)[:, None, :] * _power(ratio, default, static, knee, slope)
        )


def _power(at: Floats, default: Floats, static: Floats, knee: Floats, slope: Floats) -> Floats:
    """Power while working at clocks `at` over that at `default`, both shares of the highest."""

    def swing(clock: Floats) -> Floats:
        return np.asarray(clock * (1.0 + slope * np.maximum(0.0, clock - knee)) ** 2)

    return np.asarray(static + (1.0 - static) * swing(at) / swing(default))


def _predicted(prior: WorkPrior, clock_max_mhz: float, general: Prior) -> Fitted:
    """Static share, knee and slope that explain a predicted power curve."""
    at = np.array(prior.clocks_mhz, dtype=np.float64)[:, None] / clock_max_mhz
    count = len(at)

    def model(numbers: Floats) -> Floats:
        return np.log(_power(at, at[-1:], *numbers))

    measured = np.log(np.array(prior.power_w) / prior.power_w[-1])
    noise = np.full(count, count * work_prior.POWER_SD**2)  # the clocks of a curve err together
    return fit(model, general, [Block(np.arange(count), measured, noise, np.zeros((count, count)))])
