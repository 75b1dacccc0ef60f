"""What belongs to all jobs: policy, agents, which GPUs are whose, the term, the power budget.

A step of the cluster sees everything and commands no clocks. It says which jobs have something new
to go by, and these are reconciled at once. The power limits and what is kept in the background are
steps of their own, so that an agent or a store that does not answer holds up neither policy nor
jobs.
"""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace

from joulecut_controller.election.reach import Reach
from joulecut_controller.observe.found_jobs import FoundJobs
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.observe.unused_gpus import with_unused
from joulecut_controller.orders import ALL
from joulecut_controller.policy.hourly import HOLDS_S, PRICES, Points, at_hour
from joulecut_controller.policy.job_classes import with_instances
from joulecut_controller.policy.policy import Cost, JobPolicy, Policy
from joulecut_controller.ports import Rates, Record
from joulecut_controller.power.budget import Share
from joulecut_controller.reconcile.context import ClusterState, JobServices
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.leases import LimitOutcome
from joulecut_controller.reconcile.policy_watcher import PolicySource, PolicyWatcher
from joulecut_controller.reconcile.shared_budget import NO_JOB, LimitOrder
from joulecut_controller.view import JobState, NodeView, View
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.money import Prices
from joulecut_wire.errors import Unavailable

# The slowdown of least cost is kept until it moves by more than the larger of these: predictions
# move with every sample, and near its minimum the cost hardly changes. The first is a fifth of the
# standard error of a baseline (0.25 %).
COST_STEP, COST_STEP_RATIO = 0.0005, 0.1
ORDERS_S = 1.0  # until a controller that does not lead looks for limits to set
LEAST_COST = "least_cost"  # records: the slowdown of least cost of a job, where it moved
# Keys of the loop beside the jobs, whose names have no slash, and what is said where they fail.
CLUSTER, POWER, MEMORY, HOLDS = "/cluster", "/power", "/memory", "/holds"
TROUBLE = {
    CLUSTER: "the cluster cannot be reconciled",
    POWER: "the power budget cannot be kept",
    MEMORY: "what was learnt cannot be kept",
    HOLDS: "the holds of other controllers cannot be read",
}


