"""Which stage to lower next below its measured clocks, and where to make room for it.

Two kinds of probe: towards the clocks that the fit finds cheapest, and hypothetical ones where the
fit may be wrong, because a stage that waits looks like one that is nearly critical.
"""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.clock_search import PAYBACK_WINDOWS, Clocks, Probe, progress
from joulecut_controller.learn.evidence import (
    DOUBTS_SURE,
    DOUBTS_TIME,
    OVER_RATIO,
    STEP_RATIO,
    Evidence,
)
from joulecut_controller.learn.joint_probe import JointProbes
from joulecut_controller.learn.measurement_log import LONG_ITERATION_S
from joulecut_controller.learn.regression import Floats

ROOM_STEPS = 4  # clocks by which other stages are raised to make room
# Making room costs energy for a window. After so many settings per stage, the gain that a noisy fit
# still predicts is noise.
ROOM_MEASUREMENTS, ROOM_MEASUREMENTS_MAX = 16, 40
# Share of the job's energy below the noise of counters: 0.4 % of one GPU in one window, over four
# GPUs and a few windows.
GAIN_MIN = 0.001
# A step without gain on the mean is worth a window if it gains so much one standard deviation away.
BEST_CASE_MIN = 0.004
BEST_CASE_STEPS = 5
# By which a stage is assumed lighter than fitted.
LIGHTER_RATIOS = (0.12, 0.06, 0.02)
HYPOTHETICAL_MIN = 0.0015  # gain that a hypothesis has to promise
# Clocks above the cheapest ones that are tried within the measured range.
INSIDE_STEPS, INSIDE_MAX = 2, 1024
# Parts of the way to the cheapest clocks that a predicted job may go in one window, and the gain
# that makes it worth more than a step of one group.
LEAP_PARTS = tuple(part / 20 for part in range(1, 21))
LEAP_GAIN_MIN = 0.01
# Settings before it: one with the stages lowered that wait by the prediction, which shows whether
# they do.
LEAP_AFTER = 3
HYPOTHETICAL_STEPS = 10  # clocks by which others are raised for a hypothesis


