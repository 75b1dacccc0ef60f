"""The guard: one good plan passes, and every single way to spoil it is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_states import changed, job_state
from planning import case_of, costs_of, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.guard import Authority, refusal
from joulecut_controller.plan.plan import Action, Plan
from joulecut_controller.plan.planner import decide
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.plan.steps import Marks
from joulecut_controller.policy.policy import ClockPolicy, Slo
from joulecut_controller.view import GpuView, NodeView, StageLoad, View, Window
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
    decision = decide(inputs, PlannerState(), estimator, SolverCache(Solver))
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


def _gpu(view: View, uuid: str, change: Callable[[GpuView], GpuView]) -> View:
    return replace(view, gpus={**view.gpus, uuid: change(view.gpus[uuid])})


def _node(view: View, change: Callable[[NodeView], NodeView]) -> View:
    return replace(view, nodes=tuple(change(node) for node in view.nodes))


def _job(view: View, **changes: object) -> View:
    return replace(view, jobs=(changed(view.jobs[0], **changes),))


def _action(plan: Plan, change: Callable[[Action], Action]) -> Plan:
    first, *rest = plan.actions
    return replace(plan, actions=(change(first), *rest))


def _clock(plan: Plan, clock_mhz: int) -> Plan:
    return _action(plan, lambda action: replace(action, clock_mhz=clock_mhz, verb="lower"))


SPOILS: dict[str, Spoil] = {
    "not newer": lambda p, v, a: (replace(p, generation=6), v, a),
    "is not newer": lambda p, v, a: (replace(p, generation=2**63), v, a),
    "another leads": lambda p, v, a: (p, _node(v, lambda n: replace(n, epoch_seen=9)), a),
    "not in the policy": lambda p, v, a: (replace(p, job="else"), v, a),
    "no profile": lambda p, v, a: (
        p,
        _job(v, policy=replace(v.jobs[0].policy, profile=None)),
        a,
    ),
    "no baseline": lambda p, v, a: (p, _job(v, baseline=None), a),
    "last report is": lambda p, v, a: (p, _job(v, report_age_s=99.0), a),
    "report is nan": lambda p, v, a: (p, _job(v, report_age_s=float("nan")), a),
    "no room": lambda p, v, a: (p, _job(v, complaint="no room"), a),
    "stage of the pipeline": lambda p, v, a: (p, _job(v, stages=v.jobs[0].placement.stages[:2]), a),
    "one by one": lambda p, v, a: (replace(p, actions=p.actions[1:]), v, a),
    # Not the first once more: with "one by one" that would be the good plan in another order.
    "cover": lambda p, v, a: (replace(p, actions=(*p.actions, p.actions[-1])), v, a),
    "shared with job": lambda p, v, a: (
        p,
        replace(
            v,
            jobs=(
                *v.jobs,
                replace(v.jobs[0], policy=replace(v.jobs[0].policy, name="other")),
            ),
        ),
        a,
    ),
    "cannot be reached": lambda p, v, a: (p, _node(v, lambda n: replace(n, connected=False)), a),
    "longer than agent": lambda p, v, a: (p, _node(v, lambda n: replace(n, ttl_max_s=2.0)), a),
    "a lease of nan": lambda p, v, a: (p, v, replace(a, ttl_s=float("nan"))),
    "is not known": lambda p, v, a: (p, replace(v, nodes=()), a),
    "no current reading": lambda p, v, a: (
        p,
        _gpu(v, p.actions[0].uuid, lambda g: replace(g, snapshot=None)),
        a,
    ),
    "there is no current": lambda p, v, a: (
        p,
        _gpu(v, p.actions[0].uuid, lambda g: replace(g, age_s=3.5)),
        a,
    ),
    "not controllable: MIG": lambda p, v, a: (
        p,
        _gpu(
            v,
            p.actions[0].uuid,
            lambda g: replace(
                g, description=replace(g.description, controllable=False, reason="MIG")
            ),
        ),
        a,
    ),
    "belongs to job other": lambda p, v, a: (
        p,
        _gpu(
            v,
            p.actions[0].uuid,
            lambda g: replace(
                g,
                snapshot=g.snapshot and replace(g.snapshot, lease=Lease("other", 1, 1, 0, 1, 1.0)),
            ),
        ),
        a,
    ),
    "its agent sees drift (reset)": lambda p, v, a: (
        p,
        _gpu(
            v,
            p.actions[0].uuid,
            lambda g: replace(g, snapshot=g.snapshot and replace(g.snapshot, drift="reset")),
        ),
        a,
    ),
    "its agent backs off": lambda p, v, a: (
        p,
        _gpu(
            v,
            p.actions[0].uuid,
            lambda g: replace(g, snapshot=g.snapshot and replace(g.snapshot, backoff_s=1.0)),
        ),
        a,
    ),
    "takes no commands: a file": lambda p, v, a: (
        p,
        _node(v, lambda n: replace(n, stopped="a file")),
        a,
    ),
    "lets this controller only observe": lambda p, v, a: (
        p,
        _node(v, lambda n: replace(n, roles=("observe",))),
        a,
    ),
    "job else reports from it": lambda p, v, a: (
        p,
        _gpu(
            v,
            p.actions[0].uuid,
            lambda g: replace(g, allocation=Allocation(g.uuid, "else", source="report")),
        ),
        a,
    ),
    "ranks are not verified": lambda p, v, a: (
        p,
        replace(v, jobs=tuple(replace(j, reservation="ranks are not verified") for j in v.jobs)),
        a,
    ),
    "not a supported clock": lambda p, v, a: (_clock(p, 1001), v, a),
    "below what policy": lambda p, v, a: (_clock(p, 210), v, a),
    "above what the site": lambda p, v, a: (
        p,
        _gpu(
            v,
            p.actions[0].uuid,
            lambda g: replace(g, description=replace(g.description, clock_max_mhz=300)),
        ),
        a,
    ),
    "no forecast": lambda p, v, a: (replace(p, forecast=None), v, a),
    "answers no question": lambda p, v, a: (replace(p, basis=None), v, a),
    "absurd": lambda p, v, a: (
        replace(p, forecast=p.forecast and replace(p.forecast, gap_ratio=0.9)),
        v,
        a,
    ),
    "made of numbers": lambda p, v, a: (
        replace(p, forecast=p.forecast and replace(p.forecast, energy_j=float("nan"))),
        v,
        a,
    ),
    "later than the deadline": lambda p, v, a: (
        replace(p, deadline_s=(p.deadline_s or 0.0) * 0.99),
        v,
        a,
    ),
    "adds up to": lambda p, v, a: (
        replace(p, solution=p.solution and replace(p.solution, energy_j=1.0)),
        v,
        a,
    ),
}


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
    newer = _node(view, lambda node: replace(node, epoch_seen=9))
    assert "another leads" in refusal(cleared, newer, authority, check)


@settings(max_examples=60)
@given(names=st.lists(st.sampled_from(sorted(SPOILS)), min_size=1, max_size=4, unique=True))
def test_no_combination_of_faults_makes_a_plan_pass(names: list[str]) -> None:
    spoiled = good()
    try:
        for name in names:
            spoiled = SPOILS[name](*spoiled)
    except (IndexError, KeyError):
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
    plan = decide(inputs, PlannerState(), estimator, SolverCache(Solver)).plan
    assert any(action.steps for action in plan.actions)
    return replace(plan, generation=7), inputs.view, good()[2]


@cache
def good_marked() -> tuple[Plan, View, Authority]:
    """A plan with a clock per operation, changed on the job's marks."""
    world = World(stages=3, microbatches=9, scale=4.0, timed=True)
    world.history = [(float(n), 1.0, {}) for n in range(4)]
    view = _timing(view_of(world, world.now_s), marked=True)
    loads = (StageLoad(world.uuids[0], 0, 1410, {"forward": 0.2, "backward": 0.37}, 9, None),)
    job = seen(world, 0.02, loads=loads)
    estimator = OnlineEstimator({world.job: world.profile()})
    job = with_baseline(job, costs_of(job, view, estimator))
    inputs = case_of(job, view)
    plan = decide(inputs, PlannerState(), estimator, SolverCache(Solver)).plan
    assert plan.granularity == "computation"
    assert all(action.marks and not action.steps for action in plan.actions)
    return replace(plan, generation=7), inputs.view, good()[2]


