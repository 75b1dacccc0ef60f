"""Measured stage profiles from CSV files; every field is checked.

A profile sets the cost of every clock. A NaN or a missing stage would end in a wrong plan, so the
first fault stops the read and names its line and column.

The columns are those of the public Perseus artifact: stage, instruction, frequency (MHz),
time (s) and energy (J) of one forward or backward. Other instructions are those of
`workload.Kind`; a backward may be given as `input` and `weight` instead.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from joulecut_controller.sources import csv_file
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, KINDS_ALL, SENDS, Kind, Profile
from joulecut_wire.errors import BadInput

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")

FILE_BYTES_MAX = 32 << 20  # 256 stages x 2 x 500 clocks are half of this


@dataclass(frozen=True, slots=True)
class _Span:
    """Allowed values of a column."""

    low: float
    high: float
    what: str
    whole: bool = False

    @property
    def text(self) -> str:
        return f"{self.what} from {self.low:g} to {self.high:g}"


_SPANS = {
    "stage": _Span(0, 255, "a whole number", whole=True),  # as many as a policy may have
    "frequency": _Span(1, 10_000, "whole MHz", whole=True),  # no GPU comes near
    # Operations take microseconds to minutes; values outside have another unit.
    "time": _Span(1e-9, 1e6, "seconds"),
    "energy": _Span(1e-9, 1e12, "joules"),
}
# Allowed instructions; sends have no clock, so their cost is in the job file.
INSTRUCTIONS = tuple(kind for kind in KINDS_ALL if kind not in SENDS)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


def read(path: Path, *, whole: bool = True) -> Profile:
    """Reads a profile. Raises BadInput with file, line and column of the first fault.

    `whole` wants every kind of every stage, as a plan does; a fit takes any of them.
    """
    raw = csv_file.read(path, FILE_BYTES_MAX)
    return parse(raw, str(path), whole=whole)


def parse(raw: bytes, name: str, *, whole: bool = True) -> Profile:
    """As `read`, from bytes that are already at hand; `name` is used in messages."""
    reader = _Reader(name)
    for line, fields in csv_file.rows(raw, name, FILE_BYTES_MAX):
        reader.take(line, fields)
    return reader.profile(whole=whole)


def write(profile: Profile, out: TextIO) -> None:
    """Writes a profile as `read` takes it, highest clock first."""
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    for (stage, kind), options in sorted(profile.options.items()):
        for one in sorted(options, key=lambda option: -option.clock_mhz):
            costs = f"{one.time_s:.9g}", f"{one.energy_j:.9g}"
            lines.writerow((stage, kind, one.clock_mhz, *costs))


class _Reader:
    """Header first, then one row after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._columns: list[str] = []
        self._options: dict[tuple[int, Kind], dict[int, ClockOption]] = {}
        self._line_of: dict[tuple[int, Kind, int], int] = {}

    def take(self, line: int, fields: list[str]) -> None:
        if not self._columns:
            where = f"{self._name}:{line}"
            self._columns = csv_file.header(where, fields, COLUMNS, COLUMNS)
            return
        csv_file.check_width(f"{self._name}:{line}", fields, self._columns)
        row = dict(zip(self._columns, fields, strict=True))
        stage = int(self._number(line, "stage", row))
        kind = self._kind(line, row)
        clock_mhz = int(self._number(line, "frequency", row))
        key = (stage, kind, clock_mhz)
        if key in self._line_of:
            what = f"stage {stage} {kind} at {clock_mhz} MHz again, first in line"
            raise BadInput(
                self._at(line, "frequency"), f"{what} {self._line_of[key]}", "one row each"
            )
        self._line_of[key] = line
        self._options.setdefault((stage, kind), {})[clock_mhz] = ClockOption(
            clock_mhz,
            self._number(line, "time", row),
            self._number(line, "energy", row),
        )

    def profile(self, *, whole: bool) -> Profile:
        wanted = ",".join(COLUMNS)
        if not self._columns:
            raise BadInput(self._name, "no header", f"first line {wanted}")
        if not self._options:
            raise BadInput(self._name, "no rows", f"rows of {wanted}")
        if whole:
            self._check_whole()
        return Profile(
            {key: tuple(options.values()) for key, options in sorted(self._options.items())},
            source=self._name,
        )

    def _check_whole(self) -> None:
        stages = 1 + max(stage for stage, _ in self._options)
        for stage in range(stages):
            given = {kind for row, kind in self._options if row == stage}
            split = {"input", "weight"} & given
            wanted_kinds = ("forward", "input", "weight") if split else KINDS
            missing = [kind for kind in wanted_kinds if kind not in given]
            if missing and not given.issuperset(KINDS):
                what = f"no {' and no '.join(missing)} of stage {stage}"
                allowed = f"rows of every kind for every stage from 0 to {stages - 1}"
                raise BadInput(f"{self._name}: stage", what, allowed)

    def _at(self, line: int, column: str) -> str:
        return f"{self._name}:{line}: {column}"

    def _kind(self, line: int, row: dict[str, str]) -> Kind:
        word = row["instruction"]
        for kind in INSTRUCTIONS:
            if word == kind:
                return kind
        allowed = ", ".join(INSTRUCTIONS)
        raise BadInput(self._at(line, "instruction"), csv_file.shown(word), allowed)

    def _number(self, line: int, column: str, row: dict[str, str]) -> float:
        field, span = row[column], _SPANS[column]
        where = self._at(line, column)
        if not _NUMBER.fullmatch(field):
            raise BadInput(where, f"{csv_file.shown(field)} is not a number", span.text)
        value = float(field)
        if not span.low <= value <= span.high:
            raise BadInput(where, f"{csv_file.shown(field)} is out of range", span.text)
        if span.whole and value != int(value):
            raise BadInput(where, f"{csv_file.shown(field)} is not a whole number", span.text)
        return value
