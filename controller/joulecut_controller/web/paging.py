"""Tables a page at a time: searched, sorted and cut by the server, whatever their length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joulecut_controller.answer import COUNT, Answer, Json, Key, listed
from joulecut_controller.web.address import ANY, one_word, whole

SIZE_DEFAULT = 50
SIZE_MAX = 200  # rows: more are not read, and cost a browser more than they show
PAGE_MAX = 100_000
SEARCH_LENGTH_MAX = 200
ORDERS = ("ascending", "descending")


def paged(row: Answer | Key) -> Answer:
    """One page of a table, and how much there is."""
    return Answer(rows=listed(row), total=COUNT, page=COUNT, pages=COUNT, size=COUNT)


def question(columns: Sequence[str]) -> dict[str, tuple[Json, str]]:
    """The parameters of a table with these columns."""
    return {
        "search": (ANY | {"maxLength": SEARCH_LENGTH_MAX}, "in the row's words"),
        "sort": (one_word(*columns), "a column; unknown values come last"),
        "order": (one_word(*ORDERS), "of the sorted column"),
        "page": (whole(PAGE_MAX, 1), "from 1"),
        "size": (whole(SIZE_MAX, SIZE_DEFAULT), "rows of a page"),
    }


def page_json(rows: Iterable[Json], asked: Mapping[str, Any], searched: Sequence[str]) -> Json:
    """The rows that contain the search in one of the `searched` columns, one page of them. Unknown
    values come last in either order. `asked` are the parameters of a table.
    """
    search, sort, size = asked["search"].strip().lower(), asked["sort"], asked["size"]
    found = [row for row in rows if _contains(row, search, searched)]
    known = [row for row in found if row[sort] is not None]
    unknown = [row for row in found if row[sort] is None]
    known.sort(key=lambda row: _key(row[sort]), reverse=asked["order"] == ORDERS[1])
    ordered = known + unknown
    pages = max(1, math.ceil(len(ordered) / size))
    page = min(asked["page"], pages)
    begin = (page - 1) * size
    return {
        "rows": ordered[begin : begin + size],
        "total": len(ordered),
        "page": page,
        "pages": pages,
        "size": size,
    }


def _contains(row: Json, search: str, searched: Sequence[str]) -> bool:
    return not search or any(search in str(row[name]).lower() for name in searched)


def _key(value: Any) -> Any:
    """Of an interval its middle; text without case."""
    if isinstance(value, dict):
        return value["mid"]
    return value.lower() if isinstance(value, str) else value
