"""The breaker: trips where a job under our clocks is slower than its policy allows.

It knows no estimator, solver or plan: it compares reported iterations under our clocks with what it
saw itself of the same phase at default clocks, and with the policy. Two windows
in a row significantly above the limit trip it. After the first one it asks for a short default
window: where the job has become slower itself, the window above does not count. Iterations at
default clocks after a trip show whether the clocks were the cause. Windows continue across changes
of plan and phase, so that frequent changes hide nothing. Pure and bounded.
"""

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from joulecut_controller.chunk import OUTLIER_RATIO, deviation, robust
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.view import Window

# Iterations of a window. The short one sees a job that is badly late within half a minute of
# one-second iterations; the long one sees what noise hides from the short.
WINDOWS: tuple[int, ...] = (16, 128)
WINDOWS_TO_TRIP = 2
# Both windows must be above by this many standard errors: at the very edge of the budget by
# chance in 5e-8 of all pairs, once in thousands of days of one-second iterations.
DOUBT_STDERRS = 3.5
MEDIAN_STDERR_RATIO = 1.2533  # of a median over a mean, for normal noise: sqrt(pi / 2)
# Means of a job at default clocks drift by a few tenths of a percent over minutes (room, network),
# and the planner reacts to smaller lateness sooner.
TOLERANCE_RATIO = 0.005
PEER_LATE_RATIO = 0.01  # the larger of two noisy times exceeds either mean by about this
# What a power budget asks for is watts: the time that its plan takes may differ by as much as a
# pipeline graph may miss.
ALLOTTED_RATIO = 0.03
REFERENCE_MIN = 8  # iterations at default clocks; fewer give no standard deviation
REFERENCE_KEPT = 512
# Beyond both the job has moved between two default windows, and only the newer one is a reference.
DIFFERS_RATIO, DIFFERS_STDERRS = 0.005, 3.0
PHASES_KEPT = 16

Finding = Literal["", "trip", "ours", "not-ours"]
Phase = tuple[str, str]  # shape and phase


