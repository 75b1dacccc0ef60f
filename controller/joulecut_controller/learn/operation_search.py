"""Cheapest clocks, one per stage, by the curves of operations.

The energy of an iteration is a sum over stages; its time is the longest path. The search starts
at each stage's cheapest clock and raises one stage at a time until the deadline is kept: the
stage that saves the most time on the longest path per joule. Then it lowers each stage whose clock
is higher than the deadline needs. One longest path is computed per step of a clock.
"""

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_engine.estimate.clock_curves import Floats, Ints

SWEEPS = 4  # over all stages, lowering; the second rarely finds anything
SURPLUS_ROUNDS = 4  # the effect of jitter depends on the clocks chosen, and converges in two


class OperationSearch:
    """Choices are indices of clocks by stage, ascending; `reachable` (stages, clocks) may be
    chosen, the last always. `cost_j` (stages, clocks) is paid beside `second_j` per second.
    Operations take `times_s` (stages, kinds, clocks).
    """

    def __init__(
        self,
        paths: LongestPaths,
        times_s: Floats,
        cost_j: Floats,
        reachable: NDArray[np.bool_],
        second_j: float,
    ) -> None:
        self._paths, self._times_s = paths, times_s
        self._cost_j, self._second_j = cost_j, second_j
        self._stages = np.arange(len(cost_j))
        self._lowest = reachable.argmax(axis=1)
        self._top = cost_j.shape[1] - 1

    def cheapest(self, limit_s: float, start: Ints | None = None) -> Ints | None:
        """None if even the highest clocks are late. `start` are the cheapest within a looser limit;
        absent, each stage's cheapest clock.
        """
        allowed = np.arange(self._top + 1) >= self._lowest[:, None]
        at = np.where(allowed, self._cost_j, np.inf).argmin(axis=1) if start is None else start
        at = at.copy()
        while True:
            time_s, counts = self._paths.critical(self._times_s[self._stages, :, at])
            step = self._raise(at, counts, needed=time_s > limit_s)
            if step is None:
                return None if time_s > limit_s else self._lowered(limit_s, at)
            at[step] += 1

    def _raise(self, at: Ints, counts: Floats, *, needed: bool) -> int | None:
        """The stage whose next clock buys the most time for its energy. Where time is not
        `needed`, only one that pays for itself: waiting costs energy too. `counts` are the
        operations of the longest path.
        """
        rows, up = self._stages, np.minimum(at + 1, self._top)
        faster = self._times_s[rows, :, at] - self._times_s[rows, :, up]
        saved_s = (counts * faster).sum(axis=1)
        dearer_j = self._cost_j[rows, up] - self._cost_j[rows, at]
        price = np.where(saved_s > 0.0, dearer_j / np.maximum(saved_s, 1e-12), np.inf)
        best = int(np.argmin(price))
        most = np.inf if needed else self._second_j
        return best if price[best] < most else None

    def _lowered(self, limit_s: float, at: Ints) -> Ints:
        for _ in range(SWEEPS):
            down = np.maximum(at - 1, self._lowest)
            gains_j = self._cost_j[self._stages, at] - self._cost_j[self._stages, down]
            moved = False
            for stage in np.argsort(-gains_j, kind="stable"):
                if gains_j[stage] <= 0.0:
                    break
                tried = at.copy()
                tried[stage] = down[stage]
                if self._pays(limit_s, at, tried):
                    at, moved = tried, True
            if not moved:
                break
        return at

    def _pays(self, limit_s: float, at: Ints, tried: Ints) -> bool:
        time_s, rows = self._time_s(tried), self._stages
        if time_s > limit_s:
            return False
        saved_j = (self._cost_j[rows, at] - self._cost_j[rows, tried]).sum()
        return bool(saved_j > self._second_j * (time_s - self._time_s(at)))

    def _time_s(self, at: Ints) -> float:
        return self._paths.critical(self._times_s[self._stages, :, at])[0]
