"""`joulecut study teach`: from a study of layers to the predictor of a controller."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_rows import ROW

from joulecut_cli.main import dispatch
from joulecut_controller.known_jobs import NAME, decoded, encoded
from joulecut_controller.store.database import open_store
from joulecut_engine.estimate.other_jobs import ClockShares, Counters, KnownJob, OtherJobs
from joulecut_lab.study.row import Row, write
from joulecut_lab.study.teach import known_jobs
from joulecut_wire.errors import BadInput

CLOCKS_MHZ = range(900, 1441, 30)
LIMIT_W = 165.0  # an A30


def layer(number: int, share: float) -> list[Row]:
    """A layer whose time follows the clock by `share`."""
    rows = []
    for mhz in CLOCKS_MHZ:
        time_s = 0.002 * (1.0 + share * (1440 / mhz - 1.0))
        power_w = 60.0 + 90.0 * (mhz / 1440) ** 2
        clocks = {"clock_asked_mhz": mhz, "clock_mhz": float(mhz)}
        shown = {"time_s": time_s, "power_w": power_w, "energy_j": power_w * time_s}
        rows.append(replace(ROW, model=f"gpt-{number}", **clocks, **shown))
    return rows


def store_of(folder: Path) -> str:
    return f"sqlite:///{folder}/controller.db"


def table(folder: Path, rows: list[Row]) -> str:
    write(folder / "rows.csv", rows)
    return str(folder / "rows.csv")


def test_a_layer_teaches_what_its_clocks_show() -> None:
    (one,) = known_jobs(layer(1, 0.6))
    assert one.shares.time == pytest.approx(0.6, abs=1e-6)
    assert 0.0 < one.shares.power < 1.0
    assert one.counters.power_ratio == pytest.approx(150.0 / LIMIT_W)
    assert "gpt" not in one.workload


def test_taught_layers_change_what_is_predicted_of_the_next_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for number in range(9) for row in layer(number, 0.90 + 0.01 * (number % 3))]
    assert dispatch(["study", "teach", table(tmp_path, rows), "--store", store_of(tmp_path)]) == 0
    assert "9 layers teach; the store knows 9 workloads" in capsys.readouterr().out
    store = open_store(store_of(tmp_path))
    known = decoded(store.learnt(NAME))
    store.close()
    next_work = known[0].counters
    before, after = OtherJobs(()).shares(next_work), OtherJobs(known).shares(next_work)
    assert abs(after.time - 0.91) < 0.05 < abs(before.time - 0.91)


def test_layers_teach_a_fit_of_other_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for number in range(9) for row in layer(number, 0.60 + 0.01 * number)]
    sweep = "\n".join(
        f"0,backward,{row.clock_asked_mhz},{row.time_s},{row.energy_j}" for row in layer(9, 0.65)
    )
    profile = tmp_path / "profile.csv"
    profile.write_text(f"stage,instruction,frequency,time,energy\n{sweep}\n")
    true_w = {row.clock_asked_mhz: row.power_w for row in layer(9, 0.65)}
    off = []
    for also in ([], ["--also", table(tmp_path, rows)]):
        assert dispatch(["fit", str(profile), "--probes", "1440,1080", *also, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["rows"]
        off.append(max(abs(one["power_w"] / true_w[one["clock_mhz"]] - 1.0) for one in told))
    assert off[1] < 0.5 * off[0]


def test_what_the_store_knew_stays_and_nothing_teaches_twice(tmp_path: Path) -> None:
    job = KnownJob("a job", Counters("NVIDIA A30", 1.0, 0.7), ClockShares(0.5, 0.4))
    store = open_store(store_of(tmp_path))
    store.keep_learnt(NAME, encoded([job]))
    store.close()
    rows = [row for number in range(3) for row in layer(number, 0.7)]
    argv = ["study", "teach", table(tmp_path, rows), "--store", store_of(tmp_path)]
    assert dispatch(argv) == dispatch(argv) == 0
    store = open_store(store_of(tmp_path))
    known = decoded(store.learnt(NAME))
    store.close()
    assert len(known) == 4
    assert known[0] == job


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            [replace(row, basis="simulated") for row in layer(1, 0.5) + layer(2, 0.5)],
            "rows of simulated cards",
        ),
        (
            [replace(row, card="Unknown 9000") for row in layer(1, 0.5) + layer(2, 0.5)],
            "no layer has a clock clearly below",
        ),
    ],
)
def test_rows_that_must_not_teach_change_no_store(
    tmp_path: Path, rows: list[Row], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        dispatch(["study", "teach", table(tmp_path, rows), "--store", store_of(tmp_path)])
    assert not (tmp_path / "controller.db").exists()
