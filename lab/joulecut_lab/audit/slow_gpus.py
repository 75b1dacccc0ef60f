"""Slow GPUs over the whole time, with the cause: the driver's clock event reason where it has one.

Slow is relative to the GPUs of the same job in the same steps. Two cases need no such neighbours: a
hardware slowdown, and a clock that stands still below the clocks of other GPUs of the model. Pure;
memory per GPU does not grow with time.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecut_lab.audit.finding import Cause, SlowGpu
from joulecut_lab.audit.lockstep import SLOW_RATIO
from joulecut_lab.audit.reading import (
    HW_SLOWDOWN,
    POWER_BRAKE,
    POWER_CAP,
    SETTING,
    THERMAL_REASONS,
    GpuName,
    GpuReading,
)

SLOW_SHARE_MIN = 0.1  # of its busy time: a minute of warming up does not count
GRAVE_SHARE_MIN = 0.01  # of hardware slowdowns, a hundredth is too much
STEPS_MIN = 3.0
REASON_SHARE_MIN = 0.25  # of the slow time, to be its cause
STILL_RATIO = 0.01  # a lock holds a clock to a step; caps and heat let it move
LIMIT_SLACK_W = 1.0  # limits are whole watts on some boards

# Gravest first; the hardware's general bit comes with the particular ones, so it is last of them.
CAUSES: tuple[tuple[frozenset[str], Cause], ...] = (
    (frozenset({POWER_BRAKE}), "power brake"),
    (THERMAL_REASONS, "thermal"),
    (frozenset({HW_SLOWDOWN}), "hardware slowdown"),
    (frozenset({POWER_CAP}), "power cap"),
    (frozenset({SETTING}), "clock lock"),
)
GRAVE = CAUSES[:3]


@dataclass(slots=True)
class _ClockSums:
    """Seconds, mean and range of a clock."""

    seconds: float = 0.0
    product: float = 0.0
    low_mhz: float = float("inf")
    high_mhz: float = 0.0
    reasons_s: dict[str, float] = field(default_factory=dict)  # by cause

    def add(self, reading: GpuReading, seconds: float) -> None:
        mhz = reading.clock_mhz or 0.0
        self.seconds += seconds
        self.product += mhz * seconds
        self.low_mhz, self.high_mhz = min(self.low_mhz, mhz), max(self.high_mhz, mhz)
        for words, cause in CAUSES:
            if reading.reasons and words & reading.reasons:
                self.reasons_s[cause] = self.reasons_s.get(cause, 0.0) + seconds

    def held_s(self, cause: str) -> float:
        """Seconds with this cause."""
        return self.reasons_s.get(cause, 0.0)

    @property
    def mean_mhz(self) -> float:
        return self.product / self.seconds if self.seconds else 0.0

    @property
    def still(self) -> bool:
        return self.high_mhz - self.low_mhz <= STILL_RATIO * self.high_mhz


@dataclass(slots=True)
class GpuClocks:
    """Clocks of one GPU at work, and while it was slow."""

    busy: _ClockSums = field(default_factory=_ClockSums)
    slow: _ClockSums = field(default_factory=_ClockSums)
    usual_product: float = 0.0  # MHz seconds of the others, while it was slow
    has_reasons: bool = False  # whether event reasons are exported
    purpose_s: float = 0.0
    limit_w: float | None = None
    job: str = ""

    def work(self, reading: GpuReading, seconds: float) -> None:
        """A step at work with a known clock."""
        self.busy.add(reading, seconds)
        self.has_reasons = self.has_reasons or reading.reasons is not None
        self.purpose_s += seconds if reading.on_purpose else 0.0
        self.limit_w = reading.power_limit_w or self.limit_w
        self.job = reading.owner or self.job

    def lag(self, reading: GpuReading, usual_mhz: float, seconds: float) -> None:
        """A step in which it was slower than the others of its job."""
        self.slow.add(reading, seconds)
        self.usual_product += usual_mhz * seconds


def slow_gpus(
    paces: Mapping[str, GpuClocks], names: Mapping[str, GpuName], step_s: float
) -> tuple[SlowGpu, ...]:
    """Slow ones, the worst loss of time first."""
    tops, limits = _tops(paces, names), _limits(paces, names)
    found = []
    for uuid, pace in paces.items():
        name = names.get(uuid, GpuName(uuid))
        judged = _judge(pace, tops[name.model], limits.get(name.model), step_s)
        if judged is not None:
            cause, seconds, mhz, usual_mhz, text = judged
            share = min(1.0, seconds / pace.busy.seconds)
            place = (name.uuid, name.place, name.model, pace.job)
            found.append(SlowGpu(*place, cause, share, mhz, usual_mhz, text))
    return tuple(
        sorted(found, key=lambda o: (-o.share * (1.0 - o.clock_mhz / o.usual_clock_mhz), o.uuid))
    )


def _tops(paces: Mapping[str, GpuClocks], names: Mapping[str, GpuName]) -> dict[str, float]:
    """The highest clock at work of each model."""
    tops: dict[str, float] = {}
    for uuid, pace in paces.items():
        name = names.get(uuid, GpuName(uuid))
        tops[name.model] = max(tops.get(name.model, 0.0), pace.busy.high_mhz)
    return tops


def _limits(paces: Mapping[str, GpuClocks], names: Mapping[str, GpuName]) -> dict[str, float]:
    """The usual power limit of each model."""
    by_model: dict[str, list[float]] = {}
    for uuid, pace in paces.items():
        if pace.limit_w:
            by_model.setdefault(names.get(uuid, GpuName(uuid)).model, []).append(pace.limit_w)
    return {model: statistics.median_high(limits) for model, limits in by_model.items()}


def _judge(
    pace: GpuClocks, top_mhz: float, limit_w: float | None, step_s: float
) -> tuple[Cause, float, float, float, str] | None:
    """Cause, seconds, its own clock and the usual one, and why; None for one that is not slow."""
    busy, slow = pace.busy, pace.slow
    if slow.seconds >= max(SLOW_SHARE_MIN * busy.seconds, STEPS_MIN * step_s):
        cause = _cause(slow)
        usual_mhz = pace.usual_product / slow.seconds
        return cause, slow.seconds, slow.mean_mhz, usual_mhz, _text(pace, slow, cause, limit_w)
    grave_s = GRAVE_SHARE_MIN * busy.seconds
    grave = next((cause for _, cause in GRAVE if busy.held_s(cause) > grave_s), None)
    if grave is not None and busy.held_s(grave) >= STEPS_MIN * step_s:
        seconds = busy.held_s(grave)
        text = f"reported by its driver in {100.0 * seconds / busy.seconds:.0f} % of its busy time"
        return grave, seconds, busy.mean_mhz, max(top_mhz, busy.mean_mhz), text
    if _locked(pace, top_mhz, step_s):
        text = f"constant {busy.mean_mhz:.0f} MHz; {_hint(pace)}"
        return "clock lock", busy.seconds, busy.mean_mhz, top_mhz, text
    return None


def _locked(pace: GpuClocks, top_mhz: float, step_s: float) -> bool:
    """Its clock stood still below what others of its model reach, and no cap or heat is why."""
    busy = pace.busy
    if pace.purpose_s or busy.seconds < 2 * STEPS_MIN * step_s or not busy.still:
        return False
    held = max((busy.held_s(cause) for _, cause in CAUSES[:-1]), default=0.0)
    return held < REASON_SHARE_MIN * busy.seconds and busy.high_mhz < top_mhz * (1.0 - SLOW_RATIO)


def _cause(slow: _ClockSums) -> Cause:
    for _, cause in CAUSES:
        if slow.held_s(cause) >= REASON_SHARE_MIN * slow.seconds:
            return cause
    return "clock lock" if slow.still else "unknown"


def _hint(pace: GpuClocks) -> str:
    if not pace.has_reasons:
        return "a guess, as no series has clock event reasons"
    if pace.busy.held_s("clock lock"):
        return "its driver reports a clock setting"
    return "no event reason, as under a clock lock"


def _text(pace: GpuClocks, slow: _ClockSums, cause: Cause, limit_w: float | None) -> str:
    if cause == "power cap" and pace.limit_w and limit_w and limit_w - pace.limit_w > LIMIT_SLACK_W:
        return f"power limit {pace.limit_w:.0f} W, others {limit_w:.0f} W"
    if cause == "clock lock":
        return f"constant {slow.mean_mhz:.0f} MHz; {_hint(pace)}"
    if cause == "unknown":
        return "no event reason" if pace.has_reasons else "no series has clock event reasons"
    share = slow.held_s(cause) / slow.seconds
    return f"reported by its driver in {100.0 * share:.0f} % of the slow time"
