"""A clock schedule on the job's own operation marks: the clock that is due since the last one.

Pure. A mark is known when its operation begins. A step down follows its mark; a raise is sent ahead
of the mark that is expected next, by the set latency, as the marks of the last iterations followed
one another. When marks stop coming it is the highest clock: a silent job is never kept slow.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from joulecut_agent.keeper.lease import STEP_S
from joulecut_wire.messages import ScheduleStep, Setting
from joulecut_wire.reports import Mark

STEPS_MAX = 512  # begin and end of a forward and a backward of 96 microbatches, and some more
LATENCIES_MIN = 5.0  # in a shorter step the clock is in transition most of the time
SILENT_S = 5.0  # until the duration of an iteration is known
SILENT_ITERATIONS, SILENT_S_MIN, SILENT_S_MAX = 2.0, 1.0, 60.0
GAPS = 3  # from a mark to the next: the shortest of the newest counts, so that raises are early
_Key = tuple[str, int | None, bool]


class Due(NamedTuple):
    """The clock to command now, and when another one is due if no mark or start comes before.

    `rests`: it is the highest clock because marks or starts have stopped.
    """

    clock_mhz: int
    next_s: float = math.inf
    rests: bool = False


def refuse_marks(setting: Setting) -> str:
    """Reason why the marks of a setting make no schedule, or ""."""
    schedule = setting.clock_schedule
    if len(schedule) > STEPS_MAX:
        return f"a clock schedule of {len(schedule)} steps; allowed: up to {STEPS_MAX}"
    if len({_key(step) for step in schedule}) < len(schedule):
        return "a clock schedule with two steps on one mark"
    if any(step.clock_max_mhz > setting.clock_max_mhz for step in schedule):
        return f"a clock schedule above {setting.clock_max_mhz} MHz, the clock where it rests"
    return ""


def refuse_pace(shortest_s: float, latency_s: float) -> str:
    """Reason why clocks do not follow steps so short, or ""; a latency of 0 is unknown."""
    if not (math.isfinite(shortest_s) and shortest_s > 0.0):
        return "the shortest step of the clock schedule is not known"
    least_s = max(STEP_S, LATENCIES_MIN * latency_s)
    if shortest_s >= least_s:
        return ""
    known = f"; clocks follow within {latency_s:g} s here" if latency_s else ""
    shortest = f"the shortest step of the clock schedule takes {shortest_s:g} s"
    return f"{shortest}; allowed: {least_s:g} s{known}"


@dataclass(slots=True)
class _Followed:
    """The mark that followed another one, and the newest gaps between the two."""

    key: _Key
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))


class MarkSchedule:
    """The steps of one GPU on marks. Without a mark for `silent_s_max` it rests."""

    def __init__(self, setting: Setting, now_s: float) -> None:
        self._rest_mhz = self._due_mhz = setting.clock_max_mhz
        self._clocks_mhz = {_key(step): step.clock_max_mhz for step in setting.clock_schedule}
        self._marked_s = now_s
        self._silent_s_max = SILENT_S
        self._iteration: int | None = None
        self._began_s: float | None = None  # None if the first mark of the iteration was not seen
        self._last: _Key | None = None  # None after a silence
        self._last_s = now_s
        self._followed: dict[_Key, _Followed] = {}  # by the mark before

    def mark(self, mark: Mark, now_s: float) -> None:
        at_end = mark.mark == "end"
        found = [(mark.kind, mark.microbatch, at_end), (mark.kind, None, at_end)]
        key = next((key for key in found if key in self._clocks_mhz), None)
        if key is not None:
            self._follow(key, now_s)
            self._due_mhz = self._clocks_mhz[key]
        self._observe(mark.iteration, now_s)

    def due(self, now_s: float, ahead_s: float = 0.0) -> Due:
        """`ahead_s`: how long before its mark a raise is sent."""
        silent_s = self._marked_s + self._silent_s_max
        if now_s > silent_s:
            self._due_mhz, self._last = self._rest_mhz, None
            return Due(self._rest_mhz, rests=True)
        next_s = math.inf if self._due_mhz == self._rest_mhz else silent_s
        followed = self._followed.get(self._last) if self._last else None
        next_mhz = self._clocks_mhz[followed.key] if followed else 0
        if followed and next_mhz > self._due_mhz:
            raise_s = self._last_s + min(followed.gaps_s) - ahead_s
            if now_s >= raise_s:
                return Due(next_mhz, silent_s)
            next_s = min(next_s, raise_s)
        return Due(self._due_mhz, next_s)

    def _follow(self, key: _Key, now_s: float) -> None:
        """Learns which mark of the schedule comes after which, and how soon."""
        if self._last is not None:
            followed = self._followed.get(self._last)
            if followed is None or followed.key != key:
                followed = self._followed[self._last] = _Followed(key)
            followed.gaps_s.append(now_s - self._last_s)
        self._last, self._last_s = key, now_s

    def _observe(self, iteration: int, now_s: float) -> None:
        """Learns the duration of an iteration from its marks."""
        self._marked_s = now_s
        if iteration == self._iteration:
            return
        if self._began_s is not None:
            silent_s = SILENT_ITERATIONS * (now_s - self._began_s)
            self._silent_s_max = min(max(silent_s, SILENT_S_MIN), SILENT_S_MAX)
        self._began_s = now_s if self._iteration is not None else None
        self._iteration = iteration


def _key(step: ScheduleStep) -> _Key:
    return step.kind, step.microbatch, step.at_end
