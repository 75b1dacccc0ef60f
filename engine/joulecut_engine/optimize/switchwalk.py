"""Where the search for plans under switching begins: what the bound's prices would choose.

Under prices every GPU's best walk of few changes is known (`stretches`). Together they are
usually late, since prices of a mixture choose one of its ends; prices a little higher keep the
deadline. A change that would come late is asked for earlier, where there is room.
"""

import math
from collections.abc import Sequence

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.switchbound import Charge, SwitchBound
from joulecut_engine.optimize.switching import Limits, Track
from joulecut_engine.optimize.switchtrial import Trial

PRICE_MAX, PRICE_FAST = 64.0, 1e6  # times those of the flow: nothing is left of cost beside time
HALVINGS = 7  # of the prices that just keep the deadline: to within a thirtieth


class Walker:
    """One deadline's walks."""

    def __init__(self, track: Track, limits: Limits, bound: SwitchBound, trial: Trial) -> None:
        self._track, self._limits, self._bound, self._trial = track, limits, bound, trial
        self._most = bound.most(trial.deadline_s)

    def starts(self, charges: Sequence[Charge], *, few: bool) -> list[Ints]:
        """Choices (columns by operation), in time or nearly so, and the fastest."""
        fastest = self._walk(charges[0], PRICE_FAST, None, None)
        timeline = self._trial.timeline(fastest)
        free = None if timeline is None else self._free(timeline[0])
        found = [fastest]
        bases = charges[-1:] if few else [charges[-1], charges[len(charges) // 2]]
        for charge in bases:
            found += self._scaled(charge, free, None)
            if self._most >= 2:
                found += self._scaled(charge, free, self._begins(found[-1]))
        return found

    def _scaled(self, charge: Charge, free: Ints | None, tied: Ints | None) -> list[Ints]:
        """Walks under prices that come nearer and nearer to those that just keep the deadline;
        the last of them keeps it, if any."""
        low, high, scale = 1.0, PRICE_MAX, 1.0
        late, kept = [], []
        for _ in range(HALVINGS + 1):
            asked = self.ahead(self._walk(charge, scale, free, tied))
            if math.isfinite(self._trial.value_j(asked)):
                kept.append(asked)
                high = scale
            else:
                late.append(asked)
                low = scale
            if high <= low:
                break
            scale = math.sqrt(low * high)
        return [*late[-2:], *kept]

    def _walk(self, charge: Charge, scale: float, free: Ints | None, tied: Ints | None) -> Ints:
        """Of an untied walk the way back to its first clock is one change more."""
        prices_w = charge.price_w * scale
        change_j = self._bound.changes_j(charge.link) * max(1.0, min(scale, PRICE_MAX))
        most = self._most if tied is not None else max(0, self._most - 1)
        sums, asked = self._bound.walk(prices_w, change_j, most, free, tied)
        if tied is not None and not all(map(math.isfinite, sums)):
            return self._walk(charge, scale, free, None)
        return asked

    def _begins(self, asked: Ints) -> Ints:
        """By stage, the clock of its first operation."""
        line, at = self._track.line, np.minimum(self._track.line_at[:-1], len(self._track.line) - 1)
        first: Ints = asked[line[at]]
        return first

    def _free(self, starts_s: Floats) -> Ints:
        """By operation, the first place in its GPU's line that lies a dwell later; at least the
        next."""
        track, free = self._track, np.zeros(len(self._track.stage), dtype=np.int64)
        for low, high in zip(track.line_at, track.line_at[1:], strict=False):
            line = track.line[low:high]
            until = np.searchsorted(starts_s[line], starts_s[line] + self._limits.dwell)
            free[line] = np.maximum(until, np.arange(1, len(line) + 1))
        return free

    def ahead(self, asked: Ints) -> Ints:
        """Asks so early that changes come when their operations begin."""
        if self._limits.latency <= self._limits.stop:
            return asked
        timeline = self._trial.timeline(asked)
        if timeline is None:
            return asked
        starts_s, ends_s = timeline
        track, moved = self._track, asked.copy()
        for low, high in zip(track.line_at, track.line_at[1:], strict=False):
            line = track.line[low:high]
            for k in range(1, len(line)):
                if asked[line[k]] != asked[line[k - 1]]:
                    p = k
                    latest_s = starts_s[line[k]] - self._limits.latency
                    while p > 1 and ends_s[line[p - 1]] > latest_s:
                        p -= 1
                    moved[line[p:k]] = asked[line[k]]
        return moved
