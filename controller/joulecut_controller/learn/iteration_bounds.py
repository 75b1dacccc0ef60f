"""What an iteration may take at clocks that were never run: by windows, and by fits that agree.

What windows prove leaves few steps, and a fit is sure where it is wrong; so each has its part
in the worst case, and the part of fits is bounded by windows. Pure.
"""

import numpy as np

from joulecut_controller.learn.ceiling import ceiling_s, floor_s
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.search import Floats

DOUBTS_WORST = 2.0  # of a worst case that rests on fits
# A stage is supposed to be so much heavier than the fit takes it to be.
HEAVIER_RATIOS = (0.06, 0.03, 0.015)
# Of what measured times leave open fits decide over all but this part: were all of them wrong, and
# the job the worst there can be, a window is late by no more than what they decided over. Of a
# stage that was never lowered no window says anything, so of it they decide nothing: the two worst
# windows met (1.5 and 0.75 points over) were the first of a stage that all waited for.
CEILING_PART = 0.35
CEILING_PART_NEW = 1.0
NEAREST = 4  # readings that a bound by busy times is computed from: the others say less
# What a fit misses where nothing was measured, beyond its own doubt: iteration times have kinks,
# and a standard deviation is taken on one side of them.
UNSEEN = 0.0007


class Bounds:
    """Windows that took `told_s` (n,) at clocks `measured_mhz` (n, stages), surely no more than
    `sure_s` on the mean, and the fit to them. `base_doubt` is that of the baseline, as a ratio.
    """

    def __init__(
        self,
        model: RateModel,
        measured_mhz: Floats,
        told_s: Floats,
        sure_s: Floats,
        base_doubt: float,
    ) -> None:
        self._model, self._sure_s, self._base_doubt = model, sure_s, base_doubt
        self._top = np.array(model.default_mhz, dtype=np.float64)
        self._within_cap = np.minimum(measured_mhz, self._top)
        self._lowest = self._within_cap.min(axis=0)  # what a cap hides is no lowering
        self._least_s = np.minimum(told_s, model.time_s(measured_mhz))
        self._rivals: list[RateModel] | None = None

    def worst_s(self, rows: Floats, enough_s: float = 0.0) -> Floats:
        """Iteration times of rows of clocks (m, stages) that no job exceeds, shape (m,): by what
        longest paths cannot break and no work can do (`ceiling`). Where that is above `enough_s`,
        more is asked, and the lesser counts: of a job that tells its busy times the graph, which
        knows what a longer operation adds; of others every fit that the readings do not deny.
        """
        worst_s = self.proven_s(rows)
        above = worst_s > enough_s
        if above.any():
            asked = np.minimum(rows[above], self._top)
            told = self._model.detailed
            more_s = self._told_s(asked) if told else self._guessed_s(asked, worst_s[above])
            worst_s[above] = np.minimum(worst_s[above], more_s)
        return worst_s

    def proven_s(self, rows: Floats) -> Floats:
        """The same by measured iteration times alone, whatever the job is made of."""
        return ceiling_s(self._sure_s, self._within_cap, np.minimum(rows, self._top))

    def raised_s(self, model: RateModel, rows: Floats) -> Floats:
        """Iteration times by a fit, raised to what windows show them to be at the least: a fit that
        takes one stage's time for another's is below it, and its doubt says nothing of that.
        """
        floors_s = floor_s(self._least_s, self._within_cap, np.minimum(rows, self._top))
        return np.asarray(np.maximum(model.time_s(rows), floors_s))

    def mean_s(self, rows: Floats) -> Floats:
        """Iteration times on the mean of the jobs that readings do not deny, each of them raised to
        what windows show at the least; by the fit alone where there are no others.
        """
        floors_s = floor_s(self._least_s, self._within_cap, np.minimum(rows, self._top))
        guesses_s = np.maximum(self._model.rival_times_s(rows), floors_s[:, None])
        return np.asarray(guesses_s.mean(axis=1))

    def _guessed_s(self, asked: Floats, proven_s: Floats) -> Floats:
        """By all fits; but they decide over no more than a part of what windows leave open."""
        least_s = floor_s(self._least_s, self._within_cap, asked)
        new = ((asked < self._lowest) & (self._lowest >= self._top)).any(axis=1)
        part = np.where(new, CEILING_PART_NEW, CEILING_PART)
        bounded_s = least_s + part * (proven_s - least_s)
        return np.maximum(self._gloomy_s(asked), bounded_s)

    def _told_s(self, asked: Floats) -> Floats:
        """By what the nearest windows told of operations, and the graph."""
        stretch = np.maximum(1.0, self._within_cap[None, :, :] / asked[:, None, :])
        nearest = np.argsort(self._sure_s * stretch.max(axis=2), axis=1, kind="stable")[:, :NEAREST]
        told = self._model.longer(np.take_along_axis(stretch, nearest[..., None], axis=1), nearest)
        assert told is not None
        return np.asarray((self._sure_s[nearest] * told).min(axis=1))

    def _gloomy_s(self, asked: Floats) -> Floats:
        """The longest upper band, at the nearest clocks within the evidence, of all fits that the
        readings do not deny, each with another stage heavier; what is lower than those clocks may
        be waited for by all.
        """
        if self._rivals is None:
            self._rivals = [self._model, *self._heavier()]
        inside = np.maximum(asked, self._lowest)
        worst_s = np.zeros(len(asked))
        for rival in self._rivals:
            doubt = np.hypot(rival.ratio_doubt(inside), UNSEEN)
            likely_s = self.raised_s(rival, inside)
            worst_s = np.maximum(worst_s, likely_s * (1.0 + DOUBTS_WORST * doubt))
        floors_s = floor_s(self._least_s, self._within_cap, inside)
        guesses_s = np.maximum(self._model.rival_times_s(inside).max(axis=1), floors_s)
        beside = DOUBTS_WORST * np.hypot(self._base_doubt, UNSEEN)
        worst_s = np.maximum(worst_s, guesses_s * (1.0 + beside))
        return np.asarray(worst_s * (inside / asked).max(axis=1))

    def _heavier(self) -> list[RateModel]:
        """Where a stage waits, how much heavier it may be shows in no reading: by stage the
        heaviest that is not denied.
        """
        found = []
        for stage in range(len(self._lowest)):
            rivals = (self._model.lighter(stage, -ratio) for ratio in HEAVIER_RATIOS)
            heaviest = next((rival for rival in rivals if rival is not None), None)
            if heaviest is not None:
                found.append(heaviest)
        return found
