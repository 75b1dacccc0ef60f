"""Randomised switchback schedule: when a job runs at default clocks so that its saving is measured.

Time is cut into slots of one length, and each cycle of slots has one at default clocks, drawn by a
hash of the job's name and the cycle's number. The schedule is the same after any restart, needs no
state, and favours no hour of the day (Bojinov, Simchi-Levi, Zhao, "Design and Analysis of
Switchback Experiments", Management Science 69, 2023). Slots beside it are measured under the plan.
Pure.
"""

import hashlib
import math
from dataclasses import dataclass

# Three time constants of an air-cooled heat sink, some 30 s: 5 % of the change of temperature is
# left then. A site with slower ones gives its own (`verify.warm_up`).
WARM_UP_S = 90.0
# Eight have a standard deviation. More make slots of long iterations longer, and intervals no
# narrower: they have as many iterations at default clocks either way, and come twice as late.
ITERATIONS_WANTED = 16
LATE_RATIO_MAX = 0.1  # of a slot: one that begins later would measure too little
NEIGHBOURS = 3  # slots measured under the plan on either side: two are compared, one may fail
ALONE_MIN = 3  # in cycles of fewer slots two at default clocks may follow each other
MILLION = 1_000_000  # shares are counted in parts of it: whole numbers do not drift over years
DAY_S = 86_400
BETWEEN_S = 6 * 3600.0  # however rare hold-outs are, the plan is looked at four times a day


@dataclass(frozen=True, slots=True)
class SwitchbackSchedule:
    """One job's slots. `share` is the part of time at default clocks, in (0, 0.5]."""

    job: str
    share: float
    slot_s: float

    def slot(self, unix_s: float) -> int:
        """The number of the slot that a time falls into."""
        return math.floor((unix_s - self._offset_s) / self.slot_s)

    def begins_unix_s(self, slot: int) -> float:
        return self._offset_s + slot * self.slot_s

    def cycle(self, slot: int) -> int:
        return slot * self._parts // MILLION

    def drawn(self, cycle: int) -> int:
        """The slot of a cycle that is at default clocks."""
        first, after = self._first(cycle), self._first(cycle + 1)
        # The first slot is kept out, so that no two drawn ones follow each other.
        skipped = 1 if after - first >= ALONE_MIN else 0
        return first + skipped + _lot(f"{self.job}/{cycle}") % (after - first - skipped)

    def is_measured(self, slot: int) -> bool:
        """Whether a slot under the plan is measured: one near enough to one at default clocks to
        be compared with it, and where those are rare, some between them.
        """
        if slot % max(1, round(BETWEEN_S / self.slot_s)) == 0:
            return True
        here = self.cycle(slot)
        return any(abs(self.drawn(here + step) - slot) <= NEIGHBOURS for step in (-1, 0, 1))

    def next_unix_s(self, unix_s: float) -> float:
        """When the next drawn slot begins."""
        slot = self.slot(unix_s)
        here = self.cycle(slot)
        ahead = (self.drawn(cycle) for cycle in (here, here + 1))
        return self.begins_unix_s(next(drawn for drawn in ahead if drawn > slot))

    @property
    def _parts(self) -> int:
        return max(1, round(self.share * MILLION))

    @property
    def _offset_s(self) -> float:
        """Slots of different jobs begin at different times: not all switch at once."""
        return _lot(self.job) % 10_000 / 10_000 * self.slot_s

    def _first(self, cycle: int) -> int:
        return -(-cycle * MILLION // self._parts)


def slot_s(
    window_s: float, iteration_s: float, dwell_s: float, warm_up_s: float = WARM_UP_S
) -> float:
    """How long a job's slots are: a warm-up and a window, and twice that, or four times, until
    enough iterations fit and clocks may be lowered again afterwards.

    In steps of two, so that an iteration a little longer does not move every slot.
    """
    length_s = warm_up_s + window_s
    wanted_s = max(warm_up_s + ITERATIONS_WANTED * iteration_s, dwell_s)
    doublings = math.ceil(math.log2(wanted_s / length_s)) if wanted_s > length_s else 0
    return float(length_s * 2**doublings)


def clock_text(unix_s: float) -> str:
    """`14:05 UTC`."""
    minutes = int(unix_s) % DAY_S // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d} UTC"


def _lot(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
