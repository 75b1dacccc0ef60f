"""A board as JSON: units, nulls, and no number that JSON does not know."""

import math
from dataclasses import replace

import boards
import large
from hypothesis import given
from hypothesis import strategies as st
from job_states import changed

from joulecut_controller.answer import number
from joulecut_controller.plan.plan import FrontierPoint
from joulecut_controller.ports import Event
from joulecut_controller.view import Window
from joulecut_controller.web.board_json import (
    EVENT_WITH_DETAIL,
    board_json,
    brief_json,
)
from joulecut_controller.web.job_json import evidence, job_json, strongest_mode
from joulecut_controller.web.responses import encode
from joulecut_controller.web.timeline import timeline_json


@given(st.floats() | st.none())
def test_what_is_not_finite_becomes_null(value: float | None) -> None:
    shown = number(value)
    assert shown is None or (math.isfinite(shown) and shown == value)
    encode({"value": shown})


@given(st.floats(), st.floats(), st.one_of(st.none(), st.floats()))
def test_windows_of_any_numbers_can_be_shown(
    time_s: float, sd_s: float, joule: float | None
) -> None:
    [job] = boards.measuring().jobs
    odd = Window(1, time_s, sd_s, joule, joule)
    odd_job = replace(job, view=changed(job.view, baseline=odd, current=odd))
    encode(job_json(odd_job, boards.measuring().view))


def test_a_gpu_that_is_silent_has_nulls_and_not_zeros() -> None:
    silent = board_json(boards.straggling())["gpus"][6]
    assert silent["age_s"] is None
    assert silent["power_average_w"] is None
    assert silent["clock_seen_mhz"] is None
    assert silent["lease"] is None


def test_a_lease_is_shown_with_what_is_left_of_it_now() -> None:
    gpu = board_json(boards.board())["gpus"][0]
    source = boards.board().view.gpus[gpu["uuid"]]
    assert gpu["lease"]["remaining_s"] == source.snapshot.lease.expires_in_s - source.age_s


def test_now_and_baseline_are_compared_only_where_both_are_measured() -> None:
    measured = board_json(boards.board())["jobs"][0]["measured"]
    assert 0.0 < measured["slowdown_ratio"] < 0.02
    assert 0.1 < measured["saved_ratio"] < 0.2
    [job] = boards.board().jobs
    assert replace(job, view=changed(job.view, current=None)).slowdown_ratio is None
    young = board_json(boards.measuring())["jobs"][0]["measured"]
    assert young["slowdown_ratio"] is None
    assert young["saved_ratio"] is None


def test_recommended_and_applied_stand_side_by_side() -> None:
    recommending = board_json(boards.board("recommend"))["jobs"][0]["gpus"]
    assert [row["clock_recommended_mhz"] for row in recommending] == list(boards.PLANNED_MHZ)
    assert {row["clock_asked_mhz"] for row in recommending} == {None}
    enforcing = board_json(boards.board("enforce"))["jobs"][0]["gpus"]
    assert [row["clock_asked_mhz"] for row in enforcing] == list(boards.PLANNED_MHZ)


def test_detail_of_an_event_is_an_object_where_it_was_one() -> None:
    event = Event(1.0, "plan", "a", 1, "t", '{"saved_ratio": 0.1, "odd": NaN}')
    assert EVENT_WITH_DETAIL.json(event)["detail"] == {"saved_ratio": 0.1, "odd": None}
    assert EVENT_WITH_DETAIL.json(replace(event, detail="{broken"))["detail"] == "{broken"
    assert EVENT_WITH_DETAIL.json(replace(event, detail=""))["detail"] is None


def test_the_strongest_mode_is_what_the_head_says() -> None:
    enforced, recommended = boards.job("enforce"), boards.job("recommend", microbatches=12)
    assert strongest_mode((recommended, enforced)) == "enforce"
    assert strongest_mode((recommended,)) == "recommend"
    assert strongest_mode(()) == "off"


def test_evidence_grows_with_what_the_job_tells() -> None:
    told = boards.job().view
    assert evidence(told)["level"] == "L1"
    assert "operations" in evidence(told)["text"]
    assert evidence(changed(told, loads=())) == evidence(told), "as after every change of clocks"
    silent_on_them = changed(told, operations_reported=False)
    assert evidence(silent_on_them)["text"] == "reports its iterations"
    assert evidence(changed(silent_on_them, report_age_s=math.inf))["level"] == "L0"


def test_the_timeline_has_every_operation_in_the_jobs_own_seconds() -> None:
    shown = timeline_json(boards.job())
    operations = shown["operations"]
    assert len(operations) == 2 * 8 * 48
    ends = [o["start_s"] + o["duration_s"] for o in operations]
    assert math.isclose(max(ends), shown["iteration_time_s"])
    fastest = shown["fastest"]
    assert {o["clock_mhz"] for o in fastest["operations"]} == {1410}
    baseline = boards.job().view.measured.baseline
    assert math.isclose(fastest["iteration_time_s"], baseline.time_mean_s)
    late = max(o["start_s"] + o["duration_s"] for o in fastest["operations"])
    assert math.isclose(late, baseline.time_mean_s)


def test_no_timeline_without_a_plan_or_after_the_pipeline_changed() -> None:
    [young] = boards.measuring().jobs
    assert timeline_json(young) is None
    job = boards.job()
    other = boards.policy("enforce", microbatches=24)
    assert timeline_json(replace(job, view=replace(job.view, policy=other))) is None


def test_a_frontier_of_odd_numbers_can_be_shown() -> None:
    job = replace(boards.job(), frontier=(FrontierPoint(1.0, math.inf, math.nan),))
    [point] = job_json(job, boards.board().view)["frontier"]
    assert point == {"iteration_time_s": 1.0, "energy_j": None, "lower_bound_j": None}


def test_the_brief_form_says_the_same_of_each_job() -> None:
    for board in (boards.board(), boards.board("recommend"), boards.straggling(), large.board(40)):
        for brief, whole in zip(brief_json(board)["jobs"], board_json(board)["jobs"], strict=True):
            shorter = {"frontier", "gpus", "decision", "applied"}
            assert {key for key in whole if brief[key] != whole[key]} <= shorter
