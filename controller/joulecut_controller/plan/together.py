"""Several stages lowered at once, because all of them are expected to wait.

However many stages are lowered by a tenth, no iteration takes more than a tenth longer: the
worst case is that of one of them. So stages that wait are one group, tried and judged together;
one by one they would take as many times as long as there are stages. Pure.
"""

import numpy as np

from joulecut_controller.plan.evidence import Evidence
from joulecut_controller.plan.probe import PAYBACK_WINDOWS, Clocks, Probe, progress
from joulecut_controller.plan.search import cheapest
from joulecut_controller.predict.rate import RateModel

# What clocks expected to be cheapest have to promise.
PROMISE_MIN = 0.002
# Clocks by which stages that are waited for are raised meanwhile; the last is default.
ROOMS = (0, 1, 2, 4, 8, 999)


class Together:
    """The group of one state of the evidence, lowered towards what it is expected to come to."""

    def __init__(self, known: Evidence, *, young: bool) -> None:
        self._known, self._young = known, young

    def next(self) -> Probe | None:
        model = self._known.model.expected()
        return None if model is None else self._next(model)

    def _next(self, model: RateModel) -> Probe | None:
        known, now = self._known, self._known.facts.now_mhz
        other = Evidence(known.facts, known.readings, model)
        wanted = cheapest(known.facts.grids, now, other.judge, known.deadline_s)
        now_j = other.judge_one(now)[1]
        if wanted is None or known.known(wanted.clocks_mhz):
            return None
        gain = 1.0 - wanted.cost / now_j
        if gain < PROMISE_MIN:
            return None
        worth = progress(other.judge, known.lowest, now_j)
        found = [
            probe
            for probe in self._steps(wanted.clocks_mhz, gain, worth)
            if other.judge_one(probe.clocks_mhz)[1] <= now_j * (1.0 + PAYBACK_WINDOWS * gain)
        ]
        best = max(found, key=worth, default=None)
        return best if best is not None and worth(best)[0] > 0.0 else None

    def _steps(self, aim_mhz, gain, worth) -> list[Probe]:
        known, now = self._known, self._known.facts.now_mhz
        raised = tuple(map(max, zip(now, aim_mhz, strict=True)))
        below = {
            stage: [m for m in reversed(known.grids[stage]) if aim_mhz[stage] <= m < low]
            for stage, low in enumerate(known.lowest)
        }
        below = {stage: clocks for stage, clocks in below.items() if clocks}
        firsts = [
            Probe(gain, (s,), (*raised[:s], steps[0], *raised[s + 1 :]))
            for s, steps in below.items()
        ]
        order = [p.stages[0] for p in sorted(firsts, key=worth, reverse=True)]
        groups = [tuple(sorted(order[:n])) for n in range(1, len(order) + 1)]
        if len(known.readings) == 1:
            groups = groups[: max(1, len(known.lowest) // 2)][-1:]
        tried: list[tuple[tuple[int, ...], Clocks]] = []
        for base in self._bases(raised, aim_mhz, order):
            for group in groups:
                for depth in range(max(len(below[s]) for s in group), 0, -1):
                    clocks = list(base)
                    for s in group:
                        clocks[s] = below[s][min(depth, len(below[s])) - 1]
                    tried.append(((base, group), tuple(clocks)))
        if not tried:
            return []
        kept: dict = {}
        rows = np.array([clocks for _, clocks in tried], dtype=np.float64)
        for i in np.flatnonzero(known.bearable(rows)):
            kept.setdefault(tried[i][0], Probe(gain, tried[i][0][1], tried[i][1]))
        return list(kept.values())

    def _bases(self, raised: Clocks, aim_mhz: Clocks, waiting: list[int]) -> list[Clocks]:
        if not self._young:
            return [raised]
        found: dict[Clocks, None] = {}
        for up in ROOMS:
            found[
                tuple(
                    mhz if s in waiting else min([m for m in grid if m >= mhz][: up + 1][-1:])
                    for s, (mhz, grid) in enumerate(zip(raised, self._known.facts.grids, strict=True))
                )
            ] = None
        for reading in self._known.readings:
            found[tuple(map(max, zip(reading.clocks_mhz, aim_mhz, strict=True)))] = None
        return list(found)
