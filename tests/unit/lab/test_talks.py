"""The talks' digits, one by one, and pages that hold all that they show."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_text import same_as_golden

from joulecut_engine.panel import Bars, Line, Mark, Panel, Spans
from joulecut_lab.model.serving import Serving
from joulecut_lab.talks import bloat, components, efficiency, inference, layers
from joulecut_lab.talks.exhibit import Compared, Exhibit, Talk

KEPT = Path(__file__).parent.parent.parent / "golden" / "talks"
# Parts that take well under a second, by the difference that they may have: per cent of the
# talk's number, or points where that is in per cent.
QUICK: tuple[tuple[Callable[[], list[Exhibit]], float], ...] = (
    (layers.operations, 0.0),
    (layers.number_check, 0.5),
    (layers.timelines, 0.0),
    (efficiency.demand, 8.0),
    (efficiency.instructions, 6.0),
    (efficiency.cards, 10.1),
)


def _difference(one: Compared) -> float:
    assert one.published is not None
    if one.unit == "%":
        return abs(one.ours - one.published)
    return 100.0 * abs(one.ours / one.published - 1.0)


@pytest.mark.parametrize(("part", "allowed"), QUICK)
def test_digits_are_those_of_the_talk(part: Callable[[], list[Exhibit]], allowed: float) -> None:
    found = [one for exhibit in part() for one in exhibit.compared if one.published is not None]
    assert len(found) >= 2
    for one in found:
        assert _difference(one) <= allowed + 1e-9, one.what


def test_gains_of_a_decade_are_all_there() -> None:
    """Number formats to 4 bits, instructions, process, sparsity, two dies: 1,000 and more."""
    (exhibit,) = efficiency.gains()
    named = [one.what.split(":")[0] for one in exhibit.compared]
    for what in ("number formats", "instructions", "process", "sparsity", "die", "together"):
        assert what in named
    whole = next(one for one in exhibit.compared if one.what == "together")
    assert 1000.0 < whole.ours < 10_000.0


def test_the_case_of_the_marginal_analysis_names_scale_out() -> None:
    (exhibit,) = components.marginals()
    assert exhibit.text.startswith("scale-out pays most")


def test_the_cache_of_the_table_is_that_of_the_architecture() -> None:
    """Llama 3 70B: 80 layers, 8 heads of 128 for keys and values, one byte, over four GPUs."""
    rows = inference.by_context().rows[1:]
    assert len(rows) == 9
    for row in rows:
        batch, prompt = (int(one.replace(",", "")) for one in re.findall(r"[\d,]*\d", row[0]))
        tokens = batch * (prompt + Serving().output)
        assert float(row[3].split()[0]) == pytest.approx(tokens * 80 * 8 * 128 * 2 / 4e9, abs=0.01)
        decode_mhz, prefill_mhz = (int(cell.split()[0]) for cell in row[-2:])
        assert decode_mhz < prefill_mhz
    assert ["(too large)" in row[0] for row in rows] == [False] * 8 + [True]


@pytest.mark.long
def test_what_contradicts_an_observation_stands_beside_the_figure() -> None:
    """Every bar above that of a smaller layer is named, and no other."""
    (exhibit,) = layers.per_operation()
    rising = set[tuple[str, str]]()
    for panel in exhibit.panels:
        sequence = panel.title.split()[0]
        for item in panel.items:
            assert isinstance(item, Bars)
            found = [value for value in item.values if value]
            if found != sorted(found, reverse=True):
                rising.add((item.name, sequence))
    named = re.findall(r"(\w+) at ([\d,]+) tokens \(", exhibit.text)
    assert {(dtype, sequence.replace(",", "")) for dtype, sequence in named} == rising


@pytest.mark.long
@pytest.mark.parametrize("talk", [layers, efficiency, components, bloat])
def test_a_page_holds_every_figure_and_the_data_are_kept(talk: object, tmp_path: Path) -> None:
    """The golden is of data: titles, bases, names of what is drawn, numbers beside the talk's."""
    exhibits = [one for part in talk.PARTS for one in part()]  # type: ignore[attr-defined]
    name = talk.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    page = Talk(name, "t", exhibits).write(tmp_path).read_text()
    assert not re.search(r"(src|href)=(?!\"#)|url\((?!#)|@import|<script", page)
    assert page.count('<svg class="chart"') == sum(len(one.panels) for one in exhibits)
    assert "nan" not in re.sub(r"<style.*?</style>", "", page)
    shown = json.loads((tmp_path / f"{name}.json").read_text())
    assert [one["title"] for one in shown["exhibits"]] == [one.title for one in exhibits]
    lines = (tmp_path / f"{name}.csv").read_text().splitlines()
    assert len(lines) > len(exhibits)
    same_as_golden(KEPT / f"{name}.txt", "\n".join(_words(exhibits)))


def _words(exhibits: list[Exhibit]) -> list[str]:
    """Two digits of a number: the last ones differ between machines."""
    found = []
    for one in exhibits:
        found.append(f"{one.title} [{one.basis}]")
        for panel in one.panels:
            found.append(f"  figure: {panel.title}; {panel.x_label}; {panel.y_label}")
            found += [f"    {_item(item)}" for item in panel.items]
        found += [f"  {c.what}: {c.ours:.2g} / {'' if c.published is None else f'{c.published:g}'}"
                  f" {c.unit} {c.note}".rstrip() for c in one.compared]  # fmt: skip
        found += [f"  {row[0]}" for row in one.rows]
    return found


def _item(item: object) -> str:
    name = getattr(item, "label", "") or getattr(item, "name", "")
    kind = type(item).__name__.lower()
    match item:
        case Line(points=many) | Spans(spans=many):  # type: ignore[misc]
            return f"{kind} {name}: {len(many)} points"
        case Bars(values=values):
            return f"{kind} {name}: {', '.join(f'{value:.2g}' for value in values)}"
        case Mark():
            return f"{kind} {name}"
    return f"{kind} {name}"


def test_a_panel_and_its_csv_have_the_same_points() -> None:
    line = Line("a", "ours", ((1.0, 2.0), (3.0, 4.0)))
    bars = Bars("b", "gpu", (5.0,))
    exhibit = Exhibit("t", "published", panels=[Panel("p", "x", "y", (line,)),
                                                Panel("q", "", "", (bars,), ("g",))])  # fmt: skip
    assert [one[2:5] for one in exhibit.numbers()] == [
        ("a", 1.0, 2.0), ("a", 3.0, 4.0), ("b", "g", 5.0),
    ]  # fmt: skip