@dataclass(slots=True)
class Cluster:
    """Steps of the cluster; `state` is what the last one saw.

    `changed` is called with each job that has something new to go by. `prices` are the newest
    answers of a Prometheus, by expression.
    """

    services: JobServices
    source: InitVar[PolicySource]
    state: ClusterState
    jobs: dict[str, JobController]
    rates: Rates | None
    prices: Mapping[str, Points]
    changed: Callable[[str], None]
    watcher: PolicyWatcher = field(init=False)
    reach: Reach = field(default_factory=Reach)
    steps: int = 0
    _booked_s: float = -math.inf
    _unkept: list[Record] = field(default_factory=list)  # until the store has them
    _found: FoundJobs = field(default_factory=FoundJobs)

    def __post_init__(self, source: PolicySource) -> None:
        self.watcher = PolicyWatcher(source, self.state.policy, self.services.audit)
        self.services.learner.set_profiles(profiles_of(self.state.policy))

    async def step(self) -> None:
        """One look at policy and agents."""
        changed = await self._follow_policy()
        services = self.services
        for memory in (services.predictions, services.energy):
            if not memory.begun:  # what an earlier controller learned
                await asyncio.to_thread(memory.begin)
        changed |= await self._observe()
        for name in changed:
            self.changed(name)
        self.steps += 1

    def unclaimed(self, reports: Iterable[tuple[str, str]]) -> None:
        """The names and GPUs of reports that belong to no entry of the policy."""
        self._found.note(reports, self.state.view.gpus)

    async def _follow_policy(self) -> set[str]:
        """One controller per job of the policy; the step of a job that left it releases it. Returns
        the jobs whose entry changed.
        """
        newer, seen = await self.watcher.refresh(), self.state
        gpus = seen.view.gpus
        owners = (gpu.allocation for gpu in gpus.values() if gpu.allocation is not None)
        wanted = self._found.with_found(with_instances(self.watcher.policy, owners), gpus)
        unused = self.services.energy.ledger.unused_s(self.services.unix_s())
        wanted = with_unused(wanted, unused, gpus, seen.jobs.values())
        wanted = self._at_least_cost(at_hour(wanted, self.services.unix_s(), self.prices))
        if wanted.written is not None:
            self._book_prices(wanted.cost)
        if newer or wanted != seen.policy:
            seen.policy = wanted
            self.services.learner.set_profiles(profiles_of(wanted))
        before, seen.policies = seen.policies, {policy.name: policy for policy in wanted.jobs}
        has = self.services.claims.has
        claimed = [name for name in seen.policies if has(name) and name not in self.jobs]
        for name in claimed:
            self.jobs[name] = JobController(self.services, seen, seen.policies[name])
        seen.count = len(self.jobs)
        self.services.keep_only({name: job.policy for name, job in self.jobs.items()})
        changed = {name for name in self.jobs if seen.policies.get(name) != before.get(name)}
        return changed.union(claimed)

    def _book_prices(self, cost: Cost) -> None:
        """Prices by the hour, as they come into force, for the log and for reports."""
        now_s, before = self.services.unix_s(), self.state.policy.cost
        if before.hour != cost.hour:
            self.services.audit.post("policy", "", f"prices: {cost.hour}")
        due = before.hour != cost.hour or now_s - self._booked_s >= HOLDS_S
        if due and self.services.claims.leads:
            self._booked_s = now_s
            content = json.dumps([cost.kwh, cost.co2_g_per_kwh, cost.stale])
            self._unkept.append(Record(now_s, PRICES, "", content))

    def _at_least_cost(self, policy: Policy) -> Policy:
        """The policy with the slowdowns that follow from its prices."""
        if not any(job.slo.least_cost for job in policy.jobs):
            return policy
        prices = policy.cost.prices(hosts=False)
        jobs = (self._priced(job, prices) if job.slo.least_cost else job for job in policy.jobs)
        return replace(policy, jobs=tuple(jobs))

    def _priced(self, job: JobPolicy, prices: Prices) -> JobPolicy:
        """The entry with the slowdown that costs least; that of before where it moved little, or
        is not known now."""
        controller, before = self.jobs.get(job.name), self.state.policies.get(job.name)
        held = (
            before.slo.max_slowdown or 0.0
            if before and before.slo.least_cost
            else self._earlier_target(job.name)
        )
        found = controller.least_cost(prices) if controller else None
        slo = job.slo.at_cost(held if found is None else found)
        moved = abs((slo.max_slowdown or 0.0) - held)
        if moved <= max(COST_STEP, COST_STEP_RATIO * held):
            return replace(job, slo=job.slo.at_cost(held))
        text = f"least cost at {prices}: max_slowdown {100.0 * (slo.max_slowdown or 0.0):.2f} %"
        self.services.audit.post("policy", job.name, text)
        content = json.dumps(slo.max_slowdown)
        self._unkept.append(Record(self.services.unix_s(), LEAST_COST, job.name, content))
        return replace(job, slo=slo)

    def _earlier_target(self, job: str) -> float:
        """What an earlier controller found to cost least, until this one knows better; else 0."""
        newest = self.services.store.records(LEAST_COST, job=job, limit=1)
        with suppress(ValueError, IndexError):
            return max(0.0, float(newest[0].content))
        return 0.0

    async def _observe(self) -> set[str]:
        """The cluster as of now. Returns the jobs that this changes: those whose GPUs moved, or
        all where another controller leads.
        """
        context = self.services
        now_s = context.now_s()
        state = context.fleet.observe(now_s)
        await asyncio.sleep(0)  # streams and heartbeats come in between
        view, moved = context.observer.arrange(self.state.policy, state, now_s, self.jobs)
        faults = self.rates.faults(now_s) if self.rates else ()
        self.state.view = replace(view, rate_faults=faults)
        self.reach.update(state.nodes, now_s)
        if context.claims.leads:
            idle = self.state.policy.idle
            after_s = idle.after_s if idle.mode != "off" else math.inf
            ledger = self.services.energy.ledger
            ledger.update(self.state.view.gpus, context.unix_s(), after_s)
        lost = await self._overtaken(state.nodes)
        if lost and not context.leases.lost:
            context.leases.end(lost)
            context.audit.post("lead", "", lost)
            return set(self.jobs)
        return moved

    async def _overtaken(self, nodes: Iterable[NodeView]) -> str:
        """Why this term is over; empty while it is not. An agent that shows a newer term is asked
        nothing: the store says whether one was begun.
        """
        epoch, store = self.services.epoch, self.services.store
        newer = next((node for node in nodes if node.epoch_seen > epoch), None)
        given = 0
        if newer is not None and self.services.claims.group is None:
            with suppress(Unavailable):  # the leader lock, which is in the store, ends the term
                given = await asyncio.to_thread(store.epoch)
        if newer is None or given <= epoch:
            return ""
        return (
            f"another controller leads: agent {newer.address} has seen epoch {newer.epoch_seen}, "
            f"this one is {epoch}; nothing is commanded until this controller is restarted"
        )

    def view(self, jobs: Iterable[JobState]) -> View:
        """The cluster with its jobs."""
        seen = self.state
        now_s = seen.view.now_s if seen.begun else self.services.now_s()
        return replace(seen.view, now_s=now_s, jobs=tuple(jobs))

    async def keep_power_budget(
        self, observations: Mapping[str, JobObservation], acting: Callable[[str], asyncio.Lock]
    ) -> float:
        """The next step towards the shares and limits that keep the budget: by the leader for all
        jobs, by another controller for its own. Returns the seconds until that one is due again.
        """
        services, policy, shared = self.services, self.state.policy, self.services.shared_budget
        leads, needed = shared.leads, services.power_budget.needed(self.state.policy)
        before = dict(shared.shares)
        if policy.power_budget_w is None:
            self._say(services.budgets.settle(None, ()))
            shared.shares = {}
        if needed or shared.active:
            host_power_w, gpus = policy.cost.host_power_w, self.state.view.gpus
            over = policy.power_budget_w is None or not policy.enforces
            shared.unknown = Share(limited=not over)
            own = {
                name: self.jobs[name].demand(one.job, gpus, host_power_w)
                for name, one in (observations.items() if needed else ())
                if name in self.jobs
            }
            shared.need(own)
            group = self.services.claims.group
            await shared.exchange((NO_JOB, *(group.holders if group else own)) if needed else ())
            async with acting(ALL):
                if leads and needed:
                    await self._divide()
                if not self.services.leases.lost:
                    await shared.carry_out(self._set_limits)
            services.power_budget.take_answers()
        for name in self.jobs:
            if shared.share(name).deadline_s != before.get(name, Share()).deadline_s:
                self.changed(name)
        return math.inf if leads or not (needed or shared.active) else ORDERS_S

    def _say(self, change: str) -> None:
        if change:
            self.services.audit.post("plan", "", change)

    async def _divide(self) -> None:
        """Shares of all jobs, and the limits that keep the budget whatever becomes of clocks."""
        services, policy, shared = self.services, self.state.policy, self.services.shared_budget
        budget, host_power_w = services.power_budget, policy.cost.host_power_w
        demands = {name: one for name in self.state.policies if (one := shared.demands.get(name))}
        known = [budget.known(one, host_power_w) for one in demands.values()]
        at_work = {uuid for demand in known for uuid in demand.uuids}
        beside_w = sum(
            budget.counted_w.get(uuid, 0.0) + host_power_w
            for uuid in self.state.view.gpus
            if uuid not in at_work
        )
        # Before limits are known the shares are those of the leader before.
        if budget.counted_w and policy.power_budget_w is not None:
            settle = services.budgets.settle  # 0.3 s of a processor for 200 jobs
            self._say(await asyncio.to_thread(settle, policy.power_budget_w, known, beside_w))
        share = services.budgets.share if services.budgets.shares else shared.share
        shares = {name: share(name) for name in demands}
        if not budget.begun:
            await asyncio.to_thread(budget.begin)
        # A step over 20,000 GPUs takes a second.
        view, holds = self.state.view, services.holds.all
        await asyncio.to_thread(budget.step, policy, view, demands, shares, holds)
        shared.give({name: budget.limiting(name, share) for name, share in shares.items()})

    async def _set_limits(self, order: LimitOrder, generation: int) -> LimitOutcome:
        gpus, ttl_s = self.state.view.gpus, self.state.ttl_s()
        return await self.services.power_budget.set_limits(order, gpus, generation, ttl_s)

    async def keep_memory(self) -> None:
        """Fits and stores what was learnt. Raises Unavailable."""
        services = self.services
        if not self.services.leases.lost:
            services.predictions.fit_next(self.services.now_s())
            await services.predictions.save()
            services.holds.catch_up()
            if self.services.claims.leads:
                await services.energy.save(self.services.unix_s())
            while self._unkept:
                await asyncio.to_thread(self.services.store.keep_record, self._unkept[0])
                del self._unkept[0]


def profiles_of(policy: Policy) -> dict[str, Profile]:
    """By job, of the jobs that have one."""
    return {job.name: job.profile for job in policy.jobs if job.profile is not None}
