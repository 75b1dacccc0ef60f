"""`joulecut model calibrate DATA.csv --system NAME --out FILE`: a system fitted to measurements.

Measured iterations are CSV: keys of a run file and measured figures as columns. A cell may be
empty where a key has a default. Keys of the system are allowed where they say what the given system
says.
"""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from joulecut_cli import figures, outfile
from joulecut_controller.sources import csv_file
from joulecut_controller.sources.run_file import reader, system_of, usual_shape
from joulecut_engine.model.architecture import Architecture
from joulecut_engine.model.calibrate import POWERS, Calibration, Measurement, calibrate
from joulecut_engine.model.catalogue import ARCHITECTURES
from joulecut_engine.model.run import Run, misfit
from joulecut_engine.model.system import System
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault, nearest

ANSWER = ("rows", "fitted", "doubt", "components", "assumed", "time_error", "time_bias",
          "energy_error", "memory_error", "notes")  # fmt: skip
BYTES_MAX = 32 << 20
ROWS_MIN = 3  # fewer say nothing about what a calibration leaves out
TIME_S_MAX, ENERGY_J_MAX, MEMORY_BYTES_MAX = 1e6, 1e15, 1e13
_MEASURED = {
    "iteration_time_s": TIME_S_MAX,
    "energy_j": ENERGY_J_MAX,
    "memory_bytes": MEMORY_BYTES_MAX,
}
_SHAPE = {f.name: f for f in fields(Architecture) if f.name != "name"}
_RUN = {f.name: f for f in fields(Run)}
_SYSTEM = {f.name: f for f in fields(System) if f.name != "name"}
COLUMNS = ("model", "accelerator", *_SHAPE, *_RUN, *_SYSTEM, *_MEASURED)


def run(options: Namespace) -> int:
    """Raises BadInput."""
    out = Path(options.out)
    if out.suffix not in {".yaml", ".yml"}:
        raise BadInput("--out", f'"{out}" is no .yaml file', "a name in .yaml")
    outfile.checked("--out", out)
    system = system_of(options.system, "--system")
    found = calibrate(measurements(options.data, system), system)
    fitted = replace(found.system, name=f"{system.name}, calibrated")
    outfile.write("--out", out, system_yaml(fitted, _notes(options.data, found)))
    if options.json:
        told = {key: getattr(found, key) for key in ANSWER}
        print(json.dumps(told, indent=1))
    else:
        print("\n".join(_as_text(found, system.name)))
        print(f"written: {out}; in a run file: system: {{file: {out.name}}}")
    return FINE


def _as_text(found: Calibration, name: str) -> list[str]:
    errors = [(f"time {figures.percent(found.time_error)}, "
              f"bias {figures.percent(found.time_bias, signed=True)}")]  # fmt: skip
    for what, error in (("energy", found.energy_error), ("memory", found.memory_error)):
        if error is not None:
            errors.append(f"{what} {figures.percent(error)}")
    rows = [
        [key, f"{value:.4g}", f"{figures.percent(found.doubt[key])}",
         figures.percent(found.components[POWERS[key]]) if key in POWERS else figures.NONE]
        for key, value in found.fitted.items()
    ]  # fmt: skip
    head = ["fitted", "value", "standard error", "of the energy"]
    return [
        f"{name}: {len(found.fitted)} numbers fitted to {found.rows} measured iterations",
        f"mean error on these rows, not on others: {'; '.join(errors)}",
        "",
        *figures.table(head, rows, frozenset(head[1:])),
        "",
        f"assumed, as no row depends on them: {', '.join(found.assumed) or 'none'}",
        *found.notes,
    ]


def _notes(data: Path, found: Calibration) -> list[str]:
    """What a reader of the system's file must know."""
    fitted = f"fitted to {found.rows} rows of {data.name}: {', '.join(found.fitted)}"
    error = f"mean error on these rows: time {found.time_error:.4f}"
    return [fitted, error, f"assumed: {', '.join(found.assumed)}", *found.notes]


def system_yaml(system: System, notes: Sequence[str]) -> str:
    """Every key, as run files read it; the notes name fitted, measured and assumed keys."""
    import yaml

    text: str = yaml.safe_dump(
        {"system": asdict(system), "notes": list(notes)}, sort_keys=False
    )  # fmt: skip
    return text


