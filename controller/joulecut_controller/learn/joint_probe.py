"""Probes that lower several waiting stages at once.

However many stages are lowered by a tenth, no iteration takes more than a tenth longer. So stages
that wait are lowered as one group, in one window instead of one each.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.clock_search import PAYBACK_WINDOWS, Clocks, Probe, progress
from joulecut_controller.learn.evidence import DOUBTS_SURE, OVER_RATIO, Evidence
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.regression import Floats

# Gain that the cheapest clocks have to promise.
PROMISE_MIN = 0.0015
# Clocks by which the other stages are raised meanwhile; the last is default.
ROOMS = (1, 2, 4, 8, 999)
# Worth of a window that only makes room for the next, as a share of that one's.
MAKES_ROOM_WORTH = 0.5
BATCH = 32  # rows judged at once; the first is usually acceptable


class JointProbes:
    """Groups of stages to lower, for one state of the evidence."""

    def __init__(self, known: Evidence, *, may_make_room: bool) -> None:
        self._known, self._may_make_room = known, may_make_room

    def next(self) -> Probe | None:
        """The acceptable group with the highest worth by either fit."""
        likeliest = self._known.model
        expected = likeliest.with_expected_work()
        found = [self._towards(model) for model in (expected, likeliest)]
        _, probe = max(found, key=lambda pair: pair[0])
        return probe

    def _towards(self, model: RateModel) -> tuple[float, Probe | None]:
        """The best group towards one fit's cheapest clocks, and its worth."""
        known, now = self._known, self._known.facts.now_mhz
        other = Evidence(known.facts, known.measurements, model)
        wanted = other.cheapest(known.facts.grids, now, known.deadline_s)
        now_j = other.judge_one(now)[1]
        if wanted is None or known.known(wanted.clocks_mhz):
            return 0.0, None
        gain = 1.0 - wanted.cost / now_j
        if gain < PROMISE_MIN:
            return 0.0, None

        def scored(rows: Floats) -> Floats:
            scores = progress(other.judge, known.lowest, now_j, rows)
            dear = other.judge(rows)[1] > now_j * (1.0 + PAYBACK_WINDOWS * gain)
            return np.where(dear, 0.0, scores)

        tried = self._tried(wanted.clocks_mhz)
        rows = np.array(tried, dtype=np.float64)
        scores = scored(rows)
        at = self._first(rows, scores, 0.0)
        best, found = 0.0, None
        if at is not None:
            best, clocks = self._extended(wanted.clocks_mhz, tried[at], float(scores[at]), scored)
            found = self._probe(gain, clocks, clocks)
        if self._may_make_room:
            before = np.maximum(rows, np.array(known.lowest, dtype=np.float64))
            leading = np.where(
                self._makes_room(other, rows, before), MAKES_ROOM_WORTH * scores, 0.0
            )
            leading[other.judge(before)[1] > now_j * (1.0 + PAYBACK_WINDOWS * gain)] = 0.0
            lead = self._first(before, leading, best, over=known.early)
            if lead is not None:
                clocks = tuple(map(int, before[lead]))
                return float(leading[lead]), self._probe(gain, tried[lead], clocks)
        return best, found

    def _extended(
        self, aim_mhz: Clocks, clocks: Clocks, score: float, scored: Callable[[Floats], Floats]
    ) -> tuple[float, Clocks]:
        """The group with more stages, as long as its worth grows and it is acceptable."""
        known = self._known
        while len(known.measurements) > 1:
            more = [
                (*clocks[:s], mhz, *clocks[s + 1 :])
                for s, low in enumerate(known.lowest)
                for mhz in known.grids[s]
                if clocks[s] >= low and aim_mhz[s] <= mhz < low
            ]
            if not more:
                return score, clocks
            rows = np.array(more, dtype=np.float64)
            scores = scored(rows)
            at = self._first(rows, scores, score)
            if at is None:
                return score, clocks
            score, clocks = float(scores[at]), more[at]
        return score, clocks

    def _probe(self, gain: float, aim: Clocks, clocks: Clocks) -> Probe:
        below = enumerate(zip(aim, self._known.lowest, strict=True))
        return Probe(gain, tuple(s for s, (mhz, low) in below if mhz < low), clocks)

    def _first(
        self, rows: Floats, scores: Floats, least: float, over: float = OVER_RATIO
    ) -> int | None:
        """The acceptable row with the highest score above `least`."""
        order = np.argsort(-scores, kind="stable")
        order = order[scores[order] > least]
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            accepted = np.flatnonzero(self._known.acceptable(rows[some], over))
            if len(accepted):
                return int(some[accepted[0]])
        return None

    def _makes_room(self, other: Evidence, rows: Floats, before: Floats) -> NDArray[np.bool_]:
        """Whether a new window within the measured range, if it goes as expected, makes room."""
        known = self._known
        seen = {m.clocks_mhz for m in known.measurements}
        new = np.array([tuple(map(int, row)) not in seen for row in before])
        expected_s = other.judge(before)[0] * (1.0 + DOUBTS_SURE * known.window_doubt)
        next_s = expected_s * (before / rows).max(axis=1)
        return np.asarray(new & (next_s <= known.deadline_s * (1.0 + OVER_RATIO)))

    def _tried(self, aim_mhz: Clocks) -> list[Clocks]:
        """Groups lowered by every depth, over every base."""
        known = self._known
        below = {
            stage: [mhz for mhz in reversed(known.grids[stage]) if aim_mhz[stage] <= mhz < low]
            for stage, low in enumerate(known.lowest)
        }
        waiting = [stage for stage, clocks in below.items() if clocks]
        furthest = sorted(waiting, key=lambda s: (aim_mhz[s] / known.lowest[s], s))
        groups = {tuple(furthest[:n]) for n in range(1, len(waiting) + 1)} | {(s,) for s in waiting}
        if len(known.measurements) == 1 and not known.model.predicted:  # half of the stages
            groups = {tuple(furthest[: (len(known.lowest) + 1) // 2])}
        found: dict[Clocks, None] = {}
        for group in sorted(groups):
            for base in self._bases(aim_mhz, waiting, group):
                for depth in range(max(len(below[s]) for s in group)):
                    clocks = list(base)
                    for s in group:
                        clocks[s] = below[s][min(depth, len(below[s]) - 1)]
                    found[tuple(clocks)] = None
        return list(found)

    def _bases(
        self, aim_mhz: Clocks, waiting: list[int], group: tuple[int, ...]
    ) -> dict[Clocks, None]:
        """Clocks of the other stages meanwhile: as now, raised, or as measured before."""
        facts = self._known.facts
        raised = tuple(map(max, zip(facts.now_mhz, aim_mhz, strict=True)))
        found = {raised: None}
        if not self._may_make_room:
            return found
        for up in ROOMS:
            higher = [
                [m for m in grid if m >= mhz][: up + 1][-1]
                for mhz, grid in zip(raised, facts.grids, strict=True)
            ]
            for still in (waiting, group):
                rest = enumerate(zip(raised, higher, strict=True))
                found[tuple(mhz if s in still else high for s, (mhz, high) in rest)] = None
        for measurement in self._known.measurements:
            found[tuple(map(max, zip(measurement.clocks_mhz, aim_mhz, strict=True)))] = None
        return found
