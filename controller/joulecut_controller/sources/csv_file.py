"""CSV files of users: bounded in size, decoded, row by row; the first fault names file and line."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from joulecut_wire import user_file
from joulecut_wire.errors import BadInput

SHOWN_MAX = 40  # characters of a field repeated in a message


def read(path: Path, bytes_max: int) -> bytes:
    """Content of a file, at most one byte more than `bytes_max`. Raises BadInput."""
    return user_file.read(path, bytes_max, "a readable CSV file")


def rows(raw: bytes, name: str, bytes_max: int) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped fields of every row that is not empty. Raises BadInput."""
    if len(raw) > bytes_max:
        raise BadInput(name, "too large", f"at most {bytes_max} bytes")
    try:
        text = raw.decode("utf-8-sig")  # spreadsheets put a byte order mark first
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{name}:{line}", f"byte {error.start} is not UTF-8", "UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if any(fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise BadInput(f"{name}:{reader.line_num}", str(error), "a CSV file") from None


def header(
    where: str, fields: list[str], columns: Sequence[str], required: Sequence[str]
) -> list[str]:
    """The column names. Raises BadInput for an unknown, repeated or missing one."""
    allowed = ", ".join(columns)
    for column in fields:
        if column not in columns:
            raise BadInput(where, f"unknown column {shown(column)}", allowed)
        if fields.count(column) > 1:
            raise BadInput(where, f"column {column} given twice", "one of each")
    for column in required:
        if column not in fields:
            raise BadInput(where, f"column {column} is missing", allowed)
    return fields


def check_width(where: str, fields: list[str], columns: list[str]) -> None:
    """Raises BadInput where a row has more or fewer fields than the header."""
    if len(fields) != len(columns):
        raise BadInput(where, f"{len(fields)} fields", f"{len(columns)}, as in the header")


def shown(field: str) -> str:
    """A field for a message: quoted, and cut where it is long."""
    short = field if len(field) <= SHOWN_MAX else field[:SHOWN_MAX] + "..."
    return f'"{short}"'
