"""Guesses of a job that reports its rate alone: work of its stages, and how it follows the clock.

A rate does not tell which stage the others wait for, so one best fit is a trap. Many guesses are
kept instead, each a whole job, drawn so that their density follows prior and windows. What a
decision asks is then a share of the guesses: in how many of them are these clocks late?

A guess is the share of work that follows the clock, a fall of the clock that changes nothing, the
log work of each stage and its own extra share: (2 + 2 stages, guesses). Clocks are given as `fall`,
log(default clock / clock), of shape (settings, stages).

ter Braak, A Markov Chain Monte Carlo version of the genetic algorithm Differential Evolution, 2006.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_controller.learn.clock_curves import Floats
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_engine.graph.pipeline import Pipeline

# Prior: mean and standard deviation, and bounds.
CLOCK_SHARE, CLOCK_SHARES = (0.7, 0.3), (0.05, 1.0)  # 0.25-0.93 on the public A100 and A40 sweeps
OWN_SHARE_SD = 0.1  # of stages of one job: within 0.03 there; other cards are not known
HIDDEN_SD = 0.005  # a locked clock is a step of the table at most below the clock that runs
WORK_SD = 0.12  # a language-model head makes the last stage 7 % longer there
# What the form cannot express of a window's time: jitter, curved shares. Of a smaller fall than
# this in proportion, and where windows contradict the form, more.
FORM_SD, FORM_FALL = 0.003, 0.05
# Locks that a power cap hides are slower than default clocks by 0.3 % on the public A40 sweep.
FORM_PART_MIN = 0.5
MISFIT_MAX, FORM_SCALE_MAX = 1.5, 10.0  # of a window, in variances
# Errors of slowdowns that power tells are those of one fit: half of their variance in common, and
# that of the baseline.
COMMON_RATIO = 1.0

GUESSES = 256  # the share that is late is known to 3 % at a half, 1 % at a fiftieth
SEED = 7  # the same windows give the same guesses
# Over all guesses. In the first half errors fall from larger ones to the true ones, so that no
# guess ends in a local minimum.
SWEEPS, ERRORS_FIRST = 160, 10.0
JUMP_EVERY = 6  # sweeps that move by a whole difference, from one mode to another
MOVED_PARTS = (0.3, 0.6, 1.0)  # of the numbers that a guess changes at once
SHAKEN = 0.02  # of the prior, beside differences of guesses


class RateGuesses:
    """`fall` is of the windows, the first of which is at default clocks."""

    def __init__(
        self, pipeline: Pipeline, measurements: Sequence[Measurement], fall: Floats
    ) -> None:
        self._fall = fall
        self._rest = pipeline.microbatches * pipeline.chunks - 1
        self._slower = np.log([one.time_s / measurements[0].time_s for one in measurements])
        errors = np.array([one.stderr_ratio for one in measurements])
        known = float(np.median([one.known_stderr_ratio or 0.0 for one in measurements]))
        self._common_sd = float(np.hypot(errors[0], COMMON_RATIO * known))
        form_sd = FORM_SD
        self._draw(errors, form_sd)
        misfit = float(self._chi2(self._all).min()) / len(errors)
        if misfit > MISFIT_MAX:
            form_sd *= min(FORM_SCALE_MAX, misfit**0.5)
            self._draw(errors, form_sd)
        rng = np.random.default_rng(SEED)
        # What the form misses, by guess: at windows it is measured, far from them it is not known.
        self._stray = form_sd * rng.standard_normal(GUESSES)
        weight = (self._form_variance / self._variance)[:, None]
        stray = (self._form_variance**0.5 / form_sd)[:, None] * self._stray
        left = self._left(self._all)
        left[1:] -= self._common(left)
        self._missed = weight * left + (1.0 - weight) * stray
        self.at_windows = self.log_slowdown(fall)

    def log_slowdown(self, fall: Floats) -> Floats:
        """log of the iteration time over that at default clocks: (settings, guesses).

        What the form misses at the nearest window is missed there too, the less the farther.
        """
        apart = np.abs(fall[:, None] - self._fall).max(axis=2)
        near = apart.argmin(axis=1)
        same = np.exp(-apart[np.arange(len(fall)), near] / FORM_FALL)[:, None]
        off = same * self._missed[near] + (1.0 - same) * self._stray
        return np.asarray(self._plain(self._all, fall) + off)

    @property
    def clock_share(self) -> tuple[float, float]:
        """Share of the work that follows the clock, and its standard deviation."""
        return float(self._all[0].mean()), float(self._all[0].std())

    def log_busy(self, fall: Floats) -> Floats:
        """log of the time that stages work, over their mean: (stages, guesses)."""
        logs = np.log(_busy(self._all, fall[None])[0])
        return np.asarray(logs - logs.mean(axis=0))

    # -- drawing -----------------------------------------------------------------------------

    def _draw(self, errors: Floats, form_sd: float) -> None:
        part = np.maximum(FORM_PART_MIN, _form(self._fall))
        part[0] = 0.0
        self._form_variance = (form_sd * part) ** 2
        self._variance = errors**2 + self._form_variance
        stages = self._fall.shape[1]
        self._mean = np.array([CLOCK_SHARE[0]] + [0.0] * (1 + 2 * stages))[:, None]
        sds = [CLOCK_SHARE[1], HIDDEN_SD] + [WORK_SD] * stages + [OWN_SHARE_SD] * stages
        self._sd = np.array(sds)[:, None]
        rng, half = np.random.default_rng(SEED), GUESSES // 2
        at = _within(self._mean + self._sd * rng.standard_normal((len(sds), GUESSES)))
        for sweep in range(SWEEPS):
            errors_ratio = ERRORS_FIRST ** max(0.0, 1.0 - 2.0 * sweep / SWEEPS)
            length = 2.38 / (2.0 * len(sds)) ** 0.5 if sweep % JUMP_EVERY else 1.0
            for mine, others in ((slice(half), half), (slice(half, None), 0)):
                one, two = others + rng.integers(half, size=(2, half))
                step = length * (at[:, one] - at[:, two])
                step += SHAKEN * self._sd * rng.standard_normal(step.shape)
                moved = rng.random(step.shape) < rng.choice(MOVED_PARTS, size=half)
                tried = _within(at[:, mine] + moved * step)
                better = self._cost(at[:, mine], errors_ratio) - self._cost(tried, errors_ratio)
                taken = np.log(rng.random(half)) < 0.5 * better
                at[:, mine] = np.where(taken, tried, at[:, mine])
        self._all = at

    def _cost(self, guesses: Floats, errors_ratio: float) -> Floats:
        """Chi-squared of prior and windows: (guesses,)."""
        prior = (((guesses - self._mean) / self._sd) ** 2).sum(axis=0)
        return np.asarray(prior + self._chi2(guesses) / errors_ratio**2)

    def _chi2(self, guesses: Floats) -> Floats:
        left = self._left(guesses)
        left[1:] -= (common := self._common(left))
        chi2 = (left[1:] ** 2 / self._variance[1:, None]).sum(axis=0)
        return np.asarray(chi2 + (common / self._common_sd) ** 2)

    def _common(self, left: Floats) -> Floats:
        """Error that all slowdowns most likely have in common, by guess."""
        weight = 1.0 / self._variance[1:]
        return np.asarray(weight @ left[1:] / (self._common_sd**-2.0 + weight.sum()))

    def _left(self, guesses: Floats) -> Floats:
        """log slowdowns of windows that the guesses miss: (windows, guesses)."""
        return np.asarray(self._slower[:, None] - self._plain(guesses, self._fall))

    def _plain(self, guesses: Floats, fall: Floats) -> Floats:
        """A microbatch passes all stages, and the others follow at the pace of the slowest."""
        busy, work = _busy(guesses, fall), np.exp(_works(guesses)[0])
        times = busy.sum(axis=1) + self._rest * busy.max(axis=1)
        return np.asarray(np.log(times / (work.sum(axis=0) + self._rest * work.max(axis=0))))


def _within(guesses: Floats) -> Floats:
    """Reflected at the bounds, in place."""
    low, high = CLOCK_SHARES
    share = np.abs(guesses[0] - low) + low
    guesses[0] = np.clip(np.where(share > high, 2.0 * high - share, share), low, high)
    guesses[1] = np.abs(guesses[1])
    return guesses


def _works(guesses: Floats) -> tuple[Floats, Floats]:
    """log work and own shares of stages."""
    stages = (len(guesses) - 2) // 2
    return guesses[2 : 2 + stages], guesses[2 + stages :]


def _busy(guesses: Floats, fall: Floats) -> Floats:
    """Work of stages at rows of clocks: (settings, stages, guesses)."""
    stretch = np.maximum(1.0, np.exp(fall)[:, :, None] * np.exp(-guesses[1]))
    work, own = _works(guesses)
    share = np.clip(guesses[0] + own, *CLOCK_SHARES)
    return np.asarray(np.exp(work) * (1.0 + share * (stretch - 1.0)))


def _form(fall: Floats) -> Floats:
    """Part of the form's error at such falls: (settings,)."""
    return np.asarray(np.minimum(1.0, fall.max(axis=1) / FORM_FALL))
