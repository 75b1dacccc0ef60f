"""Which clock `joulecut fit` would have probed next, on curves made by hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulecut_cli.main import dispatch
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile
from joulecut_lab.fit.fitted import Banded, Result
from joulecut_lab.fit.next_probe import next_probe

CLOCKS = tuple(range(800, 1401, 50))
# Half as long again at 800 MHz, and a power that makes 1000 MHz the cheapest clock of all.
TIME_S = 1.0 + 0.5 * (1400.0 - np.array(CLOCKS)) / 600.0
POWER_W = (100.0 + ((np.array(CLOCKS) - 1000.0) / 30.0) ** 2) / TIME_S


def _result(
    probes: tuple[int, ...],
    deep: Mapping[int, float],
    *,
    scale: float = 1.0,
    kind: Kind = "forward",
) -> Result:
    """One operation; `deep` is how far below the prediction the band of a clock reaches."""
    low_s = TIME_S * (1.0 - np.array([deep.get(clock, 0.0) for clock in CLOCKS]))
    predicted = Banded(CLOCKS, scale * TIME_S, POWER_W, scale * low_s, scale * TIME_S)
    nothing = Profile({})
    return Result({(0, kind): CLOCKS}, frozenset(probes), nothing, {(0, kind): predicted}, None, 0)


def _told(result: Result) -> int | None:
    found = next_probe(result)
    return found.clock_mhz if found else None


@pytest.mark.parametrize(("dear", "cheap"), [(1200, 1250), (1250, 1200)])
def test_the_operation_that_takes_most_energy_counts_most(dear: int, cheap: int) -> None:
    one = _result((800, 1400), {cheap: 0.1})
    other = _result((800, 1400), {dear: 0.1}, scale=9.0, kind="backward")
    both = replace(one, clocks=one.clocks | other.clocks, predicted=one.predicted | other.predicted)
    assert _told(both) == dear


@pytest.mark.parametrize("jump", [0.0, 0.19])
def test_between_probes_that_no_curve_joins_there_is_most_to_learn(jump: float) -> None:
    """Up to 1100 MHz another kernel runs, faster than at the next clock above."""
    times_s = TIME_S * np.where(np.array(CLOCKS) <= 1100, 1.0 - jump, 1.0)
    measured = tuple(
        ClockOption(mhz, float(times_s[at]), float(times_s[at] * POWER_W[at]))
        for at, mhz in enumerate(CLOCKS)
        if mhz in {800, 1100, 1200, 1400}
    )
    flat = _result((800, 1100, 1200, 1400), {1300: 0.01})
    told = _told(replace(flat, probed=Profile({(0, "forward"): measured})))
    assert told == (1150 if jump else 1300)


@pytest.mark.parametrize(
    ("probes", "deep"),
    [
        (CLOCKS, dict.fromkeys(CLOCKS, 0.2)),  # all are probed
        ((800, 1400), {}),  # nothing is hidden
        ((1350, 1400), dict.fromkeys(CLOCKS, 0.2)),  # nothing below a probe is ever chosen
    ],
)
def test_where_nothing_can_be_learnt_nothing_is_said(
    probes: tuple[int, ...], deep: dict[int, float]
) -> None:
    assert next_probe(_result(probes, deep)) is None


def test_both_outputs_name_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.csv"
    rows = [
        f"0,{kind},{clock},{time_s},{time_s * power_w}"
        for kind in ("forward", "backward")
        for clock, time_s, power_w in zip(CLOCKS, TIME_S, POWER_W, strict=True)
    ]
    path.write_text("\n".join(["stage,instruction,frequency,time,energy", *rows]) + "\n")
    words = ["fit", str(path), "--probes", "1400,800"]
    assert dispatch([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["next_probe"]
    assert set(told) == {"clock_mhz", "reason"}
    assert told["clock_mhz"] in CLOCKS[1:-1]
    assert dispatch(words) == 0
    line = f"most useful next probe: {told['clock_mhz']} MHz: {told['reason']}"
    assert capsys.readouterr().out.splitlines()[-1] == line
    every = ",".join(map(str, CLOCKS))
    assert dispatch(["fit", str(path), "--probes", every, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["next_probe"] is None
