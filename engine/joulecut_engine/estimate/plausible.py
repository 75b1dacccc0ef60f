"""Whether a sample can be of the work it claims, judged by what that work showed before.

No clock makes work more than evenly slower, and none makes it faster than it already was:
what lies beyond is a broken counter once, and other work under the same name when it stays.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Literal

from joulecut_engine.estimate.admission import Reason, Refusal, who
from joulecut_engine.estimate.estimator import Sample
from joulecut_engine.estimate.window import Cell, Reading, Window

# Against the nearest clock it was seen at, and what the clock can explain. Noise of single
# iterations stays far below, and so do cards of one kind (8 % apart on average).
RATIO_MAX = 1.5
OTHER_WORK_ROW = 5  # so many in a row, alike, are other work
OTHER_WORK_ALIKE = 1.15  # largest over smallest
TRACKED_MAX = 1024  # kinds of work that just showed something strange

OTHER_WORK: Literal["other-work"] = "other-work"


class Plausibility:
    """Remembers what was strange, to tell a slip from a change."""

    def __init__(self) -> None:
        self._strange: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()

    def judge(
        self, sample: Sample, cell: Cell, window: Window
    ) -> Refusal | Literal["other-work"] | None:
        """None where it may be learnt; `OTHER_WORK` where the work has become another."""
        near = cell if cell in window else _nearest(cell, window)
        if near is None:
            return None
        readings = window.last(near)
        times = sorted(reading.time_s for reading in readings)
        stretch = near.clock_mhz / cell.clock_mhz
        ratio = sample.time_s / times[len(times) // 2]
        key = (cell.workload, cell.stage, cell.kind)
        if min(1.0, stretch) / RATIO_MAX <= ratio <= max(1.0, stretch) * RATIO_MAX:
            self._strange.pop(key, None)
            return _power(sample, readings, stretch)
        row = [*self._strange.get(key, []), ratio / stretch]
        alike = max(row) <= OTHER_WORK_ALIKE * min(row)
        if alike and len(row) >= OTHER_WORK_ROW:
            self._strange.pop(key, None)
            return OTHER_WORK
        self._strange[key] = row if alike else row[-1:]
        self._strange.move_to_end(key)
        while len(self._strange) > TRACKED_MAX:
            self._strange.popitem(last=False)
        return _refusal(
            "other-work",
            sample,
            f"{ratio:.3g} times what {near.clock_mhz} MHz took; no clock explains that",
        )

    def forget(self, workload: str) -> None:
        for key in [key for key in self._strange if key[0] == workload]:
            del self._strange[key]

    def state(self) -> list[list[Any]]:
        return [[*key, list(row)] for key, row in self._strange.items()]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        for workload, stage, kind, row in rows:
            self._strange[str(workload), int(stage), str(kind)] = [float(x) for x in row]


def follows_the_clock(power_ratio: float, clock_ratio: float) -> bool:
    """Whether two clocks may make so much of a power: at most the cube of theirs, either way."""
    reach = max(clock_ratio, 1.0 / clock_ratio) ** 3 * RATIO_MAX
    return 1.0 / reach <= power_ratio <= reach


def _nearest(cell: Cell, window: Window) -> Cell | None:
    cells = window.of_work(cell.workload, cell.stage, cell.kind)
    if not cells:
        return None
    return min(cells, key=lambda one: (abs(one.clock_mhz - cell.clock_mhz), one))


def _power(sample: Sample, readings: tuple[Reading, ...], stretch: float) -> Refusal | None:
    drawn = sorted(r.power_w for r in readings if r.power_w is not None)
    if sample.power_w is None or not drawn:
        return None
    ratio = sample.power_w / drawn[len(drawn) // 2]
    if follows_the_clock(ratio, stretch):
        return None
    what = f"{ratio:.3g} times the power seen at the nearest clock: the counter jumped"
    return _refusal("jump", sample, what)


def _refusal(reason: Reason, sample: Sample, what: str) -> Refusal:
    return Refusal(reason, f"{who(sample.subject)}: {what}")
