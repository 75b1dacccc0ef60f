"""Iteration time and energy of a job without a profile, at any clocks.

The job reports its iteration times alone. `IterationForm` gives times and `EnergyModel` joules;
what they cannot express is a residual. Every prediction has a standard deviation, on which
decisions rest.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from joulecut_controller.learn.energy_model import EnergyModel
from joulecut_controller.learn.iteration_form import SHARE_AT, IterationForm, LongestPaths
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.learn.multi_start import Ensemble, MultiStart, posterior_means
from joulecut_controller.learn.regression import (
    Block,
    ClockKernel,
    Fitted,
    Floats,
    Model,
    Prior,
    fit,
    slopes_of,
)

SURPLUS_ROUNDS = 2  # the surplus follows from the fit, and the fit from the surplus
# Residual of the form, and its correlation length as a share of the highest clock.
TIME_RESIDUAL, TIME_REACH = 0.003, 0.06
# Under the power cap neighbouring clocks differ by so much on the public A40 sweep.
CAPPED_NOISE = 0.002
# Of a window's mean. With more noise the ensemble fits the noise (A100, 4 %, four seeds: 71 to 98 %
# of the possible saving with it, 89 to 100 % without).
NOISY_STDERR = 0.002
LIGHTER_SD = 0.003  # how far a stage assumed lighter may return
REJECTED_CHI2 = 6.0  # above the best fit's chi-squared: one chance in seventy
MISFIT_MAX = 1.5  # per measurement; above it the residual's prior is widened
RESIDUAL_SCALE_MAX = 10.0


class RateModel:
    """Fit to at least one measurement of a job."""

    def __init__(
        self, constants: JobConstants, measurements: Sequence[Measurement], paths: LongestPaths
    ) -> None:
        self._ground, self._paths = constants, paths
        self._windows_alone: RateModel | None = None
        self._measurements = tuple(measurements)
        self._form = IterationForm(constants, self._measurements, paths)
        self._clocks, self._default = self._form.clocks, self._form.default
        self._closeness = ClockKernel(self._clocks, self._default, constants.clock_max_mhz)
        self._times = self._fit_times()
        self._energies = self._fit_energies()

    @property
    def predicted(self) -> bool:
        """Whether a model of the run predicted the job's work."""
        return self._ground.prior is not None

    @property
    def contradicted(self) -> bool:
        """Whether the measurements are far likelier without the prediction."""
        alone = self.from_windows()
        return self._cost > alone._cost + REJECTED_CHI2

    @property
    def _cost(self) -> float:
        return self._times.misfit + float(self._form.prior.misfit(self._times.numbers))

    def from_windows(self) -> "RateModel":
        """The fit without a prediction, whose errors must not decide what is safe."""
        if not self.predicted:
            return self
        if self._windows_alone is None:
            ground = replace(self._ground, prior=None)
            self._windows_alone = RateModel(ground, self._measurements, self._paths)
        return self._windows_alone

    def lighter(self, stage: int, ratio: float) -> "RateModel | None":
        """The same job if this stage had so much less work; None if measurements reject it.

        A stage's slack shows in no iteration time, so the most probable fit takes it for nearly as
        slow as the slowest. That doubt lies beyond a kink, where no standard deviation reaches.
        """
        numbers, at = self._times.numbers, self._form.stages_at[stage]
        mean, sd = self._form.prior.mean.copy(), self._form.prior.sd.copy()
        mean[at], sd[at] = numbers[at] - ratio, LIGHTER_SD
        mean[0], sd[0] = numbers[0], LIGHTER_SD  # lighter than this, not than the others
        start = numbers.copy()
        start[at] = mean[at]

        def model(guesses: Floats) -> Floats:
            return self._form.log_times(guesses, self._clocks)

        other = copy(self)
        other._times = fit(model, Prior(mean, sd), [self._time_block()], start)
        rejected = other._times.misfit > self._times.misfit + REJECTED_CHI2
        return None if rejected else other

    def with_expected_work(self) -> "RateModel":
        """The same job with each stage's expected work instead of its most probable work.

        The mean over the ensemble or, with noisy iterations, the posterior mean of each stage. The
        most probable work is often the bound where nothing waits.
        """
        measured = self._time_block().measured

        def left(guesses: Floats) -> Floats:
            return np.asarray(measured[:, None] - self._form.log_times(guesses, self._clocks))

        if self._noisy:
            white, prior = self._times.whiteners[0], self._form.prior

            def log_odds(guesses: Floats) -> Floats:
                costs = ((white @ left(guesses)) ** 2).sum(axis=0) + prior.misfit(guesses)
                return np.asarray(-0.5 * costs)

            numbers = posterior_means(self._times.numbers, self._form.stages_at, log_odds)
        else:
            numbers = self._ensemble.numbers.mean(axis=1)
            numbers[0] += float(left(numbers[:, None]).mean())
        other = copy(self)
        residuals = (left(numbers[:, None])[:, 0],)
        other._times = replace(self._times, numbers=numbers, residuals=residuals)
        other._energies = other._fit_energies()
        return other

    # -- ensemble ----------------------------------------------------------------------------

    def ensemble_times_s(self, clocks_mhz: Floats) -> Floats:
        """Iteration times by every guess of the ensemble, likeliest first: (m, members)."""
        white, block = self._times.whiteners[0], self._time_block()
        numbers = self._times.numbers[:, None] if self._noisy else self._ensemble.numbers
        left = block.measured[:, None] - self._form.log_times(numbers, self._clocks)
        plain = self._form.log_times(numbers, clocks_mhz)
        return np.asarray(np.exp(plain + self._near(clocks_mhz) @ (white.T @ (white @ left))))

    # -- answers -----------------------------------------------------------------------------

    def time_s(self, clocks_mhz: Floats) -> Floats:
        """Mean iteration time at each row of clocks (m, stages), residual included."""
        plain = self._form.log_times(self._times.numbers[:, None], clocks_mhz)[:, 0]
        return np.asarray(np.exp(plain + self._times.residual(0, self._near(clocks_mhz))))

    def time_doubt(self, clocks_mhz: Floats) -> Floats:
        """Standard deviation of `time_s` as a ratio: (m,)."""

        def model(numbers: Floats) -> Floats:
            return self._form.log_times(numbers, clocks_mhz)

        variance = self._times.variance(
            0,
            self._near(clocks_mhz),
            (self._residual_scale * TIME_RESIDUAL) ** 2,
            slopes_of(model, self._times.numbers, self._times.steps),
        )
        return np.asarray(np.sqrt(variance))

    def ratio_doubt(self, clocks_mhz: Floats) -> Floats:
        """Standard deviation of the slowdown against default clocks, as a ratio: (m,).

        Both times come from one fit, so part of their errors cancels.
        """
        rows = np.concatenate([clocks_mhz, self._default[None, :]])

        def model(numbers: Floats) -> Floats:
            return self._form.log_times(numbers, rows)

        slopes = slopes_of(model, self._times.numbers, self._times.steps)
        near = self._near(rows)
        alike = np.exp(
            -0.5
            * (
                ((self._closeness.seen(rows[:-1]) - self._closeness.seen(rows[-1:])) / TIME_REACH)
                ** 2
            ).sum(axis=1)
        )
        own = 2.0 * (self._residual_scale * TIME_RESIDUAL) ** 2 * (1.0 - alike)
        variance = self._times.variance(0, near[:-1] - near[-1], own, slopes[:-1] - slopes[-1])
        return np.asarray(np.sqrt(variance))

    def energy_j(self, clocks_mhz: Floats, time_s: Floats | None = None) -> Floats:
        """Joules per iteration of one GPU per stage: (m, stages). `time_s` (m,) if known."""
        if time_s is None:
            time_s = self.time_s(clocks_mhz)
        return self._energies.energy_j(clocks_mhz, time_s, self.busy_s(clocks_mhz))

    def energy_doubt_j(self, clocks_mhz: Floats) -> Floats:
        """Standard deviation of their sum, in joules: (m,)."""
        time_s = self.time_s(clocks_mhz)
        return self._energies.doubt_j(clocks_mhz, time_s, self.busy_s(clocks_mhz))

    @property
    def default_mhz(self) -> tuple[int, ...]:
        """Clocks by stage above which nothing changes."""
        return self._ground.default_mhz

    @property
    def clock_share(self) -> tuple[float, float]:
        """Share of the work that follows the clock, and its standard deviation."""
        doubt = np.sqrt(self._times.covariance[SHARE_AT, SHARE_AT])
        return float(self._times.numbers[SHARE_AT]), float(doubt)

    def busy_s(self, clocks_mhz: Floats) -> Floats:
        """Busy seconds of each stage per iteration: (m, stages)."""
        each = np.exp(self._form.log_busy(self._times.numbers[:, None], clocks_mhz))[..., 0]
        return np.asarray(each.T * self._ground.pipeline.microbatches)

    def operation_times_s(self, clocks_mhz: Floats) -> Floats:
        """Seconds of one operation by stage and kind (order of `KINDS`): (m, stages, kinds)."""
        numbers = self._times.numbers[:, None]
        logs = self._form.log_busy(numbers, clocks_mhz)
        return np.moveaxis(self._form.operations_s(logs, numbers)[..., 0], 2, 0)

    def working_power_w(self, clocks_mhz: Floats) -> Floats:
        """Power of one GPU of each stage while it works: (m, stages)."""
        return self._energies.working_power_w(clocks_mhz)

    @property
    def blocking_power_w(self) -> float:
        """Mean power of one GPU while it waits, as fitted."""
        return self._energies.blocking_power_w

    # -- time --------------------------------------------------------------------------------

    def _fit_times(self) -> Fitted:
        form, count = self._form, len(self._measurements)

        def model(numbers: Floats) -> Floats:
            return form.log_times(numbers, self._clocks)

        self._residual_scale = 1.0
        self._times = fit(model, form.prior, [self._time_block()])
        form.find_spread(self._times.numbers)
        for _ in range(SURPLUS_ROUNDS):
            form.fix_surplus(self._times.numbers)
            self._times = fit(model, form.prior, [self._time_block()], self._times.numbers)
        self._ensemble = Ensemble(self._times.numbers[:, None], np.zeros(1))
        self._noisy = max(m.stderr_ratio for m in self._measurements) > NOISY_STDERR
        if count > 1 and not self._noisy:
            self._leave_local_minimum(model)
        white = self._times.whiteners[0] @ self._times.residuals[0]
        misfit = float(white @ white) / count
        if misfit > MISFIT_MAX:
            self._residual_scale = float(min(RESIDUAL_SCALE_MAX, np.sqrt(misfit)))
            self._times = fit(model, form.prior, [self._time_block()], self._times.numbers)
        return self._times

    def _leave_local_minimum(self, model: Model) -> None:
        """Replace the fit by the likeliest of a multi-start search, and keep the ensemble."""
        search = MultiStart(model, self._form.prior, self._time_block())
        ends = search.from_other_starts(self._times, self._form.stages_at)
        self._times = ends[0]
        self._form.fix_surplus(self._times.numbers)
        self._times, self._ensemble = search.explore(ends)
        self._form.fix_surplus(self._times.numbers)
        self._times = search.descend(self._times.numbers)

    def _time_block(self) -> Block:
        count = len(self._measurements)
        noise = np.array([measurement.stderr_ratio**2 for measurement in self._measurements])
        above = self._clocks - self._default
        noise[(above >= 0.0).all(axis=1) & (above > 0.0).any(axis=1)] += CAPPED_NOISE**2
        measured = np.log([m.time_s for m in self._measurements])
        return Block(np.arange(count), measured, noise, self._near(self._clocks))

    def _near(self, clocks_mhz: Floats) -> Floats:
        """Covariance of the time residual between rows of clocks and the measurements: (m, n)."""
        return self._closeness.all(clocks_mhz, self._residual_scale * TIME_RESIDUAL, TIME_REACH)

    def _fit_energies(self) -> EnergyModel:
        time_s, busy_s = self.time_s(self._clocks), self.busy_s(self._clocks)
        return EnergyModel(self._ground, self._measurements, self._closeness, time_s, busy_s)
