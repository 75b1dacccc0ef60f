"""Advice on where to measure next: what it never does, and that it says why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.clock_search import PAYBACK_WINDOWS, cheapest
from joulecut_controller.learn.evidence import OVER_RATIO, STEP_RATIO, Evidence, ExplorerInput
from joulecut_controller.learn.explorer import Explorer, capped_mhz
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.measurement_log import (
    JobConstants,
    Measurement,
    MeasurementLog,
    window_iterations,
)
from joulecut_controller.learn.probes import GAIN_MIN, Probes
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import Pipeline

TOP, CLOCKS = 1410, tuple(range(900, 1411, 15))


def facts(stages: int, now: tuple[int, ...] | None = None, budget: float = 0.05) -> ExplorerInput:
    default = (TOP,) * stages
    constants = JobConstants(Pipeline("1f1b", stages, 8), default, TOP, 80.0)
    return ExplorerInput(
        constants, (CLOCKS,) * stages, now or default, Slo(max_slowdown=budget), 50, (0,) * stages
    )


def measurement(
    clocks: tuple[int, ...], share: float = 0.8, work: tuple[float, ...] = ()
) -> Measurement:
    """What an exact plant of that clock share would tell; `work` are relative stage times."""
    times = [
        (work[s] if work else 1.0) * (1.0 - share + share * TOP / mhz)
        for s, mhz in enumerate(clocks)
    ]
    each = np.array([[[t / 3], [2 * t / 3]] for t in times]) * 0.01
    time_s = float(LongestPaths(Pipeline("1f1b", len(clocks), 8)).iteration_s(each)[0])
    energy = tuple(
        (50.0 + 250.0 * (mhz / TOP) ** 2.4) * t * 0.08 + 80.0 * max(0.0, time_s - t * 0.08)
        for mhz, t in zip(clocks, times, strict=True)
    )
    return Measurement(clocks, 50, time_s, 0.001 * time_s, energy)


def walk(stages: int, share: float, work: tuple[float, ...], budget: float) -> list[Advice]:
    """Follows the advice until it says enough, and checks every step on the way."""
    explorer, log, at = Explorer(), MeasurementLog("walk"), facts(stages, budget=budget)
    first = measurement(at.now_mhz, share, work)
    advices: list[Advice] = []
    for _ in range(60):
        told = measurement(at.now_mhz, share, work)
        assert told.time_s <= first.time_s * (1.0 + budget) * (1.0 + OVER_RATIO + 0.001)
        log, complaint = log.add(told)
        assert not complaint
        lowest = [min(r.clocks_mhz[s] for r in log.measurements) for s in range(stages)]
        advice = explorer.advise(at, log)
        advices.append(advice)
        if advice.verdict == "enough":
            break
        below = [s for s in range(stages) if advice.clocks_mhz[s] < lowest[s]]
        assert set(below) <= set(advice.stages), "one group at a time, and it is named"
        for s in below:
            reach = min(lowest[s] - STEP_RATIO * TOP, *lowest)
            assert advice.clocks_mhz[s] >= reach
        at = replace(at, now_mhz=advice.clocks_mhz)
    return advices


@settings(max_examples=12)
@given(
    stages=st.integers(1, 4),
    share=st.floats(0.0, 1.0),
    heavier=st.floats(0.9, 1.2),
    budget=st.sampled_from([0.005, 0.02, 0.05, 0.1]),
)
@pytest.mark.long
def test_whatever_the_card_does_every_step_is_short_named_and_in_time(
    stages: int, share: float, heavier: float, budget: float
) -> None:
    work = tuple(heavier if s == stages - 1 else 1.0 for s in range(stages))
    advices = walk(stages, share, work, budget)
    assert advices[-1].lowest_mhz
    assert advices[-1].deadline_s is not None


def test_a_job_that_follows_its_clock_in_part_is_learnt_to_the_budget() -> None:
    advices = walk(3, 0.8, (1.0, 1.0, 1.07), 0.05)
    assert advices[-1].verdict == "enough"
    assert "nothing more to learn" in advices[-1].reason
    end = measurement(advices[-1].clocks_mhz, 0.8, (1.0, 1.0, 1.07))
    start = measurement((TOP,) * 3, 0.8, (1.0, 1.0, 1.07))
    assert 1.035 < end.time_s / start.time_s <= 1.05 + 1e-9
    assert sum(end.energy_j) < 0.93 * sum(start.energy_j)


@pytest.mark.parametrize("work", [(1.0, 1.0, 1.0, 1.07), (0.97, 1.05, 0.94, 1.0)])
def test_slack_that_no_iteration_time_shows_is_found_by_making_room(
    work: tuple[float, ...],
) -> None:
    def judge(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        told = [measurement(tuple(map(int, row)), 0.87, work) for row in rows]
        return np.array([r.time_s for r in told]), np.array([sum(r.energy_j) for r in told])

    end = judge(np.array([walk(4, 0.87, work, 0.05)[-1].clocks_mhz]))
    start = judge(np.array([[TOP] * 4]))
    best = cheapest((CLOCKS,) * 4, (TOP,) * 4, judge, float(start[0][0]) * 1.05)
    assert best is not None
    assert end[0][0] <= start[0][0] * 1.05
    assert start[1][0] - end[1][0] >= 0.92 * (start[1][0] - best.cost)


def test_a_stage_may_be_lighter_until_it_was_waited_for() -> None:
    at, work = facts(3), (1.0, 1.0, 1.1)
    tried = [(TOP,) * 3, (TOP, TOP, 1350), (TOP, 1350, 1350)]

    def model() -> RateModel:
        measurements = [measurement(mhz, 0.9, work) for mhz in tried]
        return RateModel(at.constants, measurements, LongestPaths(at.constants.pipeline))

    lighter = [model().lighter(stage, 0.06) for stage in range(3)]
    assert lighter[2] is None, "lowering it slowed the job by as much as its own work"
    assert lighter[0] is not None
    low = np.array([[1320.0, TOP, 1350]])
    assert lighter[0].time_s(low)[0] <= model().time_s(low)[0]


def test_nothing_is_advised_before_the_baseline_nor_before_a_window_ended() -> None:
    explorer, at = Explorer(), facts(2)
    assert explorer.advise(at, MeasurementLog()).verdict == "measure"
    assert "baseline" in explorer.advise(at, MeasurementLog()).reason
    log, _ = MeasurementLog().add(measurement((TOP, TOP)))
    moved = replace(at, now_mhz=(1350, TOP))
    assert explorer.advise(moved, log).verdict == "measure"
    assert "1350/1410" in explorer.advise(moved, log).reason


def test_an_unreachable_target_goes_back_to_default_clocks_and_says_so() -> None:
    log, _ = MeasurementLog().add(measurement((TOP, TOP)))
    slo = Slo(max_iteration_time_s=log.measurements[0].time_s * 0.98, given_as="min_rate")
    advice = Explorer().advise(replace(facts(2), slo=slo), log)
    assert advice.verdict == "enough"
    assert "unreachable" in advice.reason


def test_a_late_job_is_raised_at_once() -> None:
    log = MeasurementLog()
    for clocks in ((TOP, TOP), (1200, 1200)):
        log, _ = log.add(measurement(clocks, 1.0))
    advice = Explorer().advise(facts(2, (1200, 1200), 0.02), log)
    assert advice.verdict == "raise"
    assert all(a >= 1200 for a in advice.clocks_mhz)
    assert measurement(advice.clocks_mhz, 1.0).time_s <= log.measurements[0].time_s * 1.02


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


def test_a_change_seen_below_default_clocks_asks_for_a_new_baseline() -> None:
    log = MeasurementLog()
    for clocks in ((TOP, TOP), (1350, TOP)):
        log, _ = log.add(measurement(clocks))
    lowered = measurement((1350, TOP))
    log, said = log.add(replace(lowered, time_s=lowered.time_s * 1.1))
    assert "learning starts again" in said
    assert log.measurements == ()
    advice = Explorer().advise(facts(2, (1350, TOP)), log)
    assert (advice.verdict, advice.clocks_mhz) == ("raise", (TOP, TOP))


def test_the_notebook_survives_as_text_and_gives_the_same_advice_to_the_last_bit() -> None:
    log, at = MeasurementLog("shape"), facts(2, (1350, TOP))
    for clocks in ((TOP, TOP), (1350, TOP)):
        log, _ = log.add(measurement(clocks))
    back = MeasurementLog.restored(log.state(), "shape")
    assert back == log
    assert repr(Explorer().advise(at, back)) == repr(Explorer().advise(at, log))


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


def test_flat_time_and_energy_are_a_cap_and_not_a_law() -> None:
    top = measurement((TOP, TOP))
    capped = replace(top, clocks_mhz=(1350, TOP))
    assert capped_mhz((TOP, TOP), (top, capped), (0, 0)) == (1350, 1350)
    assert capped_mhz((TOP, TOP), (top, capped), (0, 1)) == (1350, TOP)
    assert capped_mhz((TOP, TOP), (top, measurement((1350, TOP))), (0, 0)) == (TOP, TOP)
    near = replace(top, clocks_mhz=(TOP - 15, TOP))
    assert capped_mhz((TOP, TOP), (top, near), (0, 0)) == (TOP, TOP), "so little is noise"


def jittered(
    clocks: tuple[int, ...], share: float, work: tuple[float, ...], spread: float
) -> Measurement:
    """The same job in jitter: means over many draws."""
    plain = measurement(clocks, share, work)
    busy = [
        w * 0.01 * (1.0 - share + share * TOP / mhz) for w, mhz in zip(work, clocks, strict=True)
    ]
    each = np.array([[[b / 3], [2 * b / 3]] for b in busy])
    drawn = LongestPaths(Pipeline("1f1b", len(clocks), 8)).jittered_s(each, spread, 400)[:, 0]
    return replace(
        plain,
        time_s=float(drawn.mean()),
        time_sd_s=float(drawn.std()),
    )


def test_jitter_is_known_from_iterations_and_what_it_adds_from_the_graph() -> None:
    """Lowered until they are as slow as the slowest, stages wait for each other's luck."""
    work, spread, constants = (0.93, 0.93, 1.0), 0.04, facts(3).constants
    tried = [(TOP,) * 3, (1365, TOP, TOP), (1365, 1365, TOP)]
    measurements = [jittered(mhz, 0.9, work, spread) for mhz in tried]
    model = RateModel(constants, measurements, LongestPaths(constants.pipeline))
    still = RateModel(
        constants,
        [replace(r, time_sd_s=0.0) for r in measurements],
        LongestPaths(constants.pipeline),
    )
    alike = np.array([[1320.0, 1320.0, TOP]])
    true_s = jittered((1320, 1320, TOP), 0.9, work, spread).time_s
    assert model.time_s(alike)[0] == pytest.approx(true_s, rel=0.003)
    assert abs(still.time_s(alike)[0] / true_s - 1.0) > abs(model.time_s(alike)[0] / true_s - 1.0)


