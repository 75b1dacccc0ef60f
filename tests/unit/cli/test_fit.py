"""`joulecut fit` as a person types it: what it prints, ignores and refuses."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import answer, printed, refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulecut_engine.estimate.physics import Physics

HEADER = "stage,instruction,frequency,time,energy\n"
CLOCKS = tuple(range(855, 1411, 15))
PROBES = "1410,1275,1140,990,855"
A100 = Physics(1410.0, 0.05, 0.85, 50.0, 210.0, 0.76, 1107.0, 1380.0)
CURVES = {
    "forward": A100,
    "backward": Physics(1410.0, 0.09, 0.8, 50.0, 215.0, 0.76, 1107.0, 1380.0),
}

Row = tuple[int, str, int, float, float]


def _rows(
    clocks: Iterable[int] = CLOCKS, stages: int = 2, curves: dict[str, Physics] = CURVES
) -> list[Row]:
    rows = []
    for stage in range(stages):
        for kind, curve in curves.items():
            for clock in clocks:
                at = np.array([float(clock)])
                time_s = float(curve.time_s(at)[0]) * (1.0 + 0.1 * stage)
                rows.append((stage, kind, clock, time_s, time_s * float(curve.power_w(at)[0])))
    return rows


def _write(path: Path, rows: Iterable[tuple[Any, ...]]) -> str:
    path.write_text(HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(path)


def test_every_clock_of_the_sweep_has_a_row(tmp_path: Path) -> None:
    rows = _rows()
    found = answer("fit", _write(tmp_path / "a.csv", rows), "--probes", PROBES)["rows"]
    assert {(r["stage"], r["instruction"], r["clock_mhz"]) for r in found} == {
        row[:3] for row in rows
    }
    assert len(found) == len(rows)
    truth = {row[:3]: row[3:] for row in rows}
    for row in found:
        assert set(row) == {
            "stage",
            "instruction",
            "clock_mhz",
            "time_s",
            "power_w",
            "time_low_s",
            "time_high_s",
            "probed",
        }
        time_s, energy_j = truth[row["stage"], row["instruction"], row["clock_mhz"]]
        assert row["time_s"] == pytest.approx(time_s, rel=0.01)
        assert row["power_w"] == pytest.approx(energy_j / time_s, rel=0.03)
        assert row["time_low_s"] <= row["time_s"] <= row["time_high_s"]
        assert row["probed"] == (str(row["clock_mhz"]) in PROBES.split(","))


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10_000))
def test_an_unprobed_time_or_energy_does_not_change_a_byte(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    rows, probes = _rows(), {int(word) for word in PROBES.split(",")}
    other = [
        row if row[2] in probes else (*row[:3], *(row[3:] * random.lognormal(0.0, 2.0, 2)))
        for row in rows
    ]
    words = ("fit", tmp_path / "a.csv", "--probes", PROBES, "--json")
    _write(tmp_path / "a.csv", rows)
    first = printed(*words)
    _write(tmp_path / "a.csv", other)
    assert first == printed(*words)


def test_what_is_not_probed_may_be_missing(tmp_path: Path) -> None:
    probes = {int(word) for word in PROBES.split(",")}
    rows = _rows()
    flags = ("--probes", PROBES, "--json")
    first = printed("fit", _write(tmp_path / "a.csv", rows), *flags)
    for left in (("", "nan"), ("no\x0c", "no\x85"), ("no\u2028", "no\x1c")):
        # The last are ends of lines to Python's `splitlines`, and to nobody who writes CSV.
        holes = [row if row[2] in probes else (*row[:3], *left) for row in rows]
        assert first == printed("fit", _write(tmp_path / "a.csv", holes), *flags)


@pytest.mark.parametrize("kept", [((0, "forward"),), ((3, "backward"),), ((1, "weight"),)])
def test_any_stages_and_kinds_are_enough(kept: tuple[tuple[int, str], ...], tmp_path: Path) -> None:
    """A plan needs the whole pipeline; a fit does not, nor do the sweeps that teach it."""
    alone = [(*kept[0], *row[2:]) for row in _rows() if row[:2] == (0, "forward")]
    path, whole = _write(tmp_path / "a.csv", alone), _write(tmp_path / "b.csv", _rows())
    for words in ((path,), (path, "--also", whole), (whole, "--also", path)):
        rows = answer("fit", words[0], "--probes", PROBES, *words[1:])["rows"]
        assert len(rows) == len(alone if words[0] == path else _rows())
    found = answer("fit", path, "--probes", PROBES)["rows"]
    for row, (_, _, clock, time_s, _) in zip(found, alone, strict=True):
        assert (row["clock_mhz"], row["time_s"]) == (clock, pytest.approx(time_s, rel=0.01))


def _held(load_w_per_ghz: float, share: float) -> dict[str, Physics]:
    """A card of 300 W that draws so much per GHz of this work, and is held where it meets them."""
    free = Physics(1740.0, 0.1, share, 95.0, load_w_per_ghz, 0.45, 1131.0)
    clocks = np.arange(855.0, 1741.0)
    met_mhz = float(clocks[free.power_w(clocks) <= 292.0][-1])
    return {kind: replace(free, clock_cap_mhz=met_mhz) for kind in ("forward", "backward")}


@pytest.mark.parametrize(("known", "new"), [(92.0, 115.0), (115.0, 92.0), (100.0, 100.0)])
def test_hungrier_work_meets_the_cap_of_a_card_at_a_lower_clock(
    known: float, new: float, tmp_path: Path
) -> None:
    """The clock where other work is held is not where this one is; two probes tell it."""
    clocks = tuple(range(855, 1741, 15))
    other = _write(tmp_path / "known.csv", _rows(clocks, 1, _held(known, 0.6)))
    rows = _rows(clocks, 1, _held(new, 0.7))
    path = _write(tmp_path / "new.csv", rows)
    found = answer("fit", path, "--probes", "1740,855", "--also", other)["rows"]
    truth = {row[:3]: row[3:] for row in rows}
    off = []
    for row in found:
        time_s, energy_j = truth[row["stage"], row["instruction"], row["clock_mhz"]]
        off.append((row["time_s"] / time_s - 1.0, row["time_s"] * row["power_w"] / energy_j - 1.0))
    time, energy = np.abs(off).mean(axis=0)
    assert time <= 0.01
    assert energy <= 0.01


def test_a_probed_row_is_looked_at_closely(tmp_path: Path) -> None:
    rows = [(*row[:3], "nan", row[4]) if row[:3] == (1, "forward", 990) else row for row in _rows()]
    line = 2 + [row[:3] for row in rows].index((1, "forward", 990))
    err = refusal("fit", _write(tmp_path / "a.csv", rows), "--probes", PROBES)
    assert f"a.csv:{line}: time" in err


def test_the_same_bytes_from_another_process(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.csv", _rows())
    also = _write(tmp_path / "b.csv", _rows(stages=1, curves=dict.fromkeys(CURVES, A100)))
    words = ["fit", path, "--probes", "1410,990", "--also", also, "--json"]
    command = [sys.executable, "-m", "joulecut_cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == commands.run(*words).stdout


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_sweep_gives_sensible_numbers(data: st.DataObject, tmp_path: Path) -> None:
    """Other cards, caps, jumps, one probe, one clock, stages with clocks of their own."""
    top = data.draw(st.sampled_from((1380, 1410, 1740, 1980, 2520)))
    shared = data.draw(st.integers(300, top))
    rows: list[Row] = []
    for stage in range(data.draw(st.integers(1, 2))):
        for kind in ("forward", "backward"):
            own = data.draw(st.sets(st.integers(300, top), max_size=12)) | {shared}
            cap = data.draw(st.sampled_from((float("inf"), 0.8 * top)))
            curve = Physics(
                float(top),
                data.draw(st.floats(1e-4, 10.0)),
                data.draw(st.floats(0.0, 1.0)),
                data.draw(st.floats(20.0, 150.0)),
                data.draw(st.floats(20.0, 400.0)),
                data.draw(st.floats(0.0, 1.5)),
                0.75 * top,
                cap,
            )
            jump_mhz, jump = data.draw(st.integers(300, top)), data.draw(st.floats(0.8, 1.2))
            for clock in sorted(own):
                at = np.array([float(clock)])
                time_s = float(curve.time_s(at)[0]) * (jump if clock > jump_mhz else 1.0)
                rows.append((stage, kind, clock, time_s, time_s * float(curve.power_w(at)[0])))
    listed = sorted({row[2] for row in rows})
    probes = data.draw(st.sets(st.sampled_from(listed), max_size=4)) | {shared}
    path = _write(tmp_path / "a.csv", rows)
    found = answer("fit", path, "--probes", ",".join(map(str, probes)))["rows"]
    assert len(found) == len(rows)
    truth = {row[:3]: row[3:] for row in rows}
    for row in found:
        values = [row[key] for key in ("time_low_s", "time_s", "time_high_s", "power_w")]
        assert all(np.isfinite(value) and value > 0.0 for value in values)
        assert values[:3] == sorted(values[:3])
        if row["probed"]:
            time_s, energy_j = truth[row["stage"], row["instruction"], row["clock_mhz"]]
            assert 0.7 < row["time_s"] / time_s < 1.4
            assert 0.5 < row["power_w"] * time_s / energy_j < 2.0
    assert printed("fit", path, "--probes", ",".join(map(str, probes)))


@pytest.mark.parametrize(("scale", "said"), [(1.0, False), (1e-3, True), (1e3, True)])
def test_units_that_make_no_gpu_are_asked_about(scale: float, said: bool, tmp_path: Path) -> None:
    """Kilojoules, or milliseconds; and millijoules."""
    rows = [(*row[:4], scale * row[4]) for row in _rows()]
    out = printed("fit", _write(tmp_path / "a.csv", rows), "--probes", PROBES)
    assert ("is no GPU's power: is time in seconds, and energy in joules?" in out) is said


@pytest.mark.parametrize(
    ("clock", "time_times", "energy_times", "said"),
    [
        (1140, 1.0, 1.0, None),
        (1140, 30.0, 30.0, "forward took 77.59 ms at 855 MHz and 1."),
        (1140, 1.0, 20.0, "forward drew"),
        (855, 0.4, 0.4, "forward took"),
        (1410, 1.0, 0.02, "forward drew"),
        (1275, 30.0, 30.0, None),  # not probed
    ],
)
def test_probes_that_no_clock_explains_are_asked_about(
    clock: int,
    time_times: float,
    energy_times: float,
    said: str | None,
    tmp_path: Path,
) -> None:
    rows = [
        (*row[:3], row[3] * time_times, row[4] * energy_times)
        if row[:3] == (0, "forward", clock)
        else row
        for row in _rows()
    ]
    path = _write(tmp_path / "a.csv", rows)
    out = printed("fit", path, "--probes", "1410,1140,855")
    assert ("no clock explains that: was it the same work" in out) is (said is not None)
    assert said is None or f"stage 0 {said}" in out
    told = answer("fit", path, "--probes", "1410,1140,855")["doubts"]
    assert all(line in out.splitlines() for line in told)
    assert len(told) == (said is not None)


def test_no_clock_below_the_lowest_probe_is_proposed(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.csv", _rows())
    out = printed("fit", path, "--probes", "1410,1350,1320")
    proposed = [
        int(word[:-1])
        for line in out.splitlines()
        for word in line.split()
        if ":" in word and word[:-1].isdigit()
    ]
    assert len(proposed) == 16  # three budgets, and the least cost
    assert min(proposed) == 1320


@pytest.mark.parametrize(
    ("probes", "what"),
    [
        ("1411", "1411 MHz is not in"),
        ("1410,856", "856 MHz is not in"),
        ("1410;855", "is not a whole number"),
        ("-855", "is out of range"),
        ("١٤١٠", "is not a whole number"),
        ("1410,1410", "given twice"),
        (",".join(["1410"] * 2000), "2000 words"),
    ],
)
def test_bad_probes_are_one_line(probes: str, what: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.csv", _rows())
    assert what in refusal("fit", path, f"--probes={probes}")


def test_a_stage_without_a_probed_clock_is_named(tmp_path: Path) -> None:
    rows = [row for row in _rows() if row[0] == 0 or row[2] != 1410]
    err = refusal("fit", _write(tmp_path / "a.csv", rows), "--probes", "1410")
    assert "stage 1 backward" in err
