"""One job at default clocks as planning meets it: what is seen of it, what it costs, its case.

from planning import case_of, costs_of, seen, view_of
"""

from dataclasses import replace
from typing import Any

from job_states import changed, job_state
from worlds import World

from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.evaluation import Evaluation, default_clocks, evaluate
from joulecut_controller.plan.planner import Decision, decide
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import SolverCache, Soon
from joulecut_controller.policy.policy import Slo
from joulecut_controller.view import JobState, View, Window
from joulecut_engine.estimate.estimator import Estimator


def view_of(world: World, now_s: float) -> View:
    """Its GPUs, without a job."""
    state = world.observe(now_s)
    return View(now_s, state.nodes, {gpu.uuid: gpu for gpu in state.gpus})


def seen(world: World, slowdown: float, **more: Any) -> JobState:
    """The world's job, one GPU a stage, under this budget; nothing measured yet but `more`."""
    at_first: dict[str, Any] = {
        "loads": (),
        "baseline": None,
        "current": None,
        "generation_running": 0,
        "peer_iteration_time_s": None,
        "report_age_s": 0.0,
    }
    return job_state(
        policy=world.policy(slo=Slo(max_slowdown=slowdown)).jobs[0],
        stages=tuple((uuid,) for uuid in world.uuids),
        **{**at_first, **more},
    )


def costs_of(job: JobState, view: View, estimator: Estimator) -> Costs:
    costs = price(job, view.gpus, estimator, 0.0)
    assert isinstance(costs, Costs)
    return costs


def at_default(costs: Costs) -> Evaluation:
    """What the job takes and uses at default clocks, by these costs."""
    default = evaluate(costs, default_clocks(costs))
    assert default is not None
    return default


def with_baseline(job: JobState, costs: Costs, ratio: float = 1.0) -> JobState:
    """The job with a full baseline: what these costs say, times `ratio`."""
    iteration_s = at_default(costs).iteration_time_s
    return changed(job, baseline=Window(64, ratio * iteration_s, 0.0, None, None))


def case_of(job: JobState, view: View) -> PlanningInput:
    """The case of a job that may be enforced, with nothing applied."""
    return PlanningInput(
        view=replace(view, jobs=(job,)),
        job=job,
        mode="enforce",
        baseline_progress="64 of 30 iterations",
        running={uuid: 0 for stage in job.placement.stages for uuid in stage},
        measured_applied=False,
        stale_s=3.0,
    )


class Unanswered(Exception):
    """The solver is at work for ever."""


def decided(
    inputs: PlanningInput, state: PlannerState, estimator: Estimator, solver: SolverCache
) -> Decision:
    """The planner's decision; Unanswered where it waits for an answer that raises this."""
    steps, reply = decide(inputs, state, estimator), None
    while True:
        try:
            ask = steps.send(reply)
        except StopIteration as ended:
            made: Decision = ended.value
            return made
        if not isinstance(ask, Soon):
            reply = solver.reply(ask)
            continue
        try:
            reply = bool(solver.ask(ask.question))
        except Unanswered:
            reply = False
