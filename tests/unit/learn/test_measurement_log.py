"""The measurement log: what it refuses, how it follows a job, how it is kept."""

import json
import math
from dataclasses import replace

import pytest

from joulecut_controller.learn.measurement_log import (
    Measurement,
    MeasurementLog,
    window_iterations,
)

TOP = 1410


def measurement(clocks: tuple[int, ...], busy: bool = False) -> Measurement:
    time_s = 0.1 * TOP / min(clocks)
    operations = ((0.001, 0.002),) * len(clocks) if busy else ()
    return Measurement(
        clocks,
        50,
        time_s,
        0.001 * time_s,
        (20.0,) * len(clocks),
        operations,
        0.01 if busy else None,
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"time_s": math.nan},
        {"time_s": -1.0},
        {"time_sd_s": math.inf},
        {"energy_j": (1.0, 0.0)},
        {"energy_j": (1.0,)},
        {"iterations": 3},
        {"clocks_mhz": (0, TOP)},
        {"busy_s": ((1.0, math.nan), (1.0, 1.0))},
    ],
)
def test_windows_that_cannot_be_true_are_refused_and_counted(broken: dict[str, object]) -> None:
    log, _ = MeasurementLog().add(measurement((TOP, TOP)))
    after, complaint = log.add(replace(measurement((TOP, TOP)), **broken))  # type: ignore[arg-type]
    assert complaint.startswith("window refused")
    assert after.measurements == log.measurements
    assert after.refused == 1


@pytest.mark.parametrize("ratio", [0.8, 0.98, 1.01, 1.2])
def test_all_windows_follow_a_change_at_default_clocks(ratio: float) -> None:
    log, _ = MeasurementLog().add(measurement((TOP, TOP)))
    log, _ = log.add(measurement((1350, TOP)))
    top, lowered = log.measurements
    log, said = log.add(replace(top, time_s=ratio * top.time_s))
    assert f"{ratio - 1.0:+.1%}" in said
    assert log.restarts == 0
    assert [one.time_s for one in log.measurements] == pytest.approx(
        [ratio * top.time_s, ratio * lowered.time_s]
    )


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 9, "shape": "shape"}', "null"])
def test_a_damaged_or_foreign_memory_is_an_empty_one(text: str) -> None:
    assert MeasurementLog.restored(text, "shape") == MeasurementLog("shape")
    log, _ = MeasurementLog("other").add(measurement((TOP, TOP)))
    assert MeasurementLog.restored(log.state(), "shape") == MeasurementLog("shape")


def test_memory_is_bounded_and_keeps_the_baseline() -> None:
    log = MeasurementLog()
    for step in range(300):
        log, _ = log.add(measurement((TOP - step, TOP)))
    assert len(log.measurements) <= 96
    assert log.measurements[0].clocks_mhz == (TOP, TOP)


def test_slow_jobs_have_shorter_windows() -> None:
    assert window_iterations(0.1) == 50
    assert 8 < window_iterations(0.5) < 50
    assert window_iterations(10.0) == 8


def test_the_spread_of_operations_is_kept_and_older_texts_have_none() -> None:
    log = MeasurementLog("kept")
    for spread in (0.01, 0.03):
        log, complaint = log.add(replace(measurement((TOP, TOP), True), operation_sd_ratio=spread))
        assert not complaint
    assert log.measurements[0].operation_sd_ratio == pytest.approx((0.0005) ** 0.5)
    assert MeasurementLog.restored(log.state(), "kept") == log
    older = json.loads(log.state())
    del older["readings"][0]["operation_sd_ratio"]
    restored = MeasurementLog.restored(json.dumps(older), "kept")
    assert restored.measurements[0].operation_sd_ratio is None
    nonsense = replace(log.measurements[0], operation_sd_ratio=float("nan"))
    assert log.add(nonsense)[0].refused == 1


def test_of_default_clocks_that_heat_lowers_only_the_rest_of_the_change_is_everybodys() -> None:
    """Work follows its clock here by three quarters, which is what the log expects."""
    log, _ = MeasurementLog().add(measurement((TOP, TOP), busy=True), at_default=True)
    log, _ = log.add(measurement((1200, 1200), busy=True))
    top, lowered = log.measurements
    held, slower = 1320 / TOP, 1.02
    hot = replace(top, clocks_mhz=(1320, 1320), time_s=slower * held**-0.75 * top.time_s)
    log, _ = log.add(hot, at_default=True)
    assert log.measurements[0] == hot
    assert log.measurements[1].time_s == pytest.approx(slower * lowered.time_s)
