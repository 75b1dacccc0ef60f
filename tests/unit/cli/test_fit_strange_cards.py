"""`joulecut fit` on cards that nobody sells and that do not have the predictors' form."""

import json
from pathlib import Path

import numpy as np
import pytest
import strange
from strange import Sweep

from joulecut_cli.main import dispatch

SEEDS = range(24)
HELD_MIN = 0.88  # of a band of nine in ten


def _fit(
    capsys: pytest.CaptureFixture[str], path: Path, sweep: Sweep, probes: int, *flags: str
) -> list[dict[str, float]]:
    """Rows that were not probed, each with what was measured there."""
    path.write_text(_csv(sweep))
    some = next(iter(sweep.values()))
    words = ",".join(map(str, strange.spread(some, probes)))
    assert dispatch(["fit", str(path), "--probes", words, *flags, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = []
    for row in rows:
        time_s, energy_j = sweep[row["stage"], row["instruction"]][row["clock_mhz"]]
        if not row["probed"]:
            found.append(row | {"true_s": time_s, "true_w": energy_j / time_s})
    return found


def _csv(sweep: Sweep) -> str:
    lines = ["stage,instruction,frequency,time,energy"]
    for (stage, kind), options in sweep.items():
        lines += [f"{stage},{kind},{clock},{t!r},{e!r}" for clock, (t, e) in options.items()]
    return "\n".join(lines) + "\n"


def _held(rows: list[dict[str, float]]) -> float:
    return float(np.mean([r["time_low_s"] <= r["true_s"] <= r["time_high_s"] for r in rows]))


def _width(rows: list[dict[str, float]]) -> float:
    return float(np.mean([np.log(r["time_high_s"] / r["time_low_s"]) for r in rows]))


@pytest.mark.parametrize(
    ("probes", "sd"),
    [
        (2, 0.01),
        *(pytest.param(n, sd, marks=pytest.mark.long) for n in (3, 5) for sd in (0.0, 0.02)),
    ],
)
def test_bands_hold_nine_in_ten_of_any_card(
    probes: int, sd: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, widths = [], []
    for seed in SEEDS:
        measured = strange.noisy(strange.sweep(seed), sd, seed)
        rows = _fit(capsys, tmp_path / "a.csv", measured, probes)
        held.append(_held(rows))
        widths.append(_width(rows))
    assert np.mean(held) >= HELD_MIN, f"held by seed: {held}"
    assert np.mean(widths) <= 0.4, "a band of everything says nothing"


def test_five_clocks_tell_the_time_of_any_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, powers = [], []
    for seed in SEEDS:
        for row in _fit(capsys, tmp_path / "a.csv", strange.sweep(seed), 5):
            times.append(abs(row["time_s"] / row["true_s"] - 1.0))
            powers.append(abs(row["power_w"] / row["true_w"] - 1.0))
    assert np.median(times) <= 0.003
    assert np.mean(times) <= 0.01
    assert np.median(powers) <= 0.01
    assert np.mean(powers) <= 0.03


@pytest.mark.long
@pytest.mark.parametrize("probes", [2, 3])
def test_noise_of_other_sweeps_is_noise_of_these(
    probes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two or three probes do not show it themselves."""
    held = []
    for seed in SEEDS:
        both = strange.noisy(strange.sweep(seed, stages=2), 0.02, seed)
        new = {key: options for key, options in both.items() if key[0] == 0}
        known = {(0, kind): options for (stage, kind), options in both.items() if stage == 1}
        if len(next(iter(known.values()))) < 30:
            continue  # too sparse to show noise
        (tmp_path / "known.csv").write_text(_csv(known))
        alone = _fit(capsys, tmp_path / "new.csv", new, probes)
        taught = _fit(
            capsys, tmp_path / "new.csv", new, probes, "--also", str(tmp_path / "known.csv")
        )
        assert _width(taught) >= 2 * 1.645 * 0.01, "half of the noise at the very least"
        held.append(_held(taught))
        assert alone
    assert len(held) >= 8
    assert np.mean(held) >= HELD_MIN, f"held: {held}"
