"""The control loop: one pass observes, verifies, estimates, plans, guards, applies and publishes.

A pass takes no input and is idempotent: start-up, recovery and steady state are the same pass. It
compares what is with what should be and applies the difference; without one it sends nothing. A
job that cannot be observed or explained gets default clocks. A plan is in the audit log before it
is applied.

Jobs go through a pass side by side, one step each. Workers compute; a step that waits for their
answer, or for an agent, holds up neither the pass nor another job. It goes on when the answer is
there, and its plan is guarded against the cluster as it is then.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.observe.found_jobs import FoundJobs
from joulecut_controller.observe.observer import JobObservation, Observer
from joulecut_controller.orders import ALL
from joulecut_controller.plan.power_limits import needed_w
from joulecut_controller.policy.opt_in import with_opted_in
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import ArrivedReport, Fleet, Rates, Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.budgets import Budgets
from joulecut_controller.reconcile.commands import Commands
from joulecut_controller.reconcile.context import JobServices, ReconcileContext
from joulecut_controller.reconcile.first_savings import FirstSavings
from joulecut_controller.reconcile.frontiers import Frontiers, Stragglers
from joulecut_controller.reconcile.holds import Breakers, Holds
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.job_step import JobSteps, Picture
from joulecut_controller.reconcile.learning import Learning
from joulecut_controller.reconcile.leases import Leases, overtaken
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.planning_step import PlanningStep, SolverFunctions
from joulecut_controller.reconcile.policy_watcher import PolicySource, PolicyWatcher
from joulecut_controller.reconcile.power_limits import PowerBudget
from joulecut_controller.reconcile.trust_inputs import StoredBook
from joulecut_controller.trust.default_windows import DefaultWindows
from joulecut_controller.view import View
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.errors import JoulecutError

# Agents answer within milliseconds; what takes longer goes on beside the passes.
STEP_WAIT_S = 0.5
# Jobs examined in a pass: predictions compared and taught, prices and plan checked (25 ms each).
# Each of 100 jobs has its turn every 65 s. A job that is late or has changed is planned at once.
EXAMINED_PER_PASS = 8
SLICES_PER_STEP = 3  # of computation: verify, learn, plan
STOP_WAIT_S = 3.0  # a command under way has been answered or has failed by then

Observations = Mapping[str, JobObservation]  # by job


class Reconciler:
    """Passes and heartbeats of one leadership term."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: Store,
        source: PolicySource,
        policy: Policy,
        learner: OnlineEstimator,
        learnt: str = "",
        solver: SolverFunctions,
        planners: Executor,
        background: Executor,
        epoch: int,
        pacing: Pacing,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
        unready: Callable[[], str] = lambda: "",
        rates: Rates | None = None,
        reports: Sequence[ArrivedReport] = (),
    ) -> None:
        """`planners` compute for plans, `background` for all else; `unready` says why no plan can
        be made yet. `reports` came before the term: they say where jobs run. `learnt` is the stored
        text that `learner` was restored from, if it was. Raises Unavailable.
        """
        self._reports = tuple(reports)
        self._fleet, self._learner, self._pacing = fleet, learner, pacing
        self._rates = rates
        self._pass_number = 0
        self._last_success_s = now_s()
        self._unrenewed: set[str] = set()
        self._ttl_max_s = 0.0  # what every agent allows; 0: not known yet
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._computing = asyncio.Lock()  # one job's slice a turn of the event loop
        self._turns_due = 0  # jobs that wait for theirs
        self._errors: list[BaseException] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.metrics = LoopMetrics()
        self.board: Board | None = None
        learner.set_profiles(profiles_of(policy))
        self._jobs: dict[str, JobController] = {}
        self._turns: dict[str, int] = {}  # by job: its place in the policy
        self._policy = policy
        self._found = FoundJobs()
        self._context = ReconcileContext(
            store=store,
            audit=AuditLog(store, unix_s),
            leases=Leases(fleet, epoch),
            observer=Observer(lag_s=pacing.lag_s, stale_s=pacing.stale_s),
            check=solver.check,
            epoch=epoch,
            interval_s=pacing.interval_s,
            stale_s=pacing.stale_s,
            now_s=now_s,
            unix_s=unix_s,
        )
        self._policy_watcher = PolicyWatcher(source, policy, self._context.audit)
        learning = partial(Learning, learner, store, self._context.audit, restored=learnt)
        self._services = _job_services(self._context, learning, solver, background, pacing.lag_s)
        self._planning = PlanningStep(
            solver,
            self._services.stragglers,
            learner,
            workers=planners,
            arrived=self._answered,
            metrics=self.metrics,
            now_s=now_s,
        )
        self._job_steps = JobSteps(
            fleet=fleet,
            context=self._context,
            services=self._services,
            planning=self._planning,
            learner=learner,
            jobs=self._jobs,
            policy=lambda: self._policy,
            ttl_s=self.ttl_s,
            unready=unready,
            examined=self._examined,
        )
        self.commands = Commands(
            fleet=fleet,
            leases=self._context.leases,
            holds=self._services.holds,
            audit=self._context.audit,
            jobs=self._jobs,
            view=lambda: self.board.view if self.board else None,
            now_s=now_s,
            unix_s=unix_s,
        )

    @property
    def epoch(self) -> int:
        return self._context.epoch

    @property
    def leads(self) -> bool:
        return not self._context.leases.lost

    @property
    def policy(self) -> Policy:
        """The one in force, with the jobs that opted in and those that were found."""
        return self._policy

    @property
    def policy_read(self) -> Policy:
        """The one in force, as it was read."""
        return self._policy_watcher.policy

    def ask_reload(self) -> None:
        """The next pass reads the policy again, changed or not."""
        self._policy_watcher.ask()

    def ttl_s(self) -> float:
        """How long leases last, within what every agent allows."""
        return self._pacing.ttl_within_s(self._ttl_max_s)

    async def run_pass(self) -> Board:
        """One pass. An error (a full disk) is shown on the board; while passes keep failing,
        heartbeats stop and leases run out.
        """
        begun_s = self._context.now_s()
        self._pass_number += 1
        try:
            board = await self._reconcile()
        except JoulecutError as error:
            self.metrics.results["failed"] += 1
            board = self._failed_board(error)
        else:
            self._last_success_s = self._context.now_s()
            self.metrics.last_success_unix_s = self._context.unix_s()
            acted = any(job.rollout.action for job in self._jobs.values())
            self.metrics.results["changed" if acted else "unchanged"] += 1
            for job in self._jobs.values():  # shown; what happens from now on is the next board's
                job.rollout.action = ""
        self.metrics.passes.add(self._context.now_s() - begun_s)
        self.board = board
        return board

    async def beat(self) -> None:
        """One heartbeat for all leases, unless no pass has succeeded for too long."""
        silent_s = self._context.now_s() - self._last_success_s
        if self._context.leases.lost or silent_s > self._pacing.dead_s:
            return
        outcomes = await self._context.leases.renew(self.ttl_s())
        self._unrenewed.intersection_update(self._jobs)
        for job, outcome in outcomes.items():
            if not outcome.refused:
                self._unrenewed.discard(job)
            elif job not in self._unrenewed:
                self._unrenewed.add(job)
                self._context.audit.post("renew", job, f"not renewed: {outcome.first_refusal}")

    def stand_down(self, why: str) -> None:
        """The term is over: no more commands are sent, and leases run out."""
        self._context.leases.end(why)

    async def stop(self, reason: str) -> None:
        """Releases every GPU; where an agent does not answer, its leases run out."""
        await self._services.background.stop()
        if self._steps:
            _, late = await asyncio.wait(self._steps.values(), timeout=STOP_WAIT_S)
            for step in late:
                step.cancel()
        if self._context.leases.lost:
            return
        await asyncio.gather(*(job.release_all(reason) for job in self._jobs.values()))
        with suppress(JoulecutError):  # a store that fails now has failed and been reported before
            await self._services.learning.stop()

    # -- one pass --------------------------------------------------------------------------

    async def _reconcile(self) -> Board:
        """Errors of one job are raised after all jobs had their turn, so that no job waits for
        another's store error to get its clocks raised or released.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._computing, self._turns_due = loop, asyncio.Lock(), 0
        self._context.audit.catch_up()
        await self._follow_policy()
        await self._restore_estimates()
        view, observations = await self._observe()
        self._share_power_budget(observations, view)
        await self._step_side_by_side(observations, view)
        await self._keep_power_budget(observations, view)
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]
        await self._start_background_work(observations)
        return await self._publish(observations, view)

    async def _follow_policy(self) -> None:
        """One controller per job of the policy; a job that left it is released."""
        newer = await self._policy_watcher.refresh()
        gpus = self.board.view.gpus if self.board else {}
        owners = (gpu.allocation for gpu in gpus.values() if gpu.allocation is not None)
        wanted = self._found.with_found(with_opted_in(self.policy_read, owners), gpus)
        if newer or wanted != self._policy:
            self._policy = wanted
            self._learner.set_profiles(profiles_of(wanted))
        policies = {policy.name: policy for policy in self.policy.jobs}
        for name in [name for name in self._jobs if name not in policies]:
            async with self.commands.acting(name):
                self._job_steps.pictures.pop(name, None)
                await self._jobs.pop(name).release_all("the job left the policy")
        self._turns = {name: turn for turn, name in enumerate(policies)}
        for name, policy in policies.items():
            job = self._jobs.setdefault(name, JobController(self._context, policy))
            job.policy = policy
        self._services.keep_only(policies)
        self._planning.keep_only(policies)

    async def _restore_estimates(self) -> None:
        """What an earlier controller learned; read once."""
        for memory in (self._services.learning, self._services.first_savings):
            if not memory.begun:
                await asyncio.to_thread(memory.begin)

    async def _observe(self) -> tuple[View, Observations]:
        """The cluster as of now. A larger epoch anywhere means that another controller leads."""
        context = self._context
        now_s = context.now_s()
        state = self._fleet.observe(now_s)
        await asyncio.sleep(0)  # streams and heartbeats come in between
        limits_s = (node.ttl_max_s for node in state.nodes if node.ttl_max_s > 0)
        self._ttl_max_s = min(limits_s, default=0.0)
        reports, self._reports = self._reports + self._fleet.take_reports(), ()
        rates = self._rates.take() if self._rates else ()
        look = context.observer.begin(
            self.policy,
            state,
            reports,
            now_s,
            recall=lambda name, shape: self._jobs[name].baseline.recall(shape),
            rates=rates,
        )
        self._found.note(look.unclaimed, look.seen.gpus)
        for job in self.policy.jobs:
            await asyncio.sleep(0)
            look.at(job, loads=self._examined(job.name))
        lost = overtaken(state.nodes, context.epoch)
        if lost and not context.leases.lost:
            context.leases.end(lost)
            context.audit.post("lead", "", lost)
        faults = self._rates.faults(now_s) if self._rates else ()
        return replace(look.view(), rate_faults=faults), look.observations

    def _share_power_budget(self, observations: Observations, view: View) -> None:
        """The deadline that the power budget sets for each job."""
        policy, services = self.policy, self._services
        budgeted = policy.power_budget_w is not None
        parties = [
            services.party(self._jobs[name].rollout.state, observation, view.gpus)
            for name, observation in (observations.items() if budgeted else ())
        ]
        host_power_w = policy.cost.host_power_w
        beside_w = _least_w_without_job(view, host_power_w) if budgeted else 0.0
        change = services.budgets.settle(policy.power_budget_w, parties, host_power_w, beside_w)
        if change:
            self._context.audit.post("plan", "", change)

    # -- one job's step --------------------------------------------------------------------

    async def _step_side_by_side(self, observations: Observations, view: View) -> None:
        """A step of every job, but for those whose last one still waits for agents."""
        for name, observation in observations.items():
            if name not in self._steps:
                self._begin(name, self._step(name, observation, view))
            await self._turn()
        for _ in range(SLICES_PER_STEP * len(observations)):
            if not self._turns_due:
                break
            await self._turn()
        if self._steps:
            await asyncio.wait(self._steps.values(), timeout=STEP_WAIT_S)

    def _begin(self, name: str, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(step, name=f"step {name}")
        self._steps[name] = task
        task.add_done_callback(lambda _: self._ended(name, task))

    def _ended(self, name: str, step: asyncio.Task[None]) -> None:
        del self._steps[name]
        error = None if step.cancelled() else step.exception()
        if error is not None:
            self._errors.append(error)

    def _examined(self, name: str) -> bool:
        """Whether it is this job's turn; the jobs take turns in the order of the policy."""
        rounds = math.ceil(len(self._jobs) / EXAMINED_PER_PASS)
        return self._turns[name] % rounds == self._pass_number % rounds

    async def _step(self, name: str, observation: JobObservation, view: View) -> None:
        """Verifies the applied plan, learns from measurements, and makes a plan."""
        async with self.commands.acting(name):
            if name not in self._jobs:
                return
            await self._turn()
            steps = self._job_steps
            vetoes = await steps.verify(name, observation, view)
            if self._examined(name):
                await self._turn()
            steps.estimate(name, observation, view)
            inputs = steps.planning_input(name, observation, view, vetoes)
            steps.pictures[name] = Picture(inputs, observation, view)
            if self._examined(name):
                await self._turn()
            await steps.plan_and_apply(name)
            await self._jobs[name].baseline.keep(observation)
            self._services.first_savings.see(observation, self._jobs[name].profiler, view)

    async def _turn(self) -> None:
        """Waits for a turn of the event loop in which no other job computes: streams, heartbeats
        and timers come in between.
        """
        self._turns_due += 1
        try:
            async with self._computing:
                await asyncio.sleep(0)
        finally:
            self._turns_due -= 1

    def _answered(self, name: str) -> None:
        """A worker has answered a question of this job; called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: planning has ended
                self._loop.call_soon_threadsafe(self._resume, name)

    def _resume(self, name: str) -> None:
        """The job's plan goes on; a step under way finds the answer itself, or the next does."""
        if name in self._job_steps.pictures and name not in self._steps and self.leads:
            self._begin(name, self._resumed(name))

    async def _resumed(self, name: str) -> None:
        async with self.commands.acting(name):
            await self._turn()
            if name in self._job_steps.pictures:
                await self._job_steps.plan_and_apply(name)

    async def _keep_power_budget(self, observations: Observations, view: View) -> None:
        """The next step towards the power limits that keep the budget."""
        services = self._services
        if not services.power_budget.needed(self.policy, view):
            return
        needs_w: dict[str, float | None] = {}
        for name, observation in observations.items():
            state, stages = self._jobs[name].rollout.state, observation.view.stages
            needs_w |= dict.fromkeys((uuid for uuids in stages for uuid in uuids), None)
            needed = needed_w(state.costs, state.clocks) if state.costs and state.clocks else None
            if state.costs and needed:
                for uuids, power_w in zip(state.costs.gpus, needed, strict=True):
                    needs_w |= dict.fromkeys(uuids, power_w)
        async with self.commands.acting(ALL):
            await services.power_budget.step(
                self.policy, view, needs_w, services.holds.all, self.ttl_s()
            )

    async def _start_background_work(self, observations: Observations) -> None:
        """Fits and frontiers, which take seconds."""
        services, now_s = self._services, self._context.now_s
        if not self._context.leases.lost:
            services.learning.step(now_s())
            await services.first_savings.save()
            services.holds.refresh()
        for name, observation in observations.items():
            services.refresh_frontiers(self._jobs[name].rollout.state, observation, now_s())

    # -- the board -------------------------------------------------------------------------

    async def _publish(self, observations: Observations, view: View) -> Board:
        """What the pass observed, decided and did."""
        context, services, policy = self._context, self._services, self.policy
        learned = services.learning.summaries(
            [name for name, one in observations.items() if one.view.policy.profile is not None]
        )
        boards = []
        for name, observation in observations.items():
            boards.append(self._job_steps.board(name, observation, view, learned.get(name)))
            await asyncio.sleep(0)
        actions = self._actions()
        return Board(
            at_unix_s=context.unix_s(),
            pass_number=self._pass_number,
            epoch=context.epoch,
            sentence=actions or steady_sentence(tuple(boards)),
            steady=not actions,
            warnings=self._warnings(),
            view=view,
            jobs=tuple(boards),
            events=context.audit.newest,
            policy_source=policy.source,
            policy_digest=policy.digest,
            policy_error=self._policy_watcher.error,
            budget=services.budgets.shares,
            power_limits=services.power_budget.shown,
            interval_s=context.interval_s,
            holds=services.holds.all,
            policy=policy,
        )

    def _failed_board(self, error: JoulecutError) -> Board:
        """The last board, with the error as its sentence."""
        context = self._context
        board = self.board or Board(
            at_unix_s=context.unix_s(),
            pass_number=0,
            epoch=context.epoch,
            sentence="",
            view=View(now_s=context.now_s()),
            jobs=(),
            events=(),
            interval_s=context.interval_s,
        )
        return replace(
            board,
            at_unix_s=context.unix_s(),
            pass_number=self._pass_number,
            sentence=f"the pass failed: {error}",
            steady=False,
            warnings=(f"the last pass failed: {error}",),
        )

    def _actions(self) -> str:
        """What this pass did, or what needs attention; empty where neither."""
        did = "; ".join(
            f"{name}: {action}"
            for name, job in self._jobs.items()
            if (action := job.rollout.action)
        )
        said = self._context.leases.lost or did or self._services.budgets.complaint
        return "; ".join(filter(None, (said, self._audit_trouble())))

    def _warnings(self) -> tuple[str, ...]:
        """What is wrong with the controller itself, whatever this pass did."""
        found = self._context.leases.lost, self._services.budgets.complaint, self._audit_trouble()
        return tuple(filter(None, found))

    def _audit_trouble(self) -> str:
        trouble = self._context.audit.trouble
        return f"the audit log waits for the store: {trouble}" if trouble else ""


