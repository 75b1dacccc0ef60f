"""Other jobs that explain the same iteration times: multi-start and a population of fits.

The slowest stage makes kinks in the iteration time, so a fit has local minima. Descents begin at
several jobs, each with another stage heavy; a population of guesses then walks on from their ends
(differential evolution Markov chain: ter Braak, Statistics and Computing 16, 2006). Every fit that
the measurements do not reject is kept. Seeded and deterministic.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_controller.learn.regression import Block, Fitted, Floats, Model, Prior, fit

# Logarithms by which one stage is heavier at the start of a descent.
HEAVIER = (0.08, 0.2)
MEMBERS = 48  # a few per free number
ROUNDS = 60  # after which well-known directions are independent of the start
HOP_EVERY = 5  # rounds: a whole difference, which leads from one minimum to another
REACH = 2.38  # over sqrt(2 * numbers): optimal for normal distributions (ter Braak)
ROUGH = 0.02  # of each number's prior: noise that lets the population leave its plane
SCALE = 0  # the number that makes all stages longer
SEED = 11
# Each population starts from the ends of descents that the last one suggested.
POPULATIONS, ENDS_MAX = 3, 8
POLISHED = 3  # descents from a population's likeliest guesses
REJECTED_SD = 2.0  # standard deviations of chi-squared beyond its mean


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Guesses that are not rejected, likeliest first: numbers (count, members)."""

    numbers: Floats
    costs: Floats


class MultiStart:
    """Search for all fits of one model to iteration times."""

    def __init__(self, model: Model, prior: Prior, block: Block) -> None:
        self._model, self._prior, self._block = model, prior, block

    def descend(self, start: Floats) -> Fitted:
        return fit(self._model, self._prior, [self._block], start)

    def from_other_starts(self, fitted: Fitted, open_at: Sequence[int]) -> list[Fitted]:
        """This fit and the ends of descents from the prior's mean, likeliest first.

        Each descent starts with one of the numbers `open_at` heavier and the scale as much lower.
        """
        ends = [fitted]
        for at, heavier in itertools.product(open_at, HEAVIER):
            start = self._prior.mean.copy()
            start[at] += heavier
            start[SCALE] -= heavier
            ends.append(self.descend(start))
        return sorted(ends, key=self._cost)

    def explore(self, ends: Sequence[Fitted]) -> tuple[Fitted, Ensemble]:
        """The likeliest fit found from these ends, and all guesses not rejected."""
        best = [self.descend(ends[0].numbers), *ends]
        white = ends[0].whiteners[0]
        for _ in range(POPULATIONS):
            best = sorted(best, key=self._cost)[:ENDS_MAX]
            rivals = self._population(best, white)
            best += [self.descend(numbers) for numbers in rivals.numbers.T[:POLISHED]]
        return min(best, key=self._cost), rivals

    def _cost(self, end: Fitted) -> float:
        return end.misfit + float(self._prior.misfit(end.numbers))

    def _costs(self, guesses: Floats, white: Floats) -> Floats:
        left = white @ (self._block.measured[:, None] - self._model(guesses))
        return np.asarray((left**2).sum(axis=0)) + self._prior.misfit(guesses)

    def _population(self, ends: Sequence[Fitted], white: Floats) -> Ensemble:
        """Guesses around and between the ends of descents."""
        rng = np.random.default_rng(SEED)
        count = len(self._prior.mean)
        noise = rng.standard_normal((MEMBERS, count))
        begun = [ends[i % len(ends)] for i in range(MEMBERS)]
        first = np.arange(MEMBERS) < len(ends)  # the ends themselves; the others lie around them
        away = [np.linalg.cholesky(e.covariance) @ own for e, own in zip(begun, noise, strict=True)]
        at = np.stack([e.numbers for e in begun], axis=1)
        at = at + np.where(first, 0.0, np.stack(away, axis=1))
        own, own_costs = at[:, first], self._costs(at[:, first], white)
        costs = self._costs(at, white)
        for turn in range(ROUNDS):
            reach = 1.0 if turn % HOP_EVERY == HOP_EVERY - 1 else REACH / np.sqrt(2.0 * count)
            one, other = (rng.permutation(MEMBERS) for _ in range(2))
            rough = ROUGH * self._prior.sd[:, None] * rng.standard_normal(at.shape)
            there = at + reach * (at[:, one] - at[:, other] + rough)
            new = self._costs(there, white)
            taken = np.log(rng.uniform(size=MEMBERS)) < 0.5 * (costs - new)
            at, costs = np.where(taken, there, at), np.where(taken, new, costs)
        every, all_costs = np.concatenate([own, at], axis=1), np.concatenate([own_costs, costs])
        order = np.argsort(all_costs, kind="stable")
        far = count + REJECTED_SD * np.sqrt(2.0 * count)
        order = order[all_costs[order] <= all_costs[order[0]] + far]
        return Ensemble(every[:, order], all_costs[order])


LogOdds = Callable[[Floats], Floats]  # numbers (count, guesses) -> (guesses,)

# Changes of a stage's work to average over, as logarithms.
MOVES = np.arange(-0.40, 0.101, 0.01)


def posterior_means(numbers: Floats, open_at: Sequence[int], log_odds: LogOdds) -> Floats:
    """`numbers` (count,) with each of `open_at` at its posterior mean given the rest.

    An iteration is as long as its slowest stage, so measurements bound the work of all others from
    one side only, and the most probable value lies at that bound. One number after the other, the
    least determined first: of two that explain the same measurements, one has to stay.
    """
    made = numbers.copy()
    order = sorted(open_at, key=lambda at: (_mean_move(made, at, log_odds), at))
    for at in order:
        made[at] += _mean_move(made, at, log_odds)
    return made


def _mean_move(numbers: Floats, at: int, log_odds: LogOdds) -> float:
    guesses = np.repeat(numbers[:, None], len(MOVES), axis=1)
    guesses[at] += MOVES
    odds = log_odds(guesses)
    weights = np.exp(odds - odds.max())
    return float(weights @ MOVES / weights.sum())
