"""Tables that commands write: CSV, and Parquet where pyarrow is installed."""

import csv
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecut_cli.outfile import checked, replacing
from joulecut_wire.errors import BadInput, not_installed

PARQUET = ".parquet"


def target(word: str, *, parquet: bool = False) -> Path:
    """Checks where the table of `--out` is to go, before anything runs. Raises BadInput,
    Unavailable.
    """
    path, suffixes = Path(word), (".csv", *((PARQUET,) if parquet else ()))
    if path.suffix not in suffixes:
        raise BadInput("--out", f'"{word}" has another ending', " or ".join(suffixes))
    if path.suffix == PARQUET:
        _pyarrow("pyarrow")
    return checked("--out", path)


def write(
    path: Path, columns: Mapping[str, Sequence[object]], text: Callable[[object], object] = str
) -> None:
    """`text` is a cell of a value in CSV. Raises BadInput where the file cannot be written."""
    try:
        with replacing(path) as spare:
            if path.suffix == PARQUET:
                table = _pyarrow("pyarrow").table(dict(columns))
                _pyarrow("pyarrow.parquet").write_table(table, spare)
                return
            with spare.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                for row in zip(*columns.values(), strict=True):
                    writer.writerow(map(text, row))
    except OSError as error:
        raise BadInput(
            str(path), error.strerror or "cannot be written", "a writable file"
        ) from None


def _pyarrow(module: str) -> Any:
    """Raises Unavailable where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        what, otherwise = "Parquet needs pyarrow, which is not installed", ", or name a .csv file"
        raise not_installed(what, "parquet", otherwise) from None
