"""What time it is where nobody says: the newest sample's, until what follows shows that it lied.

Samples are judged stale against the newest of all. One whose time lies far ahead, by a broken
clock or a torn field, would make all later ones stale for as long as the controller runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STALE_S = 60.0  # twelve passes of the controller; what is older met other clocks
# This many in a row that start over are a restarted job, or the true time, and no disorder.
RESTARTED = 3


@dataclass(slots=True)
class Newest:
    """`before_s` is the newest time before the leaps by more than `STALE_S` that fewer than
    `RESTARTED` samples went on from, `since` how many did from the last. `behind` counts samples
    in a row between the two times, `behind_s` is the last of them.
    """

    at_s: float | None = None
    before_s: float | None = None
    since: int = 0
    behind: int = 0
    behind_s: float = 0.0

    def age_s(self, at_s: float) -> float:
        """How stale it is, 0 where it is not. Takes note of it.

        Samples after a leap that go on where times stood before it, and nothing that goes on
        from the leap, show that the leap was none: the third of them is believed.
        """
        if self.at_s is None:
            self.at_s = at_s
        age_s = self.at_s - at_s
        if age_s <= STALE_S:
            leaps = age_s < -STALE_S
            if leaps and (self.before_s is None or self.since >= RESTARTED):
                self.before_s = self.at_s
            self.since = 0 if leaps else self.since + 1
            self.at_s, self.behind = max(self.at_s, at_s), 0
            return 0.0
        if self.before_s is None or at_s < self.before_s:
            return age_s
        goes_on = self.behind > 0 and 0.0 <= at_s - self.behind_s <= STALE_S
        self.behind, self.behind_s = self.behind + 1 if goes_on else 1, at_s
        if self.behind < RESTARTED:
            return age_s
        self.at_s, self.before_s, self.since, self.behind = at_s, None, 0, 0
        return 0.0

    def is_ahead_of(self, at_s: float) -> bool:
        """Whether that sample is stale, or shows that the newest lied."""
        return self.at_s is not None and self.at_s - at_s > STALE_S

    def state(self) -> list[Any]:
        return [self.at_s, self.before_s, self.since, self.behind, self.behind_s]

    @classmethod
    def restored(cls, state: Sequence[Any]) -> "Newest":
        """Raises TypeError or ValueError where it is no state of one."""
        at_s, before_s, since, behind, behind_s = state
        return cls(_or_none(at_s), _or_none(before_s), int(since), int(behind), float(behind_s))


def _or_none(told: Any) -> float | None:
    return None if told is None else float(told)
