"""Figures: one palette and one order everywhere, and labels that lie on nothing."""

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecut_controller.web
from joulecut_engine.graph.pipeline import KINDS_ALL
from joulecut_engine.panel import LINES, PAGE, PARTS, SERIES, Line, Mark, Panel, figure, stacked
from joulecut_lab.model.estimate import BREAKDOWN, COMPONENTS, ENERGIES, MEMORIES

STYLE_SHEET = Path(joulecut_controller.web.__file__).parent / "static" / "page.css"
# Names of the style sheet for colours of the palette.
SAME = {"now": "gpu", "plan": "ours", "base": "base", "deadline": "due", "good": "gpu"} | {
    kind: PARTS[kind] for kind in ("forward", "backward")
}


def test_the_controllers_page_has_the_same_palette() -> None:
    found: dict[str, list[str]] = {}
    for name, colour in re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", STYLE_SHEET.read_text()):
        found.setdefault(name, []).append(colour)
    palette = PAGE | SERIES
    shared = {name: SAME.get(name, name) for name in found if SAME.get(name, name) in palette}
    assert len(shared) >= len(SAME) + 5
    for name, ours in shared.items():
        assert tuple(found[name]) == palette[ours], name


def test_every_part_has_a_colour_and_a_place() -> None:
    order = list(PARTS)
    for parts in (BREAKDOWN, COMPONENTS, ENERGIES, MEMORIES):
        assert [order.index(part) for part in parts] == sorted(map(order.index, parts))
        colours = [PARTS[part] for part in parts]
        assert len({*colours}) == len(colours), "two parts of one bar look the same"
    assert {*KINDS_ALL} <= {*order, "optimizer"}
    assert {*PARTS.values(), *LINES} <= {*SERIES}
    light = [pair[0] for pair in (PAGE | SERIES).values()]
    assert len({*light}) == len(light), "a colour of SVG names one variable"


def test_a_stack_leaves_out_what_is_nothing_and_keeps_the_order() -> None:
    groups = {"a": {"bubble": 1.0, "forward": 2.0, "offload": 0.0}, "b": {"forward": 4.0}}
    panel = stacked("t", "s", groups, unit=2.0)
    assert [(bar.name, bar.values) for bar in panel.items] == [
        ("forward", (1.0, 2.0)), ("bubble", (0.5, 0.0)),
    ]  # fmt: skip


def _boxes(drawn: Any, prefix: str) -> list[Any]:
    (axes,) = drawn.axes
    drawn.draw_without_rendering()
    return [
        artist.get_window_extent()
        for artist in (*axes.texts, *axes.lines)
        if str(artist.get_gid() or "").startswith(prefix)
    ]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=2, max_size=8,
                unique=True))  # fmt: skip
@settings(max_examples=10, deadline=None)  # each is drawn
def test_no_label_lies_under_a_mark_or_on_another_label(places: list[tuple[int, int]]) -> None:
    marks = tuple(Mark(f"m{k}", "ours", (float(x), float(y)), label=f"plan {k}")
                  for k, (x, y) in enumerate(places))  # fmt: skip
    drawn = figure([Panel("t", "x", "y", marks)], height=460, legend=False)
    labels, drawn_marks = _boxes(drawn, "label-"), _boxes(drawn, "mark-")
    assert len(labels) == len(places)
    for one, other in combinations(labels, 2):
        assert not _covers(one, other)
    for label in labels:
        assert not any(_covers(label, mark) for mark in drawn_marks)


def _covers(one: Any, other: Any) -> bool:
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    tall = min(one.y1, other.y1) - max(one.y0, other.y0)
    return bool(wide > 3 and tall > 3)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_legend_is_below_its_panels(columns: int) -> None:
    lines = (Line("one", "ours", ((0.0, 0.0), (1.0, 1.0))), Line("two", "gpu", ((0.0, 1.0),) * 2))
    drawn = figure([Panel("t", "x", "y", lines)] * 2, columns=columns)
    drawn.draw_without_rendering()
    legends = [*drawn.legends, *(axes.get_legend() for axes in drawn.axes)]
    shown = [one.get_window_extent() for one in legends if one is not None]
    assert len(shown) == (2 if columns == 1 else 1)
    for box in shown:
        assert not any(_covers(box, axes.get_window_extent()) for axes in drawn.axes)
    tops = [axes.get_window_extent().y0 for axes in drawn.axes]
    assert all(a >= b - 1 for a, b in pairwise(tops))
