"""Longest paths through the schedule of a job, for many guesses of its operations' times at once.

Operation times are seconds of shape (stages, kinds, guesses), kinds in the order of `kinds`.
"""

import numpy as np

from joulecut_engine.estimate.clock_curves import Floats
from joulecut_engine.graph.build import build
from joulecut_engine.graph.pipeline import EVALUATION, KINDS, Kind, Pipeline
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.compiled import compiled
from joulecut_engine.optimize.levels import Ints, levels_of

# Antithetic pairs: terms linear in the noise cancel, and the surplus is known to a twentieth.
DRAWS = 12
SEED = 7  # fixed: two choices see the same noise and differ by their clocks alone
FACTOR_MIN = 0.1  # of a mean time


def reported_kinds(pipeline: Pipeline) -> tuple[Kind, ...]:
    """Kinds of operations whose times are learnt where the job reports them."""
    return ("forward",) if pipeline.schedule == EVALUATION else KINDS


class LongestPaths:
    """Longest paths through one schedule. Raises ValueError if it cannot be laid out."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.kinds = reported_kinds(pipeline)
        if pipeline.chunks > 1 or kinds_of(pipeline) != self.kinds:
            raise ValueError(
                f"{pipeline.schedule} has parts that no report tells apart: it needs a profile"
            )
        graph = build(pipeline)
        self._levels = levels_of(graph)
        self._which = np.array(
            [o.stage * len(self.kinds) + self.kinds.index(o.kind) for o in graph.operations]
        )
        self._halves: dict[int, Floats] = {}  # normal deviates by number of draws

    def iteration_s(self, times_s: Floats) -> Floats:
        """Seconds of an iteration for every guess; `times_s` is (stages, kinds, guesses)."""
        guesses = times_s.shape[-1]
        return self._levels.iteration_times(times_s.reshape(-1, guesses)[self._which])

    def critical(self, times_s: Floats) -> tuple[float, Floats]:
        """The longest path of one guess (stages, kinds), and how many operations of each stage and
        kind it takes.
        """
        length_s, taken = self._levels.critical(times_s.ravel()[self._which])
        counts = np.bincount(self._which, taken, times_s.size).astype(np.float64)
        return length_s, counts.reshape(times_s.shape)

    def jittered_s(self, times_s: Floats, spread: float, draws: int = DRAWS) -> Floats:
        """Iteration times with every operation jittered by `spread` (a ratio): (draws, guesses)."""
        half = self._halves.get(draws)
        if half is None:
            rng = np.random.default_rng(SEED)
            half = self._halves[draws] = rng.standard_normal((draws // 2, len(self._which)))
        factors = np.maximum(FACTOR_MIN, 1.0 + spread * np.concatenate([half, -half]))
        levels, (stages, kinds, guesses) = self._levels, times_s.shape
        rows = np.ascontiguousarray(times_s.reshape(stages * kinds, guesses).T)  # one a guess
        return _jittered_paths(rows, factors, self._which, levels.begins, levels.before)


@compiled
def _jittered_paths(
    guesses: Floats, factors: Floats, which: Ints, begins: Ints, before: Ints
) -> Floats:
    """Longest path for every row of `factors` and every row of `guesses`: (draws, guesses)."""
    count = len(which)
    ends, longest = np.empty(count), np.zeros((len(factors), len(guesses)))
    for draw in range(len(factors)):
        for guess in range(len(guesses)):
            last = 0.0
            for row in range(count):
                begin = 0.0
                for at in range(begins[row], begins[row + 1]):
                    begin = max(begin, ends[before[at]])
                ends[row] = begin + guesses[guess, which[row]] * factors[draw, row]
                last = max(last, ends[row])
            longest[draw, guess] = last
    return longest