def _least_w_without_job(view: View, host_power_w: float) -> float:
    """What GPUs without a job take of a power budget: their least limits, and their hosts."""
    at_work = {uuid for job in view.jobs for stage in job.stages for uuid in stage}
    return sum(
        gpu.description.power_limit_min_w + host_power_w
        for uuid, gpu in view.gpus.items()
        if uuid not in at_work
    )


def steady_sentence(jobs: tuple[JobBoard, ...]) -> str:
    """Of a pass that changed nothing: `all jobs steady`, and the plans that only wait for mode
    enforce.
    """
    if not jobs:
        return "no job in the policy"
    advised = [job for job in jobs if job.mode == "recommend" and job.decision is not None]
    plans = [job.decision for job in advised if not job.view.hindrance]
    planned = all(job.view.baseline and not job.view.complaint for job in jobs if job.mode != "off")
    words = "all jobs steady" if planned else "no change"
    saved = sorted(
        plan.forecast.saved_ratio
        for plan in plans
        if plan is not None and plan.forecast is not None and not plan.changes_nothing
    )
    barred = sum(
        bool(job.view.hindrance and not job.decision.changes_nothing)
        for job in advised
        if job.decision is not None
    )
    if barred:
        words += f". {barred} plan{'s' if barred > 1 else ''} could not be enforced now"
    if not saved:
        return words
    least, most = f"{-saved[0]:+.1%}", f"{-saved[-1]:+.1%}"
    energy = most if least == most else f"{least} to {most}"
    count = f"{len(saved)} plan{'s' if len(saved) > 1 else ''}"
    return f"{words}. {count} available: {energy.replace('%', ' %')} energy (recommend)"


def profiles_of(policy: Policy) -> dict[str, Profile]:
    """By job, of the jobs that have one."""
    return {job.name: job.profile for job in policy.jobs if job.profile is not None}


def _job_services(
    context: ReconcileContext,
    learning: Callable[[BackgroundTasks], Learning],
    solver: SolverFunctions,
    workers: Executor,
    lag_s: float,
) -> JobServices:
    """Raises Unavailable where the store cannot be read."""
    store, unix_s, audit = context.store, context.unix_s, context.audit

    def failed(key: tuple[str, str], error: str) -> None:
        audit.post("plan", key[1], f"{key[0]} was not computed: {error}")

    background = BackgroundTasks(workers, failed=failed)
    holds = Holds(store, unix_s)
    return JobServices(
        background=background,
        learning=learning(background),
        frontiers=Frontiers(solver.frontier, background),
        stragglers=Stragglers(solver.keep, background),
        budgets=Budgets(),
        power_budget=PowerBudget(store, context.leases, audit, now_s=context.now_s, unix_s=unix_s),
        holds=holds,
        breakers=Breakers(holds, audit, lag_s),
        default_windows=DefaultWindows(StoredBook(store, audit), lag_s=lag_s),
        first_savings=FirstSavings(store, audit, background),
    )
