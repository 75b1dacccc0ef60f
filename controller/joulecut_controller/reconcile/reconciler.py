"""One leadership term: its jobs and what belongs to all of them, each reconciled by key.

Three layers: the loop runs steps of keys, a job's step decides, leases are what it holds. A step
takes no input and is idempotent: start-up, recovery and steady state are the same step. It compares
what is with what should be and applies the difference; without one it sends nothing. A job that
cannot be observed or explained gets default clocks. A plan is in the audit log before its clocks
are set.

A job is reconciled every interval, and at once after news: reports of another kind of iteration, an
agent that shows something else, a worker's answer, an operator's order, another policy or deadline.
No job waits for the agents, the workers or the store errors of another. The leases of a job that
cannot be reconciled are no longer renewed, and run out.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from joulecut_controller.board import Board, LogLine
from joulecut_controller.election.claims import Claims, Group, Wish
from joulecut_controller.election.power_table import OwnTable, PowerTable
from joulecut_controller.election.reach import LATE_S
from joulecut_controller.observe.observer import JobObservation, Observer
from joulecut_controller.policy.hourly import Points
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import ArrivedReport, Event, Fleet, FleetState, Rates, Store
from joulecut_controller.power.budget import Budgets
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.cluster_board import make_board, trouble_text
from joulecut_controller.reconcile.cluster_step import CLUSTER, HOLDS, MEMORY, POWER, Cluster
from joulecut_controller.reconcile.commands import Commands
from joulecut_controller.reconcile.context import ClusterState, JobServices, in_thread
from joulecut_controller.reconcile.energy_book import EnergyBook
from joulecut_controller.reconcile.frontiers import Frontiers
from joulecut_controller.reconcile.holds import Holds
from joulecut_controller.reconcile.inbox import Inbox
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.reconcile.loop import HURRY_S, Loop
from joulecut_controller.reconcile.loop_metrics import LoopMetrics, PassResult
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.planning_step import Planners, SolverFunctions
from joulecut_controller.reconcile.policy_watcher import PolicySource
from joulecut_controller.reconcile.power_budget import PowerBudget
from joulecut_controller.reconcile.predictions import Predictions
from joulecut_controller.reconcile.shared_budget import SharedBudget
from joulecut_controller.store.schema import GPU_CHARACTERS_MAX
from joulecut_engine.estimate.online import OnlineEstimator

# Between steps of one job that news ask for. All jobs together take half a processor for them at
# most, at ten milliseconds a step.
NEWS_S = 0.5
NEWS_S_PER_JOB = 0.02
LOG_S = 0.2  # between transactions of the audit log; a crash costs the lines of one at most
BOARD_S = 0.5  # between boards, so that a hundred plans applied at once are one
REPORT_S = 120.0  # a job of others that reports no iteration for so long is not known to run
STOP_WAIT_S = 3.0  # a command under way has been answered or has failed by then


class Reconciler:
    """Steps, boards and heartbeats of one leadership term.

    A process runs `run`, `next_board` and `keep_leases` side by side. On a virtual clock `run_pass`
    does the work of the first two, and `beat_all` that of the third.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: Store,
        source: PolicySource,
        policy: Policy,
        learner: OnlineEstimator,
        solver: SolverFunctions,
        planners: Executor,
        background: Executor,
        claims: Claims,
        pacing: Pacing,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
        unready: Callable[[], str] = lambda: "",
        rates: Rates | None = None,
        prices: Mapping[str, Points] | None = None,
        reports: Sequence[ArrivedReport] = (),
        adopt: Callable[[str], Sequence[str]] = lambda _: (),
        power_table: PowerTable | None = None,
    ) -> None:
        """`planners` compute for plans, `background` for all else; `unready` says why no plan can
        be made yet. `reports` came before the term: they say where jobs run. `power_table` is of
        controllers that share the jobs. Raises Unavailable.
        """
        self._fleet, self._rates, self._pacing = fleet, rates, pacing
        self._reports = tuple(reports)  # that no job has been given yet
        self._unrenewed: set[str] = set()
        # The newest report of each GPU of other controllers' jobs, and ("") of jobs without an
        # entry: it shows where they run.
        self._elsewhere: dict[str, dict[str, ArrivedReport]] = {}
        self._failed_steps = 0  # by the last board
        self._late_until_s = -math.inf
        self._to_show, self.to_share = asyncio.Event(), asyncio.Event()
        self._pass_number = 0
        self.metrics = LoopMetrics()
        self.board: Board | None = None
        self._jobs: dict[str, JobController] = {}
        self._loop = Loop(
            self._step,
            self._take_in,
            failed=self._failed,
            interval_s=pacing.interval_s,
            durations=self.metrics.passes,
            now_s=now_s,
        )
        tasks = BackgroundTasks(background, failed=self._not_computed, finished=self._to_show.set)
        holds = Holds(store, unix_s)
        audit, leases = AuditLog(store, unix_s), Leases(fleet, claims.first)
        shared_budget = SharedBudget(claims, power_table or OwnTable(store))
        self._services = JobServices(
            store=store,
            audit=audit,
            leases=leases,
            observer=Observer(stale_s=pacing.stale_s),
            check=solver.check,
            claims=claims,
            interval_s=pacing.interval_s,
            stale_s=pacing.stale_s,
            now_s=now_s,
            unix_s=unix_s,
            fleet=fleet,
            inbox=Inbox(),
            learner=learner,
            planners=Planners(
                solver,
                learner,
                workers=planners,
                arrived=self._loop.answered,
                metrics=self.metrics,
                now_s=now_s,
            ),
            background=tasks,
            frontiers=Frontiers(solver.frontier, tasks),
            budgets=Budgets(),
            power_budget=PowerBudget(
                store, leases, audit, shared_budget, now_s=now_s, unix_s=unix_s
            ),
            shared_budget=shared_budget,
            holds=holds,
            predictions=Predictions(learner, store, audit, tasks),
            energy=EnergyBook(store, audit),
            unready=unready,
            metrics=self.metrics,
        )
        self._cluster = Cluster(
            services=self._services,
            source=source,
            state=ClusterState(policy, pacing),
            jobs=self._jobs,
            rates=rates,
            prices={} if prices is None else prices,
            changed=self._changed,
        )
        self.commands = Commands(
            self._services,
            jobs=self._jobs,
            executed=self._ordered,
            adopt=adopt,
            elsewhere_on=self._elsewhere_on,
            follow_holds=self._follow_holds,
        )
        # Jobs of other controllers, for the board.
        self._parts: tuple[tuple[float, str], ...] = ()
        self._loop.add(CLUSTER)

    @property
    def epoch(self) -> int:
        return self._services.epoch

    @property
    def claims(self) -> Claims:
        return self._services.claims

    @property
    def leads(self) -> bool:
        return not self._services.leases.lost

    @property
    def seen(self) -> FleetState:
        """Agents and GPUs as the cluster's last step saw them."""
        view = self._cluster.state.view
        return FleetState(view.nodes, tuple(view.gpus.values()))

    @property
    def policy(self) -> Policy:
        """The one in force, with the running jobs of its classes and those that were found."""
        return self._cluster.state.policy

    @property
    def policy_read(self) -> Policy:
        """The one in force, as it was read."""
        return self._cluster.watcher.policy

    @property
    def is_apart(self) -> bool:
        """Whether it has not reached any agent for longer than a term."""
        return self._cluster.reach.none_is_reached

    def ask_reload(self) -> None:
        """The policy is read again at once, changed or not."""
        self._cluster.watcher.ask()
        self._loop.add(CLUSTER)

    def ttl_s(self) -> float:
        """How long leases last, within what every agent allows."""
        return self._cluster.state.ttl_s()

    async def run(self) -> None:
        """Reconciles jobs and cluster by due time and news, until it is cancelled."""
        await self._loop.run()

    async def run_pass(self) -> Board:
        """Takes in what arrived, runs every key that is due now to its end, and makes the board."""
        await self._loop.run_due()
        await in_thread(self._services.audit.catch_up)
        return await self.make_board()

    async def write_log(self) -> None:
        """Writes posted lines of the audit log as they come, until it is cancelled."""
        audit = self._services.audit
        while True:
            await asyncio.sleep(self._pacing.interval_s if audit.trouble else LOG_S)
            await in_thread(audit.catch_up)

    async def next_board(self) -> Board:
        """The board, once there is something new to show, or nothing for two intervals."""
        await asyncio.sleep(BOARD_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0 * self._pacing.interval_s):
                await self._to_show.wait()
        self._to_show.clear()
        return await self.make_board()

    async def make_board(self) -> Board:
        """What the steps since the last board observed, decided and did."""
        self._pass_number += 1
        rollouts = {name: job.rollout for name, job in self._jobs.items() if job.rollout.action}
        done = tuple(
            LogLine(name, rollout.action, "warning" if rollout.action_failed else "info")
            for name, rollout in rollouts.items()
        )
        for rollout in rollouts.values():  # shown; what happens from now on is the next board's
            rollout.action, rollout.action_failed = "", False
        failed = self._loop.failed_steps > self._failed_steps
        self._failed_steps = self._loop.failed_steps
        result: PassResult = "failed" if failed else "changed" if done else "unchanged"
        self.metrics.results[result] += 1
        self.board = await make_board(
            self._services,
            self._cluster,
            number=self._pass_number,
            done=done,
            troubles=self._loop.troubles,
            elsewhere=self._parts,
        )
        return self.board

    async def keep_leases(self) -> None:
        """Renews the leases of every job in time, until it is cancelled."""
        await self._services.leases.keep(self.ttl_s, self.beat)

    async def beat(self, job: str) -> bool:
        """One heartbeat for the leases of a job, if its steps and those of the cluster succeed:
        another controller may lead. Returns whether all are renewed.
        """
        silent_s = max(self._loop.silent_s(CLUSTER), self._loop.silent_s(job))
        if self._services.leases.lost or silent_s > self._pacing.dead_s:
            return False
        outcome = await self._services.leases.renew(job, self.ttl_s())
        self._unrenewed &= self._services.leases.jobs
        if not outcome.refused:
            self._unrenewed.discard(job)
        elif job not in self._unrenewed:
            self._unrenewed.add(job)
            self._services.audit.post("renew", job, f"not renewed: {outcome.first_refusal}")
        return bool(outcome.settings) and not outcome.refused

    async def beat_all(self) -> None:
        """One heartbeat for every job, for a virtual clock."""
        await asyncio.gather(*map(self.beat, self._services.leases.jobs))

    def run_late(self, late_s: float) -> None:
        """Records that the event loop was late by so much. From LATE_S on, news of jobs and agents
        wait for an interval: the steps that they ask for would make it later.
        """
        self.metrics.lag.add(late_s)
        self._cluster.reach.run_late(late_s)
        if late_s >= LATE_S:
            self._late_until_s = self._services.now_s() + self._pacing.interval_s

    def wish(self) -> Wish:
        """What this term wants of the controllers that share the store."""
        seen, claims = self._cluster.state, self._services.claims
        # The first step of the cluster knows no running jobs of classes yet.
        jobs = frozenset(seen.policies) if self._cluster.steps > 1 else None
        return Wish(jobs, frozenset(claims.given), self._barred(), self._reporting())

    def agents(self) -> frozenset[str] | None:
        """The agents that this controller needs streams to: those of its jobs, and its part of
        those without a job that every controller can place; None: every one. Who keeps a power
        budget reads every limit.
        """
        group, seen = self._services.claims.group, self._cluster.state
        if group is None or len(group.watchers) < 2:
            return None
        if group.leads and self._services.power_budget.needed(seen.policy):
            return None
        own = group.among(group.holders) | group.among(group.wanted) | self._jobs.keys()
        gpus, of = seen.view.gpus, self._services.observer.agents_of
        placed = (name for name, job in seen.policies.items() if job.is_placed)
        others = (of(name, ()) for name in placed if group.holders.get(name) in group.live)
        return frozenset().union(
            group.at_home(seen.view.node_at.keys() - frozenset().union(*others)),
            (gpus[uuid].address for job, uuid in group.reporting if job in own and uuid in gpus),
            *(of(job, self._elsewhere.get(job, {}).values()) for job in own),
        )

    def _reporting(self) -> frozenset[tuple[str, str]]:
        """Jobs that only reports place, with a GPU of each agent that hears of them."""
        policies, gpus = self._cluster.state.policies, self._cluster.state.view.gpus
        found: dict[tuple[str, str], str] = {}
        for job, reports in self._elsewhere.items():
            placed = job in policies and policies[job].is_placed
            for uuid in reports.keys() & gpus.keys() if not placed else ():
                if len(uuid) <= GPU_CHARACTERS_MAX and uuid.isprintable():
                    at = job, gpus[uuid].address
                    found[at] = min(uuid, found.get(at, uuid))
        return frozenset((job, uuid) for (job, _), uuid in found.items())

    def _barred(self) -> frozenset[str]:
        """The agents that this controller does not reach, and the jobs that run on one of them or
        on none that is known.
        """
        lost = self._cluster.reach.lost(self._services.now_s())
        if not lost:
            return frozenset()
        of, elsewhere = self._services.observer.agents_of, self._elsewhere
        return lost.union(
            name
            for name in self._cluster.state.policies
            if not of(name, elsewhere.get(name, {}).values()).isdisjoint((*lost, ""))
        )

    def follow(self, group: Group) -> None:
        """A newer state of the controllers that share the store."""
        claims = self._services.claims
        holds = claims.group.holds if claims.group else 0
        if not claims.follow(group):
            return
        if group.holds != holds:
            self._loop.add(HOLDS)
        self._loop.add(CLUSTER)
        for name in claims.leaving:
            if name in self._jobs:
                self._loop.add(name)
            else:
                claims.given.add(name)

    def show_elsewhere(self, parts: tuple[tuple[float, str], ...], events: Iterable[Event]) -> None:
        """Boards show these parts and newest events of all controllers from now on."""
        self._parts = parts
        self._services.audit.follow(events)
        self._to_show.set()

    def stand_down(self, why: str) -> None:
        """The term is over: no more commands are sent, and leases run out."""
        self._services.leases.end(why)

    async def stop(self, reason: str) -> None:
        """Releases every GPU; where an agent does not answer, its leases run out."""
        await self._services.background.stop()
        await self._loop.stop(STOP_WAIT_S)
        if not self._services.leases.lost:
            await asyncio.gather(*(job.release_all(reason) for job in self._jobs.values()))
        await in_thread(self._services.audit.catch_up)

    # -- steps -----------------------------------------------------------------------------

    async def _step(self, key: str) -> float:
        """Seconds until the key is due again; infinite where only news make it due."""
        if key == CLUSTER:
            await self._step_cluster()
        elif key == POWER:
            return await self._cluster.keep_power_budget(self._observations(), self.commands.acting)
        elif key == MEMORY:
            await self._cluster.keep_memory()
            return math.inf
        elif key == HOLDS:
            await self._follow_holds()
            return math.inf
        else:
            async with self.commands.acting(key):
                with self._services.planners.turns.step(key):
                    stays = await self._step_job(key)
                if not stays:
                    return math.inf
        return self._pacing.interval_s

    async def _step_job(self, name: str) -> bool:
        """Whether the job stays. One that left the policy is released and forgotten."""
        job = self._jobs.get(name)
        if job is not None and name not in self._cluster.state.policies:
            await job.release_all("the job left the policy")
            del self._jobs[name]
            self._cluster.state.jobs.pop(name, None)
            job = None
        if job is None:
            return False
        if self._leaves(job):
            self._hand_over(name)
            return False
        if await job.step():
            self._news(name)  # the pipeline of a phase is known from the next look on
        if job.rollout.action:
            self._to_show.set()
        return True

    async def _follow_holds(self) -> None:
        """Holds that other controllers have placed and lifted."""
        holds, changes = self._services.holds, -1
        while changes != holds.changes:  # an order came while the store was read
            changes = holds.changes
            stored = await asyncio.to_thread(holds.stored)
        for name in holds.follow(stored):
            self._ordered(name)

    def _leaves(self, job: JobController) -> bool:
        """Whether another controller goes on with the job from now on. Even shares can wait until
        its first baseline is measured, which would begin again there.
        """
        claims, name = self._services.claims, job.name
        if name in claims.leaving:
            return claims.cannot_keep(name) or not job.measures_first
        return not claims.has(name)

    def _hand_over(self, name: str) -> None:
        """Another controller goes on with the job and its leases."""
        self._services.leases.hand_over(name)
        self._services.claims.given.add(name)
        self.to_share.set()
        del self._jobs[name]
        self._cluster.state.jobs.pop(name, None)
        self._services.audit.post("lead", name, "handed over to another controller")
        self._to_show.set()

    def _elsewhere_on(self, uuids: set[str]) -> set[str]:
        """The jobs of other controllers that report from these GPUs or hold a lease there."""
        gpus = self._cluster.state.view.gpus
        shown = (gpus[uuid].snapshot for uuid in uuids & gpus.keys())
        holders = {one.lease.job for one in shown if one is not None and one.lease is not None}
        reporting = {name for name, known in self._elsewhere.items() if uuids & known.keys()}
        return {name for name in holders | reporting if self._services.claims.elsewhere(name)}

    async def _step_cluster(self) -> None:
        group, now_s = self._services.claims.group, self._services.now_s()
        self._cluster.unclaimed(one for one in (group.reporting if group else ()) if not one[0])
        await self._cluster.step()
        known = self._cluster.state.policies
        if group and group.leads and known.keys() != group.holders.keys():
            self.to_share.set()
        self._elsewhere = {
            name: {u: one for u, one in reports.items() if now_s - one.arrived_s < REPORT_S}
            for name, reports in self._elsewhere.items()
            if name in known or not name
        }
        self._loop.add(POWER)
        self._loop.add(MEMORY)
        self.metrics.last_success_unix_s = self._services.unix_s()
        self._to_show.set()

    def _observations(self) -> dict[str, JobObservation]:
        """The newest of each job, in the order of the policy."""
        return {
            name: job.observed.observation
            for name in self._cluster.state.policies
            if (job := self._jobs.get(name)) and job.observed
        }

    def _not_computed(self, key: tuple[str, str], error: str) -> None:
        self._services.audit.post("plan", key[1], f"{key[0]} was not computed: {error}")

    def _failed(self, key: str, error: str) -> None:
        job = key if key in self._jobs else ""
        self._services.audit.post("plan", job, trouble_text(key, error))
        self._to_show.set()

    # -- news ------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Gives reports to their jobs. Those that came before the cluster was seen wait."""
        self._reports += self._fleet.take_reports()
        if not self._cluster.state.begun:
            return
        reports, self._reports = self._reports, ()
        by_job, strays = self._services.observer.route(
            reports, self._rates.take() if self._rates else ()
        )
        self._cluster.unclaimed((one.report.job, one.report.uuid) for one in strays)
        unclaimed = self._elsewhere.setdefault("", {})
        unclaimed |= {one.report.uuid: one for one in strays}
        own: dict[str, list[ArrivedReport]] = {}
        for name, arrived in by_job.items():
            if self._services.claims.has(name):
                own[name] = [*self._elsewhere.pop(name, {}).values(), *arrived]
            else:
                known = self._elsewhere.setdefault(name, {})
                known |= {one.report.uuid: one for one in arrived}
        for name in self._services.inbox.add(own):
            self._news(name)

    def notice(self, address: str, owners: bool) -> None:
        """An agent shows something else than before: of its GPUs, or (`owners`) whose they are and
        how it is itself.
        """
        for name, job in self._jobs.items():
            if job.observed is not None and address in job.observed.view.node_at:
                self._news(name)
        if owners:
            self._loop.add(CLUSTER, self._spacing_s(HURRY_S))

    def _news(self, name: str) -> None:
        """The job is looked at again, and not more often than news may ask for."""
        observed = self._jobs[name].observed if name in self._jobs else None
        age_s = self._services.now_s() - observed.view.now_s if observed else math.inf
        spacing_s = self._spacing_s(max(NEWS_S, NEWS_S_PER_JOB * len(self._jobs)))
        self._changed(name, max(0.0, spacing_s - age_s))

    def _spacing_s(self, on_time_s: float) -> float:
        """Between steps that news ask for."""
        late = self._services.now_s() < self._late_until_s
        return self._pacing.interval_s if late else on_time_s

    def _changed(self, name: str, wait_s: float = 0.0) -> None:
        """The job has something new to go by, and is looked at again."""
        if name in self._jobs:
            self._jobs[name].outdated = True
        self._loop.add(name, wait_s)

    def _ordered(self, job: str) -> None:
        """An operator's order was executed, for one job or (empty) for several."""
        for name in (job,) if job in self._jobs else tuple(self._jobs):
            self._changed(name)
        self._to_show.set()