@dataclass(frozen=True, slots=True)
class EndedIteration:
    """An iteration as the job reported it; `began_s` on our monotonic clock, of a mean over many
    that of the first. `peer_s` is the time of the sibling pipeline it waited for, `phase` its shape
    and phase.
    """

    began_s: float
    duration_s: float
    peer_s: float | None = None
    phase: Phase = ("", "")


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed mean iteration time, in seconds; `baseline_s` is that at default clocks, with
    relative standard error `doubt_ratio` and relative standard deviation `noise_ratio`.
    `follows` says whether it rises with the iteration time at default clocks.
    """

    limit_s: float
    baseline_s: float
    doubt_ratio: float
    noise_ratio: float
    follows: bool


def limit_of(policy: JobPolicy, baseline: Window, allotted_s: float | None = None) -> Limit:
    """The job's limit in measured seconds.

    Where default clocks miss the target themselves, they are the limit. `allotted_s` is the
    deadline that a power budget sets.
    """
    mean_s = baseline.time_mean_s
    promised_s = policy.slo.deadline_s(mean_s)
    return Limit(
        limit_s=max(promised_s, mean_s, (allotted_s or 0.0) * (1.0 + ALLOTTED_RATIO)),
        baseline_s=mean_s,
        doubt_ratio=baseline.time_sd_s / mean_s / math.sqrt(max(1, baseline.iterations)),
        noise_ratio=baseline.time_sd_s / mean_s,
        follows=policy.slo.max_slowdown is not None and (allotted_s or 0.0) <= promised_s,
    )


@dataclass(slots=True)
class _Lane:
    """Windows of one length: the one being filled (phases and ratios), and how many before it were
    too slow.

    `slow_ratio` is the median of the newest of these over its limit, which was `slow_limit_s`.
    """

    size: int
    ratios: list[tuple[Phase, float]] = field(default_factory=list)
    slow: int = 0
    slow_ratio: float = 0.0
    slow_limit_s: float = 0.0

    def take(self, ratio: float, phase: Phase = ("", "")) -> tuple[float, float] | None:
        """Median and robust deviation of a window that is full now."""
        self.ratios.append((phase, ratio))
        if len(self.ratios) < self.size:
            return None
        found = robust([one for _, one in self.ratios])
        self.ratios.clear()
        return found


class _Reference:
    """Iterations of one phase at default clocks: default windows joined while they agree. `window`
    is None while too few ran.
    """

    def __init__(self) -> None:
        self._known_s: deque[float] = deque(maxlen=REFERENCE_KEPT)
        self._newest_s: deque[float] = deque(maxlen=REFERENCE_KEPT)
        self._known: Window | None = None
        self.window: Window | None = None

    def take(self, times_s: Sequence[float]) -> None:
        """Iterations of the newest default window."""
        self._newest_s.extend(times_s)
        newest, known = _window(self._newest_s), self._known
        if newest is not None and (known is None or _differs(newest, known)):
            self.window = newest
        elif newest is not None:
            self.window = _window((*self._known_s, *self._newest_s))

    def end(self) -> bool | None:
        """The default window is over. Whether it shows another time than those before; None where
        it had too few iterations.
        """
        newest = _window(self._newest_s) if self._newest_s else None
        moved = None
        if newest is not None:
            moved = self._known is not None and _differs(newest, self._known)
            if moved:
                self._known_s.clear()
            self._known_s.extend(self._newest_s)
            self._known = self.window
        self._newest_s.clear()
        return moved


def _window(times_s: Sequence[float]) -> Window | None:
    if len(times_s) < REFERENCE_MIN:
        return None
    most_s = OUTLIER_RATIO * statistics.median(times_s)
    usual_s = [time_s for time_s in times_s if time_s <= most_s]
    mean_s = statistics.fmean(usual_s)
    return Window(len(usual_s), mean_s, deviation(usual_s), None, None)


def _differs(one: Window, other: Window) -> bool:
    """Whether the job takes another time than before, and not by chance."""
    doubt_s = math.hypot(*(each.time_sd_s / math.sqrt(each.iterations) for each in (one, other)))
    apart_s = abs(one.time_mean_s - other.time_mean_s)
    return apart_s > max(DIFFERS_RATIO * other.time_mean_s, DIFFERS_STDERRS * doubt_s)


class Breaker:
    """The evidence about one job. Times over their limit, not times: a limit may move, and each
    phase has its own. Windows are those of the whole job, and of each phase beside it.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[Phase | None, list[_Lane]] = OrderedDict({None: _lanes()})
        self._references: OrderedDict[Phase, _Reference] = OrderedDict()
        self._after = _Lane(WINDOWS[0])  # at default clocks, after a trip
        self._judging = False
        # An iteration in the window that tripped it, and one at default clocks as known then.
        self._tripped_s = self._baseline_s = 0.0
        self._peer_s: float | None = None
        self.evidence = ""  # of the newest finding, in numbers
        self.suspected = ""  # of a first window above the limit, until default clocks were seen

    def reference(self, phase: Phase) -> Window | None:
        """What default clocks give in this phase, as this breaker saw them; None before."""
        return self._references[phase].window if phase in self._references else None

    def controlled(
        self, iterations: Iterable[EndedIteration], limit: Limit, *, peers_ours: bool
    ) -> Finding:
        """Iterations under our clocks: `trip` once two windows were too slow.

        `peers_ours`: the siblings waited for are under our clocks too, so only their time at
        default clocks excuses a slow window.
        """
        self._end_default_window(limit)
        for one in iterations:
            if one.peer_s is None:
                self._peer_s = None
            excused_s = self._peer_s if peers_ours else one.peer_s
            allowed_s = max(limit.limit_s, (excused_s or 0.0) * (1.0 + PEER_LATE_RATIO))
            for lane in self._lanes_of(one.phase):
                full = lane.take(one.duration_s / allowed_s, one.phase)
                if full is None:
                    continue
                lane.slow = lane.slow + 1 if self._above(full, lane.size, limit) else 0
                lane.slow_ratio, lane.slow_limit_s = full[0], allowed_s
                if lane.slow:
                    self._describe(full, allowed_s)
                    self.suspected = self.evidence
                elif not any(one.slow for lanes in self._lanes.values() for one in lanes):
                    self.suspected = ""
                if lane.slow >= WINDOWS_TO_TRIP:
                    self._tripped_s = full[0] * allowed_s
                    self._baseline_s = limit.baseline_s
                    self.forget()
                    self._judging = True
                    return "trip"
        return ""

    def _lanes_of(self, phase: Phase) -> list[_Lane]:
        """Those of the job and, once it has had several, of the phase."""
        lanes = self._lanes.setdefault(phase, _lanes())
        self._lanes.move_to_end(phase)
        if len(self._lanes) > 1 + PHASES_KEPT:
            del self._lanes[next(key for key in self._lanes if key is not None)]
        return [*self._lanes[None], *lanes] if len(self._lanes) > 2 else lanes

    def _end_default_window(self, limit: Limit) -> None:
        """Our clocks are back: a window above the old limit that is within the new one was the
        job's own doing. Open windows lose the iterations of phases that take another time now.
        """
        ended = {phase: reference.end() for phase, reference in self._references.items()}
        if all(moved is None for moved in ended.values()):
            return
        self.suspected = ""
        for lane in (lane for lanes in self._lanes.values() for lane in lanes):
            lane.ratios = [one for one in lane.ratios if not ended.get(one[0])]
            if lane.slow_ratio * lane.slow_limit_s <= limit.limit_s * (1.0 + TOLERANCE_RATIO):
                lane.slow = 0

    def see_default(self, iterations: Iterable[EndedIteration]) -> None:
        """Iterations at default clocks, as the reference of their phases."""
        times_s: dict[Phase, list[float]] = {}
        for one in iterations:
            if one.peer_s is None:
                times_s.setdefault(one.phase, []).append(one.duration_s)
        for phase, each_s in times_s.items():
            known = self._references.setdefault(phase, _Reference())
            self._references.move_to_end(phase)
            known.take(each_s)
            if len(self._references) > PHASES_KEPT:
                self._references.popitem(last=False)

    def at_default(self, iterations: Iterable[EndedIteration], limit: Limit) -> Finding:
        """Iterations at default clocks: after a trip they show whether our clocks caused it. They
        did not where the job has become slower itself, and was within its limit against that.
        """
        found: Finding = ""
        for one in iterations:
            self._peer_s = one.peer_s
            ratio = one.duration_s / limit.limit_s
            full = self._after.take(ratio) if self._judging else None
            if full is not None:
                self._describe(full, limit.limit_s)
                self._judging = False
                default_s = full[0] * limit.limit_s
                slower = default_s > self._baseline_s * (1.0 + TOLERANCE_RATIO)
                kept = self._tripped_s <= default_s * limit.limit_s / limit.baseline_s
                acquitted = limit.follows and slower and kept
                above = self._above(full, self._after.size, limit)
                found = "not-ours" if above or acquitted else "ours"
        return found

    def forget(self) -> None:
        """Drops open windows: the clocks change."""
        self._lanes = OrderedDict({None: _lanes()})
        self._after.ratios.clear()
        self._judging, self.suspected = False, ""

    def _above(self, full: tuple[float, float], size: int, limit: Limit) -> bool:
        middle, spread = full
        noise = max(spread, limit.noise_ratio)
        stderr = math.hypot(MEDIAN_STDERR_RATIO * noise / math.sqrt(size), limit.doubt_ratio)
        return middle - DOUBT_STDERRS * stderr > 1.0 + TOLERANCE_RATIO

    def _describe(self, full: tuple[float, float], allowed_s: float) -> None:
        self.evidence = f"{full[0] * allowed_s:.4g} s an iteration, {allowed_s:.4g} s allowed"


def _lanes() -> list[_Lane]:
    return [_Lane(size) for size in WINDOWS]
