"""What the job controllers of one leadership term share."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from joulecut_controller.observe.observer import JobObservation, Observer
from joulecut_controller.plan.guard import Check
from joulecut_controller.plan.plan import FrontierPoint
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import Store
from joulecut_controller.power.job_budgets import Budgets, Party
from joulecut_controller.power.limits import peak_ratio, without_limits
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.energy_book import EnergyBook
from joulecut_controller.reconcile.first_savings import FirstSavings
from joulecut_controller.reconcile.frontiers import Frontiers, Stragglers
from joulecut_controller.reconcile.holds import Breakers, Holds
from joulecut_controller.reconcile.learning import Learning
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.reconcile.power_budget import PowerBudget
from joulecut_controller.trust.default_windows import DefaultWindows
from joulecut_controller.view import GpuView

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """A call of the store: a disk or a server that takes its time holds up no heartbeat."""
    return await asyncio.to_thread(call, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """`interval_s` is the time between passes; an observation older than `stale_s` is not used."""

    store: Store
    audit: AuditLog
    leases: Leases
    observer: Observer
    check: Check
    epoch: int
    interval_s: float
    stale_s: float
    now_s: Callable[[], float]
    unix_s: Callable[[], float]


@dataclass(frozen=True, slots=True)
class JobServices:
    """State kept per job beside its controller. It is dropped when the job leaves the policy, so
    that the memory of a long-running controller stays bounded.
    """

    background: BackgroundTasks
    learning: Learning
    frontiers: Frontiers
    stragglers: Stragglers
    budgets: Budgets
    power_budget: PowerBudget
    holds: Holds
    breakers: Breakers
    default_windows: DefaultWindows
    first_savings: FirstSavings
    energy: EnergyBook

    def keep_only(self, jobs: Mapping[str, JobPolicy]) -> None:
        """Forgets jobs that left the policy. Holds stay: an operator's pause outlives that."""
        for service in (
            self.breakers,
            self.default_windows,
            self.frontiers,
            self.stragglers,
            self.background,
            self.first_savings,
        ):
            service.keep_only(jobs)

    def frontier(
        self, state: PlannerState, observation: JobObservation
    ) -> tuple[FrontierPoint, ...]:
        """The newest frontier of a job in measured seconds; empty while unknown."""
        job, costs = observation.job, state.costs
        return self.frontiers.points(job.policy.name, costs, job.measured.baseline) if costs else ()

    def party(
        self, state: PlannerState, observation: JobObservation, gpus: Mapping[str, GpuView]
    ) -> Party:
        """The job as a party to the power budget."""
        costs, job = state.costs, without_limits(observation.job, gpus, state.costs)
        points = self.frontier(state, replace(observation, job=job))
        if costs is None or not points:
            return Party(job, points)
        return Party(job, points, costs.digest, peak_ratio(costs))

    def refresh_frontiers(
        self, state: PlannerState, observation: JobObservation, now_s: float
    ) -> None:
        """Starts computing the job's frontiers where they are missing or out of date."""
        costs, policy = state.costs, observation.job.policy
        if costs is None or observation.job.measured.baseline is None:
            return
        self.frontiers.ask(policy.name, costs, state.rung.granularity, now_s)
        # Where clocks change within an iteration, how long they must stay is part of the question.
        if observation.job.measured.peer_iteration_time_s is not None and not state.rung.timed:
            self.stragglers.ask(policy.name, costs, state.rung.granularity, now_s)
