"""A study as a tidy table: a row per layer, data type and clock; its curves and best points.

CSV. Reading checks every field and names the line.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from joulecut_cli import figures
from joulecut_controller.sources import csv_file
from joulecut_lab import tablefile
from joulecut_lab.study.bench import Basis
from joulecut_sim.layer import DTYPES, Dtype, Pass, Shape
from joulecut_wire import flags
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import choice, text
from joulecut_wire.section import key, section_of

CLOCK_MHZ_MAX = 100_000
FILE_BYTES_MAX = 512 << 20  # of CSV: ROWS_MAX rows are less
ROWS_MAX = 1_000_000  # of a file: everything a card can be asked in a year


def _yes(word: object) -> bool:
    return bool(choice("yes", "no")(word) == "yes")


# As in a profile: what is outside was written in another unit, and squares of it fit no number.
_TIME_S, _POWER_W = flags.number(1e-9, 1e6), flags.number(1e-3, 1e5)
_ENERGY_J = flags.number(1e-12, 1e11)
_FLOPS = flags.number(0.0, 1e24, above=True)  # a second of a million of the fastest cards
_SIZE = csv_file.whole(1, 10_000_000)
_OTHER = flags.number(0.0, 1e12)  # joules by cause, spreads, degrees: shown, or not used at all
_NAME = text(200, "a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement. Joules of the four parts are known of simulated cards alone.

    `clock_asked_mhz` 0 means the driver's default; `stable` is "no" where time and power
    had not settled when the attempt was given up.
    """

    basis: Basis = key(choice(*get_args(Basis)))
    card: str = key(_NAME)
    driver: str = key(_NAME, "")
    uuid: str = key(_NAME, "")
    model: str = key(_NAME)
    d_model: int = key(_SIZE)
    heads: int = key(_SIZE)
    d_ffn: int = key(_SIZE)
    sequence: int = key(_SIZE)
    batch: int = key(_SIZE)
    dtype: Dtype = key(choice(*get_args(Dtype)))
    which: Pass = key(choice(*get_args(Pass)), name="pass")  # a word of Python's own
    clock_asked_mhz: int = key(csv_file.whole(0, CLOCK_MHZ_MAX))
    clock_mhz: float = key(flags.number(0.0, CLOCK_MHZ_MAX, above=True))
    time_s: float = key(_TIME_S)
    power_w: float = key(_POWER_W)
    energy_j: float = key(_ENERGY_J)
    flops: float = key(_FLOPS)
    temperature_celsius: float | None = key(_OTHER, None)
    capped: bool = key(_yes)
    stable: bool = key(_yes)
    windows: int = key(csv_file.whole(1, 10**12))
    time_spread: float = key(_OTHER)
    power_spread: float = key(_OTHER)
    switching_j: float | None = key(_OTHER, None)
    clock_j: float | None = key(_OTHER, None)
    leakage_j: float | None = key(_OTHER, None)
    memory_j: float | None = key(_OTHER, None)

    @property
    def layer(self) -> Shape:
        return Shape(self.model, self.d_model, self.heads, self.d_ffn, self.sequence, self.batch)

    @property
    def setting(self) -> tuple[str, str, int, int, str, str]:
        """What is the same at every clock: card, model, sequence, batch, data type, pass."""
        return self.card, self.model, self.sequence, self.batch, self.dtype, self.which

    @property
    def nominal_mhz(self) -> float:
        """The requested clock; without a request, the mean clock seen."""
        return float(self.clock_asked_mhz or self.clock_mhz)


COLUMNS = tuple(section_of(Row).keys)


def write(path: Path, rows: Sequence[Row]) -> None:
    """Raises BadInput where the file cannot be written."""
    columns = {name: [_typed(row, name) for row in rows] for name in COLUMNS}
    tablefile.write(path, columns, _text)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """As `joulecut study layer` writes them, card by card: a forest draws rows by their place, so
    the same rows in another order give another forest."""
    return sorted(
        rows,
        key=lambda row: (
            (row.card, row.basis, row.d_model, row.model, row.sequence, row.batch),
            (DTYPES.index(row.dtype), row.which, row.clock_asked_mhz, row.clock_mhz, row.uuid),
        ),
    )


def read(path: Path) -> list[Row]:
    """Raises BadInput with file and line on anything that is not such a table."""
    lines = csv_file.lines(path, FILE_BYTES_MAX)
    rows: list[Row] = []
    seen: dict[tuple[object, ...], int] = {}
    for number, row in csv_file.table(lines, str(path), Row, others=True):
        if len(rows) >= ROWS_MAX:
            raise BadInput(str(path), "too long", f"up to {ROWS_MAX} rows")
        if not math.isclose(row.energy_j, row.power_w * row.time_s, rel_tol=1e-3):
            what = f"{row.energy_j:g} J is not {row.power_w:g} W times {row.time_s:g} s"
            raise BadInput(f"{path}:{number}: energy_j", what, "power_w * time_s")
        one = (*row.setting, row.uuid, row.clock_asked_mhz, row.basis)
        if one in seen:
            raise BadInput(f"{path}:{number}", f"repeats line {seen[one]}", "each clock once")
        seen[one] = number
        rows.append(row)
    if not rows:
        raise BadInput(str(path), "holds no rows", "what joulecut study layer --out writes")
    return rows


def _typed(row: Row, name: str) -> object:
    value: object = getattr(row, "which" if name == "pass" else name)
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _text(value: object) -> str:
    """Seven digits of a float: more than any sensor has, and the same on every machine."""
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


Setting = tuple[str, str, int, int, str, str]


@dataclass(frozen=True, slots=True)
class Saving:
    """The fastest point of a curve against the one of least energy."""

    setting: Setting
    fastest: Row
    frugal: Row

    @property
    def saved_ratio(self) -> float:
        return 1.0 - self.frugal.energy_j / self.fastest.energy_j

    @property
    def slower_ratio(self) -> float:
        return self.frugal.time_s / self.fastest.time_s - 1.0


def curves(rows: Iterable[Row]) -> dict[Setting, tuple[Row, ...]]:
    """Stable rows by setting, clocks ascending; in the order of the file."""
    found: dict[Setting, list[Row]] = defaultdict(list)
    for row in rows:
        if row.stable:
            found[row.setting].append(row)
    return {
        setting: tuple(sorted(curve, key=lambda row: (row.clock_asked_mhz, row.clock_mhz)))
        for setting, curve in found.items()
    }


def frontier(curve: Sequence[Row]) -> tuple[Row, ...]:
    """Rows that no other beats on both time and energy, fastest first."""
    kept: list[Row] = []
    for row in sorted(curve, key=lambda row: (row.time_s, row.energy_j)):
        if not kept or row.energy_j < kept[-1].energy_j:
            kept.append(row)
    return tuple(kept)


def saving(curve: Sequence[Row]) -> Saving:
    points = frontier(curve)
    return Saving(points[0].setting, points[0], points[-1])


def savings(rows: Iterable[Row]) -> list[Saving]:
    """One per curve of at least two clocks: a single one has nothing to compare."""
    return [saving(curve) for curve in curves(rows).values() if len(curve) > 1]


SAVING_HEAD = ("layer", "s", "dtype", "fastest", "least energy", "saved", "slower")


def saving_rows(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Lines below `SAVING_HEAD`."""
    return [
        (one.fastest.model, str(one.fastest.sequence), one.fastest.dtype,
         f"{one.fastest.clock_asked_mhz} MHz", f"{one.frugal.clock_asked_mhz} MHz",
         figures.percent(one.saved_ratio), figures.percent(one.slower_ratio))
        for one in savings(rows)
    ]  # fmt: skip
