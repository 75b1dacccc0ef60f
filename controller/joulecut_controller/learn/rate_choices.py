"""Clocks of a job that reports its rate alone: how late and how dear each choice is.

A choice is an index of a clock by stage, ascending; rows of choices have shape (m, stages). Times
are log slowdowns against default clocks, joules are of one GPU per stage and iteration.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.clock_curves import Floats, Ints
from joulecut_controller.learn.evidence import STEP_RATIO, ExplorerInput, lowest_of
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.learn.rate_energy import RateEnergy
from joulecut_controller.learn.rate_guesses import RateGuesses

Price = Callable[[Ints], Floats]  # rows (m, stages) to what is minimized (m,)
Allowed = Callable[[Ints], NDArray[np.bool_]]

STEPS, STEPS_TWO = (1, 2, 4, 8), (1, 2)  # clocks that one stage moves at once, and two together
STAGES_FEW = 8  # more are moved alone or all alike: there would be thousands of moves
ROUNDS_MAX = 40  # descents take fewer than 15
BETTER = 1e-9  # less is rounding


class RateChoices:
    """Choices at most one step below the measured clocks, or as low as GPUs of the kind went."""

    def __init__(self, facts: ExplorerInput, measurements: Sequence[Measurement]) -> None:
        constants = facts.constants
        self._default_mhz = np.array(constants.default_mhz, dtype=np.float64)
        self.lowest_mhz = lowest_of(measurements)
        self._stages = np.arange(len(facts.grids))
        self._grid_mhz = self._grid(facts)
        self.top = self._grid_mhz.shape[1] - 1
        clocks = np.array([m.clocks_mhz for m in measurements], dtype=np.float64)
        fall = self._fall(clocks)
        kinds = np.unique(facts.alike, return_inverse=True)[1]
        energy = RateEnergy(measurements, fall, kinds, constants.blocking_power_w)
        self._hidden = energy.hidden[kinds]
        self._measured = np.maximum(0.0, fall - self._hidden)
        grid_fall = self._fall(self._grid_mhz.T).T
        self._edge = (grid_fall > self._hidden[:, None]).sum(axis=1)
        self.guesses = RateGuesses(constants.pipeline, measurements, self._measured)
        self._own_j = energy.own_j(grid_fall)
        self._second_j = len(kinds) * (energy.waiting_w + facts.host_power_w)
        self._base_s = measurements[0].time_s

    def _grid(self, facts: ExplorerInput) -> Floats:
        """Clocks (stages, clocks), padded with the lowest."""
        step_mhz = STEP_RATIO * facts.constants.clock_max_mhz
        made = []
        for grid, low_mhz, kind in zip(facts.grids, self.lowest_mhz, facts.alike, strict=True):
            alike = [low for low, k in zip(self.lowest_mhz, facts.alike, strict=True) if k == kind]
            floor_mhz = min(low_mhz - step_mhz, *alike)
            made.append([mhz for mhz in grid if mhz >= floor_mhz] or [grid[-1]])
        width = max(map(len, made))
        return np.array([[own[0]] * (width - len(own)) + own for own in made], dtype=np.float64)

    def at(self, clocks_mhz: Sequence[int]) -> Ints:
        """The choice of these clocks."""
        clocks = np.array(clocks_mhz, dtype=np.float64)[:, None]
        return np.asarray(np.minimum((self._grid_mhz < clocks).sum(axis=1), self.top))

    def clocks_mhz(self, at: Ints) -> tuple[int, ...]:
        return tuple(int(mhz) for mhz in self._grid_mhz[self._stages, at])

    def fall(self, rows: Ints) -> Floats:
        """log(default clock / clock) less what a power cap hides: (m, stages)."""
        return np.maximum(0.0, self._fall(self._grid_mhz[self._stages, rows]) - self._hidden)

    def _fall(self, clocks_mhz: Floats) -> Floats:
        return np.log(self._default_mhz / np.minimum(clocks_mhz, self._default_mhz))

    def slowdowns(self, rows: Ints) -> Floats:
        """By guess: (m, guesses)."""
        return self.guesses.log_slowdown(self.fall(rows))

    def band(self, rows: Ints, part: float) -> Floats:
        """What such a part of the guesses stays below: (m,)."""
        return np.minimum(_part(self.slowdowns(rows), part), self.proven(rows, part))

    def proven(self, rows: Ints, part: float) -> Floats:
        """The same of any job by its windows: no work slows by more than its clock."""
        further = np.maximum(0.0, (self.fall(rows)[:, None] - self._measured).max(axis=2))
        return np.asarray((_part(self.guesses.at_windows, part) + further).min(axis=1))

    def unseen(self, rows: Ints) -> NDArray[np.bool_]:
        """Whether a stage is below its lowest measured clock."""
        return np.asarray((rows < self.at(self.lowest_mhz)).any(axis=1))

    def time_s(self, rows: Ints) -> Floats:
        """Expected iteration times."""
        return np.asarray(self._base_s * np.exp(self.slowdowns(rows)).mean(axis=1))

    def joules(self, rows: Ints) -> Floats:
        own_j = self._own_j[self._stages, rows].sum(axis=1)
        return np.asarray(own_j + self._second_j * self.time_s(rows))

    def cheapest(self, start: Ints, price: Price, allowed: Allowed) -> Ints:
        """By descent from the start, or from as far above it as is allowed; else the highest.

        Clocks that a power cap hides are alike, and a descent begins at the lowest of them.
        """
        start = np.minimum(start, self._edge)
        begins = np.minimum(start + np.arange(self.top + 1)[:, None], self.top)
        begins = begins[allowed(begins)]
        if not len(begins):
            return np.full(len(start), self.top)
        at, here = begins[0], float(price(begins[:1])[0])
        for _ in range(ROUNDS_MAX):
            tried = at + _moves(len(at))
            tried = tried[((tried >= 0) & (tried <= self.top)).all(axis=1)]
            tried = tried[allowed(tried)]
            if not len(tried):
                break
            prices = price(tried)
            best = int(np.argmin(prices))
            if not prices[best] < here - BETTER:
                break
            at, here = tried[best], float(prices[best])
        return np.asarray(at)


def _part(values: Floats, part: float) -> Floats:
    at = int(part * (values.shape[1] - 1))
    return np.asarray(np.partition(values, at, axis=1)[:, at])


@lru_cache(maxsize=8)  # numbers of stages; a decision asks some fifty times
def _moves(stages: int) -> Ints:
    """Changes of one stage, of all others, of all, and of few stages one against another."""
    one = np.eye(stages, dtype=np.int64)
    few = stages <= STAGES_FEW
    steps, near = (
        [sign * step for step in sizes for sign in (1, -1)] for sizes in (STEPS, STEPS_TWO)
    )
    rows = [step * made for step in steps for made in (one, 1 - one, np.ones_like(one[:1]))]
    if few:
        rows += [step * one + rest * (1 - one) for step in steps for rest in steps]
        pairs = [(one[a], one[b]) for a in range(stages) for b in range(a)]
        rows += [np.array([i * a + j * b for i in near for j in near]) for a, b in pairs]
    return np.unique(np.concatenate(rows), axis=0)
