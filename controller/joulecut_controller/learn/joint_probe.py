"""Several stages lowered at once, because all of them are expected to wait.

However many stages are lowered by a tenth, no iteration takes more than a tenth longer: the
worst case is that of one of them. So stages that wait are one group, tried and judged together;
one by one they would take as many times as long as there are stages. Pure.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.evidence import DOUBTS_SURE, OVER_RATIO, Evidence
from joulecut_controller.learn.probe import PAYBACK_WINDOWS, Clocks, Probe, progress
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.search import Floats

# What the clocks expected to be cheapest have to promise.
PROMISE_MIN = 0.0015
# Clocks by which the other stages are raised meanwhile; the last is default.
ROOMS = (1, 2, 4, 8, 999)
# A window that only makes room for the next one is worth half of what that is.
LEADS_ON = 0.5
BATCH = 32  # rows judged at once; most often the first of them will do


class Together:
    """Groups of stages in one state of the evidence, lowered towards what they are expected to
    come to. `young` says that there is still time to make room for it.
    """

    def __init__(self, known: Evidence, *, young: bool) -> None:
        self._known, self._young = known, young

    def next(self) -> Probe | None:
        """The group that gets furthest for the time it takes, of all that may be dared."""
        likeliest = self._known.model
        expected = likeliest.expected()
        found = [self._towards(model) for model in (expected, likeliest) if model is not None]
        _, probe = max(found, key=lambda pair: pair[0])
        return probe

    def _towards(self, model: RateModel) -> tuple[float, Probe | None]:
        """The same towards what one fit takes for cheapest, and how far it gets for that time."""
        known, now = self._known, self._known.facts.now_mhz
        other = Evidence(known.facts, known.readings, model)
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
            best, clocks = self._joined(wanted.clocks_mhz, tried[at], float(scores[at]), scored)
            found = self._probe(gain, clocks, clocks)
        if self._young:
            before = np.maximum(rows, np.array(known.lowest, dtype=np.float64))
            leading = np.where(self._leads_on(other, rows, before), LEADS_ON * scores, 0.0)
            leading[other.judge(before)[1] > now_j * (1.0 + PAYBACK_WINDOWS * gain)] = 0.0
            lead = self._first(before, leading, best, over=known.early)
            if lead is not None:
                clocks = tuple(map(int, before[lead]))
                return float(leading[lead]), self._probe(gain, tried[lead], clocks)
        return best, found

    def _joined(
        self, aim_mhz: Clocks, clocks: Clocks, score: float, scored: Callable[[Floats], Floats]
    ) -> tuple[float, Clocks]:
        """With more stages in the group, as long as that gets further and may be dared."""
        known = self._known
        while len(known.readings) > 1:
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
        """The row of the highest score above `least` that may be dared."""
        order = np.argsort(-scores, kind="stable")
        order = order[scores[order] > least]
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            dared = np.flatnonzero(self._known.bearable(rows[some], over))
            if len(dared):
                return int(some[dared[0]])
        return None

    def _leads_on(self, other: Evidence, rows: Floats, before: Floats) -> NDArray[np.bool_]:
        """Where a window before the step, should it turn out as expected, would make room for it:
        within the evidence, and not measured yet.
        """
        known = self._known
        seen = {reading.clocks_mhz for reading in known.readings}
        new = np.array([tuple(map(int, row)) not in seen for row in before])
        told_s = other.judge(before)[0] * (1.0 + DOUBTS_SURE * known.window_doubt)
        next_s = told_s * (before / rows).max(axis=1)
        return np.asarray(new & (next_s <= known.deadline_s * (1.0 + OVER_RATIO)))

    def _tried(self, aim_mhz: Clocks) -> list[Clocks]:
        """Groups below their evidence, by every depth and over every base."""
        known = self._known
        below = {
            stage: [mhz for mhz in reversed(known.grids[stage]) if aim_mhz[stage] <= mhz < low]
            for stage, low in enumerate(known.lowest)
        }
        waiting = [stage for stage, clocks in below.items() if clocks]
        furthest = sorted(waiting, key=lambda s: (aim_mhz[s] / known.lowest[s], s))
        groups = {tuple(furthest[:n]) for n in range(1, len(waiting) + 1)} | {(s,) for s in waiting}
        if len(known.readings) == 1:  # nothing is known: halves tell most
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
        """What the others do meanwhile: what they do now, or higher clocks, of all of them or of
        those only that are waited for; or what was measured before.
        """
        facts = self._known.facts
        raised = tuple(map(max, zip(facts.now_mhz, aim_mhz, strict=True)))
        found = {raised: None}
        if not self._young:
            return found
        for up in ROOMS:
            higher = [
                [m for m in grid if m >= mhz][: up + 1][-1]
                for mhz, grid in zip(raised, facts.grids, strict=True)
            ]
            for still in (waiting, group):
                rest = enumerate(zip(raised, higher, strict=True))
                found[tuple(mhz if s in still else high for s, (mhz, high) in rest)] = None
        for reading in self._known.readings:
            found[tuple(map(max, zip(reading.clocks_mhz, aim_mhz, strict=True)))] = None
        return found
