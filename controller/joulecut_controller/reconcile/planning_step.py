"""What is decided for every job of a pass, and the figures that follow: all that asks the solver.

Apart from the pass because it may take seconds: it runs in a thread, beside heartbeats, the
page and people's orders, and touches nothing that those look at but its own two memories.
"""

from collections.abc import Callable, Mapping
from functools import partial

from joulecut_controller.plan.evaluation import completed
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.planner import Choice, Decision, decide, given_up
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.meters import LoopMetrics
from joulecut_controller.reconcile.solving import SolverFunctions
from joulecut_controller.reconcile.stragglers import Stragglers
from joulecut_engine.estimate.estimator import Estimator


class PlanningStep:
    """Decides by what was asked before, where nothing changed since."""

    def __init__(
        self,
        solving: SolverFunctions,
        stragglers: Stragglers,
        estimator: Estimator,
        *,
        meters: LoopMetrics,
        now_s: Callable[[], float],
    ) -> None:
        self._answers = SolverCache(solving.prepare, frontier=stragglers.of)
        self._studied = SolverCache(solving.prepare)  # another thread than the passes' answers
        self._estimator, self._meters, self._now_s = estimator, meters, now_s

    def decide(
        self, cases: Mapping[str, PlanningInput], job_controllers: Mapping[str, JobController]
    ) -> dict[str, Decision]:
        """The decision of each job. Whatever is wrong with one job's numbers is no one else's."""
        return {name: self._timed(inputs, job_controllers[name]) for name, inputs in cases.items()}

    def completion(self, choice: Choice) -> Callable[[], Forecast]:
        """The work that makes a choice's forecast whole: what other granularities would save."""
        return partial(completed, choice.forecast, choice.comparison, choice.before, self._studied)

    def _timed(self, inputs: PlanningInput, job_controller: JobController) -> Decision:
        begun_s = self._now_s()
        decision = self._decision(inputs, job_controller)
        if decision.verdict == "change":
            self._meters.plans.add(self._now_s() - begun_s)
        return decision

    def _decision(self, inputs: PlanningInput, job_controller: JobController) -> Decision:
        state = job_controller.rollout.state
        try:
            if _unprofiled(inputs):
                return job_controller.apprentice.decide(inputs, state)
            return decide(inputs, state, self._estimator, self._answers)
        except (ValueError, ArithmeticError) as error:
            return given_up(state, f"cannot be planned: {error}: no change")


def _unprofiled(inputs: PlanningInput) -> bool:
    """Nobody measured this job before: it is learnt while it runs."""
    policy = inputs.job.policy
    return policy.profile is None and policy.pipeline is not None
