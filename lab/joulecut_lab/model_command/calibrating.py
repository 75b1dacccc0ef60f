"""`joulecut model calibrate DATA.csv --system NAME --out FILE`: a system fitted to measurements.

Measured iterations are CSV: keys of a run file and measured figures as columns. A cell may be
empty where a key has a default. Keys of the system are allowed where they say what the given system
says.
"""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import Field, asdict, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from joulecut_cli import figures, outfile
from joulecut_controller.sources import csv_file
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.calibrate import POWERS, Calibration, Measurement, calibrate
from joulecut_lab.model.catalogue import ARCHITECTURES
from joulecut_lab.model.run import Run
from joulecut_lab.model.system import System
from joulecut_lab.run_file import check, read_model, reader, system_of
from joulecut_wire import flags
from joulecut_wire.command import FINE
from joulecut_wire.document import Document
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import choice, text
from joulecut_wire.section import Take, flat

ANSWER = ("rows", "fitted", "doubt", "components", "assumed", "time_error", "time_bias",
          "energy_error", "memory_error", "notes")  # fmt: skip
BYTES_MAX = 32 << 20
ROWS_MIN = 3  # fewer say nothing about what a calibration leaves out
TIME_S_MAX, ENERGY_J_MAX, MEMORY_BYTES_MAX = 1e6, 1e15, 1e13
_SHAPE = {f.name: f for f in fields(Architecture) if f.name != "name"}
_RUN = {f.name: f for f in fields(Run)}
_SYSTEM = {f.name: f for f in fields(System) if f.name != "name"}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def _cell(field: "Field[Any]") -> Take:
    """Reads a cell as the field's type."""
    read = reader(field)
    if field.type is bool:
        return lambda cell: read(_FLAGS.get(str(cell).lower(), cell))
    return lambda cell: read(cell if field.type is str else flags.plain(str(cell)))


_CELLS: dict[str, Any] = {name: _cell(one) for name, one in (_SHAPE | _RUN | _SYSTEM).items()}
_ROW = flat(
    dict,
    required=("iteration_time_s",),
    model=choice(*ARCHITECTURES),
    accelerator=text(200, "a name"),
    **_CELLS,
    iteration_time_s=flags.number(0.0, TIME_S_MAX, above=True, unit="seconds"),
    energy_j=flags.number(0.0, ENERGY_J_MAX, above=True, unit="joules"),
    memory_bytes=flags.number(0.0, MEMORY_BYTES_MAX, above=True, unit="bytes"),
)


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
        answer = {key: getattr(found, key) for key in ANSWER}
        print(json.dumps(answer, indent=1))
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
    lines = csv_file.lines(path, BYTES_MAX)
    found = [
        _measurement(f"{path}:{line}", row, system)
        for line, row in csv_file.table(lines, str(path), _ROW)
    ]
    if len(found) < ROWS_MIN:
        raise BadInput(str(path), f"{len(found)} rows", f"at least {ROWS_MIN}")
    return found


def _measurement(where: str, row: dict[str, Any], system: System) -> Measurement:
    for key in row.keys() & _SYSTEM.keys():
        if row[key] != getattr(system, key):
            what = f"{row[key]:g}, but {system.name} has {getattr(system, key):g}"
            raise BadInput(f"{where}: {key}", what, "one system per file, as --system says")
    given = {key: row[key] for key in _RUN if key in row}
    sizes = (given.get(key, 1) for key in ("tensor", "pipeline", "data", "context"))
    run = Run(**{"gpus": prod(sizes), **given})
    document, shape = Document(where, {}, {}), {key: row[key] for key in _SHAPE if key in row}
    model = read_model(document, Path(), row.get("model", shape), run.sequence)
    check(document, (), run, model)
    time_s, energy_j = row["iteration_time_s"], row.get("energy_j")
    return Measurement(model, run, time_s, energy_j, row.get("memory_bytes"))
