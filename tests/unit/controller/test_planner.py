"""The rule for deadlines and stragglers, against a plain reading of it."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_states import changed
from planning import (
    Unanswered,
    case_of,
    costs_of,
    decided,
    seen,
    view_of,
    with_baseline,
)
from worlds import World

from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.evaluation import without_limits
from joulecut_controller.plan.goal import CAUTION_DWELLS, PEER_MARGIN_RATIO, lateness
from joulecut_controller.plan.pace import Pace
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import Lateness, PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import Question, SolverCache
from joulecut_controller.reference.reference import Answer, Figure
from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.optimize.problem import Goal, Infeasible, Solution
from joulecut_engine.optimize.solver import Solver

WORLD = World(stages=3, microbatches=9)
ESTIMATOR = OnlineEstimator({WORLD.job: WORLD.profile()})
ANSWERS = SolverCache(Solver)
LONG = World(stages=3, microbatches=9, scale=0.9, timed=True)  # clocks change within its iterations
LONG.history = [(1.5 * n, 1.5, {}) for n in range(4)]
TIMED = OnlineEstimator({LONG.job: LONG.profile()})


def inputs(
    slowdown: float = 0.03, peer_s: float | None = None, model_ratio: float = 1.0, **job: object
) -> PlanningInput:
    """A job at default clocks; its baseline is what the model says times `model_ratio`."""
    view = view_of(WORLD, WORLD.now_s)
    asked = seen(WORLD, slowdown, peer_iteration_time_s=peer_s)
    asked = with_baseline(asked, costs_of(asked, view, ESTIMATOR), model_ratio)
    return case_of(replace(asked, **job), view)


def planned(asked: PlanningInput, state: PlannerState | None = None) -> Decision:
    return decided(asked, state or PlannerState(), ESTIMATOR, ANSWERS)


def draft(decision: Decision) -> tuple[Plan, Solution, Forecast]:
    plan = decision.plan
    assert plan.solution is not None
    assert plan.forecast is not None
    return plan, plan.solution, plan.forecast


def test_the_deadline_is_kept_by_the_jobs_own_seconds() -> None:
    """The model is 2 % too fast: the promise is made in measured time all the same."""
    asked = inputs(slowdown=0.03, model_ratio=1.02)
    decision = planned(asked)
    plan, solution, made = draft(decision)
    deadline_s = asked.job.measured.baseline.time_mean_s * 1.03
    assert plan.deadline_s == pytest.approx(deadline_s)
    assert made.iteration_time_s <= deadline_s * (1 + 1e-9)
    assert solution.iteration_time_s <= deadline_s / 1.02 * (1 + 1e-8)
    # The bound is of the iteration as it lasts, so that it is as far below as the solver says.
    above_j = solution.energy_j - solution.lower_bound_j
    assert made.energy_j - made.lower_bound_j == pytest.approx(above_j, rel=1e-6)


def applied(
    decision: Decision, slowdown: Figure, *, budget: float = 0.05, scale: float = 1.0
) -> tuple[PlanningInput, PlannerState]:
    """The case and the state in which a plan's clocks run, measured to slow the job by so much."""
    asked, state = inputs(slowdown=budget), decision.state
    baseline = asked.job.measured.baseline
    setting = ((("GPU-0", 1000),), ())
    known = Answer(
        default=Figure(math.log(baseline.time_mean_s), 0.0),
        slowdown=slowdown,
        scale=Figure(scale, 0.0),
        setting=setting,
        settings={setting: slowdown},
    )
    job = changed(asked.job, reference=known, current=baseline, current_iterations=64)
    later = replace(asked.view, now_s=asked.view.now_s + 60.0)
    running = dict(state.asked)
    return replace(asked, job=job, view=later, running=running, measured_applied=True), state


