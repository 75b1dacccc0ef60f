"""What a job without any profile costs at other clocks, from its rate and its energy alone.

A job that tells no more than how long its iterations take (L1), or its busy seconds as well
(L2), is described by the physics of its schedule: each stage works for a while at default
clocks, a share of that follows the clock, and the schedule's longest path makes an iteration
of it; power follows the clock's voltage. What that cannot say stays as a residual. Every
prediction has a standard deviation, and decisions stand on that, not on the mean alone. Pure.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from joulecut_controller.learn.rate_energy import Energies
from joulecut_controller.learn.rate_fit import (
    Block,
    Fitted,
    Floats,
    Model,
    Prior,
    fit,
    slopes_of,
)
from joulecut_controller.learn.rate_form import Form
from joulecut_controller.learn.rate_near import Near
from joulecut_controller.learn.rate_paths import Paths
from joulecut_controller.learn.rate_rivals import Hollows, Rivals
from joulecut_controller.learn.rate_slack import expected
from joulecut_controller.learn.rate_window import Ground, Reading
from joulecut_engine.optimize.levels import Ints

SURPLUS_ROUNDS = 2  # what jitter adds follows from the fit, and the fit from the surplus
# What the form cannot say, and over which distance (of the highest clock) it is alike.
TIME_RESIDUAL, TIME_REACH = 0.003, 0.06
BUSY_RESIDUAL, BUSY_REACH = 0.003, 0.06
BUSY_NOISE = 0.001  # thousands of operations went into the mean of a window
# Where a power cap and no lock decides, neighbouring clocks differ by so much on the public A40
# sweep; taken for something that the form misses it would shake everything else.
CAPPED_NOISE = 0.002
# Of a window's mean: what strays more makes other jobs likely by luck, and the likeliest of many
# is the luckiest (A100, 4 %, four seeds: 71 to 98 % of what is possible; without them 89 to 100).
STRAYS = 0.002
LIGHTER_SD = 0.003  # how far a stage supposed to be lighter may return towards what it was
DENIED = 6.0  # chi squared more than the best fit's: one chance in seventy
MISFIT_MAX = 1.5  # above this, per measurement, the residual is taken to be larger
WIDER_MAX = 10.0


class RateModel:
    """A fit to readings of one job, at least one. `detailed` says that busy times were told."""

    def __init__(self, ground: Ground, readings: Sequence[Reading], paths: Paths) -> None:
        self._ground, self._paths = ground, paths
        self._readings = tuple(readings)
        self._form = Form(ground, self._readings, paths)
        self.detailed, self._clocks = self._form.detailed, self._form.clocks
        self._default = self._form.default
        self._closeness = Near(self._clocks, self._default, ground.clock_max_mhz)
        self._times = self._fit_times()
        self._energies = self._fit_energies()

    def lighter(self, stage: int, ratio: float) -> "RateModel | None":
        """The same job, had this stage that much less work; None where the readings deny it.

        The most probable fit takes a stage for nearly as slow as the slowest until it is seen
        to wait: the slack of a stage shows in no iteration time. So the doubt that matters lies
        beyond a kink, where no standard deviation reaches.
        """
        if self.detailed:
            return None  # its times were told
        numbers, at = self._times.numbers, self._form.stages_at[stage]
        mean, sd = self._form.prior.mean.copy(), self._form.prior.sd.copy()
        mean[at], sd[at] = numbers[at] - ratio, LIGHTER_SD
        mean[0], sd[0] = numbers[0], LIGHTER_SD  # lighter than this, not than the others
        start = numbers.copy()
        start[at] = mean[at]

        def model(guesses: Floats) -> Floats:
            return self._form.log_times(guesses, self._clocks)

        other = copy(self)
        other._times = fit(model, Prior(mean, sd), self._time_blocks(), start)
        denied = other._times.misfit > self._times.misfit + DENIED
        return None if denied else other

    def expected(self) -> "RateModel | None":
        """The same job, with the work to be expected of each stage rather than the likeliest: the
        mean of all that the readings do not deny; where iterations stray, of each stage by itself.
        None where it was told.

        How long a stage waits shows in no reading, so all of it is as likely as it was before,
        and the likeliest is often the one end of that where nothing waits.
        """
        if self.detailed:
            return None
        measured = self._time_blocks()[0].measured

        def left(guesses: Floats) -> Floats:
            return np.asarray(measured[:, None] - self._form.log_times(guesses, self._clocks))

        if self._strays:
            white, prior = self._times.whiteners[0], self._form.prior

            def log_odds(guesses: Floats) -> Floats:
                costs = ((white @ left(guesses)) ** 2).sum(axis=0) + prior.misfit(guesses)
                return np.asarray(-0.5 * costs)

            numbers = expected(self._times.numbers, self._form.stages_at, log_odds)
        else:
            numbers = self._rivals.numbers.mean(axis=1)
            numbers[0] += float(left(numbers[:, None]).mean())
        other = copy(self)
        leftovers = (left(numbers[:, None])[:, 0],)
        other._times = replace(self._times, numbers=numbers, leftovers=leftovers)
        other._energies = other._fit_energies()
        return other

    # -- rivals ------------------------------------------------------------------------------

    def rival_times_s(self, clocks_mhz: Floats) -> Floats:
        """Iteration times by every guess that the readings do not deny, the likeliest first, of
        shape (m, rivals), residual included; at L1, where no stage tells its own time.
        """
        white, blocks = self._times.whiteners[0], self._time_blocks()
        numbers = self._times.numbers[:, None] if self._strays else self._rivals.numbers
        left = blocks[0].measured[:, None] - self._form.log_times(numbers, self._clocks)
        plain = self._form.log_times(numbers, clocks_mhz)
        return np.asarray(np.exp(plain + self._near(clocks_mhz) @ (white.T @ (white @ left))))

    # -- answers -----------------------------------------------------------------------------

    def time_s(self, clocks_mhz: Floats) -> Floats:
        """Mean iteration time at each row of clocks (m, stages), residual included."""
        plain = self._form.log_times(self._times.numbers[:, None], clocks_mhz)[: len(clocks_mhz), 0]
        return np.asarray(np.exp(plain + self._times.residual(0, self._near(clocks_mhz))))

    def time_doubt(self, clocks_mhz: Floats) -> Floats:
        """Standard deviation of the same as a ratio."""

        def model(numbers: Floats) -> Floats:
            return self._form.log_times(numbers, clocks_mhz)[: len(clocks_mhz)]

        variance = self._times.variance(
            0,
            self._near(clocks_mhz),
            (self._wider * TIME_RESIDUAL) ** 2,
            slopes_of(model, self._times.numbers, self._times.steps),
        )
        return np.asarray(np.sqrt(variance))

    def ratio_doubt(self, clocks_mhz: Floats) -> Floats:
        """Standard deviation of the slowdown against default clocks, as a ratio: what a promise is
        about. Times here and there come from one fit, so that a part of their errors is the same.
        """
        count = len(clocks_mhz)
        rows = np.concatenate([clocks_mhz, self._default[None, :]])

        def model(numbers: Floats) -> Floats:
            return self._form.log_times(numbers, rows)[: count + 1]

        slopes = slopes_of(model, self._times.numbers, self._times.steps)
        near = self._near(rows)
        alike = np.exp(
            -0.5
            * (
                ((self._closeness.seen(rows[:-1]) - self._closeness.seen(rows[-1:])) / TIME_REACH)
                ** 2
            ).sum(axis=1)
        )
        own = 2.0 * (self._wider * TIME_RESIDUAL) ** 2 * (1.0 - alike)
        variance = self._times.variance(0, near[:-1] - near[-1], own, slopes[:-1] - slopes[-1])
        return np.asarray(np.sqrt(variance))

    def longer(self, stretch: Floats, which: Ints) -> Floats | None:
        """How many times as long an iteration would take as in a reading, had each stage's
        operations so many times their length there. `stretch` has shape (m, k, stages), `which`
        numbers the readings: (m, k) -> (m, k). Jitter counts in full. None at L1.
        """
        if not self.detailed:
            return None
        told = np.array([reading.busy_s for reading in self._readings])  # (n, stages, kinds)
        spread = self._form.spread
        own_s = self._paths.jittered_s(told.transpose(1, 2, 0), spread).mean(axis=0)
        guesses = (told[which] * stretch[..., None]).reshape(-1, *told.shape[1:])
        longer_s = self._paths.jittered_s(guesses.transpose(1, 2, 0), spread).mean(axis=0)
        return np.asarray(longer_s.reshape(which.shape) / own_s[which])

    def energy_j(self, clocks_mhz: Floats, time_s: Floats | None = None) -> Floats:
        """Joules per iteration of one GPU per stage: (m, stages). `time_s` (m,) where known."""
        if time_s is None:
            time_s = self.time_s(clocks_mhz)
        return self._energies.energy_j(clocks_mhz, time_s, self.busy_s(clocks_mhz))

    def energy_doubt_j(self, clocks_mhz: Floats) -> Floats:
        """Standard deviation of their sum, in joules: (m,)."""
        time_s = self.time_s(clocks_mhz)
        return self._energies.doubt_j(clocks_mhz, time_s, self.busy_s(clocks_mhz))

    @property
    def default_mhz(self) -> tuple[int, ...]:
        """Clocks above these, by stage, make no difference."""
        return self._ground.default_mhz

    @property
    def clock_share(self) -> tuple[float, float]:
        """The share of the work that follows the clock, and its standard deviation."""
        at = self._form.shares_at
        own = self._times.covariance[at, at]
        return float(self._times.numbers[at].mean()), float(np.sqrt(np.diag(own)).mean())

    def busy_s(self, clocks_mhz: Floats) -> Floats:
        """Seconds that each stage works per iteration: (m, stages)."""
        each = np.exp(self._form.log_busy(self._times.numbers[:, None], clocks_mhz))[..., 0]
        microbatches = self._ground.pipeline.microbatches
        return np.asarray(each.sum(axis=1).T * microbatches)

    # -- time --------------------------------------------------------------------------------

    def _fit_times(self) -> Fitted:
        form, count = self._form, len(self._readings)

        def model(numbers: Floats) -> Floats:
            return form.log_times(numbers, self._clocks)

        self._wider = 1.0
        self._times = fit(model, form.prior, self._time_blocks())
        form.find_spread(self._times.numbers)
        for _ in range(SURPLUS_ROUNDS):
            form.settle(self._times.numbers)
            self._times = fit(model, form.prior, self._time_blocks(), self._times.numbers)
        self._rivals = Rivals(self._times.numbers[:, None], np.zeros(1))
        self._strays = max(reading.stderr_ratio for reading in self._readings) > STRAYS
        if not self.detailed and count > 1 and not self._strays:
            self._leave_hollows(model)
        white = self._times.whiteners[0] @ self._times.leftovers[0]
        misfit = float(white @ white) / count
        if misfit > MISFIT_MAX:
            self._wider = float(min(WIDER_MAX, np.sqrt(misfit)))
            start = None if self.detailed else self._times.numbers
            self._times = fit(model, form.prior, self._time_blocks(), start)
        return self._times

    def _leave_hollows(self, model: Model) -> None:
        """Goes on from the likeliest of all fits that begin elsewhere, and of those around them."""
        hollows = Hollows(model, self._form.prior, self._time_blocks()[0])
        ends = hollows.begun_elsewhere(self._times, self._form.stages_at)
        self._times = ends[0]
        self._form.settle(self._times.numbers)
        self._times, self._rivals = hollows.explored(ends)
        self._form.settle(self._times.numbers)
        self._times = hollows.descend(self._times.numbers)

    def _time_blocks(self) -> list[Block]:
        count = len(self._readings)
        noise = np.array([reading.stderr_ratio**2 for reading in self._readings])
        above = self._clocks - self._default
        noise[(above >= 0.0).all(axis=1) & (above > 0.0).any(axis=1)] += CAPPED_NOISE**2
        measured = np.log([reading.time_s for reading in self._readings])
        blocks = [Block(np.arange(count), measured, noise, self._near(self._clocks))]
        if not self.detailed:
            return blocks
        at = count
        for stage in range(len(self._default)):
            for kind in self._form.kinds:
                told = np.log([reading.busy_s[stage][kind] for reading in self._readings])
                near = self._closeness.one(self._clocks, stage, BUSY_RESIDUAL, BUSY_REACH)
                rows = np.arange(at, at + count)
                blocks.append(Block(rows, told, np.full(count, BUSY_NOISE**2), near))
                at += count
        return blocks

    def _near(self, clocks_mhz: Floats) -> Floats:
        """Covariance of the time residual between rows of clocks and the readings: (m, n)."""
        return self._closeness.all(clocks_mhz, self._wider * TIME_RESIDUAL, TIME_REACH)

    def _fit_energies(self) -> Energies:
        time_s, busy_s = self.time_s(self._clocks), self.busy_s(self._clocks)
        return Energies(self._ground, self._readings, self._closeness, time_s, busy_s)
