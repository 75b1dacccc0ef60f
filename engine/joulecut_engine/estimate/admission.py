"""Admission of training samples: each is judged before it is learnt from.

One broken counter must not teach the model nonsense, because a wrong model ends as a wrong clock.
`values_refused` judges a sample alone, `Plausibility` compares it with what the same work showed at
the nearest clock. Refusals carry a reason and are counted. The order of reports is judged before
they become samples (the controller's `SequenceFilter`).
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from joulecut_engine.estimate.bias import SAMPLE_WEIGHT_MAX
from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.sample_window import Cell, Reading, Window

Reason = Literal["not-above-zero", "weight", "clock", "capped", "jump", "other-work", "no-profile"]
# Learnt, but filed elsewhere: at the clock that was reached; after the workload was forgotten.
Separation = Literal["clock-not-reached", "shape-changed"]

# Largest ratio to the nearest clock seen, beyond what the clock itself explains. Noise of single
# iterations stays far below it, and so do cards of one kind (8 % apart on average).
NEAREST_RATIO_MAX = 1.5
OTHER_WORK_ROW = 5  # so many outliers in a row that agree are other work
OTHER_WORK_ALIKE = 1.15  # largest over smallest
OUTLIERS_MAX = 1024  # kinds of work whose last samples were outliers


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a sample is not learnt from; `text` is one line with the subject's name."""

    reason: Reason
    text: str


def refusal(reason: Reason, subject: Subject, what: str) -> Refusal:
    name = f"{subject.workload} stage {subject.stage} {subject.kind} on {subject.uuid}"
    return Refusal(reason, f"{name}: {what}")


def values_refused(sample: Sample) -> Refusal | None:
    """None if all numbers can be right, whatever the work."""
    if not (0.0 < sample.weight <= SAMPLE_WEIGHT_MAX):
        what = f"weight {sample.weight:g} is not in (0, {SAMPLE_WEIGHT_MAX:g}]"
        return refusal("weight", sample.subject, what)
    measured = (sample.time_s,) if sample.power_w is None else (sample.time_s, sample.power_w)
    if not all(math.isfinite(value) and value > 0.0 for value in measured):
        what = f"time {sample.time_s} s and power {sample.power_w} W must be above 0"
        return refusal("not-above-zero", sample.subject, what)
    if sample.capped and sample.asked_mhz is None:
        what = "held by the power cap, and the asked clock is unknown"
        return refusal("capped", sample.subject, what)
    return None


class Plausibility:
    """Compares a sample with the same work at the nearest clock in the window.

    A clock stretches time by at most its own ratio and never shortens it. One sample outside that
    is a broken counter; OTHER_WORK_ROW of them that agree mean the workload has changed.
    """

    def __init__(self) -> None:
        self._outliers: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()

    def judge(
        self, sample: Sample, cell: Cell, window: Window
    ) -> Refusal | Literal["shape-changed"] | None:
        """None if it may be learnt from."""
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
            return "shape-changed"
        self._outliers[key] = row if alike else row[-1:]
        self._outliers.move_to_end(key)
        while len(self._outliers) > OUTLIERS_MAX:
            self._outliers.popitem(last=False)
        what = f"{ratio:.3g} times what {near.clock_mhz} MHz took; no clock explains that"
        return refusal("other-work", sample.subject, what)

    def forget(self, workload: str) -> None:
        for key in [key for key in self._outliers if key[0] == workload]:
            del self._outliers[key]


def follows_the_clock(power_ratio: float, clock_ratio: float) -> bool:
    """Whether a clock ratio explains a power ratio: by at most its cube, either way."""
    reach = max(clock_ratio, 1.0 / clock_ratio) ** 3 * NEAREST_RATIO_MAX
    return 1.0 / reach <= power_ratio <= reach


def _nearest(cell: Cell, window: Window) -> Cell | None:
    cells = window.of_work(cell.workload, cell.stage, cell.kind)
    return min(cells, key=lambda one: (abs(one.clock_mhz - cell.clock_mhz), one), default=None)


def _power_jump(sample: Sample, readings: tuple[Reading, ...], stretch: float) -> Refusal | None:
    drawn = sorted(r.power_w for r in readings if r.power_w is not None)
    if sample.power_w is None or not drawn:
        return None
    ratio = sample.power_w / drawn[len(drawn) // 2]
    if follows_the_clock(ratio, stretch):
        return None
    what = f"{ratio:.3g} times the power seen at the nearest clock: the counter jumped"
    return refusal("jump", sample.subject, what)
