"""Which windows are worth their energy: room for far steps, and what is likely in time."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulecut_controller.learn.clock_search import ROOM_WINDOWS, progress
from joulecut_controller.learn.evidence import Evidence, ExplorerInput
from joulecut_controller.learn.explorer import Explorer
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.measurement_log import JobConstants, Measurement, MeasurementLog
from joulecut_controller.learn.probes import GAIN_MIN, Probes
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.regression import Floats
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import Pipeline

TOP, STAGES = 1410, 3
GRID = tuple(range(900, TOP + 1, 15))
PIPELINE = Pipeline("1f1b", STAGES, 8)
CONSTANTS = JobConstants(PIPELINE, (TOP,) * STAGES, TOP, 80.0)
PATHS = LongestPaths(PIPELINE)


def window(clocks: tuple[int, ...], share: float, work: tuple[float, ...]) -> Measurement:
    """What an exact plant of that clock share would tell."""
    busy = [0.01 * w * (1.0 - share + share * TOP / f) for w, f in zip(work, clocks, strict=True)]
    each = np.array([[[s / 3], [2 * s / 3]] for s in busy])
    time_s = float(PATHS.iteration_s(each)[0])
    energy = tuple(
        (50.0 + 250.0 * (mhz / TOP) ** 2.4) * 8 * s + 80.0 * (time_s - 8 * s)
        for mhz, s in zip(clocks, busy, strict=True)
    )
    return Measurement(clocks, 50, time_s, 0.002 * time_s, energy)


def test_room_for_a_far_step_is_worth_more_than_none_for_a_short_one() -> None:
    """One stage waits; its clock is lowered by one or by four clocks of the table, the latter with
    the other raised meanwhile, which costs more in that window than all the step saves.
    """

    def judge(rows: Floats) -> tuple[Floats, Floats]:
        return np.ones(len(rows)), 100.0 + 0.02 * (rows[:, 0] - 1200) + 0.1 * (rows[:, 1] - 1200)

    rows = np.array([[1185.0, 1200.0], [1140.0, 1260.0]])
    near, far = progress(judge, (1200, 1200), 100.0, rows)
    assert judge(rows)[1][1] > 100.0, "that window costs more than none"
    assert far > near > 0.0
    dear = np.array([[1185.0, 1200.0 + 15 * ROOM_WINDOWS]])
    assert progress(judge, (1200, 1200), 100.0, dear)[0] < 0.0, "but it has to come back"


@settings(max_examples=25, deadline=None)
@given(
    share=st.floats(0.4, 0.95),
    work=st.lists(st.floats(0.85, 1.0), min_size=STAGES, max_size=STAGES),
    steps=st.lists(
        st.lists(st.integers(0, 4), min_size=STAGES, max_size=STAGES), min_size=1, max_size=6
    ),
)
@example(share=0.5, work=[1.0, 1.0, 1.0], steps=[[0, 0, 1]])  # all that is cheaper is measured
def test_what_is_likely_in_time_is_new_within_the_evidence_cheaper_and_bounded(
    share: float, work: list[float], steps: list[list[int]]
) -> None:
    settings_mhz = {(TOP,) * STAGES: None}
    settings_mhz |= {tuple(TOP - 15 * step for step in each): None for each in steps}
    measurements = tuple(window(clocks, share, tuple(work)) for clocks in settings_mhz)
    facts = ExplorerInput(
        CONSTANTS, (GRID,) * STAGES, (TOP,) * STAGES, Slo(max_slowdown=0.03), 50, (0,) * STAGES
    )
    known = Evidence(facts, measurements, RateModel(CONSTANTS, measurements, PATHS))
    probe = Probes(known).inside()
    if probe is None:
        return
    assert probe.clocks_mhz not in settings_mhz
    assert known.known(probe.clocks_mhz)
    assert probe.gain_ratio >= GAIN_MIN
    assert known.acceptable(np.array([probe.clocks_mhz], dtype=np.float64))[0]
    assert probe.stages == tuple(s for s, mhz in enumerate(probe.clocks_mhz) if mhz < TOP)


@pytest.mark.parametrize("budget", [0.01, 0.02])
def test_a_small_budget_is_used_to_the_last_clock_that_is_in_time(budget: float) -> None:
    """Steps of the table are large here: one that is likely in time is worth a window."""
    work, share = (0.99, 1.0, 0.97), 0.8
    explorer, log, now = Explorer(), MeasurementLog("walk"), (TOP,) * STAGES
    for _ in range(60):
        log, _ = log.add(window(now, share, work))
        facts = ExplorerInput(
            CONSTANTS, (GRID,) * STAGES, now, Slo(max_slowdown=budget), 50, (0,) * STAGES
        )
        advice = explorer.advise(facts, log)
        if advice.verdict == "enough":
            break
        now = advice.clocks_mhz
    base = log.measurements[0]
    left = [
        clocks
        for s in range(STAGES)
        for clocks in ((*now[:s], now[s] - 15, *now[s + 1 :]),)
        if window(clocks, share, work).time_s <= base.time_s * (1.0 + 0.9 * budget)
        and 1.0 - sum(window(clocks, share, work).energy_j) / sum(window(now, share, work).energy_j)
        > 2.0 * GAIN_MIN
    ]
    assert not left, (now, advice.reason)
    assert window(now, share, work).time_s <= base.time_s * (1.0 + budget)