def test_clocks_that_came_out_late_are_raised_and_not_tried_again_soon() -> None:
    first = planned(inputs(slowdown=0.05))
    asked, state = applied(first, Figure(0.06, 0.001))
    late = planned(asked, state)
    assert late.late
    assert late.plan.forecast.slowdown_ratio <= 0.05
    assert state.setting is None
    assert late.state.late.setting is not None
    assert late.state.setting is None, "the new clocks have not run yet"
    # At default clocks nothing is late, and what came out late is remembered.
    released = replace(late.state, clocks=None, changed_s=-math.inf)
    again = planned(replace(asked, running=dict.fromkeys(asked.running, 0)), released)
    assert not again.late
    assert again.plan.solution.iteration_time_s <= late.plan.solution.iteration_time_s * (1 + 1e-9)
    much_later = replace(asked.view, now_s=late.state.late.until_s + 1.0)
    forgotten = planned(
        replace(asked, running=dict.fromkeys(asked.running, 0), view=much_later), released
    )
    assert forgotten.plan.solution.iteration_time_s > again.plan.solution.iteration_time_s


def test_why_no_clocks_keep_the_deadline_does_not_contradict_itself() -> None:
    """It named a least time below the deadline: that of the default clocks."""
    first = planned(inputs(slowdown=0.05))
    asked, state = applied(first, Figure(0.2, 0.001))
    late = planned(asked, state)
    released = replace(asked, running=dict.fromkeys(asked.running, 0))
    for decision in (late, planned(released, late.state)):
        assert decision.topic == "room"
        assert re.search(r"clocks tried slow .* by 22.1%, the model says [34]", decision.reason)
        assert re.search(r"lower ones are tried again in \d+ s", decision.reason)
        assert "at least" not in decision.reason


def test_a_doubtful_slowdown_is_not_late() -> None:
    first = planned(inputs(slowdown=0.05))
    asked, state = applied(first, Figure(0.06, 0.01))
    decision = planned(asked, state)
    assert (decision.verdict, decision.late) == ("keep", False)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_measured_clocks_that_leave_room_are_lowered_by_what_slowdowns_come_to(
    scale: float,
) -> None:
    """A curve flatter than the profile's is not believed beyond the clocks that showed it."""
    first = planned(inputs(slowdown=0.02))
    modelled = first.plan.forecast.modelled
    asked, state = applied(first, Figure(scale * modelled, 0.0), budget=0.08, scale=scale)
    wider = planned(asked, state)
    assert wider.plan.forecast.slowdown_ratio <= 0.08
    allowed = modelled + (math.log(1.08) - scale * modelled) / max(scale, 1.0)
    assert wider.plan.forecast.modelled == pytest.approx(allowed, abs=0.01)
    assert wider.plan.forecast.modelled <= allowed * (1.0 + 1e-6)


@settings(max_examples=25)
@given(
    slowdown=st.floats(0.0, 0.4),
    peer_ratio=st.floats(0.9, 1.8),
)
def test_straggler_rule(slowdown: float, peer_ratio: float) -> None:
    """T = max(T', min(D, T_E)): waiting is free, anything beyond the own deadline is not."""
    asked = inputs(slowdown=slowdown)
    base_s = asked.job.measured.baseline.time_mean_s
    peer_s = base_s * peer_ratio
    decision = planned(inputs(slowdown=slowdown, peer_s=peer_s))
    costs = decision.state.costs
    assert costs is not None
    # T_E, the iteration time of least total energy, is where the deadline stops to matter.
    cheapest = ANSWERS.ask(Question(costs, Goal(100.0 * base_s), "gpu"))
    assert isinstance(cheapest, Solution)
    granted_s = asked.job.policy.slo.deadline_s(base_s)
    lone_s = min(granted_s, cheapest.iteration_time_s)
    limit_s = max(peer_s, lone_s)
    if decision.plan is None:
        return
    plan, solution, _ = draft(decision)
    taken_s = solution.iteration_time_s
    assert taken_s <= limit_s * (1 + 1e-8)
    assert plan.basis.goal is not None
    if plan.basis.goal.waits:
        assert plan.deadline_s == pytest.approx(peer_s)
        assert taken_s <= peer_s * (1 - PEER_MARGIN_RATIO) * (1 + 1e-8)
    else:
        assert plan.deadline_s == pytest.approx(granted_s)


def test_lowering_waits_for_the_dwell_and_raising_does_not() -> None:
    held = planned(inputs(slowdown=0.01)).state
    held = replace(held, changed_s=WORLD.now_s - 1.0)
    lower = planned(inputs(slowdown=0.2), held)
    assert (lower.verdict, lower.topic) == ("keep", "dwell")
    later = planned(inputs(slowdown=0.2), replace(held, changed_s=WORLD.now_s - 60.0))
    assert later.verdict == "change"
    higher = planned(inputs(slowdown=0.0), held)
    assert higher.verdict == "change"
    assert higher.state.clocks is not None
    assert held.clocks is not None
    assert all(a >= b for a, b in zip(higher.state.clocks, held.clocks, strict=True))


