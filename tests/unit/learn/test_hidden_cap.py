"""A power cap far below the clock that is asked, and seen: time and energy lie on a plain there."""

from dataclasses import replace

import numpy as np
import pytest

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.clock_search import cheapest
from joulecut_controller.learn.evidence import Evidence, ExplorerInput
from joulecut_controller.learn.explorer import Explorer, capped_mhz
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.measurement_log import JobConstants, Measurement, MeasurementLog
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.regression import Floats
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import Pipeline

TOP, CAP = 1710, 1410
GRID = tuple(range(900, TOP + 1, 15))
STAGES, SHARE = 4, 0.8
PIPELINE = Pipeline("1f1b", STAGES, 8)
CONSTANTS = JobConstants(PIPELINE, (TOP,) * STAGES, TOP, 80.0)
PATHS = LongestPaths(PIPELINE)


def facts(now: tuple[int, ...] = (TOP,) * STAGES) -> ExplorerInput:
    return ExplorerInput(
        CONSTANTS, (GRID,) * STAGES, now, Slo(max_slowdown=0.05), 50, (0,) * STAGES
    )


def window(clocks: tuple[int, ...], detailed: bool = False) -> Measurement:
    """What an exact plant would tell whose GPUs never run above the cap."""
    ratios = [min(mhz, CAP) / CAP for mhz in clocks]
    busy = [0.01 * (1.0 - SHARE + SHARE / ratio) for ratio in ratios]
    each = np.array([[[s / 3], [2 * s / 3]] for s in busy])
    time_s = float(PATHS.iteration_s(each)[0])
    energy = tuple(
        (50.0 + 250.0 * ratio**2.4) * 8 * s + 80.0 * (time_s - 8 * s)
        for ratio, s in zip(ratios, busy, strict=True)
    )
    told = tuple((s / 3, 2 * s / 3) for s in busy) if detailed else ()
    return Measurement(clocks, 50, time_s, 0.001 * time_s, energy, told)


def learnt(detailed: bool) -> tuple[MeasurementLog, Advice]:
    """The advice followed until it says enough."""
    explorer, log, at = Explorer(), MeasurementLog("walk"), facts()
    for _ in range(90):
        log, _ = log.add(window(at.now_mhz, detailed))
        advice = explorer.advise(at, log)
        if advice.verdict == "enough":
            break
        at = replace(at, now_mhz=advice.clocks_mhz)
    return log, advice


@pytest.mark.parametrize("detailed", [False, True])
def test_a_plain_of_three_steps_is_crossed_and_the_way_down_from_it_found(detailed: bool) -> None:
    log, advice = learnt(detailed)
    base = log.measurements[0]
    saved, possible = (
        1.0 - sum(window(clocks).energy_j) / sum(base.energy_j)
        for clocks in (advice.clocks_mhz, (1335,) * STAGES)  # 4.5 % slower
    )
    assert saved >= 0.9 * possible, (saved, possible, advice.clocks_mhz, advice.reason)
    assert window(advice.clocks_mhz).time_s <= 1.05 * base.time_s


def test_stages_lowered_together_tell_of_a_cap_each_by_its_own_energy() -> None:
    default, kinds = (TOP,) * STAGES, (0,) * STAGES
    top, group = window(default), window((TOP, 1635, 1620, TOP))
    assert capped_mhz(default, (top, group), kinds) == (1635,) * STAGES, "the higher of the two"
    assert capped_mhz(default, (top, group), (0, 0, 1, 1)) == (1635, 1635, 1620, 1620)
    cheaper = replace(
        group,
        energy_j=tuple(j * (0.97 if s in (1, 2) else 1.0) for s, j in enumerate(top.energy_j)),
    )
    assert capped_mhz(default, (top, cheaper), kinds) == default
    mixed = replace(group, clocks_mhz=(1395, 1635, 1620, TOP))
    known = replace(top, clocks_mhz=(1380, TOP, TOP, TOP))
    told = capped_mhz(default, (known, replace(mixed, energy_j=cheaper.energy_j)), kinds)
    assert told == default, "one was raised meanwhile"


def test_a_rough_plain_is_a_plain_and_slower_work_is_not() -> None:
    """Measured under a cap, time and energy rise a little where the clock asked falls."""
    default, kinds = (TOP,) * STAGES, (0,) * STAGES
    top = window(default)

    def changed(time: float, energy: float) -> Measurement:
        joules = tuple(j * energy for j in top.energy_j)
        return replace(top, clocks_mhz=(1635,) * STAGES, time_s=top.time_s * time, energy_j=joules)

    assert capped_mhz(default, (top, changed(1.0045, 1.005)), kinds) == (1635,) * STAGES
    assert capped_mhz(default, (top, changed(1.03, 0.995)), kinds) == default, "later by 3 %"
    assert capped_mhz(default, (top, changed(1.0, 0.98)), kinds) == default, "cheaper by 2 %"
    assert capped_mhz(default, (top, changed(0.9955, 0.98)), kinds) == default, "luck is no room"


