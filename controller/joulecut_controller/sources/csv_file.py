"""CSV files of users: bounded in size, decoded, row by row; the first fault names file and line."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from joulecut_wire import flags, quantity, user_file
from joulecut_wire.document import Document
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import nearest, shown
from joulecut_wire.section import Section, section_of
from joulecut_wire.section import read as read_section


def read(path: Path, bytes_max: int) -> bytes:
    """Content of a file. Raises BadInput."""
    return user_file.read(path, bytes_max, "a readable CSV file")


def lines(path: Path, bytes_max: int) -> Iterator[tuple[int, list[str]]]:
    """Those of a file; see `rows`."""
    return rows(read(path, bytes_max), str(path))


def rows(raw: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped fields of every row that is not empty. Raises BadInput."""
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


def whole(low: int, high: int) -> Callable[[Any], int]:
    """Reads a whole number, also as 1410.0: tables of other programs have it so."""
    take = quantity.whole(low, high)
    return lambda cell: take(flags.plain(cell))


def table(
    rows: Iterable[tuple[int, list[str]]],
    name: str,
    kind: "type | Section",
    *,
    others: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Line number and value of every row below the header, whose columns are the keys of a section.

    An empty cell is a key that is left out. With `others`, columns that are no keys are ignored.
    Raises BadInput with line and column.
    """
    found = section_of(kind) if isinstance(kind, type) else kind
    columns: list[str] = []
    for line, fields in rows:
        where = f"{name}:{line}"
        if not columns:
            columns = fields
            _check_header(where, columns, found, others=others)
            continue
        if len(fields) != len(columns):
            raise BadInput(where, f"{len(fields)} fields", f"{len(columns)}, as in the header")
        given = {
            column: cell
            for column, cell in zip(columns, fields, strict=True)
            if column in found.keys and (cell or found.keys[column].required)
        }
        yield line, read_section(Document(where, given, {}), found, given)
    if not columns:
        raise BadInput(name, "no header", f"first line {','.join(found.keys)}")


def _check_header(where: str, columns: list[str], section: Section, *, others: bool) -> None:
    """Raises BadInput for an unknown, repeated or missing column."""
    known, allowed = tuple(section.keys), ", ".join(section.keys)
    for column in columns:
        if column not in known and not others:
            what = f"unknown column {shown(column)}{nearest(column, known)}"
            raise BadInput(where, what, allowed)
        if columns.count(column) > 1:
            raise BadInput(where, f"column {column} given twice", "one of each")
    for column, key in section.keys.items():
        if key.required and column not in columns:
            raise BadInput(where, f"column {column} is missing", allowed)