def test_from_clocks_that_may_be_late_only_those_that_are_not_follow() -> None:
    """So that no two windows in a row are late."""
    at, log = facts(2, (1350, 1350), 0.0447), MeasurementLog()  # 1350 MHz take 4.44 % longer
    for clocks in ((TOP, TOP), (1380, TOP), (1380, 1380), (1350, 1380), (1350, 1350)):
        told_s = measurement(clocks, 1.0)
        log, _ = log.add(replace(told_s, time_sd_s=0.004 * told_s.time_s))
    advice = Explorer().advise(at, log)
    assert advice.verdict in ("settle", "raise")
    assert "surely" in advice.reason or advice.verdict == "raise"
    assert sum(advice.clocks_mhz) > 2 * 1350


def test_room_that_does_not_pay_back_is_not_made() -> None:
    """No window costs more than ten times what the cheapest clocks promise."""
    explorer, log, at = Explorer(), MeasurementLog("walk"), facts(4, budget=0.01)
    work, paths = (0.97, 1.05, 0.94, 1.0), LongestPaths(facts(4).constants.pipeline)
    dear = 0
    for _ in range(30):
        log, _ = log.add(measurement(at.now_mhz, 0.87, work))
        known = Evidence(at, log.measurements, RateModel(at.constants, log.measurements, paths))
        probe = Probes(known).next() or Probes(known).hypothetical()
        now_j = known.judge_one(at.now_mhz)[1]
        dearer = known.judge_one(probe.clocks_mhz)[1] / now_j - 1.0 if probe is not None else 0.0
        if probe is not None and dearer > 0.0:
            best = cheapest(at.grids, at.now_mhz, known.judge, known.deadline_s)
            promise = 1.0 - best.cost / now_j if best is not None else 0.0
            assert dearer <= PAYBACK_WINDOWS * max(promise, probe.gain_ratio) + 1e-9
            dear += 1
        advice = explorer.advise(at, log)
        if advice.verdict == "enough":
            break
        at = replace(at, now_mhz=advice.clocks_mhz)
    assert dear, "some room was made"


