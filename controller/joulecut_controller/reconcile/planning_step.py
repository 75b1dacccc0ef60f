"""The planning step of a pass: a decision for every job, and everything that asks the solver.

It may take seconds, so it runs in a thread beside heartbeats, the page and commands, and shares no
state with them but its two caches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from joulecut_controller.plan.evaluation import completed
from joulecut_controller.plan.guard import Check
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.planner import Choice, Decision, decide, given_up
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.solver_cache import Prepare, SolverCache
from joulecut_controller.reconcile.frontiers import Frontier, Keep, Stragglers
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_engine.estimate.estimator import Estimator


@dataclass(frozen=True, slots=True)
class SolverFunctions:
    """The solver as one leadership term uses it, so that the loop imports no solver.

    `keep` builds the frontier that stragglers are answered from; None asks `prepare` instead.
    """

    prepare: Prepare
    check: Check
    frontier: Frontier
    keep: Keep | None = None


class PlanningStep:
    """Decides for each job; answers of the solver are cached while their question is unchanged."""

    def __init__(
        self,
        solver: SolverFunctions,
        stragglers: Stragglers,
        estimator: Estimator,
        *,
        metrics: LoopMetrics,
        now_s: Callable[[], float],
    ) -> None:
        self._cache = SolverCache(solver.prepare, frontier=stragglers.of)
        self._background_cache = SolverCache(solver.prepare)  # used in another thread
        self._estimator, self._metrics, self._now_s = estimator, metrics, now_s

    def decide(
        self, inputs: Mapping[str, PlanningInput], jobs: Mapping[str, JobController]
    ) -> dict[str, Decision]:
        """The decision of each job. Invalid numbers of one job affect that job alone."""
        return {name: self._timed(job_inputs, jobs[name]) for name, job_inputs in inputs.items()}

    def completion(self, choice: Choice) -> Callable[[], Forecast]:
        """The work that completes a forecast: what other granularities would save."""
        before, cache = choice.before, self._background_cache
        return partial(completed, choice.forecast, choice.comparison, before, cache)

    def _timed(self, inputs: PlanningInput, job: JobController) -> Decision:
        begun_s = self._now_s()
        decision = self._decision(inputs, job)
        if decision.verdict == "change":
            self._metrics.plans.add(self._now_s() - begun_s)
        return decision

    def _decision(self, inputs: PlanningInput, job: JobController) -> Decision:
        state, policy = job.rollout.state, inputs.job.policy
        try:
            if policy.profile is None and policy.pipeline is not None:
                return job.profiler.decide(inputs, state)
            return decide(inputs, state, self._estimator, self._cache)
        except (ValueError, ArithmeticError) as error:
            return given_up(state, f"cannot be planned: {error}: no change")
