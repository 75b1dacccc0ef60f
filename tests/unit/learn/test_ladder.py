"""Learning from the rate alone: what a step never does, what is found, and that it ends."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.evidence import OVER_RATIO, STEP_RATIO, ExplorerInput
from joulecut_controller.learn.explorer import Explorer
from joulecut_controller.learn.ladder import GAIN_MIN, KEPT, Ladder
from joulecut_controller.learn.longest_paths import LongestPaths
from joulecut_controller.learn.measurement_log import JobConstants, Measurement, MeasurementLog
from joulecut_controller.learn.rate_choices import RateChoices
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import Pipeline

TOP, CLOCKS = 1410, tuple(range(900, 1411, 15))
MICROBATCHES = 8


def facts(stages: int, now: tuple[int, ...] | None = None, budget: float = 0.05) -> ExplorerInput:
    default = (TOP,) * stages
    constants = JobConstants(Pipeline("1f1b", stages, MICROBATCHES), default, TOP, 80.0)
    return ExplorerInput(
        constants, (CLOCKS,) * stages, now or default, Slo(max_slowdown=budget), 50, (0,) * stages
    )


def measurement(
    clocks: tuple[int, ...], share: float = 0.8, work: tuple[float, ...] = (), cap: int = TOP
) -> Measurement:
    """What an exact plant of that clock share would tell; `work` are relative stage times, and no
    GPU runs above the cap.
    """
    ran = [min(mhz, cap) for mhz in clocks]
    times = [
        (work[s] if work else 1.0) * (1.0 - share + share * TOP / mhz) for s, mhz in enumerate(ran)
    ]
    each = np.array([[[t / 3], [2 * t / 3]] for t in times]) * 0.01
    paths = LongestPaths(Pipeline("1f1b", len(clocks), MICROBATCHES))
    time_s = float(paths.iteration_s(each)[0])
    energy = tuple(
        (50.0 + 250.0 * (mhz / TOP) ** 2.4) * t * 0.08 + 80.0 * max(0.0, time_s - t * 0.08)
        for mhz, t in zip(ran, times, strict=True)
    )
    return Measurement(clocks, 50, time_s, 0.001 * time_s, energy)


def walk(
    stages: int, share: float, work: tuple[float, ...], budget: float, cap: int = TOP
) -> tuple[MeasurementLog, Advice]:
    """Follows the advice until it says enough, and checks every step on the way."""
    explorer, log, at = Explorer(), MeasurementLog("walk"), facts(stages, budget=budget)
    first = measurement(at.now_mhz, share, work, cap)
    late = False
    for _ in range(60):
        told = measurement(at.now_mhz, share, work, cap)
        slower = told.time_s / first.time_s - 1.0
        assert slower <= budget + OVER_RATIO + 0.001
        assert not (late and slower > budget + 0.0005), "two in a row"
        late = slower > budget + 0.0005
        log, complaint = log.add(told)
        assert not complaint
        lowest = [min(r.clocks_mhz[s] for r in log.measurements) for s in range(stages)]
        advice = explorer.advise(at, log)
        if advice.verdict == "enough":
            break
        below = [s for s in range(stages) if advice.clocks_mhz[s] < lowest[s]]
        assert set(below) <= set(advice.stages), "what is lowered is named"
        for s in below:
            assert advice.clocks_mhz[s] >= min(lowest[s] - STEP_RATIO * TOP, *lowest)
        at = replace(at, now_mhz=advice.clocks_mhz)
    return log, advice


@settings(max_examples=12)
@given(
    stages=st.integers(1, 4),
    share=st.floats(0.0, 1.0),
    heavier=st.floats(0.9, 1.2),
    budget=st.sampled_from([0.005, 0.02, 0.05, 0.1]),
)
@pytest.mark.long
def test_every_step_is_short_named_and_in_time(
    stages: int, share: float, heavier: float, budget: float
) -> None:
    work = tuple(heavier if s == stages - 1 else 1.0 for s in range(stages))
    _, advice = walk(stages, share, work, budget)
    assert advice.lowest_mhz
    assert advice.deadline_s is not None


@pytest.mark.parametrize("work", [(1.0, 1.0, 1.0, 1.07), (0.97, 1.05, 0.94, 1.0)])
def test_the_stage_that_all_wait_for_is_found(work: tuple[float, ...]) -> None:
    """It keeps the highest clock, and more is saved than by one clock for all."""
    log, advice = walk(4, 0.87, work, 0.05)
    first, end = log.measurements[0], measurement(advice.clocks_mhz, 0.87, work)
    slowest = work.index(max(work))
    assert min(advice.clocks_mhz[s] for s in range(4) if s == slowest) == max(advice.clocks_mhz)
    assert end.time_s <= 1.05 * first.time_s
    common = measurement((1335,) * 4, 0.87, work)
    saved, by_one = (1.0 - sum(m.energy_j) / sum(first.energy_j) for m in (end, common))
    assert saved >= 1.2 * by_one, (saved, by_one, advice.clocks_mhz)


def test_one_stage_is_learnt_to_the_budget_and_the_reason_to_stop_is_in_numbers() -> None:
    log, advice = walk(1, 0.8, (1.0,), 0.05)
    assert advice.verdict == "enough"
    assert f"{GAIN_MIN:.2%}" in advice.reason
    slower = measurement(advice.clocks_mhz).time_s / log.measurements[0].time_s
    assert 1.038 < slower <= 1.05


def test_clocks_that_a_power_cap_hides_are_crossed() -> None:
    """A lower lock changes nothing until it passes the clock that the cap leaves."""
    log, advice = walk(4, 0.8, (1.0,) * 4, 0.05, cap=1260)
    first, end = log.measurements[0], measurement(advice.clocks_mhz, 0.8, cap=1260)
    possible = measurement((1185,) * 4, 0.8, cap=1260)  # 4.5 % slower
    saved, most = (1.0 - sum(m.energy_j) / sum(first.energy_j) for m in (end, possible))
    assert saved >= 0.8 * most, (saved, most, advice.clocks_mhz)


def test_nothing_is_advised_before_the_baseline_nor_before_a_window_ended() -> None:
    explorer, at = Explorer(), facts(2)
    assert explorer.advise(at, MeasurementLog()).verdict == "measure"
    assert "baseline" in explorer.advise(at, MeasurementLog()).reason
    log, _ = MeasurementLog().add(measurement((TOP, TOP)))
    moved = replace(at, now_mhz=(1350, TOP))
    assert explorer.advise(moved, log).verdict == "measure"
    assert "1350/1410" in explorer.advise(moved, log).reason


@pytest.mark.parametrize(("stray", "windows"), [(0.04, 16), (0.01, 8), (0.001, 1)])
def test_a_noisy_baseline_is_measured_for_longer(stray: float, windows: int) -> None:
    log, at = MeasurementLog("noisy"), facts(3)
    plain = measurement((TOP,) * 3)
    verdicts = []
    for _ in range(windows):
        log, _ = log.add(replace(plain, time_sd_s=stray * plain.time_s))
        verdicts.append(Explorer().advise(at, log).verdict)
    assert verdicts[:-1] == ["measure"] * (windows - 1)
    assert verdicts[-1] != "measure"


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


def test_an_unreachable_target_goes_back_to_default_clocks_and_says_so() -> None:
    log, _ = MeasurementLog().add(measurement((TOP, TOP)))
    slo = Slo(max_iteration_time_s=log.measurements[0].time_s * 0.98, given_as="min_rate")
    advice = Explorer().advise(replace(facts(2), slo=slo), log)
    assert advice.verdict == "enough"
    assert "unreachable" in advice.reason


def test_a_late_job_is_raised_at_once_to_clocks_in_time() -> None:
    log = MeasurementLog()
    for clocks in ((TOP, TOP), (1350, 1350), (1200, 1200)):
        log, _ = log.add(measurement(clocks, 1.0))
    advice = Explorer().advise(facts(2, (1200, 1200), 0.02), log)
    assert advice.verdict == "raise"
    assert measurement(advice.clocks_mhz, 1.0).time_s <= log.measurements[0].time_s * 1.02


def test_clocks_that_may_be_late_are_left_for_some_that_are_not() -> None:
    """Otherwise two windows in a row could be late."""
    at, log = facts(2, (1350, 1350), 0.0403), MeasurementLog()  # 1350 MHz take 4.0 % longer
    for clocks in ((TOP, TOP), (1380, TOP), (1380, 1380), (1350, 1380), (1350, 1350)):
        told = measurement(clocks, 0.9)
        log, _ = log.add(replace(told, time_sd_s=0.03 * told.time_s))
    advice = Explorer().advise(at, log)
    assert advice.verdict in ("settle", "raise")
    assert sum(advice.clocks_mhz) > 2 * 1350


def test_the_log_as_text_gives_the_same_advice_to_the_last_bit() -> None:
    log, at = MeasurementLog("shape"), facts(2, (1350, TOP))
    for clocks in ((TOP, TOP), (1350, TOP)):
        log, _ = log.add(measurement(clocks))
    back = MeasurementLog.restored(log.state(), "shape")
    assert back == log
    assert repr(Explorer().advise(at, back)) == repr(Explorer().advise(at, log))


@pytest.mark.parametrize("predicted", [(1.0, 1.0, 1.3), (1.3, 1.0, 1.0)])
def test_a_prediction_orders_stages_and_is_no_evidence_of_time(
    predicted: tuple[float, ...],
) -> None:
    at, measured = facts(3), (measurement((TOP,) * 3),)
    told = replace(at, constants=replace(at.constants, predicted_work=predicted))
    advice = Ladder(told, measured).advice()
    heaviest = predicted.index(max(predicted))
    assert heaviest not in advice.stages
    rows = np.array([RateChoices(at, measured).at(advice.clocks_mhz)])
    high_s = measured[0].time_s * math.exp(RateChoices(at, measured).band(rows, KEPT.in_time)[0])
    assert advice.time_high_s == pytest.approx(high_s)


def test_the_way_down_from_a_hidden_plain_is_found_from_its_top() -> None:
    """A replayed A40 sweep once went back to default clocks and stayed there."""
    at = facts(2)
    measured = [measurement((mhz,) * 2, 0.8, cap=1305) for mhz in (TOP, 1350, 1290)]
    choices = RateChoices(at, measured)
    in_time = math.log(1.05)
    found = choices.cheapest(
        choices.at((TOP, TOP)), choices.joules, lambda rows: choices.band(rows, 0.9) <= in_time
    )
    assert max(choices.clocks_mhz(found)) < 1305


# -- guesses and choices ---------------------------------------------------------------------------


def test_as_many_guesses_are_late_as_jobs_are() -> None:
    """True jobs drawn from the prior, windows with noise: coverage of the band of nine tenths."""
    rng, covered, runs = np.random.default_rng(3), 0, 40
    asked = (1245, 1320, 1350)
    for _ in range(runs):
        share = float(np.clip(rng.normal(0.7, 0.3), 0.05, 1.0))
        work = tuple(np.exp(rng.normal(0.0, 0.12, 3)))
        measured = []
        for clocks in ((TOP, TOP, TOP), (1350, 1350, TOP), (1290, 1350, TOP), (1290, 1350, 1350)):
            told = measurement(clocks, share, work)
            luck = 1.0 + rng.normal(0.0, 0.002)
            measured.append(replace(told.scaled(luck), time_sd_s=0.002 * 50**0.5 * told.time_s))
        choices = RateChoices(facts(3), measured)
        high = choices.band(np.array([choices.at(asked)]), 0.9)[0]
        base_s = measurement((TOP,) * 3, share, work).time_s
        covered += math.log(measurement(asked, share, work).time_s / base_s) <= high
    assert 0.78 * runs <= covered, covered


def test_the_search_agrees_with_trying_everything() -> None:
    measured = [measurement(clocks) for clocks in ((TOP,) * 3, (1350, 1365, 1380))]
    at = replace(facts(3), grids=((1320, 1350, 1380, TOP),) * 3)
    choices = RateChoices(at, measured)
    every = np.array([[a, b, c] for a in range(4) for b in range(4) for c in range(4)])

    def in_time(rows: np.ndarray) -> np.ndarray:
        return np.asarray(choices.band(rows, 0.9) <= math.log(1.03))

    start = choices.at((TOP,) * 3)
    found = choices.cheapest(start, choices.joules, in_time)
    assert in_time(found[None])[0]
    least_j = choices.joules(every[in_time(every)]).min()
    assert choices.joules(found[None])[0] == pytest.approx(least_j, rel=1e-3)
