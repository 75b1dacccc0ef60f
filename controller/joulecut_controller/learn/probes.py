"""Which stage to lower next beyond what was measured, and where room for it is made.

Two kinds of probe: towards what the fit takes for cheapest, and where the fit itself may be
wrong, because a stage that waits looks like one that is nearly waited for. Pure.
"""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.evidence import (
    DOUBTS_SURE,
    DOUBTS_TIME,
    OVER_RATIO,
    STEP_RATIO,
    Evidence,
)
from joulecut_controller.learn.joint_probe import Together
from joulecut_controller.learn.probe import PAYBACK_WINDOWS, Clocks, Probe, progress
from joulecut_controller.learn.search import Floats

ROOM_STEPS = 4  # clocks by which another stage is raised to make room for a probe
# Making room costs energy for a window. After so many settings a stage, what a noisy fit still
# promises is its own noise.
ROOM_READINGS, ROOM_READINGS_MAX = 16, 40
# Less than this of the job's energy is under the noise of energy counters: 0.4 % of one GPU in one
# window, over four GPUs and a few windows.
GAIN_MIN = 0.001
# A step that promises nothing on the mean, and this much if the guess is one standard
# deviation too gloomy, is worth a window.
HOPE_MIN = 0.004
HOPE_STEPS = 5
# A stage is supposed to have so much less work than the fit takes it to have.
LIGHTER_RATIOS = (0.12, 0.06, 0.02)
SUPPOSED_MIN = 0.0015  # what that has to promise
# Clocks above the cheapest that are likely in time, at which it may be likely enough.
INSIDE_STEPS, INSIDE_MAX = 2, 1024
SUPPOSED_STEPS = 10  # clocks by which others are raised to try it