class Probes:
    """Candidate probes for one state of the evidence."""

    def __init__(self, known: Evidence) -> None:
        self._known = known
        self._now_j = known.judge_one(known.facts.now_mhz)[1]
        # A setting of long iterations takes minutes, in which other stages would save less.
        self._may_make_room = known.base_s < LONG_ITERATION_S and known.tried < min(
            ROOM_MEASUREMENTS * len(known.lowest), ROOM_MEASUREMENTS_MAX
        )

    def promising(self) -> Probe | None:
        """One stage lowered towards the cheapest clocks; else one with a good best case.

        If the worst case leaves no room, another stage is raised meanwhile.
        """
        known, now = self._known, self._known.facts.now_mhz
        wanted = known.cheapest(known.facts.grids, now, known.deadline_s)
        target = wanted.clocks_mhz if wanted else now  # may lie many steps away
        gain = 1.0 - wanted.cost / self._now_j if wanted else 0.0
        if gain >= GAIN_MIN and not known.known(target):
            raised = tuple(map(max, zip(now, target, strict=True)))
            steps = self._steps([raised], target)
            if self._may_make_room and not any(not self._short(s) for s in steps):
                roomy = self._steps(self._with_room(raised, target), target)
                steps += [s for s in roomy if -s.gain_ratio <= PAYBACK_WINDOWS * gain]
            if steps:
                rows = np.array([step.clocks_mhz for step in steps], dtype=np.float64)
                return steps[int(np.argmax(progress(known.judge, known.lowest, self._now_j, rows)))]
        lowest = tuple(grid[0] for grid in known.grids)
        steps = self._steps([now], lowest)
        hopes = [(self._best_case_gain(p.stages[0]), _order(p), p) for p in steps]
        if hopes and max(hopes)[0] >= BEST_CASE_MIN:
            return max(hopes)[2]
        last = max((p for _, _, p in hopes), key=_order, default=None)
        return last if last is not None and last.gain_ratio >= GAIN_MIN else None

    def _short(self, probe: Probe) -> bool:
        """Whether it goes less than half of one step."""
        step_mhz = STEP_RATIO * self._known.facts.constants.clock_max_mhz
        below = [self._known.lowest[s] - probe.clocks_mhz[s] for s in probe.stages]
        return sum(below) < step_mhz / 2

    def next(self) -> Probe | None:
        """The next probe: joint, else promising, else a longer hypothetical one.

        A predicted job first goes as far towards its cheapest clocks as is acceptable.
        """
        if self._known.model.predicted and (leap := self._leap()) is not None:
            return leap
        together = JointProbes(self._known, may_make_room=self._may_make_room).next()
        if together is not None:
            return together
        probe = self.promising()
        if probe is None or not self._short(probe):
            return probe
        other = self.hypothetical()
        return probe if other is None or self._short(other) else other

    def _leap(self) -> Probe | None:
        """All stages part of the way to the cheapest clocks by the fit, below measured ones."""
        known, now = self._known, self._known.facts.now_mhz
        wanted = known.cheapest(known.facts.grids, now, known.deadline_s)
        if wanted is None or known.known(wanted.clocks_mhz) or len(known.measurements) < LEAP_AFTER:
            return None
        tried = {
            tuple(
                next(mhz for mhz in grid if mhz >= have + part * (aim - have))
                for grid, have, aim in zip(known.grids, now, wanted.clocks_mhz, strict=True)
            )
            for part in LEAP_PARTS
        }
        rows = np.array(sorted(tried), dtype=np.float64)
        gains = 1.0 - known.judge(rows)[1] / self._now_j
        kept = gains >= LEAP_GAIN_MIN
        kept[kept] = known.acceptable(rows[kept])
        if not kept.any():
            return None
        at = int(np.argmax(np.where(kept, gains, -np.inf)))
        clocks = tuple(map(int, rows[at]))
        lowered = enumerate(zip(clocks, now, strict=True))
        return Probe(float(gains[at]), tuple(s for s, (m, n) in lowered if m < n), clocks)

    def inside(self) -> Probe | None:
        """Cheaper clocks within the measured range that are likely but not certainly in time."""
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
        measured = [m.clocks_mhz for m in known.measurements]
        done = {m for m in measured if not known.unsure(m)}
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
        # With noisy windows most of the doubt is theirs, and clocks left after one bad window would
        # never be tried again.
        kept[kept] = known.acceptable(rows[kept], doubts=0.0 if known.noisy else DOUBTS_TIME)
        if not kept.any():
            return None
        at = int(np.argmax(np.where(kept, gains, -np.inf)))
        lowered = enumerate(zip(tried[at], now, strict=True))
        return Probe(float(gains[at]), tuple(s for s, (m, n) in lowered if m < n), tried[at])

    def hypothetical(self) -> Probe | None:
        """A stage lowered because it may be lighter than fitted, which measurements cannot exclude
        until it is critical. The worst case remains that of the fit.
        """
        known, found = self._known, []
        for stage in range(len(known.lowest) if self._may_make_room else 0):
            for ratio in LIGHTER_RATIOS:
                model = known.model.lighter(stage, ratio)
                if model is None:
                    continue
                probe = self._if_lighter(
                    Evidence(known.facts, known.measurements, model), stage, ratio
                )
                if probe is not None:
                    found.append(probe)
                    break
        return max(found, key=_order, default=None)

    def _if_lighter(self, other: Evidence, stage: int, ratio: float) -> Probe | None:
        """The gain if this stage is lighter, and the next step towards it."""
        now = other.facts.now_mhz
        start = (*now[:stage], int(now[stage] * (1.0 - ratio)), *now[stage + 1 :])
        wanted = other.cheapest(other.facts.grids, start, other.deadline_s)
        if wanted is None or wanted.clocks_mhz[stage] >= other.lowest[stage]:
            return None
        now_j = other.judge_one(now)[1]
        gain = 1.0 - wanted.cost / now_j
        if gain < HYPOTHETICAL_MIN:
            return None
        bases = [now, *self._with_room(now, wanted.clocks_mhz, HYPOTHETICAL_STEPS)]
        steps = [
            (*base[:stage], mhz, *base[stage + 1 :])
            for base in bases
            for mhz in self._known.grids[stage]
            if wanted.clocks_mhz[stage] <= mhz < other.lowest[stage]
        ]
        clocks = self._best(other, stage, steps, gain, self._known.affordable)
        if clocks is None:
            ways = [(*base[:stage], other.lowest[stage], *base[stage + 1 :]) for base in bases]
            clocks = self._best(other, stage, ways, gain, partial(self._makes_room, other, stage))
        return None if clocks is None else Probe(gain, (stage,), clocks)

    def _best(
        self,
        other: Evidence,
        stage: int,
        tried: list[Clocks],
        gain: float,
        allowed: Callable[[Floats], NDArray[np.bool_]],
    ) -> Clocks | None:
        """The best of `tried` that pays for its room, is allowed, and in time by both fits."""
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

    def _makes_room(self, other: Evidence, stage: int, rows: Floats) -> NDArray[np.bool_]:
        """Whether a new window within the measured range, if it goes as expected, makes room."""
        known = self._known
        next_mhz = max((m for m in known.grids[stage] if m < known.lowest[stage]), default=0)
        if not next_mhz:
            return np.zeros(len(rows), dtype=np.bool_)
        seen = {m.clocks_mhz for m in known.measurements}
        new = np.array([tuple(map(int, row)) not in seen and known.known(row) for row in rows])
        told_s = other.model.time_s(rows) * (1.0 + DOUBTS_SURE * known.window_doubt)
        next_s = told_s * known.lowest[stage] / next_mhz
        lasts = next_s <= known.deadline_s * (1.0 + OVER_RATIO)
        kept = new & lasts
        kept[kept] = known.acceptable(rows[kept], known.early)
        return np.asarray(kept)

    def _best_case_gain(self, stage: int) -> float:
        """Largest gain, one deviation above the mean, some steps further down this stage.

        Under a power cap the first steps gain nothing.
        """
        known, hopes = self._known, [0.0]
        step_mhz = STEP_RATIO * known.facts.constants.clock_max_mhz
        for steps in range(1, BEST_CASE_STEPS + 1):
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
        """Every base with one stage lowered, as near to its aim as is acceptable."""
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
        for i in np.flatnonzero(known.acceptable(rows)):
            kept.setdefault(tried[i][:2], int(i))  # ascending: the lowest clock comes first
        if not kept:
            return []
        costs_j = known.judge(rows[list(kept.values())])[1]
        return [
            Probe(1.0 - float(cost_j) / self._now_j, (tried[i][1],), tried[i][2])
            for i, cost_j in zip(kept.values(), costs_j, strict=True)
        ]

    def _with_room(
        self, base_mhz: Clocks, aim_mhz: Clocks, steps: int = ROOM_STEPS
    ) -> list[Clocks]:
        """The base with one stage raised, or all but one; and all measured clocks."""
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
        for measurement in self._known.measurements:
            found[tuple(map(max, zip(measurement.clocks_mhz, aim_mhz, strict=True)))] = None
        return list(found)


def _order(probe: Probe) -> tuple[float, tuple[int, ...], Clocks]:
    return probe.gain_ratio, probe.stages, probe.clocks_mhz