def test_many_longest_paths_at_once_are_each_the_longest_path() -> None:
    rng = np.random.default_rng(3)
    times = rng.uniform(0.5, 1.5, size=(3, 2, 5))
    together = LongestPaths(Pipeline("1f1b", 3, 6)).iteration_s(times)
    alone = [
        LongestPaths(Pipeline("1f1b", 3, 6)).iteration_s(times[:, :, i : i + 1]) for i in range(5)
    ]
    assert together == pytest.approx(np.concatenate(alone), rel=1e-12)
    same = LongestPaths(Pipeline("1f1b", 3, 6)).iteration_s(np.ones((3, 2, 1)))
    assert same[0] == pytest.approx(2.0 * (6 + 3 - 1))


def test_a_schedule_that_reports_cannot_tell_apart_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="zb-h1 has parts that no report tells apart"):
        LongestPaths(Pipeline("zb-h1", 2, 4))


def test_the_search_agrees_with_trying_everything() -> None:
    grids = ((1, 2, 3, 4),) * 3

    def judge(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (1.0 / rows).max(axis=1), (rows**2 * [1.0, 2.0, 3.0]).sum(axis=1)

    for deadline in (0.26, 0.34, 0.5, 1.0):
        found = cheapest(grids, (4, 4, 4), judge, deadline)
        every = np.array([[a, b, c] for a in grids[0] for b in grids[1] for c in grids[2]], float)
        times, costs = judge(every)
        assert found is not None
        assert found.cost == pytest.approx(costs[times <= deadline].min())
    assert cheapest(grids, (4, 4, 4), judge, 0.2) is None


def test_slow_jobs_have_shorter_windows() -> None:
    assert window_iterations(0.1) == 50
    assert 8 < window_iterations(0.5) < 50
    assert window_iterations(10.0) == 8


def test_the_reason_to_stop_is_in_numbers() -> None:
    assert f"{GAIN_MIN:.2%}" in walk(1, 1.0, (1.0,), 0.005)[-1].reason
