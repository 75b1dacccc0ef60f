"""Profiles on disk: what is read, and one line with the place for each way to be wrong."""

from pathlib import Path

import pytest

from joulecut_controller.sources.profile import FILE_BYTES_MAX, parse, read
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_wire.errors import BadInput

HEADER = "stage,instruction,frequency,time,energy\n"
GOOD = HEADER + "0,forward,1410,0.05,23.8\n0,backward,1410,0.09,44.5\n"


def complaint(text: str | bytes) -> str:
    with pytest.raises(BadInput) as caught:
        parse(text if isinstance(text, bytes) else text.encode(), "p.csv")
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("p.csv")
    return line


def test_a_good_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(GOOD)
    profile = read(path)
    assert profile.source == str(path)
    assert profile.options[0, "forward"] == (ClockOption(1410, 0.05, 23.8),)
    assert profile.stages == 1


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\n\n"),
        GOOD.rstrip("\n"),
        GOOD.replace(",", " , "),
        GOOD.replace("forward,1410", '"forward",1410.0'),
        "time,energy,stage,instruction,frequency\n0.05,23.8,0,forward,1410\n0.09,44.5,0,backward,1410",
        GOOD.replace("0.05", "5e-2").replace("23.8", "+23.8"),
    ],
)
def test_other_ways_to_write_the_same(text: str) -> None:
    assert parse(text.encode(), "p.csv").options == parse(GOOD.encode(), "p.csv").options


def test_the_order_of_rows_does_not_matter() -> None:
    header, *rows = GOOD.splitlines(keepends=True)
    assert parse((header + "".join(reversed(rows))).encode(), "p").options == (
        parse(GOOD.encode(), "p").options
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "p.csv: no header"),
        (HEADER, "p.csv: no rows"),
        (HEADER.replace(",energy", ""), "p.csv:1: column energy is missing"),
        (HEADER.replace("time", "seconds"), 'p.csv:1: unknown column "seconds"'),
        (GOOD.replace(",44.5", ""), "p.csv:3: 4 fields; allowed: 5"),
        (GOOD.replace("44.5", "-44.5"), "p.csv:3: energy: -44.5 is out of range"),
        (GOOD.replace("0.05", "-1"), "p.csv:2: time: -1 is out of range"),
        (GOOD.replace("0.05", "nan"), 'p.csv:2: time: "nan" is not a number'),
        (GOOD.replace("0.05", "1e400"), "p.csv:2: time: inf is out of range"),
        (GOOD.replace("0.05", ""), 'p.csv:2: time: "" is not a number'),
        (GOOD.replace("0.05", "\u0661"), "p.csv:2: time"),
        (GOOD.replace("23.8", "1e13"), "p.csv:2: energy: a huge number is out of range"),
        (GOOD.replace("0,forward", "0.5,forward"), "p.csv:2: stage: 0.5 is not a whole"),
        (GOOD.replace("0,forward", "-1,forward"), "p.csv:2: stage: -1 is out of range"),
        (
            GOOD.replace("forward", "fwd"),
            'p.csv:2: instruction: "fwd" is not allowed (did you mean forward?); allowed: forward',
        ),
        (GOOD.replace("1410,0.05", "1410.5,0.05"), "p.csv:2: frequency: 1410.5 is not a whole"),
        (GOOD + "0,backward,1410,0.1,1\n", "p.csv:4: frequency: stage 0 backward at 1410 MHz"),
        (GOOD + "1,forward,1410,0.1,1\n", "p.csv: stage: no backward of stage 1"),
        (
            GOOD + "2,forward,1410,0.1,1\n2,backward,1410,0.1,1\n",
            "p.csv: stage: no forward and no backward of stage 1",
        ),
        (HEADER + "0,forward,1410,0.05,23.8\n", "p.csv: stage: no backward of stage 0"),
        (GOOD.replace("forward", '"forward'), "p.csv:"),
        (GOOD.encode() + b"\xff\xfe", "p.csv:4: byte"),
        (b"\x89PNG\r\n\x1a\n", "p.csv:1: byte 0 is not UTF-8"),
    ],
)
def test_a_broken_profile_names_the_place(text: str | bytes, expected: str) -> None:
    assert complaint(text).startswith(expected)


def test_a_duplicate_names_the_first_line() -> None:
    assert "first in line 3" in complaint(GOOD + "0,backward,1410,0.1,1\n")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / "p.csv").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(BadInput, match=r"p\.csv: too large; allowed: at most"):
        read(tmp_path / "p.csv")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path, Path("nul\0.csv")):
        with pytest.raises(BadInput, match="readable CSV"):
            read(path)
