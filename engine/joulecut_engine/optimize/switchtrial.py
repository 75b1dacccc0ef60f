"""One deadline under switching: what a choice of clocks is worth, and the best that is found.

Clocks are asked for by columns (`switching.Track`), one per operation; knobs are the choices
that remain where operations of a GPU share theirs.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Infeasible
from joulecut_engine.optimize.switching import Limits, Track, run_of
from joulecut_engine.optimize.switchmoves import realise, value_of, vary

TRIALS_MAX = 40_000  # per start; more found nothing better where operations are few
TRIALS_MIN = 1_000  # however many operations
LATE_PRICE = 3.0  # times the dearest second: so that trials come back in time
HEAT = 0.002  # of what a start costs above the bound: at first a trial may cost so much more
SEED = 0x9E3779B97F4A7C15


class Trial:
    """Values are sums of effective cost and price of time in joules, infinite where late."""

    def __init__(
        self, track: Track, limits: Limits, group: Ints, deadline_s: float, time_price_w: float
    ) -> None:
        self._track, self._limits, self._group = track, limits, group
        self.deadline_s, self._price_w = deadline_s, time_price_w
        self._run = run_of(track)
        self.fastest_s = math.inf  # of all that were judged here
        self._knobs: dict[tuple[int, int], list[int]] = {}
        for i in np.flatnonzero(track.clocked).tolist():
            knob = int(group[i]) if group[i] >= 0 else -1 - i
            self._knobs.setdefault((int(track.stage[i]), knob), []).append(i)

    def value_j(self, asked: Ints) -> float:
        seconds, _, _ = realise(self._track, self._limits, asked, self._run)
        self.fastest_s = min(self.fastest_s, seconds)
        value, kept = value_of(
            self._track, self._limits, asked, self._run, self.deadline_s, self._price_w, 0.0
        )
        return value if kept else math.inf

    def timeline(self, asked: Ints) -> tuple[Floats, Floats] | None:
        """Starts and ends of operations in seconds; None where a limit is broken."""
        seconds, _, _ = realise(self._track, self._limits, asked, self._run)
        if not math.isfinite(seconds):
            return None
        return self._run.start.copy(), self._run.start + self._run.duration

    def combinations(self) -> int:
        return math.prod(int(self._track.columns[stage]) for stage, _ in self._knobs)

    def all(self) -> Ints:
        """The best of all plans. Raises Infeasible where none keeps the deadline."""
        best, least = np.zeros(len(self._track.stage), dtype=np.int64), math.inf
        choices = (range(int(self._track.columns[stage])) for stage, _ in self._knobs)
        for columns in itertools.product(*choices):
            asked = np.zeros(len(self._track.stage), dtype=np.int64)
            for members, column in zip(self._knobs.values(), columns, strict=True):
                asked[members] = column
            value = self.value_j(asked)
            if value < least:
                best, least = asked, value
        if least == math.inf:
            raise Infeasible(self.deadline_s, self.fastest_s)
        return best

    def best(
        self, starts: Sequence[Ints], price_w: Floats, bound_j: float, few: int, work: float
    ) -> Ints:
        """The best of all starts and of what varying the `few` most promising leads to; `work`
        is how many operations are run for it. Raises Infeasible where none keeps the deadline."""
        late_w = LATE_PRICE * max(float(price_w.max()), self._price_w, 1.0)
        worth = [self.value_j(asked) for asked in starts]
        best, least = self._least(starts, worth)
        # Those that are late, but not by much, may come back in time: none of them is lost.
        rough = [self._value(asked, late_w) for asked in starts]
        order = [k for k in np.argsort(rough, kind="stable").tolist() if math.isfinite(rough[k])]
        chosen: list[Ints] = []
        for k in order:
            if len(chosen) < few and not any(np.array_equal(starts[k], c) for c in chosen):
                chosen.append(starts[k])
        each = int(work / max(1, len(chosen)) / len(self._track.stage))
        trials = min(max(TRIALS_MIN, each), TRIALS_MAX)
        state = np.array([SEED], dtype=np.uint64)
        for start in chosen:
            asked = start.copy()
            heat = HEAT * max(0.0, self._value(asked, late_w) - bound_j)
            value = vary(
                self._track,
                self._limits,
                asked,
                self._group,
                self._run,
                self.deadline_s,
                self._price_w,
                late_w,
                heat,
                trials,
                state,
            )
            if value < least:
                best, least = asked, value
        if least == math.inf:
            raise Infeasible(self.deadline_s, self.fastest_s)
        return best

    def _value(self, asked: Ints, late_w: float) -> float:
        """Finite also where late."""
        return value_of(
            self._track, self._limits, asked, self._run, self.deadline_s, self._price_w, late_w
        )[0]

    @staticmethod
    def _least(starts: Sequence[Ints], worth: Sequence[float]) -> tuple[Ints, float]:
        at = int(np.argmin(worth))
        return starts[at], worth[at]
