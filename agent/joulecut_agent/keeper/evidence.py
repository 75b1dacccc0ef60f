"""What the keeper reads of a GPU, and what that proves about the GPU's clocks.

No driver reports locked clocks: the clock under load is the only evidence. A clock that a keeper
of this boot has written is never taken for another writer's. One reading proves nothing: a verdict
is sure after READINGS equal ones in a row, each APART_S after the last: one that comes sooner adds
nothing, but ends the row where it differs. None counts while a write settles.

Pure. Clocks in MHz, times in seconds of the monotonic clock.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import NamedTuple

READINGS = 3  # a clock change, or one late reading, spans two
APART_S = 0.15  # 0.3 s for three: longer than any known clock change
SETTLE_S = 1.0  # after a write; the slowest known clock change takes a tenth of it
BUSY_RATIO = 0.5  # the driver's utilisation; below it a GPU may have any clock
CLOCK_SLACK_MHZ = 30  # two steps of the clock list
BELOW_SLACK_RATIO = 0.05  # boost loses some steps to temperature without an event reason
IDLE = "idle"  # the event reason that explains no lower clock under load


class Reading(NamedTuple):
    """One GPU at one moment, with the driver's words for why it is not faster."""

    clock_mhz: int
    busy_ratio: float
    reasons: tuple[str, ...] = ()


class Verdict(Enum):
    """Whose clocks a reading shows."""

    UNCLEAR = "unclear"  # as the lease says, idle, slow for a reason, or not readable
    OURS = "ours"  # clocks that this boot's keepers wrote, and no lease asks for
    FREE = "free"  # the default clocks
    OTHER = "other"  # another writer's
    HIDDEN = "hidden"  # slow for a reason, beneath which a lock of ours would not show


def verdict(
    reading: Reading, written_mhz: Collection[int], default_mhz: int,
    leased_mhz: tuple[int, int] = (0, 0),
) -> Verdict:  # fmt: skip
    """`leased_mhz`: the lowest and the highest max clock of the lease; zeros without one.

    Beside the default clock, a lock of ours and none look the same. HIDDEN without a lease only.
    """
    clock_mhz, (low_mhz, high_mhz) = reading.clock_mhz, leased_mhz
    if high_mhz and low_mhz - CLOCK_SLACK_MHZ <= clock_mhz <= high_mhz + CLOCK_SLACK_MHZ:
        return Verdict.UNCLEAR
    free_mhz = min(default_mhz * (1.0 - BELOW_SLACK_RATIO), lowest_default_mhz(default_mhz))
    busy = reading.busy_ratio >= BUSY_RATIO and IDLE not in reading.reasons
    above_lock = 0 < high_mhz < clock_mhz  # no load and no reason lifts a GPU above its lock
    shows = above_lock or (busy and not set(reading.reasons) - {IDLE})
    if shows and is_written(clock_mhz, written_mhz, default_mhz):
        return Verdict.OURS
    if (above_lock or busy) and clock_mhz >= free_mhz:
        return Verdict.FREE
    if shows:
        return Verdict.OTHER
    lowered_mhz = [mhz for mhz in written_mhz if mhz < lowest_default_mhz(default_mhz)]
    hides = busy and not high_mhz and clock_mhz <= max(lowered_mhz, default=0)
    return Verdict.HIDDEN if hides else Verdict.UNCLEAR


def unshown(reading: Reading, written_mhz: Collection[int], default_mhz: int) -> tuple[int, ...]:
    """Those of the clocks written that this reading does not show in force.

    Beside the default clock no reading could: such a clock slows nothing.
    """
    highest_mhz = lowest_default_mhz(default_mhz)
    loaded = reading.busy_ratio >= BUSY_RATIO and not reading.reasons
    return tuple(
        mhz
        for mhz in written_mhz
        if mhz < highest_mhz and not (loaded and abs(reading.clock_mhz - mhz) <= CLOCK_SLACK_MHZ)
    )


def is_written(clock_mhz: int, written_mhz: Collection[int], default_mhz: int) -> bool:
    """Whether a clock below the default is one of those written."""
    lowered_mhz = (mhz for mhz in written_mhz if mhz < lowest_default_mhz(default_mhz))
    return any(abs(clock_mhz - mhz) <= CLOCK_SLACK_MHZ for mhz in lowered_mhz)


def lowest_default_mhz(default_mhz: int) -> int:
    """The lowest clock that no reading tells from the default."""
    return default_mhz - 2 * CLOCK_SLACK_MHZ


@dataclass(frozen=True, slots=True)
class Evidence:
    """Equal verdicts in a row. None counts before `next_s`."""

    verdict: Verdict = Verdict.UNCLEAR
    readings: int = 0
    next_s: float = -inf

    def after(self, seen: Verdict, now_s: float, apart_s: float) -> "Evidence":
        """The evidence with one more reading; the next counts after `apart_s`."""
        if now_s < self.next_s:
            differs = self.readings > 0 and seen is not self.verdict
            return Evidence(next_s=self.next_s) if differs else self
        if seen is not self.verdict:
            return Evidence(seen, 1, now_s + apart_s)
        return replace(self, readings=min(self.readings + 1, READINGS), next_s=now_s + apart_s)

    @property
    def proves(self) -> Verdict:
        """The verdict once it is sure; UNCLEAR before."""
        return self.verdict if self.readings >= READINGS else Verdict.UNCLEAR


NO_EVIDENCE = Evidence()


def none_until_settled(now_s: float) -> Evidence:
    """No evidence: clocks were written now."""
    return Evidence(next_s=now_s + SETTLE_S)
