"""Results of a simulated job, one record per iteration, and their sums over a window.

Written by the job, read by the demo's summary and by tests; the system under test never reads
them. At most two files of bounded length.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

LINES_MAX = 20_000  # two hours of the demo; then the file before it is dropped


@dataclass(frozen=True, slots=True)
class Record:
    """One iteration. Times on CLOCK_BOOTTIME; `counters_j` are the GPUs' energy at its begin.

    `peer_s` is the time of the sibling that was waited for, 0 for none.
    """

    iteration: int
    begin_s: float
    duration_s: float
    own_s: float
    energy_j: float
    clocks_mhz: tuple[int, ...]
    counters_j: tuple[float, ...]
    peer_s: float = 0.0


class Results:
    """Appends records to a file; drops them where there is none."""

    def __init__(self, path: Path | None, lines_max: int = LINES_MAX) -> None:
        self._path = path
        self._lines_max = lines_max
        self._lines = 0
        self._file = path.open("a", buffering=1) if path else None

    def write(self, record: Record) -> None:
        if self._file is None or self._path is None:
            return
        self._file.write(msgspec.json.encode(record).decode() + "\n")
        self._lines += 1
        if self._lines >= self._lines_max:
            self._file.close()
            os.replace(self._path, f"{self._path}.1")
            self._file = self._path.open("a", buffering=1)
            self._lines = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read(path: Path) -> tuple[Record, ...]:
    """All records kept, oldest first."""
    kept: list[Record] = []
    for part in (Path(f"{path}.1"), path):
        if part.exists():
            kept += filter(None, map(parse, part.read_bytes().splitlines()))
    return tuple(kept)


def parse(line: bytes) -> Record | None:
    """One line of a results file; None for one that a killed job left cut off."""
    try:
        return msgspec.json.decode(line, type=Record)
    except ValueError:  # of which msgspec's errors are
        return None


GAP_S = 1e-3  # far below an iteration; where there is no gap the schedule leaves none at all


@dataclass(slots=True)
class Window:
    """Whole iterations added up: seconds from reports, joules from the energy counters.

    An iteration counts once the next one began right after it: only then has its energy
    been read at both ends.
    """

    iterations: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    begin_s: float = math.inf  # of the first iteration
    end_s: float = -math.inf  # of the last one; other time may lie between
    _last: Record | None = None

    def add(self, record: Record) -> None:
        """Adds the next iteration. A gap, as of a suspended machine, belongs to no iteration."""
        last = self._last
        if last is not None and _follows(last, record):
            self.iterations += 1
            self.seconds += last.duration_s
            self.joules += sum(record.counters_j) - sum(last.counters_j)
            self.begin_s = min(self.begin_s, last.begin_s)
            self.end_s = last.begin_s + last.duration_s
        self._last = record

    def cut(self) -> None:
        """End the current stretch: the next iteration does not follow the last one."""
        self._last = None

    @property
    def time_s(self) -> float | None:
        """Mean iteration time; None before the first whole iteration."""
        return self.seconds / self.iterations if self.iterations else None

    @property
    def energy_j(self) -> float | None:
        """Mean energy of all GPUs per iteration."""
        return self.joules / self.iterations if self.iterations else None


def _follows(last: Record, record: Record) -> bool:
    between_s = record.begin_s - (last.begin_s + last.duration_s)
    return record.iteration == last.iteration + 1 and abs(between_s) < GAP_S
