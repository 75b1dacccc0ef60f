"""`joulecut model calibrate DATA.csv --system NAME --out FILE`: a system fitted to measurements."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from joulecut_cli import figures
from joulecut_cli.model.measurements import read
from joulecut_cli.model.systemfile import write
from joulecut_cli.outfile import checked
from joulecut_controller.sources.run_file import system_of
from joulecut_engine.model.calibrate import Calibration, calibrate
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput


def run(options: Namespace) -> int:
    """Raises BadInput."""
    out = Path(options.out)
    if out.suffix not in {".yaml", ".yml"}:
        raise BadInput("--out", f'"{out}" is no .yaml file', "a name in .yaml")
    checked("--out", out)
    system = system_of(options.system, "--system")
    found = calibrate(read(options.data, system), system)
    fitted = replace(found.system, name=f"{system.name}, calibrated")
    write("--out", out, fitted, _notes(options.data, found))
    if options.json:
        told = {
            "rows": found.rows, "fitted": found.fitted, "assumed": list(found.assumed),
            "time_error": found.time_error, "time_bias": found.time_bias,
            "energy_error": found.energy_error, "memory_error": found.memory_error,
            "notes": list(found.notes),
        }  # fmt: skip
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
    rows = [[key, f"{value:.4g}"] for key, value in found.fitted.items()]
    head = ["fitted", "value"]
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
