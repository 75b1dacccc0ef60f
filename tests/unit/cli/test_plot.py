"""Pictures: valid, self-contained, and of what was computed."""

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import write_job

from joulecut_cli.chart import Bar, Chart, Curve, Mark, bars_svg, frontier_svg, ticks, view
from joulecut_cli.main import dispatch
from joulecut_wire.errors import BadInput

SVG = "{http://www.w3.org/2000/svg}"


def svgs(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    start_s = draw(st.sampled_from([1e-3, 0.4, 15.0, 3000.0]))
    base_j = draw(st.sampled_from([0.5, 900.0, 5e7]))
    count = draw(st.integers(1, 6))
    points = tuple((start_s * (1 + 0.03 * k), base_j * (0.9 - 0.02 * k)) for k in range(count))
    return Chart(
        title='<b>"job" & co',
        curves=(Curve("line", points, "ours"),),
        marks=(Mark("<&>", start_s, base_j, "base", draw(st.sampled_from(["ring", "square"]))),),
        baseline_s=start_s,
        bound=tuple((time, energy * 0.99) for time, energy in points),
        deadline_s=draw(st.sampled_from([None, start_s, 1.5 * start_s])),
    )


@given(charts())
def test_a_chart_is_valid_and_everything_lies_in_it(chart: Chart) -> None:
    (drawn,) = svgs(frontier_svg(chart))
    width, height = map(float, drawn.attrib["viewBox"].split()[2:])
    for mark in [*drawn.iter(f"{SVG}circle"), *drawn.iter(f"{SVG}rect")]:
        x, y = mark.get("cx") or mark.get("x"), mark.get("cy") or mark.get("y")
        assert 0 <= float(x or "nan") <= width
        assert 0 <= float(y or "nan") <= height
    assert "nan" not in frontier_svg(chart)
    (left, right), (low, high) = view(chart)
    for m in chart.marks:
        assert left < m.time_s < right
        assert low < m.energy_j < high


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_ticks_are_round_and_inside(low: float, span: float, about: int) -> None:
    values = ticks(low, low + span, about)
    slack = 1e-6 * (abs(low) + span)
    assert all(low - slack <= value <= low + span + slack for value in values)
    assert len(values) <= 3 * about


def test_bars_are_valid() -> None:
    drawn = svgs(bars_svg("saving", ["x1", "x2"], [Bar("a", "ours", (0.1, -0.02))]))[0]
    assert len(list(drawn.iter(f"{SVG}rect"))) == 2


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
    assert not re.search(r"(src|href)=|url\((?!#)|@import|<script", page)
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
    ring = next(c for c in drawn.iter(f"{SVG}circle") if c.get("class") == "ring")
    line = next(line for line in drawn.iter(f"{SVG}line") if line.get("class") == "deadline")
    # Left of the deadline, and as near to it as the plan is.
    assert float(ring.attrib["cx"]) <= float(line.attrib["x1"]) + 0.1
    base = next(c for c in drawn.iter(f"{SVG}circle") if c.get("class") != "ring")
    assert float(ring.attrib["cy"]) > float(base.attrib["cy"]), "less energy is further down"
    assert math.isfinite(plan["energy_j"])


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


def test_png_needs_matplotlib_or_writes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    assert dispatch(["plan", write_job(tmp_path), "--plot", str(picture)]) == 0
    capsys.readouterr()
    assert picture.read_bytes().startswith(b"\x89PNG")