@pytest.mark.parametrize("edge", [1410, 1425, 1440, 1455])
def test_a_plain_that_goes_on_below_the_last_window_on_it_is_no_law_of_power(edge: int) -> None:
    """Where a cap ends lies between two windows: what is flat there tells nothing of the rest."""
    constants = replace(CONSTANTS, default_mhz=(edge,) * STAGES)
    measurements = tuple(window((mhz,) * STAGES) for mhz in (TOP, 1635, 1560, 1485, edge, 1380))
    model = RateModel(constants, measurements, PATHS)
    asked = [window((mhz,) * STAGES) for mhz in (1305, 1230)]
    rows = np.array([measurement.clocks_mhz for measurement in asked], dtype=np.float64)
    guessed_j = model.energy_j(rows, np.array([measurement.time_s for measurement in asked])).sum(
        axis=1
    )
    true_j = [sum(measurement.energy_j) for measurement in asked]
    assert guessed_j == pytest.approx(true_j, rel=0.01), model.energy_j(rows)


# Windows of a replayed A40 sweep (simulated, 0.5 % jitter): MHz by stage, seconds, joules by GPU.
# The sweep's energy falls 15 % further down, once time has stayed flat until 1425 MHz.
SWEPT = (
    ((1710, 1710, 1710, 1710), 0.196207, (51.454, 52.660, 51.238, 52.460)),
    ((1680, 1710, 1710, 1680), 0.197217, (51.231, 52.943, 51.260, 52.831)),
    ((1695, 1665, 1710, 1695), 0.196156, (51.318, 53.089, 51.404, 52.605)),
    ((1605, 1620, 1635, 1605), 0.196685, (51.414, 52.756, 51.383, 52.605)),
    ((1620, 1575, 1620, 1620), 0.196851, (51.452, 52.798, 51.431, 53.017)),
    ((1575, 1590, 1590, 1560), 0.196848, (51.181, 53.173, 51.666, 52.772)),
    ((1515, 1560, 1560, 1575), 0.196935, (51.004, 52.992, 51.704, 52.586)),
    ((1485, 1530, 1530, 1530), 0.196786, (50.578, 52.723, 51.293, 52.591)),
    ((1515, 1500, 1500, 1500), 0.197109, (50.725, 52.648, 50.950, 52.154)),
)


def test_on_a_measured_plain_it_does_not_stop_before_anything_is_saved() -> None:
    """It once did, after nine windows: flat energy was taken for a card whose volts never fall."""
    measurements = tuple(Measurement(mhz, 50, s, 1.5e-4, joules) for mhz, s, joules in SWEPT)
    constants = JobConstants(Pipeline("1f1b", STAGES, 24), (TOP,) * STAGES, TOP, 70.38)
    at = replace(facts(measurements[-1].clocks_mhz), constants=constants)
    advice = Explorer().advise(at, MeasurementLog("sweep", measurements))
    assert advice.verdict == "probe", advice.reason
    assert min(advice.clocks_mhz) < 1485, "below all that was measured"


def test_the_search_sees_down_from_a_plain_wherever_it_begins() -> None:
    """From default clocks, from the middle of the plain, and from clocks that are late."""
    constants = replace(CONSTANTS, default_mhz=(CAP,) * STAGES)
    measurements = (window((TOP,) * STAGES), window((1350,) * STAGES))
    known = Evidence(facts(), measurements, RateModel(constants, measurements, PATHS))
    costs = []
    for start in ((TOP,) * STAGES, (1560, TOP, 1590, 1560), (900,) * STAGES):
        found = known.cheapest((GRID,) * STAGES, start, known.deadline_s)
        assert found is not None
        assert max(found.clocks_mhz) < CAP
        assert found.time_s <= known.deadline_s
        costs.append(found.cost)
    assert max(costs) == pytest.approx(min(costs), rel=0.003)


def test_what_is_kept_on_the_plain_is_the_clock_that_runs() -> None:
    """Two clocks that a cap hides are the same: none is exchanged for another."""
    constants = replace(CONSTANTS, default_mhz=(CAP,) * STAGES)
    measurements = (window((TOP,) * STAGES), window((1560, 1350, 1350, 1350)))
    known = Evidence(facts(), measurements, RateModel(constants, measurements, PATHS))
    found = known.cheapest((GRID,) * STAGES, (1560, 1350, 1350, 1350), known.deadline_s)
    assert found is not None
    assert set(found.clocks_mhz) <= {mhz for mhz in GRID if mhz < CAP} | {1560, TOP}


def test_a_start_that_is_late_is_raised_until_it_is_not() -> None:
    def judge(rows: Floats) -> tuple[Floats, Floats]:
        time_s = 1.0 + np.maximum(0.0, 1000.0 - rows).max(axis=1) / 1000.0
        return time_s, np.minimum(rows, 1200.0).sum(axis=1)  # flat above 1200

    found = cheapest((tuple(range(500, 2001, 25)),) * 2, (700, 800), judge, 1.1)
    assert found is not None
    assert found.clocks_mhz == (900, 900)
    assert cheapest(((900,), (950,)), (900, 950), judge, 1.05) is None
