"""Admission of training samples: each is judged before it is learnt from.

One broken counter must not teach the model nonsense, because a wrong model ends as a wrong clock.
`Admission` judges values, order, age and power without a model; `Plausibility` compares a sample
with what the same work showed at the nearest clock. Refusals carry a reason and are counted.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_args

from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.sample_window import Cell, Reading, Window
from joulecut_engine.estimate.watermark import CONFIRMED, STALE_S, Watermark

Reason = Literal[
    "not-a-number",
    "not-above-zero",
    "out-of-range",
    "weight",
    "clock",
    "stale",
    "duplicate",
    "reordered",
    "capped",
    "jump",
    "other-work",
    "no-profile",
]
REASONS: tuple[Reason, ...] = get_args(Reason)

WEIGHT_MAX = 100.0
TIME_MIN_S, TIME_MAX_S = 1e-9, 1e6  # as in a profile: a nanosecond, eleven days
POWER_MAX_W = 10_000.0  # five times the largest GPU
TEMPERATURE_MAX_C = 200.0  # solder melts
SHAPE_MAX = 1e30  # operations or bytes; trees store 32-bit floats, at most 3e38
CLOCK_MAX_MHZ = 10_000  # three times the fastest GPU
LIMIT_RATIO_MAX = 1.3  # of the card's limit: spikes shorter than a sample reach 1.2
TRACKED_MAX = 16_384  # subjects; the least recently seen is dropped


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a sample is not learnt from; `text` is one line with the subject's name."""

    reason: Reason
    text: str


@dataclass(slots=True)
class _Sequence:
    """Newest sample of one subject, and the run of samples with lower iteration numbers."""

    iteration: int | None = None
    at_s: float | None = None
    behind: int = 0
    behind_last: int = -1


class Admission:
    """Refuses samples whose values, order or age cannot be right. Bounded memory."""

    def __init__(self, tracked_max: int = TRACKED_MAX) -> None:
        self._tracked_max = tracked_max
        self._sequences: OrderedDict[Subject, _Sequence] = OrderedDict()
        self._watermark = Watermark()

    def judge(
        self, sample: Sample, limit_w: float | None, clock_max_mhz: int | None
    ) -> Refusal | None:
        """None if it may be learnt from. `limit_w` and `clock_max_mhz` are the card's."""
        return (
            _values(sample)
            or _range(sample)
            or self._order(sample)
            or _over_limit(sample, limit_w)
            or _cap(sample, clock_max_mhz)
        )

    def _order(self, sample: Sample) -> Refusal | None:
        """Judge iteration and time against the subject's newest sample, and record them."""
        if sample.iteration is None and sample.at_s is None:
            return None
        if sample.at_s is not None:
            before_s = self._watermark.at_s
            late_s = self._watermark.lateness_s(sample.at_s)
            if late_s > 0.0:
                return _refusal("stale", sample, f"{late_s:.0f} s old")
            if before_s is not None and sample.at_s < before_s - STALE_S:
                self._forget_times()  # the jump was revoked: some subjects hold its time
        seen = self._sequences.setdefault(sample.subject, _Sequence())
        self._sequences.move_to_end(sample.subject)
        while len(self._sequences) > self._tracked_max:
            self._sequences.popitem(last=False)
        found = _disorder(sample, seen)
        if found is None:
            seen.iteration, seen.behind, seen.behind_last = sample.iteration, 0, -1
            seen.at_s = sample.at_s
        return found

    def restarted(self) -> None:
        """Forget times: they are monotonic clocks of an earlier process. Iterations remain."""
        self._watermark = Watermark()
        self._forget_times()

    def _forget_times(self) -> None:
        for seen in self._sequences.values():
            seen.at_s = None

    def forget(self, workload: str) -> None:
        for subject in [subject for subject in self._sequences if subject.workload == workload]:
            del self._sequences[subject]

    def state(self) -> dict[str, Any]:
        return {
            "newest": list(astuple(self._watermark)),
            "seen": [
                [s.workload, s.uuid, s.stage, s.kind, v.iteration, v.at_s, v.behind, v.behind_last]
                for s, v in self._sequences.items()
            ],
        }

    def restore(self, watermark: Sequence[Any], rows: Iterable[Iterable[Any]]) -> None:
        """Read `state` back. Raises TypeError or ValueError if it is malformed."""
        at_s, before_jump_s, after_jump, behind, behind_s = watermark
        self._watermark = Watermark(
            None if at_s is None else float(at_s),
            None if before_jump_s is None else float(before_jump_s),
            int(after_jump),
            int(behind),
            float(behind_s),
        )
        for workload, uuid, stage, kind, *seen in rows:
            self._sequences[Subject(workload, uuid, stage, kind)] = _Sequence(*seen)


