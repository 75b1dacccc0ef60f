"""Which GPUs do not answer an eye, and until when each is left alone for it.

Whoever is asked again too soon costs the others their readings: a call that hangs ends the
process that reads them all.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from joulecut_agent.log import say

BACK_OFF_S, BACK_OFF_S_MAX = 2.0, 60.0  # doubling: a hung GPU must not stop the others often


@dataclass(frozen=True, slots=True)
class Trouble:
    """How often in a row, until when it rests, and whether its call did not return."""

    times: int
    until_s: float
    hung: bool


class Troubles:
    """By index, or DRIVER; for one thread, but for `hung`."""

    def __init__(self) -> None:
        self._known: dict[int, Trouble] = {}

    @property
    def hung(self) -> frozenset[int]:
        known = dict(self._known)
        return frozenset(index for index, one in known.items() if one.hung)

    def resting(self) -> dict[int, Trouble]:
        """Those that are not to be asked now."""
        now_s = time.monotonic()
        return {index: one for index, one in self._known.items() if now_s < one.until_s}

    def note(self, index: int, wait_s_max: float, *, hung: bool) -> int:
        """How often in a row it went wrong."""
        times = self._known[index].times + 1 if index in self._known else 1
        wait_s = min(BACK_OFF_S * 2.0 ** min(times - 1, 16), wait_s_max)
        wait_s = wait_s if hung or times > 1 else 0.0  # what has just died may start at once
        self._known[index] = Trouble(times, time.monotonic() + wait_s, hung)
        return times

    def over(self, index: int) -> bool:
        """It answers; whether it had not."""
        return self._known.pop(index, None) is not None

    def well(self, left_out: Iterable[int]) -> None:
        """Those that were asked have answered."""
        for index in [index for index in self._known if index not in left_out]:
            if self._known.pop(index).hung:
                say("agent", f"GPU {index} answers")
