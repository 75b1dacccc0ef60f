"""The next clock of a job that reports its rate alone: one for all its GPUs.

Without operations nothing says which GPU the others wait for, so all go down together. No work
slows by more than its clock: clocks go down by what the measured slowdown leaves of the budget, and
the next window shows what that took. So no step misses it, but for the error of that slowdown.
"""

import math
from collections.abc import Sequence

from joulecut_controller.learn.advice import (
    OVER_RATIO,
    Advice,
    ExplorerInput,
    Verdict,
    lowest_of,
    measurement_at,
)
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.reference.reference import LATE_SDS, Figure

GAIN_MIN = 0.002  # of the job's energy: the noise of counters over a window
HIGH_SDS = 2.0  # of measured slowdowns: it is asked after each window, and luck must not add up
SURE_PART = 10.0  # of the budget: a slowdown that is known less well allows no step beyond it
BACK_SHARE = 0.9  # of the fall that a late job could keep, if its slowdown were in proportion


def common_clock(facts: ExplorerInput, measurements: Sequence[Measurement]) -> Advice:
    """The first measurement is at default clocks, one of them at the clocks now."""
    return _Step(facts, measurements).advice()


class _Step:
    def __init__(self, facts: ExplorerInput, measurements: Sequence[Measurement]) -> None:
        self._facts, self._measurements = facts, measurements
        self._base = measurements[0]
        self._limit = facts.budget
        self._default_mhz = facts.constants.default_mhz
        now = measurement_at(measurements, facts.now_mhz)
        assert now is not None
        self._now = now
        self._fall = self._fall_of(facts.now_mhz)
        self._slowdown = self._measured(now) if self._fall > 0.0 else Figure(0.0, 0.0)

    def advice(self) -> Advice:
        late = self._slowdown.mean - LATE_SDS * self._slowdown.sd
        if late > self._limit:
            share = max(0.0, self._limit / self._slowdown.mean)
            clocks = self._clocks(BACK_SHARE * share * self._fall)
            took = f"{self._slowdown.mean:.1%} slower, {max(0.0, self._limit):.1%} are allowed"
            return self._answer("raise", took, clocks)
        best = min(filter(self._in_time, self._measurements), key=_joules)
        if _joules(best) < (1.0 - GAIN_MIN) * _joules(self._now):
            reason = f"{self._gain(best):.1%} less energy, as it was measured"
            return self._answer("settle", reason, best.clocks_mhz)
        clocks = self._next()
        if self._fall_of(clocks) <= self._fall:
            known = f"{self._slowdown.mean:.2%}, known to ±{self._slowdown.sd:.2%}"
            return self._enough(f"no lower one is sure to keep the target: the slowdown is {known}")
        above = [m for m in self._measurements if self._fall_of(m.clocks_mhz) < self._fall]
        nearest = max(above, key=lambda m: self._fall_of(m.clocks_mhz), default=None)
        if nearest is not None and _joules(self._now) > (1.0 - GAIN_MIN) * _joules(nearest):
            return self._enough("the last step saved nothing")
        reason = f"all GPUs to {max(clocks)} MHz: work slows by no more than its clock"
        return self._answer("probe", reason, clocks)

    def _next(self) -> tuple[int, ...]:
        """The lowest clocks that cannot miss the budget; the next lower ones where they miss it by
        half a point at most. Clocks that were late, or saved nothing, are not tried again.
        """
        left = self._limit - self._slowdown.mean - HIGH_SDS * self._slowdown.sd
        if self._slowdown.sd > self._limit / SURE_PART:
            left = self._limit - self._fall  # whatever the work
        clocks = self._clocks(self._fall + max(0.0, left))
        if self._fall_of(clocks) <= self._fall and left > 0.0:
            pairs = zip(self._facts.grids, self._facts.now_mhz, strict=True)
            below = tuple(max((m for m in grid if m < now), default=now) for grid, now in pairs)
            if self._fall_of(below) <= self._fall + left + OVER_RATIO:
                clocks = below
        useless = [
            self._fall_of(one.clocks_mhz)
            for one in self._measurements
            if not self._in_time(one) or _joules(one) > _joules(self._now)
        ]
        known = min((fall for fall in useless if fall > self._fall), default=math.inf)
        return clocks if self._fall_of(clocks) < known else self._now.clocks_mhz

    def _enough(self, why: str) -> Advice:
        reason = (
            f"one clock for all GPUs, and {why}; a clock for each needs the times of operations "
            "(the job's hook or its traces report them)"
        )
        return self._answer("enough", reason, self._facts.now_mhz)

    def _measured(self, one: Measurement) -> Figure:
        """Log slowdown: the reference's of the clocks in force, else of the windows."""
        if one is self._now and self._facts.slowdown is not None:
            return self._facts.slowdown
        sd = math.hypot(one.stderr_ratio, self._base.stderr_ratio)
        return Figure(math.log(one.time_s / self._base.time_s), sd)

    def _in_time(self, one: Measurement) -> bool:
        if one in (self._base, self._now):
            return True
        known = self._measured(one)
        return known.mean + HIGH_SDS * known.sd <= self._limit

    def _fall_of(self, clocks_mhz: Sequence[int]) -> float:
        """log(default clock / clock), of the GPU that is lowest."""
        pairs = zip(self._default_mhz, clocks_mhz, strict=True)
        return max(0.0, *(math.log(top / mhz) for top, mhz in pairs))

    def _clocks(self, fall: float) -> tuple[int, ...]:
        """By stage, the lowest allowed clocks that do not fall further."""
        pairs = zip(self._facts.grids, self._default_mhz, strict=True)
        return tuple(
            next(mhz for mhz in grid if mhz >= top * math.exp(-fall) or mhz == grid[-1])
            for grid, top in pairs
        )

    def _gain(self, one: Measurement) -> float:
        return 1.0 - _joules(one) / _joules(self._now)

    def _answer(self, verdict: Verdict, reason: str, clocks: tuple[int, ...]) -> Advice:
        """Time and energy of clocks that were not measured are those of a straight line through
        what was.
        """
        known = measurement_at(self._measurements, clocks) or self._now
        share = self._fall_of(clocks) / self._fall if self._fall > 0.0 else 0.0
        slowdown = share * self._slowdown.mean
        energy_j = _joules(known)
        if known is self._now and self._fall > 0.0:
            energy_j = _joules(self._base) + share * (energy_j - _joules(self._base))
        base_s = self._base.time_s
        lowest = lowest_of(self._measurements)
        below = tuple(s for s, low in enumerate(lowest) if clocks[s] < low)
        return Advice(
            verdict,
            reason,
            clocks,
            below,
            gain_ratio=1.0 - energy_j / _joules(self._now),
            time_s=base_s * math.exp(slowdown),
            time_high_s=base_s * math.exp(slowdown + HIGH_SDS * self._slowdown.sd),
            deadline_s=base_s * math.exp(self._limit),
            energy_j=energy_j,
            baseline_energy_j=_joules(self._base),
            baseline_time_s=base_s,
            lowest_mhz=lowest,
            measurements=len(self._measurements),
        )


def _joules(one: Measurement) -> float:
    """Of one GPU per stage."""
    return math.fsum(one.energy_j)