def label(subject: Subject) -> str:
    """Name of a subject in messages."""
    return f"{subject.workload} stage {subject.stage} {subject.kind} on {subject.uuid}"


def _refusal(reason: Reason, sample: Sample, what: str) -> Refusal:
    return Refusal(reason, f"{label(sample.subject)}: {what}")


def _values(sample: Sample) -> Refusal | None:
    if not (0.0 < sample.weight <= WEIGHT_MAX):
        what = f"weight {sample.weight:g} is not in (0, {WEIGHT_MAX:g}]"
        return _refusal("weight", sample, what)
    values = [sample.time_s] if sample.power_w is None else [sample.time_s, sample.power_w]
    what = f"time {sample.time_s} s and power {sample.power_w} W must be above 0"
    if not all(math.isfinite(value) for value in values):
        return _refusal("not-a-number", sample, what)
    if not all(value > 0.0 for value in values):
        return _refusal("not-above-zero", sample, what)
    for clock_mhz in (sample.clock_mhz, sample.asked_mhz):
        if clock_mhz is not None and not 0 < clock_mhz <= CLOCK_MAX_MHZ:
            return _refusal("clock", sample, f"{clock_mhz} MHz is no clock")
    for name, value in (("taken at", sample.at_s), ("temperature", sample.temperature_c)):
        if value is not None and not math.isfinite(value):
            return _refusal("not-a-number", sample, f"{name} {value}")
    return None


def _range(sample: Sample) -> Refusal | None:
    """Numbers beyond any GPU would overflow in a fit or in the stored state."""
    power_w, temperature_c = sample.power_w, sample.temperature_c
    shape = () if sample.shape is None else astuple(sample.shape)
    beyond = (
        (not TIME_MIN_S <= sample.time_s <= TIME_MAX_S, f"{sample.time_s:g} s for an operation"),
        (power_w is not None and power_w > POWER_MAX_W, f"{power_w} W"),
        (
            temperature_c is not None and abs(temperature_c) > TEMPERATURE_MAX_C,
            f"{temperature_c} C",
        ),
        (not all(0.0 <= value <= SHAPE_MAX for value in shape), f"a shape of {shape}"),
    )
    found = next((what for is_beyond, what in beyond if is_beyond), None)
    return None if found is None else _refusal("out-of-range", sample, f"{found} cannot be")


def _disorder(sample: Sample, seen: _Sequence) -> Refusal | None:
    """CONFIRMED lower iterations in a row are a restarted job; fewer are disorder.

    Without iteration numbers a time before the newest one is always disorder.
    """
    if sample.iteration is not None and seen.iteration is not None:
        if sample.iteration == seen.iteration:
            return _refusal("duplicate", sample, f"iteration {sample.iteration} again")
        if sample.iteration < seen.iteration:
            goes_on = sample.iteration > seen.behind_last
            later = sample.at_s is None or seen.at_s is None or sample.at_s > seen.at_s
            seen.behind = seen.behind + 1 if goes_on and later else 1
            seen.behind_last = sample.iteration
            if seen.behind < CONFIRMED:
                what = f"iteration {sample.iteration} after {seen.iteration}"
                return _refusal("reordered", sample, what)
            return None
    if sample.at_s is not None and seen.at_s is not None:
        if sample.at_s == seen.at_s:
            return _refusal("duplicate", sample, f"taken at {sample.at_s:.3f} s again")
        if sample.at_s < seen.at_s:
            return _refusal("reordered", sample, f"taken {seen.at_s - sample.at_s:.3f} s earlier")
    return None