@pytest.mark.parametrize("now_mhz", [0, 1365, 1320])
def test_a_predicted_profile_begins_at_the_default_clock_that_was_measured(now_mhz: int) -> None:
    """The GPUs were seen at 1410 MHz before they worked, and ran at 1365 when it was predicted."""
    asked, profile = inputs(), WORLD.profile()
    below = {k: tuple(o for o in v if o.clock_mhz <= 1365) for k, v in profile.options.items()}
    job = changed(
        asked.job,
        policy=replace(asked.job.policy, profile=Profile(below, "other jobs", predicted=True)),
        default_clock_ratio=1365 / 1410,
        default_clock_mhz=float(now_mhz),
    )
    costs = price(job, asked.view.gpus, OnlineEstimator({WORLD.job: profile}), 0.0)
    assert isinstance(costs, Costs)
    assert set(costs.default_mhz) == {now_mhz or 1365}


@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_the_aim_of_clocks_held_is_a_slowdown_and_no_time(ratio: float) -> None:
    """Costs move alike at default clocks and at others."""
    first = planned(inputs(slowdown=0.0))
    asked, state = applied(first, Figure(0.0029, 0.0), budget=0.0)
    assert state.costs is not None
    moved = replace(
        state.costs,
        table={
            key: {
                mhz: replace(one, time_s=ratio * one.time_s, energy_j=ratio * one.energy_j)
                for mhz, one in by_clock.items()
            }
            for key, by_clock in state.costs.table.items()
        },
    )
    moved = replace(moved, uniform=moved.table)
    before, after = state.goal, planned(asked, replace(state, costs=moved)).state.goal
    assert before is not None
    assert after is not None
    assert after.deadline_s == pytest.approx(ratio * before.deadline_s, rel=1e-6)


def test_siblings_count_with_the_slowest_in_time_and_their_mean_in_energy() -> None:
    estimator = OnlineEstimator({WORLD.job: WORLD.profile()})
    alone = inputs()
    subject = Subject(WORLD.job, WORLD.uuids[2], 0, "forward")
    clock = WORLD.sku.clock_max_mhz
    slow_s = WORLD.plant.time_s(0, "forward", clock) * 1.1
    for _ in range(20):
        estimator.learn((Sample(subject, clock, slow_s, None, 100.0),))
    pipeline = replace(WORLD.pipeline, stages=2)
    profile = {k: v for k, v in WORLD.profile().options.items() if k[0] < 2}
    policy = replace(
        alone.job.policy,
        pipeline=pipeline,
        profile=replace(WORLD.profile(), options=profile),
    )
    pair = changed(
        alone.job, policy=policy, stages=((WORLD.uuids[0], WORLD.uuids[2]), (WORLD.uuids[1],))
    )
    costs = price(pair, alone.view.gpus, estimator, 0.0)
    assert isinstance(costs, Costs)
    assert costs.width == 2
    healthy = estimator.predict(Subject(WORLD.job, WORLD.uuids[0], 0, "forward"), (clock,))
    slow = estimator.predict(subject, (clock,))
    option = costs.table[0, "forward"][clock]
    assert option.time_s == pytest.approx(float(slow.time_s[0]))
    energies = [float(p.time_s[0] * p.power_w[0]) for p in (healthy, slow)]
    waited_s = option.time_s - float(healthy.time_s[0])  # the faster one, for the slower
    energies.append(policy.blocking_power_w * waited_s)
    assert option.energy_j == pytest.approx(sum(energies) / 2)


class Slow(SolverCache):
    """Answers for one clock per GPU; what changes within an iteration is computed for ever, or has
    this answer.
    """

    def __init__(self, changes: Infeasible | None = None) -> None:
        super().__init__(Solver)
        self._changes = changes
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Solution | Infeasible:
        self.asked.append(question)
        if question.granularity != "changes":
            return super().ask(question)
        if self._changes is None:
            raise Unanswered
        return self._changes


