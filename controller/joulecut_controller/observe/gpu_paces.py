"""A GPU that became faster or slower than the others of its job, at unchanged clocks.

A slow GPU delays its replica, and the others wait for it. Once they wait at lower clocks, its
recovery does not shorten an iteration any more: only its own busy time shows it. Pure and bounded.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.observe.phases import Busy
from joulecut_controller.view import GpuShift

NO_CLOCKS: Mapping[str, int] = {}
FIRST = 8  # iterations under these clocks that the newest is compared with, at least
READINGS_MIN = 64  # of few GPUs more iterations: a deviation from so many is off by a tenth
SHIFT_RATIO_MIN = 0.03  # cards of one model differ by as much; a throttled one by tens of percent
DOUBT_DEVIATIONS = 8.0  # of one GPU's busy time: a false alarm costs a dozen iterations
# One slow iteration may be a pause of a process, and one quick a clock change that came late.
IN_ROW = 3
FITS = 3  # of usual times and of work in turn; more move neither by a thousandth


class GpuPaces:
    """Busy times of a job's GPUs under one set of clocks (`clocks_mhz` by GPU, as far as they are
    known). `before` are those of another set: a GPU may shift while clocks change.
    """

    def __init__(
        self, clocks_mhz: Mapping[str, int] = NO_CLOCKS, before: "GpuPaces | None" = None
    ) -> None:
        self._clocks_mhz, self._before = clocks_mhz, before
        self._uuids: tuple[str, ...] = ()
        self._needed = FIRST
        self._first: list[NDArray[np.float64]] = []
        self._usual_s: NDArray[np.float64] = np.zeros(0)
        self._limit = self._mean_limit = math.inf  # of one iteration, and of the usual times
        # Iterations in a row beyond the limit, below 0 where quicker.
        self._apart: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    @property
    def latest(self) -> "GpuPaces | None":
        """The newest whose usual times are known: these, or those before."""
        return self if len(self._first) == self._needed else self._before

    def take(self, operations: Mapping[str, Busy]) -> GpuShift | None:
        """Adds an iteration; the GPUs that have shifted, if any have. Reports get lost: a GPU
        without one stays as it was, and an iteration without half of them says nothing.
        """
        if operations.keys() - set(self._uuids):
            self._uuids, self._first = tuple(sorted({*self._uuids, *operations})), []
            others = max(1, len(self._uuids) - 1)
            self._needed = max(FIRST, 1 + math.ceil(READINGS_MIN / others))
        seconds = np.array([_mean_s(operations.get(uuid, {})) for uuid in self._uuids])
        seen = seconds > 0.0
        if len(self._uuids) < 2 or 2 * seen.sum() < len(self._uuids):
            return None
        seconds = np.where(seen, seconds, np.nan)
        if len(self._first) < self._needed:
            self._first.append(seconds)
            if len(self._first) not in (FIRST, self._needed):
                return None
            self._learn()
            shift = self._since(self._before) if self._before is not None else None
            if shift is not None or len(self._first) == self._needed:
                self._before = None
            return shift
        beside = _beside(seconds / self._usual_s)
        known = np.isfinite(beside)
        beside = np.where(known, beside, 0.0)
        side = np.sign(beside).astype(np.int64)
        on = np.where(side * self._apart > 0, self._apart, 0) + side
        self._apart = np.where(known, np.where(np.abs(beside) > self._limit, on, 0), self._apart)
        shifted = known & (np.abs(self._apart) >= IN_ROW)
        if not shifted.any():
            return None
        most = np.argsort(np.where(shifted, -np.abs(beside), 0.0), kind="stable")[: shifted.sum()]
        uuids = tuple(self._uuids[i] for i in most.tolist())
        return GpuShift(uuids, 1.0 + float(beside[most[0]]))

    def _since(self, before: "GpuPaces") -> GpuShift | None:
        """The GPUs that have shifted since. An operation's time changes by no more than its clock
        does, and by a factor that all GPUs share. GPUs outside of the factor that fits most of them
        have shifted; there is none where fewer than half agree.
        """
        if before._uuids != self._uuids:
            return None
        longer = np.log(self._usual_s / before._usual_s)
        clocks_mhz = [(before._clocks_mhz.get(u), self._clocks_mhz.get(u)) for u in self._uuids]
        # Log of the clock before over the clock now; NaN where a clock is not known.
        by = np.array([math.log(a / b) if a and b else math.nan for a, b in clocks_mhz])
        limit = math.log1p(max(self._mean_limit, before._mean_limit))
        least = longer - np.maximum(by, 0.0) - limit
        most = longer - np.minimum(by, 0.0) + limit
        ends = np.concatenate([least, most])  # the best factor is at an end of an interval
        within = (least[:, None] <= ends) & (ends <= most[:, None])
        known = np.isfinite(least)
        common = within.sum(axis=0).argmax()
        shifted = known & ~within[:, common]
        if not shifted.any() or 2 * shifted.sum() > known.sum():
            return None
        apart = longer - np.median(longer[~shifted & known])
        most_apart = np.argsort(np.where(shifted, -np.abs(apart), 0.0), kind="stable")
        uuids = tuple(self._uuids[i] for i in most_apart[: shifted.sum()].tolist())
        return GpuShift(uuids, math.exp(float(apart[most_apart[0]])))

    def _learn(self) -> None:
        first = np.stack(self._first)
        readings = np.isfinite(first).sum(axis=0)
        self._usual_s = np.nanmean(first, axis=0)
        for _ in range(FITS):  # the work of the iterations that each was reported of
            work = np.nanmedian(first / self._usual_s, axis=1)
            self._usual_s = np.nanmean(first / work[:, None], axis=0)
        apart = np.stack([_beside(one / self._usual_s) for one in first])
        free = max(1, int(readings.sum()) - len(first) - len(self._uuids) + 1)
        deviation = math.sqrt(float(np.nansum(apart**2)) / free)
        doubt = DOUBT_DEVIATIONS * deviation
        of_mean = 1.0 / math.sqrt(max(1, int(readings.min())))
        self._limit = max(SHIFT_RATIO_MIN, doubt * math.hypot(1.0, of_mean))
        self._mean_limit = max(SHIFT_RATIO_MIN, doubt * of_mean)
        self._apart = np.zeros(len(self._uuids), dtype=np.int64)


def _beside(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """What all GPUs have in common is not a GPU's: a longer batch, another phase of the job."""
    return ratios / np.nanmedian(ratios) - 1.0


def _mean_s(busy: Busy) -> float:
    busy_s = count = 0.0
    for seconds, operations in busy.values():
        busy_s += seconds
        count += operations
    return busy_s / count if count > 0.0 else 0.0
