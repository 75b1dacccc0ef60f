"""The headline, what needs a person, and the next step: all follow from the board's state."""

import json
import math
import re
from dataclasses import asdict, replace
from typing import Any

import boards
import pytest
from job_states import changed

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.state import next_step, rate_source, state_of
from joulecut_controller.cluster.summary import cluster_of, part_of
from joulecut_controller.cluster.worth import job_worth
from joulecut_controller.orders import Hold
from joulecut_controller.policy.policy import Cost, Policy
from joulecut_controller.policy.rate_query import RateQuery
from joulecut_controller.reference.reference import Answer, Figure
from joulecut_controller.view import NOT_REPORTED
from joulecut_controller.web.cluster_json import node_rows
from joulecut_wire.messages import IterationTiming


def with_job(board: Board, job: JobBoard) -> Board:
    return replace(board, jobs=(job,), view=replace(board.view, jobs=(job.view,)))


def test_steady_is_said_only_where_nothing_waits_and_nothing_is_wrong() -> None:
    assert cluster_of(boards.board()).headline == "All jobs steady."
    assert cluster_of(boards.board("recommend")).headline == (
        "All jobs steady. 1 plan available: -14.9 % energy (recommend)."
    )
    whole = boards.board()
    [job] = whole.jobs
    waits = replace(job, view=changed(job.view, peer_iteration_time_s=4.0))
    late = replace(
        job, view=changed(job.view, current=boards.window(_solution(), times=1.2, joules=1.0))
    )
    gone = replace(job, view=changed(job.view, report_age_s=math.inf))
    for broken in (
        with_job(whole, waits),
        with_job(whole, late),
        with_job(whole, gone),
        boards.measuring(),
        boards.straggling(),
        boards.empty(),
        replace(whole, policy_error="policy.yaml:3: bad"),
        replace(whole, warnings=("the last pass failed: no space",), sentence="all jobs steady"),
    ):
        assert "steady" not in cluster_of(broken).headline
    released = with_job(whole, replace(job, applied=None))
    assert cluster_of(released).headline == "1 job: 1 at default clocks."


def test_the_slowdown_shown_beside_a_straggler_is_that_of_the_iterations() -> None:
    """The reference speaks of clocks, which do not show there: +0.7 % beside 15 % longer ones."""
    [job] = boards.board().jobs
    assert job.view.measured.current is not None
    assert job.view.measured.baseline is not None
    known = Answer(Figure(0.0, 0.0), Figure(math.log(1.007), 0.0), Figure(1.0, 0.0), (), {})
    job = replace(job, view=changed(job.view, reference=known))
    assert job.slowdown_ratio == pytest.approx(0.007)
    peer_s = 1.15 * job.view.measured.baseline.time_mean_s
    current = replace(job.view.measured.current, time_mean_s=peer_s)
    waits = replace(job, view=changed(job.view, peer_iteration_time_s=peer_s, current=current))
    assert waits.slowdown_ratio == pytest.approx(0.15)


def _solution() -> object:
    decision = boards.job().decision
    return decision.solution


def test_each_need_has_a_place_to_look_and_faults_come_first() -> None:
    cluster = cluster_of(boards.straggling())
    assert [(need.severity, need.job, need.node) for need in cluster.needs] == [
        ("fault", "", ""),
        ("fault", "", "node2"),
        ("note", "gpt3-175b", ""),
    ]
    assert cluster.needs[1].runbook == "JoulecutAgentLost"


def test_a_straggler_that_has_just_recovered_is_no_fault_of_the_job() -> None:
    """Its plan still holds for a pass or two; one that stays is a fault, and so is any other."""
    [job] = boards.board().jobs
    slow = boards.window(_solution(), times=1.14, joules=1.0)
    assert job.applied.forecast is not None
    longer = replace(job.applied.forecast, iteration_time_s=1.14 * slow.time_mean_s)
    waited = replace(job, applied=replace(job.applied, forecast=longer))
    found = {
        (shown is waited, iterations): any(
            need.runbook == "JoulecutSlowdownAboveBudget"
            for need in cluster_of(
                with_job(
                    boards.board(),
                    replace(
                        shown,
                        view=changed(shown.view, current=replace(slow, iterations=iterations)),
                    ),
                )
            ).needs
        )
        for shown in (waited, job)
        for iterations in (12, 64)
    }
    assert found == {(True, 12): False, (True, 64): True, (False, 12): True, (False, 64): True}