def measurements(path: Path, system: System) -> list[Measurement]:
    """Raises BadInput with file, line and column."""
    raw = csv_file.read(path, BYTES_MAX)
    columns: list[str] = []
    found = []
    for line, cells in csv_file.rows(raw, str(path), BYTES_MAX):
        where = f"{path}:{line}"
        if not columns:
            unknown = next((cell for cell in cells if cell not in COLUMNS), None)
            if unknown is not None:
                what = f"unknown column {csv_file.shown(unknown)}{nearest(unknown, COLUMNS)}"
                raise BadInput(where, what, "keys of a run file, " + ", ".join(_MEASURED))
            columns = csv_file.header(where, cells, COLUMNS, ("iteration_time_s",))
            continue
        csv_file.check_width(where, cells, columns)
        filled = {c: cell for c, cell in zip(columns, cells, strict=True) if cell}
        found.append(_measurement(where, filled, system))
    if len(found) < ROWS_MIN:
        raise BadInput(str(path), f"{len(found)} rows", f"at least {ROWS_MIN}")
    return found


def _measurement(where: str, cells: dict[str, str], system: System) -> Measurement:
    values: dict[str, float | None] = {}
    for key, high in _MEASURED.items():
        values[key] = _number(f"{where}: {key}", cells[key], high) if key in cells else None
    time_s = values["iteration_time_s"]
    if time_s is None:
        raise BadInput(f"{where}: iteration_time_s", "missing", "seconds")
    for key in cells.keys() & _SYSTEM.keys():
        told = _typed(where, key, cells[key], _SYSTEM[key])
        if told != getattr(system, key):
            what = f"{told:g}, but {system.name} has {getattr(system, key):g}"
            raise BadInput(f"{where}: {key}", what, "one system per file, as --system says")
    run = _run(where, cells)
    model = _model(where, cells, run.sequence)
    complaint = misfit(run, model)
    if complaint is not None:
        what = f"{complaint.what} does not fit"
        raise BadInput(f"{where}: {complaint.key}", what, complaint.allowed)
    return Measurement(model, run, time_s, values["energy_j"], values["memory_bytes"])


def _run(where: str, cells: dict[str, str]) -> Run:
    given = {k: _typed(where, k, cells[k], f) for k, f in _RUN.items() if k in cells}
    if "gpus" not in given:
        given["gpus"] = 1
        for key in ("tensor", "pipeline", "data", "context"):
            given["gpus"] *= given.get(key, 1)
    return Run(**given)


def _model(where: str, cells: dict[str, str], sequence: int) -> Architecture:
    if "model" in cells:
        name = cells["model"]
        if name not in ARCHITECTURES:
            what = f"no model {csv_file.shown(name)}{nearest(name, tuple(ARCHITECTURES))}"
            raise BadInput(f"{where}: model", what, ", ".join(ARCHITECTURES))
        return ARCHITECTURES[name]
    given = {k: _typed(where, k, cells[k], f) for k, f in _SHAPE.items() if k in cells}
    given = {**usual_shape(given, sequence), **given}
    for key, field in _SHAPE.items():
        if field.default is MISSING and given.get(key) is None:
            raise BadInput(f"{where}: {key}", "missing", "a column of it, or of model")
    return Architecture(**given)


def _typed(where: str, key: str, cell: str, field: Any) -> Any:
    """A cell as the field's type."""
    text: object = cell
    if field.type is bool:
        flags = {"true": True, "1": True, "false": False, "0": False}
        text = flags.get(cell.lower(), cell)
    elif field.type in {int, float}:
        try:
            number = float(cell)
        except ValueError:
            number = cell  # type: ignore[assignment]
        whole = field.type is int and isinstance(number, float) and number.is_integer()
        text = int(number) if whole else number
    try:
        return reader(field)(text)
    except Fault as fault:
        raise BadInput(f"{where}: {key}", fault.what, fault.allowed) from None


def _number(where: str, cell: str, high: float) -> float:
    try:
        found = float(cell)
    except ValueError:
        raise BadInput(where, f"{csv_file.shown(cell)} is not a number", "a number") from None
    if not 0.0 < found <= high:
        raise BadInput(where, f"{csv_file.shown(cell)} is out of range", f"above 0 up to {high:g}")
    return found
