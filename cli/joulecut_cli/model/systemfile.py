"""Systems in files: written by calibration, read by run files."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from joulecut_cli.outfile import replacing
from joulecut_engine.model.system import System
from joulecut_wire.errors import BadInput


def write(flag: str, path: Path, system: System, notes: Sequence[str]) -> None:
    """YAML of every key; the notes say what was fitted, measured and assumed. Raises BadInput."""
    import yaml

    text = yaml.safe_dump({"system": asdict(system), "notes": list(notes)}, sort_keys=False)
    try:
        with replacing(path) as spare:
            spare.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(flag, f"{path}: {error.strerror}", "a writable file") from None