def _over_limit(sample: Sample, limit_w: float | None) -> Refusal | None:
    if sample.power_w is None or limit_w is None or sample.power_w <= LIMIT_RATIO_MAX * limit_w:
        return None
    what = f"{sample.power_w:.0f} W with a limit of {limit_w:.0f} W: the counter jumped"
    return _refusal("jump", sample, what)


def _cap(sample: Sample, clock_max_mhz: int | None) -> Refusal | None:
    """A capped sample is filed under the asked clock, or the card's highest: one must be known."""
    if sample.capped and sample.asked_mhz is None and clock_max_mhz is None:
        what = "held by the power cap, and the asked clock is unknown"
        return _refusal("capped", sample, what)
    return None


# Largest ratio to the nearest clock seen, beyond what the clock itself explains. Noise of single
# iterations stays far below it, and so do cards of one kind (8 % apart on average).
NEAREST_RATIO_MAX = 1.5
OTHER_WORK_ROW = 5  # so many outliers in a row that agree are other work
OTHER_WORK_ALIKE = 1.15  # largest over smallest
OUTLIERS_MAX = 1024  # kinds of work whose last samples were outliers

OTHER_WORK: Literal["other-work"] = "other-work"


class Plausibility:
    """Compares a sample with the same work at the nearest clock in the window.

    A clock stretches time by at most its own ratio and never shortens it. One sample outside that
    is a broken counter; OTHER_WORK_ROW of them that agree mean the workload has changed.
    """

    def __init__(self) -> None:
        self._outliers: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()

    def judge(
        self, sample: Sample, cell: Cell, window: Window
    ) -> Refusal | Literal["other-work"] | None:
        """None if it may be learnt from; `OTHER_WORK` if the workload has changed."""
        near = cell if cell in window else _nearest(cell, window)
        if near is None:
            return None
        readings = window.last(near)
        times = sorted(reading.time_s for reading in readings)
        stretch = near.clock_mhz / cell.clock_mhz
        ratio = sample.time_s / times[len(times) // 2]
        key = (cell.workload, cell.stage, cell.kind)
        if min(1.0, stretch) / NEAREST_RATIO_MAX <= ratio <= max(1.0, stretch) * NEAREST_RATIO_MAX:
            self._outliers.pop(key, None)
            return _power_jump(sample, readings, stretch)
        row = [*self._outliers.get(key, []), ratio / stretch]
        alike = max(row) <= OTHER_WORK_ALIKE * min(row)
        if alike and len(row) >= OTHER_WORK_ROW:
            self._outliers.pop(key, None)
            return OTHER_WORK
        self._outliers[key] = row if alike else row[-1:]
        self._outliers.move_to_end(key)
        while len(self._outliers) > OUTLIERS_MAX:
            self._outliers.popitem(last=False)
        return _refusal(
            "other-work",
            sample,
            f"{ratio:.3g} times what {near.clock_mhz} MHz took; no clock explains that",
        )

    def forget(self, workload: str) -> None:
        for key in [key for key in self._outliers if key[0] == workload]:
            del self._outliers[key]

    def state(self) -> list[list[Any]]:
        return [[*key, list(row)] for key, row in self._outliers.items()]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        for workload, stage, kind, row in rows:
            self._outliers[str(workload), int(stage), str(kind)] = [float(x) for x in row]


def follows_the_clock(power_ratio: float, clock_ratio: float) -> bool:
    """Whether a clock ratio explains a power ratio: by at most its cube, either way."""
    reach = max(clock_ratio, 1.0 / clock_ratio) ** 3 * NEAREST_RATIO_MAX
    return 1.0 / reach <= power_ratio <= reach


def _nearest(cell: Cell, window: Window) -> Cell | None:
    cells = window.of_work(cell.workload, cell.stage, cell.kind)
    if not cells:
        return None
    return min(cells, key=lambda one: (abs(one.clock_mhz - cell.clock_mhz), one))


def _power_jump(sample: Sample, readings: tuple[Reading, ...], stretch: float) -> Refusal | None:
    drawn = sorted(r.power_w for r in readings if r.power_w is not None)
    if sample.power_w is None or not drawn:
        return None
    ratio = sample.power_w / drawn[len(drawn) // 2]
    if follows_the_clock(ratio, stretch):
        return None
    what = f"{ratio:.3g} times the power seen at the nearest clock: the counter jumped"
    return _refusal("jump", sample, what)