def _marks(plan: Plan, change: Callable[[Marks], Marks]) -> Plan:
    """With the clocks of every GPU's operations."""
    return replace(plan, actions=tuple(replace(a, marks=change(a.marks)) for a in plan.actions))


MARKED_SPOILS: dict[str, Spoil] = {
    "a clock below that of the plan": lambda p, v, a: (
        _marks(p, lambda marks: tuple(replace(one, clock_max_mhz=900) for one in marks)),
        v,
        a,
    ),
    "two clocks on one mark": lambda p, v, a: (_marks(p, lambda m: (*m, m[0])), v, a),
    "no operation of the plan": lambda p, v, a: (
        _marks(p, lambda m: (*m, replace(m[0], microbatch=99))),
        v,
        a,
    ),
    "above the clock where it rests": lambda p, v, a: (
        _marks(p, lambda m: (replace(m[0], clock_max_mhz=1500), *m[1:])),
        v,
        a,
    ),
    "the set latency allows": lambda p, v, a: (replace(p, shortest_step_s=0.12), v, a),
    "takes no schedule of 18 steps": lambda p, v, a: (
        p,
        _node(v, lambda n: replace(n, marked_steps_max=17)),
        a,
    ),
    "without a plan per operation": lambda p, v, a: (replace(p, granularity="gpu"), v, a),
    "below what policy or site allow": lambda p, v, a: (
        p,
        _job(v, policy=replace(v.jobs[0].policy, clocks=ClockPolicy(min_mhz=1395))),
        a,
    ),
}


