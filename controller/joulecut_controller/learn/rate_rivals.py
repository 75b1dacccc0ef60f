"""Other jobs that explain the same iteration times, because a fit that ends in one hollow is sure.

Which stage all wait for makes kinks in an iteration's time, so the landscape of a fit has
hollows, and what leads out of one is no derivative. So descents begin at several jobs, each
with another stage heavy, and a crowd of guesses walks on from where they end. Those that the
readings do not deny are all kept. Pure and deterministic.

The walk is differential evolution as a Markov chain (ter Braak, Statistics and Computing 16,
2006): every guess moves along the difference of two others, now and then by all of it, which
leads from hollow to hollow; so the crowd takes the shape of what is known.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.rate_fit import Block, Fitted, Model, Prior, fit

Floats = NDArray[np.float64]

# Logarithms: how much heavier than the others a stage is where a descent begins.
HEAVIER = (0.08, 0.2)
MEMBERS = 48  # a few per number that is open
ROUNDS = 60  # after which the crowd has forgotten where it began, along what is known well
HOP_EVERY = 5  # rounds: a whole difference instead of a part of it
REACH = 2.38  # over the root of twice the numbers: the best for normal distributions (ter Braak)
ROUGH = 0.02  # of each number's prior: or the crowd stays on the plane it began on
SCALE = 0  # the number that makes all stages longer
SEED = 11  # any; always the same luck
# A crowd shows where to begin once more, and where that ends the next one begins.
CROWDS, ENDS_MAX = 3, 8
POLISHED = 3  # of a crowd's likeliest guesses, from each of which one more descent begins
DENIED_SD = 2.0  # guesses are as far from the likeliest as chi squared goes, with so many more


@dataclass(frozen=True, slots=True)
class Rivals:
    """Guesses that are not denied, the likeliest first: numbers (count, members)."""

    numbers: Floats
    costs: Floats


class Hollows:
    """The landscape of one fit to iteration times."""

    def __init__(self, model: Model, prior: Prior, block: Block) -> None:
        self._model, self._prior, self._block = model, prior, block

    def descend(self, start: Floats) -> Fitted:
        return fit(self._model, self._prior, [self._block], start)

    def begun_elsewhere(self, fitted: Fitted, open_at: Sequence[int]) -> list[Fitted]:
        """This fit and where descents end that begin before any measurement, with one of these
        numbers heavier and the scale of all as much lower; the likeliest first. From where another
        fit ended they would only go back there.
        """
        ends = [fitted]
        for at, heavier in itertools.product(open_at, HEAVIER):
            start = self._prior.mean.copy()
            start[at] += heavier
            start[SCALE] -= heavier
            ends.append(self.descend(start))
        return sorted(ends, key=self._cost)

    def explored(self, ends: Sequence[Fitted]) -> tuple[Fitted, Rivals]:
        """The likeliest fit that is found from these, and what else is not denied."""
        best = [self.descend(ends[0].numbers), *ends]
        white = ends[0].whiteners[0]
        for _ in range(CROWDS):
            best = sorted(best, key=self._cost)[:ENDS_MAX]
            rivals = self._crowd(best, white)
            best += [self.descend(numbers) for numbers in rivals.numbers.T[:POLISHED]]
        return min(best, key=self._cost), rivals

    def _cost(self, end: Fitted) -> float:
        return end.misfit + float(self._prior.misfit(end.numbers))

    def _costs(self, guesses: Floats, white: Floats) -> Floats:
        left = white @ (self._block.measured[:, None] - self._model(guesses))
        return np.asarray((left**2).sum(axis=0)) + self._prior.misfit(guesses)

    def _crowd(self, ends: Sequence[Fitted], white: Floats) -> Rivals:
        """Guesses around and between the ends of descents, as likely as they are."""
        dice = np.random.default_rng(SEED)
        count = len(self._prior.mean)
        luck = dice.standard_normal((MEMBERS, count))
        begun = [ends[i % len(ends)] for i in range(MEMBERS)]
        first = np.arange(MEMBERS) < len(ends)  # where they ended, the others around it
        away = [np.linalg.cholesky(e.covariance) @ own for e, own in zip(begun, luck, strict=True)]
        at = np.stack([e.numbers for e in begun], axis=1)
        at = at + np.where(first, 0.0, np.stack(away, axis=1))
        own, own_costs = at[:, first], self._costs(at[:, first], white)
        costs = self._costs(at, white)
        for turn in range(ROUNDS):
            reach = 1.0 if turn % HOP_EVERY == HOP_EVERY - 1 else REACH / np.sqrt(2.0 * count)
            one, other = (dice.permutation(MEMBERS) for _ in range(2))
            rough = ROUGH * self._prior.sd[:, None] * dice.standard_normal(at.shape)
            there = at + reach * (at[:, one] - at[:, other] + rough)
            new = self._costs(there, white)
            taken = np.log(dice.uniform(size=MEMBERS)) < 0.5 * (costs - new)
            at, costs = np.where(taken, there, at), np.where(taken, new, costs)
        every, all_costs = np.concatenate([own, at], axis=1), np.concatenate([own_costs, costs])
        order = np.argsort(all_costs, kind="stable")
        far = count + DENIED_SD * np.sqrt(2.0 * count)
        order = order[all_costs[order] <= all_costs[order[0]] + far]
        return Rivals(every[:, order], all_costs[order])
