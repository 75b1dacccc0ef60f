"""Tables that commands write: CSV always, Parquet where pyarrow is installed."""

import csv
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecut_cli.outfile import checked, replacing
from joulecut_wire.errors import BadInput, not_installed

SUFFIXES = (".csv", ".parquet")


def target(word: str, flag: str = "--out") -> Path:
    """Checks where a table is to go, before anything runs. Raises BadInput, Unavailable."""
    path = Path(word)
    if path.suffix not in SUFFIXES:
        raise BadInput(flag, f'"{word}" ends in none of them', " or ".join(SUFFIXES))
    if path.suffix == ".parquet":
        pyarrow("pyarrow")
    checked(flag, path)
    return path


def write(
    path: Path, columns: Mapping[str, Sequence[object]], text: Callable[[object], object] = str
) -> None:
    """`text` is what a cell of CSV shows of a value. Raises BadInput where the file cannot be
    written, Unavailable without pyarrow.
    """
    try:
        with replacing(path) as spare:
            if path.suffix == ".parquet":
                table = pyarrow("pyarrow").table(dict(columns))
                pyarrow("pyarrow.parquet").write_table(table, spare)
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


def pyarrow(module: str) -> Any:
    """Raises Unavailable where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        what, otherwise = "Parquet needs pyarrow, which is not installed", ", or name a .csv file"
        raise not_installed(what, "parquet", otherwise) from None
