"""Vetoes: one order, the strictest action, and a table in the documentation."""

import random
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.plan.veto import KINDS, SUSPENDS, Kind, Veto, first, in_order, releases

CONTROLLER_MD = Path(__file__).resolve().parents[3] / "docs" / "controller.md"
kinds = st.lists(st.sampled_from(KINDS), max_size=8)


def made(names: list[Kind]) -> list[Veto]:
    return [Veto(kind, f"{kind} {number}") for number, kind in enumerate(names)]


@given(st.sets(st.sampled_from(KINDS)), st.randoms(use_true_random=False))
def test_the_order_is_total(names: set[Kind], shuffle: random.Random) -> None:
    vetoes = made(sorted(names))
    shuffled = list(vetoes)
    shuffle.shuffle(shuffled)
    assert in_order(shuffled) == in_order(vetoes)
    assert [veto.kind for veto in in_order(vetoes)] == [kind for kind in KINDS if kind in names]


@given(kinds)
def test_the_first_is_of_the_first_kind_and_was_given_first(names: list[Kind]) -> None:
    found = first(made(names))
    if found is None:
        assert not names
    else:
        at = min(range(len(names)), key=lambda i: (KINDS.index(names[i]), i))
        assert found.text == f"{names[at]} {at}"


@given(kinds, kinds)
def test_the_strictest_action_wins_and_no_other_veto_softens_it(
    names: list[Kind], more: list[Kind]
) -> None:
    alone, together = releases(made(names)), releases(made([*names, *more]))
    assert alone == any(kind not in SUSPENDS for kind in names)
    assert together or not alone


def test_the_documented_table_has_every_kind_in_its_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \| (.*) \|$", CONTROLLER_MD.read_text(), re.MULTILINE)
    ends = {"is forgotten": False, "goes on afterwards": True}
    assert [(kind, ends[end]) for kind, end in rows if end in ends] == [
        (kind, kind in SUSPENDS) for kind in KINDS
    ]
