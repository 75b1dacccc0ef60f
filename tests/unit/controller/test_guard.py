"""The guard: one good plan passes, and every single way to spoil it is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_states import changed, job_state
from planning import case_of, costs_of, decided, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.guard import Authority, refusal
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.policy.policy import Slo
from joulecut_controller.view import GpuView, View, Window
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.solver import Solver
from joulecut_wire.messages import Allocation, Lease, TimedStep

Spoil = Callable[[Plan, View, Authority], tuple[Plan, View, Authority]]


@cache
def good() -> tuple[Plan, View, Authority]:
    """A plan as the planner makes it, the view it came from, and the right to apply it."""
    world = World(stages=3, microbatches=12)
    policy = world.policy(slo=Slo(max_slowdown=0.05))
    state = world.observe(world.now_s)
    uncut = Window(50, 1.0, 0.0, None, None)
    job = job_state(
        policy=policy.jobs[0],
        stages=tuple((uuid,) for uuid in world.uuids),
        loads=(),
        baseline=uncut,
        current=uncut,
        generation_running=0,
        peer_iteration_time_s=None,
        report_age_s=0.1,
    )
    clocks = [world.sku.clock_max_mhz] * 3
    seconds = world.plant.iterate(clocks).own_s
    job = changed(job, baseline=replace(uncut, time_mean_s=seconds))
    view = View(
        now_s=world.now_s,
        nodes=state.nodes,
        gpus={gpu.uuid: gpu for gpu in state.gpus},
        jobs=(job,),
    )
    estimator = OnlineEstimator({world.job: world.profile()})
    inputs = PlanningInput(
        view=view,
        job=job,
        mode="enforce",
        baseline_progress="50 of 30 iterations",
        running=dict.fromkeys(world.uuids, 0),
        measured_applied=False,
        stale_s=3.0,
    )
    decision = decided(inputs, PlannerState(), estimator, SolverCache(Solver))
    assert decision.plan is not None, decision.reason
    plan = replace(decision.plan, generation=7)
    authority = Authority(
        epoch=5,
        generation_last=6,
        ttl_s=3.0,
        snapshot_age_max_s=3.0,
        report_age_max_s=5.0,
    )
    return plan, view, authority


def test_a_good_plan_passes() -> None:
    plan, view, authority = good()
    assert refusal(plan, view, authority, check) == ""
    assert any(action.verb == "lower" for action in plan.actions)


def of_plan(**changes: object) -> Spoil:
    return lambda p, v, a: (replace(p, **changes), v, a)


def of_forecast(**changes: object) -> Spoil:
    return lambda p, v, a: (replace(p, forecast=replace(p.forecast, **changes)), v, a)


def of_view(change: Callable[[View], View]) -> Spoil:
    return lambda p, v, a: (p, change(v), a)


def of_nodes(**changes: object) -> Spoil:
    return of_view(lambda v: replace(v, nodes=tuple(replace(n, **changes) for n in v.nodes)))


def of_job(**changes: object) -> Spoil:
    return of_view(lambda v: _job(v, **changes))


def of_policy(**changes: object) -> Spoil:
    return of_view(lambda v: _job(v, policy=replace(v.jobs[0].policy, **changes)))


def of_gpu(change: Callable[[GpuView], GpuView]) -> Spoil:
    """Of the first GPU that the plan sets."""

    def spoil(p: Plan, v: View, a: Authority) -> tuple[Plan, View, Authority]:
        uuid = p.actions[0].uuid
        return p, replace(v, gpus={**v.gpus, uuid: change(v.gpus[uuid])}), a

    return spoil


def of_snapshot(**changes: object) -> Spoil:
    return of_gpu(lambda g: replace(g, snapshot=replace(g.snapshot, **changes)))


def of_description(**changes: object) -> Spoil:
    return of_gpu(lambda g: replace(g, description=replace(g.description, **changes)))


def of_timing(**changes: Any) -> Spoil:
    return of_view(lambda v: _timing(v, **changes))


def of_clock(clock_mhz: int) -> Spoil:
    def spoil(p: Plan, v: View, a: Authority) -> tuple[Plan, View, Authority]:
        first, *rest = p.actions
        lowered = replace(first, clock_mhz=clock_mhz, verb="lower")
        return replace(p, actions=(lowered, *rest)), v, a

    return spoil


def _job(view: View, **changes: object) -> View:
    return replace(view, jobs=(changed(view.jobs[0], **changes),))


def _other(view: View) -> View:
    """With another job of the same GPUs."""
    other = replace(view.jobs[0].policy, name="other")
    return replace(view, jobs=(*view.jobs, replace(view.jobs[0], policy=other)))


SPOILS: dict[str, Spoil] = {
    "not newer": of_plan(generation=6),
    "is not newer": of_plan(generation=2**63),
    "another leads": of_nodes(epoch_seen=9),
    "not in the policy": of_plan(job="else"),
    "no profile": of_policy(profile=None),
    "no baseline": of_job(baseline=None),
    "last report is": of_job(report_age_s=99.0),
    "report is nan": of_job(report_age_s=float("nan")),
    "no room": of_job(complaint="no room"),
    "stage of the pipeline": of_view(lambda v: _job(v, stages=v.jobs[0].placement.stages[:2])),
    "one by one": lambda p, v, a: (replace(p, actions=p.actions[1:]), v, a),
    # Not the first once more: with "one by one" that would be the good plan in another order.
    "cover": lambda p, v, a: (replace(p, actions=(*p.actions, p.actions[-1])), v, a),
    "shared with job": of_view(_other),
    "cannot be reached": of_nodes(connected=False),
    "longer than agent": of_nodes(ttl_max_s=2.0),
    "a lease of nan": lambda p, v, a: (p, v, replace(a, ttl_s=float("nan"))),
    "is not known": of_view(lambda v: replace(v, nodes=())),
    "no current reading": of_gpu(lambda g: replace(g, snapshot=None)),
    "there is no current": of_gpu(lambda g: replace(g, age_s=3.5)),
    "not controllable: MIG": of_description(controllable=False, reason="MIG"),
    "belongs to job other": of_snapshot(lease=Lease("other", 1, 1, 0, 1, 1.0)),
    "its agent sees drift (reset)": of_snapshot(drift="reset"),
    "its agent backs off": of_snapshot(backoff_s=1.0),
    "takes no commands: a file": of_nodes(stopped="a file"),
    "lets this controller only observe": of_nodes(roles=("observe",)),
    "job else reports from it": of_gpu(
        lambda g: replace(g, allocation=Allocation(g.uuid, "else", source="report"))
    ),
    "ranks are not verified": of_view(
        lambda v: replace(v, jobs=(replace(v.jobs[0], reservation="ranks are not verified"),))
    ),
    "not a supported clock": of_clock(1001),
    "below what policy": of_clock(210),
    "above what the site": of_description(clock_max_mhz=300),
    "no forecast": of_plan(forecast=None),
    "answers no question": of_plan(basis=None),
    "absurd": of_forecast(gap_ratio=0.9),
    "made of numbers": of_forecast(energy_j=float("nan")),
    "later than the deadline": lambda p, v, a: (replace(p, deadline_s=0.99 * p.deadline_s), v, a),
    "adds up to": lambda p, v, a: (
        replace(p, solution=replace(p.solution, energy_j=1.0)), v, a,
    ),
}  # fmt: skip


# What only keeps commands from being sent: such a plan stays a recommendation.
OF_CONTROL = (
    "longer than agent",
    "not controllable: MIG",
    "belongs to job other",
    "its agent sees drift (reset)",
    "its agent backs off",
    "takes no commands: a file",
    "lets this controller only observe",
    "job else reports from it",
    "ranks are not verified",
)


@pytest.mark.parametrize("expected", OF_CONTROL)
def test_a_plan_is_recommended_for_gpus_that_may_not_be_set(expected: str) -> None:
    plan, view, authority = SPOILS[expected](*good())
    assert not refusal(replace(plan, mode="recommend"), view, authority, check)


@pytest.mark.parametrize("expected", SPOILS)
def test_every_spoiled_plan_is_refused(expected: str) -> None:
    why = refusal(*SPOILS[expected](*good()), check)
    assert expected in why, why


def test_a_clock_below_the_lowest_one_measured_is_refused() -> None:
    plan, view, authority = good()
    policy = view.jobs[0].policy
    lowest = plan.actions[0].clock_mhz
    assert lowest is not None
    raised = {
        key: tuple(option for option in options if option.clock_mhz > lowest)
        for key, options in policy.profile.options.items()
    }
    shorter = replace(policy, profile=replace(policy.profile, options=raised))
    why = refusal(plan, _job(view, policy=shorter), authority, check)
    assert "below the lowest clock measured" in why


def test_giving_back_is_always_right_unless_another_leads() -> None:
    plan, view, authority = good()
    cleared = replace(
        plan,
        actions=tuple(replace(a, verb="clear", clock_mhz=None) for a in plan.actions),
        forecast=None,
    )
    nothing_known = View(now_s=view.now_s)
    assert refusal(cleared, nothing_known, authority, check) == ""
    newer = SPOILS["another leads"](cleared, view, authority)
    assert "another leads" in refusal(*newer, check)


@given(names=st.lists(st.sampled_from(sorted(SPOILS)), min_size=1, max_size=4, unique=True))
def test_no_combination_of_faults_makes_a_plan_pass(names: list[str]) -> None:
    spoiled = good()
    try:
        for name in names:
            spoiled = SPOILS[name](*spoiled)
    except (IndexError, KeyError, TypeError):
        return  # one fault took away what the next would spoil
    assert refusal(*spoiled, check)


@cache
def good_timed() -> tuple[Plan, View, Authority]:
    """A plan whose clocks change within an iteration, at no slowdown."""
    world = World(stages=3, microbatches=9, scale=1.0, timed=True)
    world.history = [(float(n), 1.0, {}) for n in range(4)]
    view = view_of(world, world.now_s)
    job = seen(world, 0.0)
    estimator = OnlineEstimator({world.job: world.profile()})
    job = with_baseline(job, costs_of(job, view, estimator))
    inputs = case_of(job, view)
    plan = decided(inputs, PlannerState(), estimator, SolverCache(Solver)).plan
    assert any(action.steps for action in plan.actions)
    return replace(plan, generation=7), inputs.view, good()[2]


def of_steps(change: Callable[[tuple[TimedStep, ...]], tuple[TimedStep, ...]]) -> Spoil:
    """With the clock changes of every GPU that has some."""

    def spoil(p: Plan, v: View, a: Authority) -> tuple[Plan, View, Authority]:
        changed = (replace(one, steps=change(one.steps)) if one.steps else one for one in p.actions)
        return replace(p, actions=tuple(changed)), v, a

    return spoil


def _timing(view: View, **changes: Any) -> View:
    gpus = {
        uuid: replace(gpu, timing=gpu.timing and replace(gpu.timing, **changes))
        for uuid, gpu in view.gpus.items()
    }
    return replace(view, gpus=gpus)


TIMED_SPOILS: dict[str, Spoil] = {
    "outside of the iteration": of_steps(lambda s: (*s[:-1], replace(s[-1], offset_s=99.0))),
    "outside of": of_steps(lambda steps: steps[::-1]),
    "a clock is kept for": of_steps(lambda s: (s[0], replace(s[1], offset_s=s[0].offset_s + 0.05))),
    "jitter of iteration starts allow": of_timing(start_jitter_s=0.6),
    "allow inf s": of_timing(starts_per_minute=0.0),
    "cannot time": of_nodes(timed_steps_max=1),
    "above the clock where it rests": of_steps(
        lambda s: (replace(s[0], clock_max_mhz=1500), *s[1:])
    ),
    "below what policy or site allow": of_steps(
        lambda s: (replace(s[0], clock_max_mhz=600), *s[1:])
    ),
}


def test_a_good_timed_plan_passes() -> None:
    assert refusal(*good_timed(), check) == ""


@pytest.mark.parametrize("why", TIMED_SPOILS)
def test_a_spoilt_timed_plan_is_refused(why: str) -> None:
    assert why in refusal(*TIMED_SPOILS[why](*good_timed()), check)