def test_a_good_plan_on_marks_passes() -> None:
    assert refusal(*good_marked(), check) == ""


@pytest.mark.parametrize("why", MARKED_SPOILS)
def test_a_spoilt_plan_on_marks_is_refused(why: str) -> None:
    assert why in refusal(*MARKED_SPOILS[why](*good_marked()), check)


def _steps(plan: Plan, change: Callable[[tuple[TimedStep, ...]], tuple[TimedStep, ...]]) -> Plan:
    """With the clock changes of every GPU that has some."""
    actions = (replace(one, steps=change(one.steps)) if one.steps else one for one in plan.actions)
    return replace(plan, actions=tuple(actions))


def _timing(view: View, **changes: Any) -> View:
    gpus = {
        uuid: replace(gpu, timing=gpu.timing and replace(gpu.timing, **changes))
        for uuid, gpu in view.gpus.items()
    }
    return replace(view, gpus=gpus)


TIMED_SPOILS: dict[str, Spoil] = {
    "outside of the iteration": lambda p, v, a: (
        _steps(p, lambda steps: (*steps[:-1], replace(steps[-1], offset_s=99.0))),
        v,
        a,
    ),
    "outside of": lambda p, v, a: (_steps(p, lambda steps: steps[::-1]), v, a),
    "a clock is kept for": lambda p, v, a: (
        _steps(p, lambda s: (s[0], replace(s[1], offset_s=s[0].offset_s + 0.05))),
        v,
        a,
    ),
    "jitter of iteration starts allow": lambda p, v, a: (p, _timing(v, start_jitter_s=0.6), a),
    "allow inf s": lambda p, v, a: (p, _timing(v, starts_per_minute=0.0), a),
    "cannot time": lambda p, v, a: (p, _node(v, lambda n: replace(n, timed_steps_max=1)), a),
    "above the clock where it rests": lambda p, v, a: (
        _steps(p, lambda s: (replace(s[0], clock_max_mhz=1500), *s[1:])),
        v,
        a,
    ),
    "below what policy or site allow": lambda p, v, a: (
        _steps(p, lambda s: (replace(s[0], clock_max_mhz=600), *s[1:])),
        v,
        a,
    ),
}


def test_a_good_timed_plan_passes() -> None:
    assert refusal(*good_timed(), check) == ""


@pytest.mark.parametrize("why", TIMED_SPOILS)
def test_a_spoilt_timed_plan_is_refused(why: str) -> None:
    assert why in refusal(*TIMED_SPOILS[why](*good_timed()), check)
