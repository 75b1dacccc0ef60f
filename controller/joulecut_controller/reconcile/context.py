"""What the job controllers of one leadership term share."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from joulecut_controller.election.claims import Claims
from joulecut_controller.observe.observer import Observer
from joulecut_controller.plan.guard import Check
from joulecut_controller.policy.policy import JobPolicy, Policy
from joulecut_controller.ports import Fleet, Store
from joulecut_controller.power.budget import Budgets
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.energy_book import EnergyBook
from joulecut_controller.reconcile.frontiers import Frontiers
from joulecut_controller.reconcile.holds import Holds
from joulecut_controller.reconcile.inbox import Inbox
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.planning_step import Planners
from joulecut_controller.reconcile.power_budget import PowerBudget
from joulecut_controller.reconcile.predictions import Predictions
from joulecut_controller.reconcile.shared_budget import SharedBudget
from joulecut_controller.view import JobState, View
from joulecut_engine.estimate.online import OnlineEstimator

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """A call of the store: a disk or a server that takes its time holds up no heartbeat."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def give_way() -> None:
    """Streams, heartbeats and timers come in between."""
    await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileContext:
    """What clocks of a job need. `interval_s` is the time between passes; an observation older than
    `stale_s` is not used.
    """

    store: Store
    audit: AuditLog
    leases: Leases
    observer: Observer
    check: Check
    claims: Claims
    interval_s: float
    stale_s: float
    now_s: Callable[[], float]
    unix_s: Callable[[], float]

    @property
    def epoch(self) -> int:
        """Of commands from now on."""
        return self.claims.epoch


@dataclass(slots=True)
class ClusterState:
    """The policy in force and the cluster as its last step saw it.

    `policy` has the running jobs of its classes and those that were found; `policies` has its jobs
    by name, and `count` is how many of them this controller commands. `view` has every agent and
    GPU, without jobs; `jobs` are those that were looked at, by name.
    """

    policy: Policy
    pacing: Pacing
    policies: Mapping[str, JobPolicy] = field(default_factory=dict)
    view: View = field(default_factory=lambda: View(now_s=-math.inf))
    jobs: dict[str, JobState] = field(default_factory=dict)
    count: int = 0

    @property
    def begun(self) -> bool:
        """Whether the cluster has been seen: jobs can be looked at."""
        return math.isfinite(self.view.now_s)

    def ttl_s(self) -> float:
        """How long leases last, within what every agent allows."""
        limits_s = (node.ttl_max_s for node in self.view.nodes if node.ttl_max_s > 0)
        return self.pacing.ttl_within_s(min(limits_s, default=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobServices(ReconcileContext):
    """What the controllers of jobs use together. State kept there per job is dropped when the job
    leaves the policy, so that the memory of a long-running controller stays bounded. `unready` says
    why no plan can be made yet.
    """

    fleet: Fleet
    inbox: Inbox
    learner: OnlineEstimator
    planners: Planners
    background: BackgroundTasks
    frontiers: Frontiers
    budgets: Budgets
    power_budget: PowerBudget
    shared_budget: SharedBudget
    holds: Holds
    predictions: Predictions
    energy: EnergyBook
    unready: Callable[[], str]
    metrics: LoopMetrics

    def keep_only(self, jobs: Mapping[str, JobPolicy]) -> None:
        """Forgets jobs that left the policy. Holds stay: an operator's pause outlives that."""
        for service in (
            self.frontiers,
            self.background,
            self.predictions,
            self.inbox,
        ):
            service.keep_only(jobs)
