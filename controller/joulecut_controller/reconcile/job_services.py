"""Everything that is kept of jobs beside their stewards, together: it comes and goes with them.

A job that leaves the policy must leave each of these, or a controller that runs for a year
remembers every job there ever was.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_controller.board import FrontierPoint
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.breakers import Breakers
from joulecut_controller.reconcile.budgets import Budgets, Party
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.frontiers import Frontiers
from joulecut_controller.reconcile.holdouts import Holdouts
from joulecut_controller.reconcile.holds import Holds
from joulecut_controller.reconcile.learning import Learner, Learning
from joulecut_controller.reconcile.shadow_evaluation import ShadowEvaluation
from joulecut_controller.reconcile.solving import SolverFunctions
from joulecut_controller.reconcile.stragglers import Stragglers


@dataclass(frozen=True, slots=True)
class JobServices:
    """Of one leadership term."""

    studies: BackgroundTasks
    learning: Learning
    frontiers: Frontiers
    stragglers: Stragglers
    budgets: Budgets
    holds: Holds
    breakers: Breakers
    holdouts: Holdouts
    shadows: ShadowEvaluation

    def keep_only(self, jobs: Mapping[str, JobPolicy]) -> None:
        """Forgets jobs that left the policy; holds stay, since a person's word outlives that."""
        for one in (
            self.breakers,
            self.holdouts,
            self.frontiers,
            self.stragglers,
            self.studies,
            self.shadows,
        ):
            one.keep_only(jobs)

    def frontier(
        self, state: PlannerState, observation: JobObservation
    ) -> tuple[FrontierPoint, ...]:
        """The newest frontier of a job in its own seconds; empty while unknown."""
        told, costs = observation.view, state.costs
        return self.frontiers.points(told.policy.name, costs, told.baseline) if costs else ()

    def party(self, state: PlannerState, observation: JobObservation) -> Party:
        """The job as it takes part in sharing a power budget out."""
        points, costs = self.frontier(state, observation), state.costs
        return Party(observation.view, points, costs.digest if costs and points else "")

    def ask(self, state: PlannerState, observation: JobObservation, now_s: float) -> None:
        """Begins to compute, beside the passes, what is missing or out of date of a job."""
        costs, policy = state.costs, observation.view.policy
        if costs is None or observation.view.baseline is None:
            return
        self.frontiers.ask(policy.name, costs, policy.clocks.granularity, now_s)
        if _may_wait(observation):
            self.stragglers.ask(policy.name, costs, policy.clocks.granularity, now_s)


def job_services(
    context: ReconcileContext, learner: Learner, solving: SolverFunctions, *, lag_s: float
) -> JobServices:
    """All of them, new, for the term of that desk; `lag_s` as the ledger's. Raises Unavailable
    where the store cannot tell what it holds.
    """
    studies, store, unix_s = BackgroundTasks(), context.store, context.unix_s
    holds = Holds(store, unix_s)
    return JobServices(
        studies=studies,
        learning=Learning(learner, store, context.audit, studies),
        frontiers=Frontiers(solving.frontier, studies),
        stragglers=Stragglers(solving.keep, studies),
        budgets=Budgets(),
        holds=holds,
        breakers=Breakers(holds, context.audit, lag_s),
        holdouts=Holdouts(store, context.audit, unix_s, lag_s=lag_s),
        shadows=ShadowEvaluation(store, unix_s),
    )


def _may_wait(observation: JobObservation) -> bool:
    """Whether the job has siblings that it meets once an iteration."""
    pipeline, view = observation.view.policy.pipeline, observation.view
    if pipeline is None or pipeline.sync != "iteration":
        return False
    return pipeline.data_parallel > 1 or view.peer_iteration_time_s is not None
