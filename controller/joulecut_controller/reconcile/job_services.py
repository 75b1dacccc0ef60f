"""Everything that is kept of jobs beside their stewards, together: it comes and goes with them.

A job that leaves the policy must leave each of these, or a controller that runs for a year
remembers every job there ever was.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecut_controller.board import FrontierPoint
from joulecut_controller.observe.observer import Sighting
from joulecut_controller.plan.planning_input import Standing
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reconcile.background_tasks import Studies
from joulecut_controller.reconcile.breakers import Breakers
from joulecut_controller.reconcile.budgets import Budgets, Party
from joulecut_controller.reconcile.context import Desk
from joulecut_controller.reconcile.frontiers import Frontiers
from joulecut_controller.reconcile.holdouts import Holdouts
from joulecut_controller.reconcile.holds import Holds
from joulecut_controller.reconcile.learning import Learner, Learning
from joulecut_controller.reconcile.shadow_evaluation import Shadows
from joulecut_controller.reconcile.solving import Solving
from joulecut_controller.reconcile.stragglers import Stragglers


@dataclass(frozen=True, slots=True)
class Instruments:
    """Of one leadership term."""

    studies: Studies
    learning: Learning
    frontiers: Frontiers
    stragglers: Stragglers
    budgets: Budgets
    holds: Holds
    breakers: Breakers
    holdouts: Holdouts
    shadows: Shadows

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

    def frontier(self, standing: Standing, sighting: Sighting) -> tuple[FrontierPoint, ...]:
        """The newest frontier of a job in its own seconds; empty while unknown."""
        told, costs = sighting.view, standing.costs
        return self.frontiers.points(told.policy.name, costs, told.baseline) if costs else ()

    def party(self, standing: Standing, sighting: Sighting) -> Party:
        """The job as it takes part in sharing a power budget out."""
        points, costs = self.frontier(standing, sighting), standing.costs
        return Party(sighting.view, points, costs.digest if costs and points else "")

    def ask(self, standing: Standing, sighting: Sighting, now_s: float) -> None:
        """Begins to compute, beside the passes, what is missing or out of date of a job."""
        costs, policy = standing.costs, sighting.view.policy
        if costs is None or sighting.view.baseline is None:
            return
        self.frontiers.ask(policy.name, costs, policy.clocks.granularity, now_s)
        if _may_wait(sighting):
            self.stragglers.ask(policy.name, costs, policy.clocks.granularity, now_s)


def instruments(desk: Desk, learner: Learner, solving: Solving, *, lag_s: float) -> Instruments:
    """All of them, new, for the term of that desk; `lag_s` as the ledger's. Raises Unavailable
    where the store cannot tell what it holds.
    """
    studies, store, unix_s = Studies(), desk.store, desk.unix_s
    holds = Holds(store, unix_s)
    return Instruments(
        studies=studies,
        learning=Learning(learner, store, desk.audit, studies),
        frontiers=Frontiers(solving.frontier, studies),
        stragglers=Stragglers(solving.keep, studies),
        budgets=Budgets(),
        holds=holds,
        breakers=Breakers(holds, desk.audit, lag_s),
        holdouts=Holdouts(store, desk.audit, unix_s, lag_s=lag_s),
        shadows=Shadows(store, unix_s),
    )


def _may_wait(sighting: Sighting) -> bool:
    """Whether the job has siblings that it meets once an iteration."""
    pipeline, view = sighting.view.policy.pipeline, sighting.view
    if pipeline is None or pipeline.sync != "iteration":
        return False
    return pipeline.data_parallel > 1 or view.peer_iteration_time_s is not None
