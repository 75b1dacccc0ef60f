"""Pictures: valid, self-contained, and of what was computed."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import write_job

from joulecut_cli.main import dispatch
from joulecut_engine.chart import Chart, frontier_figure, view
from joulecut_engine.panel import Line, Mark, svg
from joulecut_wire.errors import BadInput, Unavailable

SVG = "{http://www.w3.org/2000/svg}"


def svgs(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def place(drawn: ET.Element, name: str) -> tuple[float, float]:
    """Where the mark of that name is, in pixels from the upper left corner."""
    group = next(g for g in drawn.iter(f"{SVG}g") if g.get("id") == name)
    mark = next(group.iter(f"{SVG}use"))
    return float(mark.attrib["x"]), float(mark.attrib["y"])


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    start_s = draw(st.sampled_from([1e-3, 0.4, 15.0, 3000.0]))
    base_j = draw(st.sampled_from([0.5, 900.0, 5e7]))
    count = draw(st.integers(1, 6))
    points = tuple((start_s * (1 + 0.03 * k), base_j * (0.9 - 0.02 * k)) for k in range(count))
    return Chart(
        title='<b>"job" & co',
        curves=(Line("line", "ours", points),),
        marks=(Mark("<&>", "base", (start_s, base_j), draw(st.sampled_from(["ring", "square"]))),),
        baseline_s=start_s,
        bound=tuple((time, energy * 0.99) for time, energy in points),
        deadline_s=draw(st.sampled_from([None, start_s, 1.5 * start_s])),
    )


@given(charts())
@settings(max_examples=10)  # each is drawn: a tenth of a second
def test_a_chart_is_valid_and_shows_every_plan(chart: Chart) -> None:
    text = svg(frontier_figure(chart), chart.title)
    (drawn,) = svgs(text)
    assert drawn.attrib["aria-label"] == chart.title
    assert "nan" not in text
    (left, right), (low, high) = view(chart)
    for mark in chart.marks:
        assert left < mark.at[0] < right
        assert low < mark.at[1] < high


@pytest.mark.parametrize("command", ["plan", "frontier", "compare"])
def test_every_command_writes_a_page_that_needs_nothing_else(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.html"
    assert dispatch([command, write_job(tmp_path), "--plot", str(picture), "--json"]) == 0
    json.loads(capsys.readouterr().out)
    page = picture.read_text()
    assert page.startswith("<!doctype html>")
    assert svgs(page)
    assert not re.search(r"(src|href)=(?!\"#)|url\((?!#)|@import|<script", page)
    if command != "frontier":
        assert "plan" in page or "Joulecut" in page


def test_the_plot_shows_the_plan_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.html"
    flags = ["--max-slowdown", "5", "--plot", str(picture), "--json"]
    assert dispatch(["plan", write_job(tmp_path), *flags]) == 0
    plan = json.loads(capsys.readouterr().out)
    drawn = svgs(picture.read_text())[0]
    plan_x, plan_y = place(drawn, "mark-plan")
    _, baseline_y = place(drawn, "mark-baseline")
    line = next(g for g in drawn.iter(f"{SVG}g") if g.get("id") == "deadline")
    (path,) = line.iter(f"{SVG}path")
    # Left of the deadline, and as near to it as the plan is.
    assert plan_x <= float(path.attrib["d"].split()[1]) + 0.1
    assert plan_y > baseline_y, "less energy is further down"
    assert plan["energy_j"] < plan["baseline"]["energy_j"]


@pytest.mark.parametrize("name", ["picture.pdf", "picture", "nowhere/picture.html", "folder.html"])
def test_what_cannot_be_written_is_said_before_anything_is_computed(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.html").mkdir()
    for command in ("plan", "frontier", "compare"):
        with pytest.raises(BadInput, match="--plot"):
            dispatch([command, write_job(tmp_path), "--plot", str(tmp_path / name)])


def test_of_two_files_neither_is_written_where_one_cannot_be(tmp_path: Path) -> None:
    picture, folder = tmp_path / "plan.html", tmp_path / "folder.json"
    folder.mkdir()
    with pytest.raises(BadInput, match="--timeline"):
        dispatch(
            ["plan", write_job(tmp_path), "--plot", str(picture), "--timeline", str(folder)],
        )
    assert not picture.exists()


def test_without_matplotlib_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unavailable, match=r"pip install '.*\[plot\]'"):
        dispatch(["plan", write_job(tmp_path), "--plot", str(tmp_path / "picture.html")])
