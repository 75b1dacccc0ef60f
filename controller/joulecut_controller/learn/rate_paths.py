"""Iteration times of many guesses at once: what a fit without a profile asks for all the time.

A fit tries thousands of sets of operation times on one schedule, with the solver's longest
paths, and asks what jitter adds to each. Pure.
"""

import numpy as np

from joulecut_engine.graph.build import build
from joulecut_engine.graph.pipeline import KINDS, Pipeline
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.levels import Floats, Ints, levels_of

# Half of them are the others' mirror images, so that what is linear in the luck cancels and only
# the surplus is left: known to a twentieth of it.
DRAWS = 12
SEED = 7  # any; always the same luck, so that two choices differ by their clocks alone
LUCK_MIN = 0.1  # of a mean time: no operation ends before it begins


class Paths:
    """Longest paths through one schedule. Raises ValueError where it cannot be laid out."""

    def __init__(self, pipeline: Pipeline) -> None:
        if pipeline.chunks > 1 or kinds_of(pipeline) != KINDS:
            raise ValueError(
                f"{pipeline.schedule} has parts that no report tells apart: it needs a profile"
            )
        graph = build(pipeline)
        self._levels = levels_of(graph)
        operations = [graph.operations[i] for i in self._levels.operation]
        self._which = np.array([o.stage * len(KINDS) + KINDS.index(o.kind) for o in operations])

    def iteration_s(self, times_s: Floats) -> Floats:
        """Seconds of an iteration for every guess; `times_s` has shape (stages, kinds, guesses),
        kinds in the order of `workload.KINDS`.
        """
        stages, kinds, guesses = times_s.shape
        return self._levels.iteration_times(times_s.reshape(stages * kinds, guesses), self._which)

    def jittered_s(self, times_s: Floats, spread: float, draws: int = DRAWS) -> Floats:
        """Iterations in which every operation strays by that ratio: (draws, guesses)."""
        half = np.random.default_rng(SEED).standard_normal((draws // 2, len(self._which)))
        luck = np.maximum(LUCK_MIN, 1.0 + spread * np.concatenate([half, -half]))
        levels = self._levels
        return _lucky(_rows(times_s), luck, self._which, levels.begins, levels.before)


def _rows(times_s: Floats) -> Floats:
    """A row of operation times for every guess, none where there is none."""
    stages, kinds, guesses = times_s.shape
    return np.ascontiguousarray(times_s.reshape(stages * kinds, guesses).T)


@exact
def _lucky(guesses: Floats, luck: Floats, which: Ints, begins: Ints, before: Ints) -> Floats:
    """The longest path by draw and guess, here a row of times, with each operation so many times
    as long, for every row of luck.
    """
    count = len(which)
    ends, longest = np.empty(count), np.zeros((len(luck), len(guesses)))
    for draw in range(len(luck)):
        for guess in range(len(guesses)):
            last = 0.0
            for row in range(count):
                begin = 0.0
                for at in range(begins[row], begins[row + 1]):
                    begin = max(begin, ends[before[at]])
                ends[row] = begin + guesses[guess, which[row]] * luck[draw, row]
                last = max(last, ends[row])
            longest[draw, guess] = last
    return longest