def test_a_limit_that_loses_money_is_noted_at_the_sites_own_prices() -> None:
    """Not at assumed ones, not for a site that is short of watts, not for a limit of nothing."""
    priced = Policy(cost=Cost(gpu_hour=2.0, kwh=0.08))
    short = replace(priced, power_budget_w=1e5)
    shown = boards.board()
    [job] = shown.jobs

    def warned(policy: Policy, limit: float) -> list[str]:
        slo = replace(job.view.policy.slo, max_slowdown=limit, max_iteration_time_s=None)
        view = replace(job.view, policy=replace(job.view.policy, slo=slo))
        board = replace(with_job(shown, replace(job, view=view)), policy=policy)
        return [need.text for need in cluster_of(board).needs if "break-even" in need.text]

    [text] = warned(priced, 0.02)
    worth = job_worth(job, priced)
    assert worth.prices.assumed == ()
    assert "max_slowdown 2 %" in text
    assert re.search(r"break-even of 0\.\d\d %", text)
    assert warned(short, 0.02) == warned(Policy(), 0.02) == warned(priced, 0.0) == []


def test_a_rate_of_prometheus_is_the_source_also_where_a_log_shows_starts() -> None:
    starts = IterationTiming("gpt3-175b", boards.uuid(0), "log", 1.0, 0.02, 59.0, 0.01)
    job = replace(boards.job("recommend"), timing=starts)
    assert rate_source(job) == "log"
    asked = replace(job.view.policy, rate=RateQuery("rate(steps[1m])", 60.0))
    view = changed(job.view, policy=asked, source="promql")
    assert rate_source(replace(job, view=view)) == "promql"


def test_the_next_step_is_what_stands_between_the_job_and_enforcement() -> None:
    job = boards.job("recommend")
    assert next_step(job).startswith("not yet: time error 3.1 % at the clocks that run")
    ready = replace(job, predict_error_time_ratio=0.003)
    assert next_step(ready) == "ready: set `mode: enforce` in the policy"
    [young] = boards.measuring().jobs
    assert next_step(young) == "measuring the baseline (12 of 30 iterations)"
    silent = replace(young, view=changed(young.view, report_age_s=math.inf))
    assert "must report its iterations" in next_step(silent)
    held = replace(job, holds=(Hold(job.view.policy.name, "breaker", "late", "", 0.0),))
    assert (state_of(held), state_of(boards.job())) == ("tripped", "enforced")
    assert "arms it again" in next_step(held)
    assert next_step(boards.job()) == ""


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"hindrance": "its agent backs off"}, "its agent backs off"),
        ({"predict_error_time_ratio": None}, "no prediction was compared with a measurement yet"),
        ({"predict_error_time_ratio": 0.021}, "time error 2.1 % at the clocks that run"),
        ({"predict_error_power_ratio": 0.06}, "power error 6.0 %"),
        ({"decision": None}, "nothing was recommended so far"),
    ],
)
def test_each_thing_alone_speaks_against_enforcing(change: dict[str, Any], missing: str) -> None:
    ready = replace(boards.job("recommend"), predict_error_time_ratio=0.003)
    assert ready.advisable.yes
    if "hindrance" in change:
        change = {"view": changed(ready.view, **change)}
    assert replace(ready, **change).advisable.text == f"not yet: {missing}"


def test_a_job_that_has_never_reported_is_a_note_and_one_that_stopped_a_fault() -> None:
    """A policy names jobs that do not run at the moment."""
    [young] = boards.measuring().jobs
    stopped = replace(young, view=changed(young.view, report_age_s=math.inf))
    never = replace(stopped, view=changed(stopped.view, complaint=NOT_REPORTED))
    misfit = replace(stopped, view=changed(stopped.view, complaint="no GPU reports stage 1 of 2"))
    found = []
    for job in (never, stopped, misfit):
        [need] = cluster_of(with_job(boards.measuring(), job)).needs
        found.append((state_of(job), need.severity))
    assert found == [("silent", "note"), ("silent", "fault"), ("unplaced", "fault")]


def test_a_job_whose_first_plan_is_computed_is_not_steady() -> None:
    """The last decision was made before the baseline: it is no word on what could be saved."""
    [young] = boards.measuring().jobs
    sentence = "the solver is at work on a plan"
    first = replace(
        young,
        view=changed(young.view, baseline=boards.job().view.measured.baseline),
        sentence=sentence,
        computing=True,
    )
    assert (state_of(first), next_step(first)) == ("measuring", sentence)
    assert "steady" not in cluster_of(with_job(boards.measuring(), first)).headline
    assert young.decision is not None
    best = "default clocks are best: 0.0% to save"
    made = replace(young.decision, reason=best)
    none = replace(first, computing=False, sentence=best, decision=made)
    assert state_of(none) == "steady"


