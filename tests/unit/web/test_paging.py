"""Pages of a table: together they are the table, in order, whatever is asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from joulecut_controller.web.address import stated
from joulecut_controller.web.cluster_pages import SIZE_MAX, ClusterPages, page_json

ROWS = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=5), "watts": st.one_of(st.none(), st.floats(0.0, 1e6))}
    ),
    max_size=30,
)


@given(ROWS, st.sampled_from(("name", "watts")), st.booleans(), st.integers(1, 7))
def test_the_pages_are_the_table_in_order(
    rows: list[dict[str, object]], sort: str, descending: bool, size: int
) -> None:
    order = "descending" if descending else "ascending"
    asked = {"search": "", "sort": sort, "order": order, "page": 1, "size": size}
    first = page_json(rows, asked, ("name",))
    shown = []
    for page in range(1, first["pages"] + 1):
        one = page_json(rows, asked | {"page": page}, ("name",))
        assert len(one["rows"]) <= size
        shown += one["rows"]
    assert sorted(map(repr, shown)) == sorted(map(repr, rows))
    known = [row[sort] for row in shown if row[sort] is not None]
    assert shown[len(known) :] == [row for row in shown if row[sort] is None]
    if sort == "watts":
        assert known == sorted(known, reverse=descending)


@pytest.mark.parametrize(
    "asked",
    [
        {"sort": "x"},
        {"order": "up"},
        {"page": "0"},
        {"size": str(SIZE_MAX + 1)},
        {"page": "\u0662"},
    ],
)
def test_what_is_no_question_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(HTTPException, match=next(iter(asked))):
        next(one for one, name in stated(ClusterPages) if name == "jobs").asked(asked)
