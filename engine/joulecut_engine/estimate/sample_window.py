"""Latest readings of running work, per GPU, kind of work and clock.

One window over all samples would forget every other clock while a job stays at one; so each cell
keeps its own last readings, and the cell longest without a reading is dropped first. Memory is
bounded.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

READINGS_MAX = 16  # per cell: noise of 2 % averages to 0.5 %, and drift shows soon
CELLS_MAX = 4096  # 128 GPUs with two kinds of work at 16 clocks
REPLAYED_MAX = 32  # readings that a bias is recomputed from; older ones would count under 4 %


class Reading(NamedTuple):
    """One accepted sample, numbered in order of arrival."""

    number: int
    time_s: float
    power_w: float | None
    weight: float


class Cell(NamedTuple):
    """Key of readings. `capped`: `clock_mhz` was asked, and the power cap held the clock lower."""

    workload: str
    uuid: str
    stage: int
    kind: str
    clock_mhz: int
    capped: bool


class Window:
    """Last READINGS_MAX readings of every cell."""

    def __init__(self) -> None:
        self._cells: OrderedDict[Cell, deque[Reading]] = OrderedDict()
        self._of_work: dict[tuple[str, int, str], dict[Cell, None]] = {}
        self._of_gpu: dict[tuple[str, str], dict[Cell, None]] = {}

    def __contains__(self, cell: object) -> bool:
        return cell in self._cells

    def add(self, cell: Cell, reading: Reading) -> None:
        readings = self._cells.get(cell)
        if readings is None:
            readings = self._cells[cell] = deque(maxlen=READINGS_MAX)
            self._of_work.setdefault((cell.workload, cell.stage, cell.kind), {})[cell] = None
            self._of_gpu.setdefault((cell.workload, cell.uuid), {})[cell] = None
        readings.append(reading)
        self._cells.move_to_end(cell)
        while len(self._cells) > CELLS_MAX:
            self._drop(next(iter(self._cells)))

    def cells(self) -> Iterable[tuple[Cell, tuple[Reading, ...]]]:
        """All cells, the one longest without a reading first."""
        return [(cell, tuple(readings)) for cell, readings in self._cells.items()]

    def of_work(self, workload: str, stage: int, kind: str) -> tuple[Cell, ...]:
        return tuple(self._of_work.get((workload, stage, kind), ()))

    def last(self, cell: Cell) -> tuple[Reading, ...]:
        """Oldest first."""
        return tuple(self._cells[cell])

    def of_gpu(self, workload: str, uuid: str) -> list[tuple[Cell, Reading]]:
        """Latest readings of a GPU on a workload, in order of arrival."""
        found = [
            (cell, reading)
            for cell in self._of_gpu.get((workload, uuid), ())
            for reading in self._cells[cell]
        ]
        return sorted(found, key=lambda pair: pair[1].number)[-REPLAYED_MAX:]

    def forget(self, workload: str) -> None:
        for cell in [cell for cell in self._cells if cell.workload == workload]:
            self._drop(cell)

    def forget_gpu(self, workload: str, uuid: str) -> None:
        for cell in tuple(self._of_gpu.get((workload, uuid), ())):
            self._drop(cell)

    def gpus(self) -> tuple[tuple[str, str], ...]:
        """All with readings, by workload and UUID."""
        return tuple(self._of_gpu)

    def _drop(self, cell: Cell) -> None:
        del self._cells[cell]
        indices: tuple[tuple[dict[Any, dict[Cell, None]], Any], ...] = (
            (self._of_work, (cell.workload, cell.stage, cell.kind)),
            (self._of_gpu, (cell.workload, cell.uuid)),
        )
        for index, key in indices:
            del index[key][cell]
            if not index[key]:
                del index[key]