class Probes:
    """Questions to one state of the evidence."""

    def __init__(self, known: Evidence) -> None:
        self._known = known
        self._now_j = known.judge_one(known.facts.now_mhz)[1]
        self._young = known.tried < min(ROOM_READINGS * len(known.lowest), ROOM_READINGS_MAX)

    def promising(self) -> Probe | None:
        """One stage lowered towards what looks cheapest; else one that might be better than it
        looks. Where the worst case leaves no room, another stage is raised meanwhile.
        """
        known, now = self._known, self._known.facts.now_mhz
        wanted = known.cheapest(known.facts.grids, now, known.deadline_s)
        target = wanted.clocks_mhz if wanted else now  # may lie many steps away
        gain = 1.0 - wanted.cost / self._now_j if wanted else 0.0
        if gain >= GAIN_MIN and not known.known(target):
            raised = tuple(map(max, zip(now, target, strict=True)))
            steps, told = self._steps([raised], target), known.model.detailed
            if self._young and not (steps if told else any(not self._short(s) for s in steps)):
                roomy = self._steps(self._roomier(raised, target), target)
                steps += [s for s in roomy if -s.gain_ratio <= PAYBACK_WINDOWS * gain]
            if steps:
                if told:
                    return max(steps, key=_order)
                rows = np.array([step.clocks_mhz for step in steps], dtype=np.float64)
                return steps[int(np.argmax(progress(known.judge, known.lowest, self._now_j, rows)))]
        lowest = tuple(grid[0] for grid in known.grids)
        steps = self._steps([now], lowest)
        hopes = [(self._hope(p.stages[0]), _order(p), p) for p in steps]
        if hopes and max(hopes)[0] >= HOPE_MIN:
            return max(hopes)[2]
        last = max((p for _, _, p in hopes), key=_order, default=None)
        return last if last is not None and last.gain_ratio >= GAIN_MIN else None

    def _short(self, probe: Probe) -> bool:
        """Whether it goes less than half as far as one step may."""
        step_mhz = STEP_RATIO * self._known.facts.ground.clock_max_mhz
        below = [self._known.lowest[s] - probe.clocks_mhz[s] for s in probe.stages]
        return sum(below) < step_mhz / 2

    def next(self) -> Probe | None:
        """What is promising; where that is a short step, a longer one that is only supposed."""
        # Windows that differ by one stage teach more, and with busy times there are enough of them.
        if not self._known.model.detailed:
            together = Together(self._known, young=self._young).next()
            if together is not None:
                return together
        probe = self.promising()
        if probe is None or not self._short(probe):
            return probe
        other = self.supposed()
        return probe if other is None or self._short(other) else other

    def inside(self) -> Probe | None:
        """Clocks within the evidence that are cheaper and likely in time, but not surely enough to
        stay at them unseen: one window tells.
        """
        known, now = self._known, self._known.facts.now_mhz
        grids = tuple(
            tuple(mhz for mhz in grid if mhz >= low) or grid[-1:]
            for grid, low in zip(known.facts.grids, known.lowest, strict=True)
        )
        wanted = known.cheapest(grids, now, known.deadline_s)
        if wanted is None or 1.0 - wanted.cost / self._now_j < GAIN_MIN:
            return None
        higher = [
            tuple(mhz for mhz in grid if mhz >= at)[: INSIDE_STEPS + 1]
            for grid, at in zip(grids, wanted.clocks_mhz, strict=True)
        ]
        told = [reading.clocks_mhz for reading in known.readings]
        done = {m for m in told if not known.unsure(m)}
        tried = [
            clocks
            for clocks in itertools.islice(itertools.product(*higher), INSIDE_MAX)
            if clocks not in done
        ]
        if not tried:
            return None
        rows = np.array(tried, dtype=np.float64)
        gains = 1.0 - known.judge(rows)[1] / self._now_j
        kept = gains >= GAIN_MIN
        # Where windows stray, most of the doubt is theirs, and clocks left for a window's bad luck
        # would never be seen again: it goes by trying, from clocks that are surely in time.
        kept[kept] = known.bearable(rows[kept], doubts=0.0 if known.strays else DOUBTS_TIME)
        if not kept.any():
            return None
        at = int(np.argmax(np.where(kept, gains, -np.inf)))
        lowered = enumerate(zip(tried[at], now, strict=True))
        return Probe(float(gains[at]), tuple(s for s, (m, n) in lowered if m < n), tried[at])

    def supposed(self) -> Probe | None:
        """A stage lowered because it may have less work than the fit takes it to have: while it
        was never seen to be waited for, readings cannot tell. The worst case is still that of
        the fit as it is; room for it is made elsewhere.
        """
        known, found = self._known, []
        for stage in range(len(known.lowest) if self._young else 0):
            for ratio in LIGHTER_RATIOS:
                model = known.model.lighter(stage, ratio)
                if model is None:
                    continue
                probe = self._if_so(Evidence(known.facts, known.readings, model), stage, ratio)
                if probe is not None:
                    found.append(probe)
                    break
        return max(found, key=_order, default=None)

    def _if_so(self, other: Evidence, stage: int, ratio: float) -> Probe | None:
        """What lowering this stage would promise in the end, and the next step towards it."""
        now = other.facts.now_mhz
        start = (*now[:stage], int(now[stage] * (1.0 - ratio)), *now[stage + 1 :])
        wanted = other.cheapest(other.facts.grids, start, other.deadline_s)
        if wanted is None or wanted.clocks_mhz[stage] >= other.lowest[stage]:
            return None
        now_j = other.judge_one(now)[1]
        gain = 1.0 - wanted.cost / now_j
        if gain < SUPPOSED_MIN:
            return None
        bases = [now, *self._roomier(now, wanted.clocks_mhz, SUPPOSED_STEPS)]
        steps = [
            (*base[:stage], mhz, *base[stage + 1 :])
            for base in bases
            for mhz in self._known.grids[stage]
            if wanted.clocks_mhz[stage] <= mhz < other.lowest[stage]
        ]
        clocks = self._best(other, stage, steps, gain, self._known.affordable)
        if clocks is None:
            ways = [(*base[:stage], other.lowest[stage], *base[stage + 1 :]) for base in bases]
            clocks = self._best(other, stage, ways, gain, partial(self._leads_on, other, stage))
        return None if clocks is None else Probe(gain, (stage,), clocks)

    def _best(
        self,
        other: Evidence,
        stage: int,
        tried: list[Clocks],
        gain: float,
        allowed: Callable[[Floats], NDArray[np.bool_]],
    ) -> Clocks | None:
        """Of these the one that gets furthest for the room it costs, which pays, is allowed, and in
        time by either fit: the guard refuses what the likeliest one takes for late.
        """
        if not tried:
            return None
        rows = np.array(tried, dtype=np.float64)
        times_s, costs_j = other.judge(rows)
        now_j = other.judge_one(other.facts.now_mhz)[1]
        kept = (times_s <= other.deadline_s) & (costs_j <= now_j * (1.0 + PAYBACK_WINDOWS * gain))
        kept &= self._known.model.time_s(rows) <= other.deadline_s
        if kept.any():
            kept[kept] = allowed(rows[kept])
        if not kept.any():
            return None
        rows[:, stage] = np.maximum(rows[:, stage], other.lowest[stage])
        room_j = other.judge(rows)[1]
        worth_j = room_j - costs_j - np.maximum(0.0, room_j - now_j) / PAYBACK_WINDOWS
        return tried[int(np.argmax(np.where(kept, worth_j, -np.inf)))]

    def _leads_on(self, other: Evidence, stage: int, rows: Floats) -> NDArray[np.bool_]:
        """Where a window, should it turn out as the other fit says, would make room for the next
        step: within the evidence, and not measured yet.
        """
        known = self._known
        next_mhz = max((m for m in known.grids[stage] if m < known.lowest[stage]), default=0)
        if not next_mhz:
            return np.zeros(len(rows), dtype=np.bool_)
        seen = {reading.clocks_mhz for reading in known.readings}
        new = np.array([tuple(map(int, row)) not in seen and known.known(row) for row in rows])
        told_s = other.model.time_s(rows) * (1.0 + DOUBTS_SURE * known.window_doubt)
        next_s = told_s * known.lowest[stage] / next_mhz
        lasts = next_s <= known.deadline_s * (1.0 + OVER_RATIO)
        kept = new & lasts
        kept[kept] = known.bearable(rows[kept], known.early)
        return np.asarray(kept)

    def _hope(self, stage: int) -> float:
        """What this stage may save at best some steps further down: under a power cap the first
        of them show nothing, and only the far ones tell whether to go on.
        """
        known, hopes = self._known, [0.0]
        step_mhz = STEP_RATIO * known.facts.ground.clock_max_mhz
        for steps in range(1, HOPE_STEPS + 1):
            floor_mhz = known.lowest[stage] - steps * step_mhz
            aim = next((mhz for mhz in known.facts.grids[stage] if mhz >= floor_mhz), None)
            if aim is not None and aim < known.lowest[stage]:
                now = known.facts.now_mhz
                far = (*now[:stage], aim, *now[stage + 1 :])
                time_s, cost_j = known.judge_one(far)
                if time_s <= known.deadline_s:
                    hopes.append(1.0 - cost_j / self._now_j + known.gain_doubt(far, self._now_j))
        return max(hopes)

    def _steps(self, bases: list[Clocks], aim_mhz: Clocks) -> list[Probe]:
        """Every base with one stage below its evidence, each as near to its aim as the worst case
        allows.
        """
        known = self._known
        tried = [
            (at, stage, (*base[:stage], mhz, *base[stage + 1 :]))
            for at, base in enumerate(bases)
            for stage, low in enumerate(known.lowest)
            for mhz in known.grids[stage]
            if aim_mhz[stage] <= mhz < low
        ]
        if not tried:
            return []
        rows = np.array([clocks for _, _, clocks in tried], dtype=np.float64)
        kept: dict[tuple[int, int], int] = {}
        for i in np.flatnonzero(known.bearable(rows)):
            kept.setdefault(tried[i][:2], int(i))  # ascending: the lowest clock comes first
        if not kept:
            return []
        costs_j = known.judge(rows[list(kept.values())])[1]
        return [
            Probe(1.0 - float(cost_j) / self._now_j, (tried[i][1],), tried[i][2])
            for i, cost_j in zip(kept.values(), costs_j, strict=True)
        ]

    def _roomier(self, base_mhz: Clocks, aim_mhz: Clocks, steps: int = ROOM_STEPS) -> list[Clocks]:
        """The same with one stage raised, or all but one, by up to so many clocks; and what was
        measured, since there the worst case begins from less.
        """
        found: dict[Clocks, None] = {}
        stages = range(len(base_mhz))
        for up in range(1, steps + 1):
            higher = [
                next(iter([m for m in grid if m > mhz][up - 1 : up]), grid[-1])
                for mhz, grid in zip(base_mhz, self._known.grids, strict=True)
            ]
            for one in stages:
                found[tuple(higher[s] if s == one else base_mhz[s] for s in stages)] = None
                found[tuple(base_mhz[s] if s == one else higher[s] for s in stages)] = None
        for reading in self._known.readings:
            found[tuple(map(max, zip(reading.clocks_mhz, aim_mhz, strict=True)))] = None
        return list(found)


def _order(probe: Probe) -> tuple[float, tuple[int, ...], Clocks]:
    return probe.gain_ratio, probe.stages, probe.clocks_mhz
