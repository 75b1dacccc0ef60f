"""Measured stage profiles from CSV files; every field is checked.

A profile sets the cost of every clock. A NaN or a missing stage would end in a wrong plan, so the
first fault stops the read and names its line and column.

The columns are those of the public Perseus artifact: stage, instruction, frequency (MHz),
time (s) and energy (J) of one forward or backward. Other instructions are those of
`workload.Kind`; a backward may be given as `input` and `weight` instead.
"""

import csv
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from joulecut_controller.sources import csv_file
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, KINDS_ALL, SENDS, Kind, Profile
from joulecut_wire import flags
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import choice
from joulecut_wire.section import key, section_of

FILE_BYTES_MAX = 32 << 20  # 256 stages x 2 x 500 clocks are half of this
# Allowed instructions; sends have no clock, so their cost is in the job file.
INSTRUCTIONS = tuple(kind for kind in KINDS_ALL if kind not in SENDS)


@dataclass(frozen=True, slots=True)
class _Row:
    stage: int = key(csv_file.whole(0, 255))  # as many as a policy may have
    instruction: Kind = key(choice(*INSTRUCTIONS))
    frequency: int = key(csv_file.whole(1, 10_000))  # no GPU comes near
    # Operations take microseconds to minutes; values outside have another unit.
    time: float = key(flags.number(1e-9, 1e6, unit="seconds"))
    energy: float = key(flags.number(1e-9, 1e12, unit="joules"))


COLUMNS = tuple(section_of(_Row).keys)


def read(path: Path, *, whole: bool = True) -> Profile:
    """Reads a profile. Raises BadInput with file, line and column of the first fault."""
    return of_rows(csv_file.lines(path, FILE_BYTES_MAX), str(path), whole=whole)


def parse(raw: bytes, name: str) -> Profile:
    """As `read`, from bytes that are already at hand; `name` is used in messages."""
    return of_rows(csv_file.rows(raw, name), name)


def of_rows(rows: Iterable[tuple[int, list[str]]], name: str, *, whole: bool = True) -> Profile:
    """As `read`. `whole` wants every kind of every stage, as a plan does; a fit takes any of
    them.
    """
    found: dict[tuple[int, Kind], dict[int, ClockOption]] = {}
    line_of: dict[tuple[int, Kind, int], int] = {}
    for line, row in csv_file.table(rows, name, _Row):
        stage, kind, clock_mhz = place = (row.stage, row.instruction, row.frequency)
        if place in line_of:
            what = f"stage {stage} {kind} at {clock_mhz} MHz again, first in line {line_of[place]}"
            raise BadInput(f"{name}:{line}: frequency", what, "one row each")
        line_of[place] = line
        option = ClockOption(clock_mhz, row.time, row.energy)
        found.setdefault((stage, kind), {})[clock_mhz] = option
    if not found:
        raise BadInput(name, "no rows", f"rows of {','.join(COLUMNS)}")
    if whole:
        _check_whole(name, found.keys())
    return Profile(
        {k: tuple(options.values()) for k, options in sorted(found.items())}, source=name
    )


def _check_whole(name: str, given: Collection[tuple[int, Kind]]) -> None:
    stages = 1 + max(stage for stage, _ in given)
    for stage in range(stages):
        kinds = {kind for row, kind in given if row == stage}
        split = {"input", "weight"} & kinds
        missing = [
            k for k in (("forward", "input", "weight") if split else KINDS) if k not in kinds
        ]
        if missing and not kinds.issuperset(KINDS):
            what = f"no {' and no '.join(missing)} of stage {stage}"
            allowed = f"rows of every kind for every stage from 0 to {stages - 1}"
            raise BadInput(f"{name}: stage", what, allowed)


def write(profile: Profile, out: TextIO) -> None:
    """Writes a profile as `read` takes it, highest clock first."""
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    for (stage, kind), options in sorted(profile.options.items()):
        for one in sorted(options, key=lambda option: -option.clock_mhz):
            costs = f"{one.time_s:.9g}", f"{one.energy_j:.9g}"
            lines.writerow((stage, kind, one.clock_mhz, *costs))
