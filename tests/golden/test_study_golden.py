"""What `joulecut study` tells a person, kept as files, and how it answers bad input."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from golden_text import same_as_golden

from joulecut_cli.main import dispatch
from joulecut_wire.errors import BadInput, Unavailable

HERE = Path(__file__).parent / "study"
QUICK = ["study", "layer", "--device", "simulated", "--card", "a30", "--quick"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("swept") / "a30.csv"
    assert dispatch([*QUICK, "--out", str(out)]) == 0
    return out


def test_a_quick_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a30.csv"
    assert dispatch([*QUICK, "--out", str(out)]) == 0
    told = capsys.readouterr()
    same_as_golden(HERE / "quick.txt", told.out.replace(str(tmp_path), "DIR"))
    assert told.err.splitlines()[0] == "1/4 gpt-125m s=512 fp16"
    lines = out.read_text().splitlines()
    assert len(lines) == 37
    assert all(line.startswith("simulated,NVIDIA A30,") for line in lines[1:])


def test_without_a_card_it_is_simulated_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["study", "layer", "--quick", "--clocks", "2", "--models", "gpt-125m"]) == 0
    told = capsys.readouterr()
    if "no card to measure" not in told.err:
        pytest.skip("there is a card here, and it was measured")
    assert "simulating an A30, marked in every row" in told.err
    assert "simulated, on NVIDIA A30" in told.out


@pytest.mark.long
def test_the_report_is_one_page_that_needs_nothing(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["study", "report", str(swept), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "study.html").read_text()
    for word in ("Energy has a best clock", "Where the joules go", "Pareto front", "Residuals"):
        assert word in page
    assert '<span class="badge">simulated</span>' in page
    assert "<script" not in page
    assert "src=" not in page
    assert "url(" not in page.replace("url(#", "")
    drawn = ["<svg" + part.split("</svg>")[0] + "</svg>" for part in page.split("<svg")[1:]]
    assert len(drawn) >= 6
    for svg in drawn:
        root = ET.fromstring(svg)
        shown = [e for e in root.iter() if e.tag.endswith(("path", "circle"))]
        assert shown
        assert "nan" not in svg


def test_fit_prints_what_it_found(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["study", "fit", str(swept), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["basis"] == "simulated"
    splits = {one["split"] for one in found["results"]}
    assert splits == {"random rows", "held-out clocks"}
    for one in found["results"]:
        assert one["power"]["mape_ratio"] >= 0.0
        assert one["regret_ratio"] >= 0.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "no part named"),
        ("layers", 'no part is called "layers"; allowed: layer, report, talks, fit'),
        ("layer --sequences 0,512", "a whole number from 1 to 65536"),
        ("layer --pass backward", "forward, training"),
        ("layer --device simulated --card a29", "no card is called 'a29'"),
        ("layer --device nvml --card a30", "names a simulated card"),
        ("layer --card a30 --lock-via h:1", "a simulated card needs no agent"),
        ("layer --card a30 --at 1000", "--at: NVIDIA A30 has no 1000 MHz; allowed: 1005"),
        ("layer --card a30 --at 900 --clocks 5", "not allowed with argument --at"),
        ("layer --card a30 --out table.xlsx", "has another ending; allowed: .csv"),
        ("layer --card a30 --out /nowhere/a.csv", "no folder /nowhere"),
        ("fit", "the following arguments are required: FILE"),
        ("fit nothing.csv", "No such file"),
        ("report nothing.csv", "--out"),
    ],
)
def test_bad_input_is_one_line(line: str, said: str) -> None:
    with pytest.raises(BadInput) as told:
        dispatch(["study", *line.split()])
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_rows_of_two_kinds_do_not_mix(swept: Path, tmp_path: Path) -> None:
    text = swept.read_text()
    measured = tmp_path / "measured.csv"
    measured.write_text(text.replace("simulated,NVIDIA A30,simulated", "measured,NVIDIA A30,1.0"))
    with pytest.raises(BadInput, match="measured and simulated rows are mixed"):
        dispatch(["study", "fit", str(swept), str(measured)])
    with pytest.raises(BadInput, match="twice at one clock"):
        dispatch(["study", "fit", str(swept), str(swept)])


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(Unavailable, match="every layer asked for was left out"):
        dispatch([*QUICK, "--dtypes", "fp8"])