def timed(slowdown: float, **timing: float) -> PlanningInput:
    """A job whose clocks may change within its iterations."""
    view = view_of(LONG, 10.0)
    gpus = {
        uuid: replace(gpu, timing=replace(gpu.timing, **timing))
        for uuid, gpu in view.gpus.items()
        if gpu.timing is not None
    }
    view = replace(view, gpus=gpus)
    job = seen(LONG, slowdown)
    return case_of(with_baseline(job, costs_of(job, view, TIMED)), view)


def test_a_job_without_a_plan_gets_one_clock_per_gpu_while_better_ones_are_computed() -> None:
    solver, asked = Slow(), timed(0.05)
    first = decided(asked, PlannerState(), TIMED, solver)
    plan, _, made = draft(first)
    assert plan.granularity == "gpu"
    assert plan.granularity_why == "not changes yet: its plan is being computed"
    assert made.saved_ratio > 0.0
    # The finer plan is computed on, by the same question.
    with pytest.raises(Unanswered):
        decided(asked, first.state, TIMED, solver)
    assert solver.asked[-1].limits == solver.asked[0].limits
    # Another target does not wait for it either.
    long_after = replace(first.state, changed_s=-math.inf)
    assert draft(decided(timed(0.2), long_after, TIMED, solver))[0].granularity == "gpu"


def test_a_first_answer_gives_way_to_the_finer_one_after_the_dwell() -> None:
    asked, solver = timed(0.05), SolverCache(Solver)
    first = decided(asked, PlannerState(), TIMED, Slow())
    soon = decided(asked, first.state, TIMED, solver)
    assert soon.topic == "dwell"
    view = replace(asked.view, now_s=asked.view.now_s + asked.job.policy.clocks.min_dwell_s)
    later = decided(replace(asked, view=view), soon.state, TIMED, solver)
    assert draft(later)[0].granularity == "changes"


def test_changes_that_come_late_fall_back_to_one_clock_per_gpu() -> None:
    """They left no room within the deadline; the controller gave up on the job."""
    solver, asked = Slow(Infeasible(1.0, 2.0)), timed(0.05)
    state = PlannerState(late=Lateness(until_s=asked.view.now_s + 60.0, count=1))
    given_up = decided(asked, state, TIMED, solver)
    assert given_up.topic == "room"
    plan, _, _ = draft(decided(asked, given_up.state, TIMED, solver))
    assert plan.granularity == "gpu"
    assert "not changes: its clocks were late, tried again in 3600 s" in plan.granularity_why


def caution(before: Lateness, now_s: float, *, late: bool) -> Lateness:
    inputs = case_of(seen(WORLD, 0.05), replace(view_of(WORLD, WORLD.now_s), now_s=now_s))
    return lateness(inputs, PlannerState(late=before), Pace(1.0, 1.0), late=late)


def test_each_late_plan_doubles_the_caution_and_as_long_without_one_ends_it() -> None:
    late, now_s, waits_s = Lateness(), 0.0, []
    for _ in range(4):
        late = caution(caution(late, now_s, late=False), now_s, late=True)
        waits_s.append(late.until_s - now_s)
        now_s = late.until_s + 1.0
    dwell_s = waits_s[0] / CAUTION_DWELLS
    assert waits_s == [CAUTION_DWELLS * dwell_s * 2.0**k for k in range(4)]
    assert caution(late, late.until_s + late.caution_s - 1.0, late=False) == late
    assert caution(late, late.until_s + late.caution_s, late=False) == Lateness()


@pytest.mark.parametrize("predicted", [True, False])
def test_a_limit_explains_no_time_that_a_jobs_own_operations_do_not(predicted: bool) -> None:
    """They ran under it. Where it did, nothing measured would ever correct a plan."""
    world = World(stages=2, microbatches=4)
    view = view_of(world, 1000.0)
    job = seen(world, 0.02)
    costs = costs_of(job, view, ESTIMATOR)
    job = with_baseline(job, costs, 1.2)
    profile = replace(job.policy.profile, predicted=predicted)
    job = replace(job, policy=replace(job.policy, profile=profile))
    uuid, gpu = next(iter(view.gpus.items()))
    snapshot = replace(gpu.snapshot, power_limit_enforced_w=300.0)
    gpus = {**view.gpus, uuid: replace(gpu, snapshot=snapshot)}
    assert (without_limits(job, gpus, costs) == job) is predicted
