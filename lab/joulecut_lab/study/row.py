"""A study as a tidy table: a row per layer, data type and clock; its curves and best points.

CSV always; Parquet where pyarrow is installed. Reading checks every field and names the line.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from joulecut_cli import tablefile
from joulecut_cli.tablefile import SUFFIXES
from joulecut_controller.sources import csv_file
from joulecut_lab.study.bench import Basis
from joulecut_sim.layer import DTYPES, Dtype, Pass, Shape
from joulecut_wire.errors import BadInput

CLOCK_MHZ_MAX = 100_000
FILE_BYTES_MAX = 512 << 20  # of CSV: ROWS_MAX rows are less
ROWS_MAX = 1_000_000  # of a file: everything a card can be asked in a year


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. Joules of the four parts are known of simulated cards alone.

    `clock_asked_mhz` 0 means the driver's default; `stable` is "no" where time and power
    had not settled when the attempt was given up.
    """

    basis: Basis
    card: str
    driver: str
    uuid: str
    model: str
    d_model: int
    heads: int
    d_ffn: int
    sequence: int
    batch: int
    dtype: Dtype
    which: Pass
    clock_asked_mhz: int
    clock_mhz: float
    time_s: float
    power_w: float
    energy_j: float
    flops: float
    temperature_celsius: float | None
    capped: bool
    stable: bool
    windows: int
    time_spread: float
    power_spread: float
    switching_j: float | None
    clock_j: float | None
    leakage_j: float | None
    memory_j: float | None

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


_NAMES = {"which": "pass"}  # a word of Python's own
COLUMNS = tuple(_NAMES.get(field.name, field.name) for field in fields(Row))
_OPTIONAL = {"temperature_celsius", "switching_j", "clock_j", "leakage_j", "memory_j"}
_WHOLE = {"d_model", "heads", "d_ffn", "sequence", "batch", "windows"}
_WORDS: dict[str, tuple[str, ...]] = {
    "basis": get_args(Basis),
    "dtype": get_args(Dtype),
    "pass": get_args(Pass),
    "capped": ("yes", "no"),
    "stable": ("yes", "no"),
}
_TEXT = {"card", "driver", "uuid", "model"}
_FROM_ZERO = {"clock_asked_mhz", "time_spread", "power_spread", *_OPTIONAL}
# As in a profile: what is outside was written in another unit, and squares of it fit no number.
_TIME_S, _POWER_W, _ENERGY_J = (1e-9, 1e6), (1e-3, 1e5), (1e-12, 1e11)
_SPANS: dict[str, tuple[float, float]] = {
    "time_s": _TIME_S,
    "power_w": _POWER_W,
    "energy_j": _ENERGY_J,
    "clock_asked_mhz": (0, CLOCK_MHZ_MAX),
    "clock_mhz": (0, CLOCK_MHZ_MAX),
    "flops": (0, 1e24),  # a second of a million of the fastest cards
} | dict.fromkeys(("d_model", "heads", "d_ffn", "sequence", "batch"), (0, 1e7))
_OTHER_MAX = 1e12  # joules by cause, spreads, degrees, windows: shown, or not used at all


def write(path: Path, rows: Sequence[Row]) -> None:
    """Raises BadInput where the file cannot be written, Unavailable without pyarrow."""
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
    if path.suffix not in SUFFIXES:
        raise BadInput(str(path), "ends in none of them", " or ".join(SUFFIXES))
    lines = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    rows: list[Row] = []
    seen: dict[tuple[object, ...], int] = {}
    for number, cells in lines:
        if len(rows) >= ROWS_MAX:
            raise BadInput(str(path), "too long", f"up to {ROWS_MAX} rows")
        row = _row(cells, f"{path}:{number}")
        key = (*row.setting, row.uuid, row.clock_asked_mhz, row.basis)
        if key in seen:
            raise BadInput(f"{path}:{number}", f"repeats line {seen[key]}", "each clock once")
        seen[key] = number
        rows.append(row)
    if not rows:
        raise BadInput(str(path), "holds no rows", "what joulecut study layer --out writes")
    return rows


def _csv(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    raw = csv_file.read(path, FILE_BYTES_MAX)
    lines = csv_file.rows(raw, str(path), FILE_BYTES_MAX)
    _, head = next(lines, (1, []))
    _check_head(path, head)
    for number, cells in lines:
        csv_file.check_width(f"{path}:{number}", cells, head)
        yield number, dict(zip(head, cells, strict=True))


def _parquet(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    try:
        table = tablefile.pyarrow("pyarrow.parquet").read_table(path)
    except ValueError:  # pyarrow's ArrowInvalid is one, with a message of several lines
        raise BadInput(str(path), "is not Parquet", "a Parquet file") from None
    except OSError as error:
        raise BadInput(str(path), error.strerror or "cannot be read", "a study's table") from None
    _check_head(path, table.column_names)
    return [
        (number, {name: _text(value) for name, value in record.items()})
        for number, record in enumerate(table.to_pylist(), start=1)
    ]


def _check_head(path: Path, head: Sequence[str]) -> None:
    if len(set(head)) != len(head):
        raise BadInput(f"{path}:1", "a column is named twice", ",".join(COLUMNS))
    for name in COLUMNS:
        if name not in head:
            raise BadInput(f"{path}:1", f"no column {name}", "what joulecut study layer writes")


def _row(cells: dict[str, str], where: str) -> Row:
    values = {name: _value(name, cells[name].strip(), where) for name in COLUMNS}
    values["which"] = values.pop("pass")
    row = Row(**values)
    if not math.isclose(row.energy_j, row.power_w * row.time_s, rel_tol=1e-3):
        what = f"{row.energy_j:g} J is not {row.power_w:g} W times {row.time_s:g} s"
        raise BadInput(f"{where}: energy_j", what, "power_w * time_s")
    return row


def _value(name: str, text: str, where: str) -> Any:
    if name in _TEXT:
        if not text and name in {"card", "model"}:
            raise BadInput(f"{where}: {name}", "is empty", "a name")
        return text
    if allowed := _WORDS.get(name):
        if text not in allowed:
            raise BadInput(f"{where}: {name}", f'"{text}" is none of them', ", ".join(allowed))
        return text == "yes" if name in {"capped", "stable"} else text
    if not text and name in _OPTIONAL:
        return None
    allowed_number = "a finite number from 0 up" if name in _FROM_ZERO else "a number above 0"
    try:
        value = float(text)
    except ValueError:
        raise BadInput(f"{where}: {name}", f'"{text}" is not a number', allowed_number) from None
    if not math.isfinite(value) or value < 0.0 or (value == 0.0 and name not in _FROM_ZERO):
        raise BadInput(f"{where}: {name}", f'"{text}"', allowed_number)
    low, high = _SPANS.get(name, (0.0, _OTHER_MAX))
    if not low <= value <= high:
        raise BadInput(f"{where}: {name}", f'"{text}" is out of range', f"{low:g} to {high:g}")
    if name in _WHOLE or name == "clock_asked_mhz":
        if value != int(value):
            raise BadInput(f"{where}: {name}", f'"{text}"', "a whole number")
        return int(value)
    return value


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
