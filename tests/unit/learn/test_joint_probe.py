"""Stages lowered as one group: the worst case of a group, and that those that wait are it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.learn.evidence import OVER_RATIO, STEP_RATIO, Evidence, ExplorerInput
from joulecut_controller.learn.iteration_form import LongestPaths
from joulecut_controller.learn.joint_probe import JointProbes
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.time_bounds import ceiling_s
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import Pipeline

TOP, CLOCKS = 1410, tuple(range(900, 1411, 15))
PIPELINE = Pipeline("1f1b", 4, 12)
WORK = (0.85, 1.0, 0.88, 0.86)  # stage 1 is waited for


def measurement(clocks: tuple[int, ...], *, told: bool = False) -> Measurement:
    times = np.array(
        [work * (0.2 + 0.8 * TOP / mhz) for work, mhz in zip(WORK, clocks, strict=True)]
    )
    each = np.stack([times / 3, 2 * times / 3], axis=1) * 0.01
    time_s = float(LongestPaths(PIPELINE).iteration_s(each[:, :, None])[0])
    busy_s = each.sum(axis=1) * PIPELINE.microbatches
    watts = 50.0 + 250.0 * (np.array(clocks) / TOP) ** 2.4
    energy_j = watts * busy_s + 80.0 * (time_s - busy_s)
    busy = tuple(tuple(map(float, row)) for row in each) if told else ()
    return Measurement(clocks, 50, time_s, 0.001 * time_s, tuple(map(float, energy_j)), busy)


def evidence(*measured: tuple[int, ...], told: bool = False, budget: float = 0.05) -> Evidence:
    default = (TOP,) * 4
    constants = JobConstants(PIPELINE, default, TOP, 80.0)
    slo = Slo(max_slowdown=budget)
    facts = ExplorerInput(constants, (CLOCKS,) * 4, measured[-1], slo, 50, alike=(0, 0, 0, 0))
    measurements = tuple(measurement(clocks, told=told) for clocks in measured)
    return Evidence(facts, measurements, RateModel(constants, measurements, LongestPaths(PIPELINE)))


def waiting_at(mhz: int) -> tuple[int, ...]:
    return (mhz, TOP, mhz, mhz)


SEEN = [(TOP,) * 4, (TOP, 1350, TOP, TOP), (1350, TOP, 1350, 1350)]


@settings(max_examples=60)
@given(
    now=st.lists(st.sampled_from(CLOCKS), min_size=4, max_size=4),
    ratios=st.lists(st.floats(1.0, 1.05), min_size=4, max_size=4),
)
def test_a_group_costs_no_more_at_worst_than_the_one_of_it_that_is_lowered_most(
    now: list[int], ratios: list[float]
) -> None:
    measured = np.array([now], dtype=np.float64)
    asked = measured / np.array(ratios)
    alone = measured.copy()
    alone[0, int(np.argmax(ratios))] = asked[0, int(np.argmax(ratios))]
    together_s, alone_s = ceiling_s(np.array([2.0]), measured, np.concatenate([asked, alone]))
    assert together_s == pytest.approx(2.0 * max(ratios))
    assert together_s == pytest.approx(alone_s)


def test_stages_that_wait_are_one_group_and_the_one_waited_for_is_not_of_it() -> None:
    known = evidence(*SEEN, (1305, TOP, 1305, 1305))
    probe = JointProbes(known, may_make_room=True).next()
    assert probe is not None
    assert len(probe.stages) > 1
    assert 1 not in probe.stages
    lowest = known.lowest
    below = {s for s, mhz in enumerate(probe.clocks_mhz) if mhz < lowest[s]}
    assert below <= set(probe.stages)
    assert all(lowest[s] - probe.clocks_mhz[s] <= STEP_RATIO * TOP for s in below)
    row = np.array([probe.clocks_mhz], dtype=np.float64)
    assert known.acceptable(row)[0]
    assert measurement(probe.clocks_mhz).time_s <= known.deadline_s


def test_before_anything_is_known_half_of_the_stages_are_lowered() -> None:
    probe = JointProbes(evidence(SEEN[0]), may_make_room=True).next()
    assert probe is not None
    assert len(probe.stages) == 2


def test_when_it_is_late_for_learning_no_room_is_made() -> None:
    known = evidence(*SEEN, (1305, 1350, 1305, 1305))
    probe = JointProbes(known, may_make_room=False).next()
    if probe is not None:
        now = known.facts.now_mhz
        assert all(mhz <= held for mhz, held in zip(probe.clocks_mhz, now, strict=True))


def test_a_window_run_only_to_learn_leaves_a_part_of_the_room() -> None:
    known = evidence(*SEEN)
    assert -0.05 < known.early < 0.0
    fine = np.linspace(1300.0, 1410.0, 60)  # finer than any card's table
    rows = np.repeat(fine[:, None], 4, axis=1)
    late, early = known.acceptable(rows), known.acceptable(rows, known.early)
    assert not (early & ~late).any()
    assert late.sum() > early.sum()


def test_work_that_no_reading_shows_is_expected_to_be_less_than_the_likeliest() -> None:
    seen = SEEN[:2]
    known = evidence(*seen)
    other = known.model.with_expected_work()
    assert other is not None
    rows = np.array(seen, dtype=np.float64)
    likeliest_s, expected_s = known.model.busy_s(rows)[0], other.busy_s(rows)[0]
    waiting = [0, 2, 3]  # 0.85, 0.88 and 0.86 of what stage 1 has
    assert (expected_s[waiting] < 0.97 * expected_s[1]).all()
    assert (expected_s[waiting] / expected_s[1] < likeliest_s[waiting] / likeliest_s[1]).all()
    told_s = np.array([measurement(clocks).time_s for clocks in seen])
    assert other.time_s(rows) == pytest.approx(told_s, rel=0.003), "measurements still hold"


# A budget in which one clock of the table is more than half of the room. All that wait are lowered
# together; the one waited for was seen once.
NARROW = 0.02
LOWERED = [(TOP,) * 4, (TOP, 1395, TOP, TOP), *map(waiting_at, (1395, 1380, 1350))]


def test_with_a_narrow_budget_one_clock_is_dared_that_only_the_likeliest_job_takes_for_late() -> (
    None
):
    known = evidence(*LOWERED, budget=NARROW)
    steps = [waiting_at(mhz) for mhz in (1335, 1320, 1305)]
    rows = np.array(steps, dtype=np.float64)
    likeliest_s, limit_s = known.model.time_s(rows), known.deadline_s * (1.0 + OVER_RATIO)
    assert likeliest_s[0] * (1.0 + known.doubt(steps[0])) > known.deadline_s, "by its upper band"
    assert measurement(steps[0]).time_s < known.mean_s(rows)[0] <= known.deadline_s
    assert list(known.acceptable(rows)) == [True, False, False], "the worst case bounds it all"
    assert known.worst_s(rows)[0] <= limit_s < known.worst_s(rows)[1]
    wide = evidence(*LOWERED)
    assert known.narrow
    assert not wide.narrow


def test_a_window_run_to_learn_is_announced_by_what_it_was_chosen_by() -> None:
    """The guard refuses what is announced as late."""
    known = evidence(*LOWERED, waiting_at(1335), waiting_at(1320), budget=NARROW)
    clocks = waiting_at(1305)
    likeliest_s = known.expected_s(clocks, trial=False)
    assert likeliest_s == known.judge_one(clocks)[0] > known.deadline_s
    chosen_by_s = known.expected_s(clocks, trial=True)
    assert chosen_by_s <= known.deadline_s
    assert chosen_by_s == pytest.approx(measurement(clocks).time_s, rel=0.002)
