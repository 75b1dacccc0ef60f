"""Tables a page at a time: searched, sorted and cut by the server, whatever their length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from joulecut_controller.answer import Json

SIZE_DEFAULT = 50
SIZE_MAX = 200  # rows: more are not read, and cost a browser more than they show
PAGE_MAX = 100_000
SEARCH_LENGTH_MAX = 200
ORDERS = ("ascending", "descending")


@dataclass(frozen=True, slots=True)
class Query:
    """What a reader asks of a table; `search` is lower case."""

    search: str
    sort: str
    descending: bool
    page: int  # from 1
    size: int


def query(asked: Mapping[str, str], columns: Sequence[str]) -> Query:
    """Checked. The first of `columns` is the default order. Raises HTTPException."""
    sort = asked.get("sort", columns[0])
    order = asked.get("order", ORDERS[0])
    if sort not in columns:
        raise HTTPException(400, f"sort must be one of {', '.join(columns)}")
    if order not in ORDERS:
        raise HTTPException(400, f"order must be one of {', '.join(ORDERS)}")
    search = asked.get("search", "")
    if len(search) > SEARCH_LENGTH_MAX:
        raise HTTPException(400, f"search has at most {SEARCH_LENGTH_MAX} characters")
    return Query(
        search=search.strip().lower(),
        sort=sort,
        descending=order == ORDERS[1],
        page=whole_number(asked.get("page", "1"), "page", PAGE_MAX),
        size=whole_number(asked.get("size", str(SIZE_DEFAULT)), "size", SIZE_MAX),
    )


def whole_number(text: str, name: str, most: int) -> int:
    """Raises HTTPException for anything but a whole number from 1 to `most`."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
        return int(text)
    raise HTTPException(400, f"{name} must be a whole number from 1 to {most}")


def page_json(rows: Iterable[Json], asked: Query, searched: Sequence[str]) -> Json:
    """The rows that contain the search in one of the `searched` columns, one page of them. Unknown
    values come last in either order.
    """
    found = [row for row in rows if _contains(row, asked.search, searched)]
    known = [row for row in found if row[asked.sort] is not None]
    unknown = [row for row in found if row[asked.sort] is None]
    known.sort(key=lambda row: _key(row[asked.sort]), reverse=asked.descending)
    ordered = known + unknown
    pages = max(1, math.ceil(len(ordered) / asked.size))
    page = min(asked.page, pages)
    begin = (page - 1) * asked.size
    return {
        "rows": ordered[begin : begin + asked.size],
        "total": len(ordered),
        "page": page,
        "pages": pages,
        "size": asked.size,
    }


def _contains(row: Json, search: str, searched: Sequence[str]) -> bool:
    return not search or any(search in str(row[name]).lower() for name in searched)


def _key(value: Any) -> Any:
    """Of an interval its middle; text without case."""
    if isinstance(value, dict):
        return value["mid"]
    return value.lower() if isinstance(value, str) else value
