"""What a simulated job knows about itself, iteration by iteration, for those who judge.

Written by the job, read by the demo's summary and by tests; the system under test never
sees it. Two files of a bounded length at most.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

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
        self._file.write(json.dumps(asdict(record)) + "\n")
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
        raw = json.loads(line)
        return Record(
            **{
                **raw,
                "clocks_mhz": tuple(raw["clocks_mhz"]),
                "counters_j": tuple(raw["counters_j"]),
            }
        )
    except (ValueError, TypeError, KeyError):
        return None
