"""A study's file: what is written is read back, and what is wrong is named by line."""

from dataclasses import replace
from pathlib import Path

import pytest
from study_rows import ROW

from joulecut_cli.main import dispatch
from joulecut_lab.study.row import COLUMNS, read, write
from joulecut_lab.tablefile import target
from joulecut_wire.errors import BadInput

ROWS = [ROW, replace(ROW, clock_asked_mhz=0, capped=True, temperature_celsius=61.5, memory_j=0.1)]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ROWS)
    assert read(tmp_path / "a.csv") == ROWS
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == ",".join(COLUMNS)


def test_columns_may_come_in_any_order_and_with_others(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ROWS)
    lines = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    turned = [",".join(["x", *reversed(cells)]) for cells in lines]
    (tmp_path / "b.csv").write_text("\n".join(turned))
    assert read(tmp_path / "b.csv") == ROWS


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("time_s", "nan", "a number from 1e-09 to 1e+06"),
        ("power_w", "high", "is not a number"),
        ("basis", "guessed", "measured | simulated"),
        ("stable", "maybe", "yes | no"),
        ("sequence", "12.5", "a whole number"),
        ("model", "", "a name, up to 200 characters"),
        ("batch", "1e18", "1 to 10000000"),
        ("flops", "1e300", "above 0 up to 1e+24"),
    ],
)
def test_a_wrong_field_is_named_by_line(tmp_path: Path, column: str, text: str, said: str) -> None:
    write(tmp_path / "a.csv", ROWS)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    cells = lines[2].split(",")
    cells[COLUMNS.index(column)] = text
    (tmp_path / "a.csv").write_text("\n".join([*lines[:2], ",".join(cells)]))
    with pytest.raises(BadInput) as told:
        read(tmp_path / "a.csv")
    assert "a.csv:3" in str(told.value)
    assert column in str(told.value)
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no header"),
        ("a,a\n1,2\n", "unknown column|given twice|is missing"),
        (",".join(COLUMNS) + "\n", "holds no rows"),
        (",".join(COLUMNS) + "\n1,2\n", "2 fields; allowed: 28"),
        ('"unfinished', "a.csv:1"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(BadInput, match=said):
        read(tmp_path / "a.csv")


def test_bytes_that_are_no_text_and_repeated_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00basis")
    with pytest.raises(BadInput, match="UTF-8"):
        read(tmp_path / "a.csv")
    write(tmp_path / "b.csv", [ROW, ROW])
    with pytest.raises(BadInput, match=r"b\.csv:3: repeats line 2"):
        read(tmp_path / "b.csv")


def test_a_table_that_a_spreadsheet_saved(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ROWS)
    saved = (tmp_path / "a.csv").read_text().replace("\n", "\r\n") + "\r\n"
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbf" + saved.encode())
    assert read(tmp_path / "b.csv") == ROWS


def test_where_a_table_cannot_go_is_said_truly(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadInput, match=r"folder\.csv is a folder"):
        target(str(tmp_path / "folder.csv"))
    with pytest.raises(BadInput, match="no folder"):
        target(str(tmp_path / "nowhere" / "a.csv"))


def test_a_full_sweep_has_every_clock_of_the_card(tmp_path: Path) -> None:
    """As the published study has it: 210 to 1,440 MHz by 15."""
    out = tmp_path / "a30.csv"
    flags = ["--card", "a30", "--models", "125M", "--sequences", "128", "--dtypes", "fp16"]
    assert dispatch(["study", "layer", *flags, "--quick", "--full", "--out", str(out)]) == 0
    assert [row.clock_asked_mhz for row in read(out)] == list(range(210, 1441, 15))