def test_a_node_names_the_jobs_of_other_controllers_whose_leases_it_has() -> None:
    whole = boards.board()
    ours, others = list(node_rows(whole)), list(node_rows(replace(whole, jobs=())))
    assert {row["jobs"] for row in ours} == {row["jobs"] for row in others} == {"gpt3-175b"}


def test_power_without_us_stands_on_measured_baselines() -> None:
    whole = boards.board()
    view = whole.jobs[0].view
    power = cluster_of(whole).power
    assert power.without_w - power.now_w == (view.measured.baseline.power_w or 0) - (
        view.measured.current.power_w or 0
    )
    only = cluster_of(boards.board("recommend")).power
    assert only.without_w == only.now_w
    assert only.available_w > 0.0
    assert cluster_of(boards.straggling()).power.predicted


def test_power_saved_does_not_jump_while_clocks_change() -> None:
    """A window under new clocks takes seconds; readings do not compare with a baseline."""
    whole = boards.board()
    [job] = whole.jobs
    assert job.view.measured.current is not None
    young = replace(job.view.measured.current, power_w=None, energy_j=None)
    forecast_w = cluster_of(with_job(whole, job)).power
    for current in (None, young):
        power = cluster_of(
            with_job(whole, replace(job, view=changed(job.view, current=current)))
        ).power
        saved_w, settled_w = power.without_w - power.now_w, forecast_w.without_w - forecast_w.now_w
        assert power.predicted
        assert abs(saved_w - settled_w) < 0.05 * settled_w


def test_what_a_plan_removed_is_no_bloat_any_more() -> None:
    """Before it is applied all kinds count; then only the gap to its lower bound."""
    recommended, enforced = boards.job("recommend"), boards.job()
    assert recommended.bloat_w == {"intrinsic": 312.0, "extrinsic": 0.0, "variability": 41.0}
    forecast = enforced.decision.forecast
    gap_w = (forecast.energy_j - forecast.lower_bound_j) / forecast.iteration_time_s
    assert enforced.bloat_w == {"intrinsic": gap_w, "extrinsic": 0.0, "variability": 0.0}


def test_limits_that_outlive_their_leases_without_a_budget_need_a_person() -> None:
    whole = boards.board()
    (place, gpu), *_ = whole.view.gpus.items()
    assert gpu.snapshot is not None
    kept = replace(gpu, snapshot=replace(gpu.snapshot, power_limit_kept_w=200.0))
    view = replace(whole.view, gpus={**whole.view.gpus, place: kept})
    found = cluster_of(replace(whole, view=view)).needs
    assert [one.severity for one in found if "200 W on 1 GPU outlive" in one.text] == ["decision"]


def test_gpus_that_are_held_and_not_used_are_named_with_watts_and_money() -> None:
    whole = boards.board()
    uuids = [uuid for uuid, gpu in whole.view.gpus.items() if gpu.snapshot is not None][:2]
    held = replace(whole, unused_s=dict.fromkeys(uuids, 720.0))
    power_w = sum(
        shown.power_average_w or 0.0
        for uuid in uuids
        if (shown := whole.view.gpus[uuid].snapshot) is not None
    )

    def said(board: Board) -> list[str]:
        return [need.text for need in cluster_of(board).needs if "not used" in need.text]

    assert said(whole) == []
    [text] = said(held)
    assert text.endswith(f"and not used for 12 min: {power_w:.0f} W"), "no money at assumed prices"
    priced = Policy(cost=Cost(gpu_hour=2.0, kwh=0.1, currency="EUR"))
    [text] = said(replace(held, policy=priced))
    assert text.endswith(f"W, {4.0 + power_w / 1000.0 * 0.1:.3g} EUR an hour")


def test_jobs_of_another_controller_count_as_its_own_would() -> None:
    whole = boards.board()
    assert whole.jobs
    empty = replace(whole, jobs=())
    shared = replace(empty, elsewhere=((3.0, json.dumps(asdict(part_of(whole)))),))
    mine, theirs = cluster_of(whole), cluster_of(shared)
    assert (theirs.headline, theirs.states, theirs.account) == (
        mine.headline,
        mine.states,
        mine.account,
    )
    assert theirs.power == mine.power
    assert [one for one in theirs.needs if one.job] == [one for one in mine.needs if one.job]
    assert cluster_of(replace(whole, elsewhere=shared.elsewhere)).power.now_w == mine.power.now_w
    unreadable = replace(empty, elsewhere=((3.0, '{"states": 1}'),))
    assert cluster_of(unreadable) == cluster_of(empty)
