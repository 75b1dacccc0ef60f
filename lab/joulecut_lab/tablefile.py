"""CSV tables that commands write."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from joulecut_cli.outfile import checked, replacing
from joulecut_wire.errors import BadInput


def target(word: str) -> Path:
    """Checks where the table of `--out` is to go, before anything runs. Raises BadInput."""
    path = Path(word)
    if path.suffix != ".csv":
        raise BadInput("--out", f'"{word}" has another ending', ".csv")
    return checked("--out", path)


def write(
    path: Path, columns: Mapping[str, Sequence[object]], text: Callable[[object], object] = str
) -> None:
    """`text` is a cell of a value. Raises BadInput where the file cannot be written."""
    try:
        with replacing(path) as spare, spare.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for row in zip(*columns.values(), strict=True):
                writer.writerow(map(text, row))
    except OSError as error:
        raise BadInput(
            str(path), error.strerror or "cannot be written", "a writable file"
        ) from None
