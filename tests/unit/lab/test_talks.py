"""The talks' digits, one by one, and pages that hold all that they show."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from joulecut_engine.panel import Bars, Line, Panel
from joulecut_lab.exhibit import Compared, Exhibit
from joulecut_lab.talks import bloat, components, efficiency, layers
from joulecut_lab.talks.command import run
from joulecut_wire.errors import BadInput

# Parts that take well under a second, by the difference that they may have: per cent of the
# talk's number, or points where that is in per cent.
QUICK: tuple[tuple[Callable[[], Iterator[Exhibit]], float], ...] = (
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
def test_digits_are_those_of_the_talk(
    part: Callable[[], Iterator[Exhibit]], allowed: float
) -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("card", ["A100", "A40"])
def test_five_models_save_what_the_talk_shows(card: str) -> None:
    """Four of five within 5 points on A100, three on A40; the others and why stand beside."""
    (exhibit,) = bloat.five()
    found = [one for one in exhibit.compared if one.what.startswith(card)]
    assert len(found) == 5
    near = [one for one in found if _difference(one) <= 5.0]
    assert len(near) >= {"A100": 4, "A40": 3}[card]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("layer", '"layer" is none of them; allowed: layers, efficiency, components, bloat'),
        ("bloat:six", 'bloat has no part "six"; allowed: intrinsic, extrinsic'),
        ("", '"" is none of them'),
    ],
)
def test_bad_choices_are_one_line(words: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as told:
        run(["--out", str(tmp_path / "out"), "--only", words])
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_a_part_is_a_command_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--out", str(tmp_path / "out"), "--only", "layers:number-check"]) == 0
    page = tmp_path / "out" / "layers.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text().count("<section>") == 1
    assert page.with_suffix(".csv").is_file()


@pytest.mark.long
def test_what_contradicts_an_observation_stands_beside_the_figure() -> None:
    """Every bar above that of a smaller layer is named, and no other."""
    exhibit, cuda = layers.per_operation()
    rising = set[tuple[str, str]]()
    for panel in (*exhibit.panels, *cuda.panels):
        sequence = panel.title.split()[0]
        for item in panel.items:
            assert isinstance(item, Bars)
            found = [value for value in item.values if value]
            if found != sorted(found, reverse=True):
                rising.add((item.name, sequence))
    named = re.findall(r"(\w+) at ([\d,]+) tokens \(", exhibit.text)
    assert {dtype for dtype, _ in named} <= {"fp32"}  # tensor cores: larger layers are cheaper
    assert {(dtype, sequence.replace(",", "")) for dtype, sequence in named} == rising


def test_a_panel_and_its_csv_have_the_same_points() -> None:
    line = Line("a", "ours", ((1.0, 2.0), (3.0, 4.0)))
    bars = Bars("b", "gpu", (5.0,))
    exhibit = Exhibit("t", "published", panels=[Panel("p", "x", "y", (line,)),
                                                Panel("q", "", "", (bars,), ("g",))])  # fmt: skip
    assert [one[2:5] for one in exhibit.numbers()] == [
        ("a", 1.0, 2.0), ("a", 3.0, 4.0), ("b", "g", 5.0),
    ]  # fmt: skip
