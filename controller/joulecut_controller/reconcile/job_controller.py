"""One job of the policy: observed, what is applied verified, measurements learnt from, and a plan
made and applied.

A step observes the job's own agents and GPUs. One that continues with a worker's answer uses the
observation of a moment before. A plan is guarded against the cluster as it is when its commands go
out, not as the step saw it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from joulecut_controller.board import JobBoard, Learnt
from joulecut_controller.observe.baseline import progress
from joulecut_controller.observe.iteration_stats import IterationStats
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.observe.own_pace import delay_of
from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import without_limits
from joulecut_controller.plan.granularity import timing_of
from joulecut_controller.plan.plan import FrontierPoint, Plan
from joulecut_controller.plan.planner import given_up, vetoes
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.predicted import Prediction
from joulecut_controller.plan.veto import Veto, in_order
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import FleetState
from joulecut_controller.power.budget import UNMEASURED_RATIO, Demand, Point
from joulecut_controller.power.limits import needed_w
from joulecut_controller.reconcile.baseline_record import BaselineRecord
from joulecut_controller.reconcile.context import ClusterState, JobServices, give_way, in_thread
from joulecut_controller.reconcile.holds import JobBreaker
from joulecut_controller.reconcile.leases import Outcome
from joulecut_controller.reconcile.plan_rollout import PlanRollout, as_asked, drift, used_again
from joulecut_controller.reconcile.planning_step import JobPlanning
from joulecut_controller.reconcile.training_samples import teach
from joulecut_controller.reconcile.trust_inputs import StoredBook, job_step
from joulecut_controller.trust.default_windows import DefaultWindows
from joulecut_controller.view import GpuShift, GpuView, JobState, View
from joulecut_engine.money import Iteration, Prices, least_cost

OBSERVED_S = 0.5  # agents sample once a second: a younger observation shows the same
# Of very many jobs each is examined in turn: predictions compared and taught, prices and plan
# checked in full (25 ms). A hundred jobs have their turn every minute. A job that is late or has
# changed is planned at once.
EXAMINED_PER_INTERVAL = 8
# A hundred jobs are planned in half a minute; what takes ten times as long is stuck or starved.
SOLVER_WAIT_LONG_S = 300.0
ALLOTTED_STEP = 0.001  # a plan for a deadline so near is a plan for what the power budget asks
USED_AGAIN = "its GPUs are used again: default clocks"
POWER_RATIO_MAX = 1.25  # measured over predicted power; more is no error of a prediction
FORGIVE_S = 60.0  # a plan held so long is a success; earlier failures are forgotten


@dataclass(frozen=True, slots=True)
class Observed:
    """One job as its last step saw it: what its next decision is made of."""

    inputs: PlanningInput
    observation: JobObservation

    @property
    def view(self) -> View:
        """The job's own agents and GPUs, and every job as it was seen last."""
        return self.inputs.view


class JobController:
    """One job. `rollout` holds the last decision and its outcome, `observed` what the last one saw;
    `outdated`: the next step looks again.
    """

    def __init__(
        self,
        services: JobServices,
        cluster: ClusterState,
        policy: JobPolicy,
    ) -> None:
        self._services, self._cluster = services, cluster
        self.policy = policy
        self.observed: Observed | None = None
        self.outdated = False
        self._examined_s: float | None = None
        self._planning = JobPlanning(services.planners, policy.name)
        self._power_error: float | None = None
        self._power_ratio = UNMEASURED_RATIO
        self._taught = 0  # passes in which the estimators learned from it
        self._baseline = BaselineRecord(services, policy.name)
        self._breaker = JobBreaker(services.holds, services.audit, cluster.pacing.lag_s)
        book = StoredBook(services.store, services.audit)
        self._default_windows = DefaultWindows(book, policy.name)
        self._stats = IterationStats(lag_s=cluster.pacing.lag_s, recall=self._baseline.recall)
        self.rollout = PlanRollout(services, policy.name, self._stats)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases now."""
        return self.rollout.applied

    @property
    def state(self) -> PlannerState:
        return self.rollout.state

    @property
    def measures_first(self) -> bool:
        """Whether its first baseline has begun and is not complete."""
        if self.observed is None:
            return False
        measured = self.observed.observation.job.measured
        return measured.baseline is None and measured.current_iterations > 0

    async def step(self) -> bool:
        """Reconciles the job; whether it is in another phase than before."""
        observed, moved = self._recent(), False
        if observed is None:
            observed, before = await self._look(), self.observed
            phase = observed.observation.job.measured.phase
            moved = before is not None and before.observation.job.measured.phase != phase
            self.observed = observed
            await give_way()
            await self._plan_and_apply(observed)
            await self._baseline.keep(observed.observation)
        else:
            await self._plan_and_apply(observed)
        return moved

    async def release_all(self, reason: str) -> Outcome:
        """Default clocks for everything held for the job, even while the store fails."""
        return await self.rollout.release_all(reason)

    def _recent(self) -> Observed | None:
        """The observation that the step goes on with; None where it looks again."""
        observed = self.observed
        if observed is None or self.outdated:
            return None
        return observed if self._services.now_s() - observed.view.now_s < OBSERVED_S else None

    # -- a look ----------------------------------------------------------------------------

    async def _look(self) -> Observed:
        """Observes and verifies, and learns from measurements."""
        if self.observed is None:  # what an earlier controller measured
            await self._baseline.begin()
            services, windows = self._services, self._default_windows
            await in_thread(windows.reckon, services.unix_s(), services.now_s())
        self.outdated = False
        examined = self._is_examined()
        observation, view = self._observe(loads=examined)
        await give_way()
        predictions = self._services.predictions
        predictions.learn(self._cluster.policy.predict.forest)
        observation, predicted = await predictions.with_profile(observation, view)
        view = self._with_jobs(view, observation.job)
        vetoes = await self._verify(observation, view)
        await give_way()
        self._learn(observation, view, examined=examined)
        await give_way()
        inputs = self._planning_input(observation, view, vetoes, predicted, examined=examined)
        return Observed(inputs, observation)

    def _observe(self, *, loads: bool) -> tuple[JobObservation, View]:
        """The job with its own agents and GPUs, as of now."""
        now_s, observer, cluster = self._services.now_s(), self._services.observer, self._cluster
        reports, known = self._services.inbox.take(self.name), cluster.view.gpus
        uuids = observer.gpus_of(self.name, reports)
        addresses = {known[uuid].address for uuid in uuids if uuid in known}
        state = self._services.fleet.observe(now_s, addresses) if addresses else FleetState((), ())
        policy = cluster.policies[self.name]
        return observer.observe(policy, state, reports, now_s, stats=self._stats, loads=loads)

    def _with_jobs(self, view: View, job: JobState) -> View:
        """The view with every job as it was seen last, this one as of now."""
        self._cluster.jobs[self.name] = job
        others = (one for name, one in self._cluster.jobs.items() if name != self.name)
        return replace(view, jobs=(*others, job))

    def _is_examined(self) -> bool:
        """Whether it is this job's turn."""
        now_s, count = self._services.now_s(), self._cluster.count
        every_s = self._services.interval_s * count / EXAMINED_PER_INTERVAL
        if self._examined_s is None:  # jobs that begin together have their turns one after another
            self._examined_s = now_s - every_s * len(self._cluster.jobs) / count
            return True
        if now_s - self._examined_s < every_s:
            return False
        self._examined_s = now_s
        return True

    async def _verify(self, observation: JobObservation, view: View) -> tuple[Veto, ...]:
        """Checks what is applied against what is observed and releases what must not stay.

        Returns the vetoes of this controller: commands, the breaker, failures, leases.
        """
        services, leases = self._services, self._services.leases
        held, share = leases.of(self.name) is not None, services.shared_budget.share(self.name)
        # An order has no slowdown budget; where a power limit slows the job, clocks do not.
        if not observation.job.policy.is_order and not share.limited:
            self._breaker.look(
                observation, held=held, now_s=view.now_s, allotted_s=share.deadline_s
            )
        self._breaker.rearm(observation)
        self.policy = observation.job.policy  # its mode as far as it is possible now
        if leases.lost:
            return (Veto("term", leases.lost),)
        holds = services.holds.vetoes(self.name)
        found = await self._unheld(observation, view, holds)
        if holds:
            await self.release_all(holds[0].text)
        return found

    async def _unheld(
        self, observation: JobObservation, view: View, holds: tuple[Veto, ...]
    ) -> tuple[Veto, ...]:
        """The vetoes of a term that has not ended; `holds` are those that others placed."""
        rollout = self.rollout
        if self.policy.mode != "enforce":
            await self._leave_enforce(observation)
            return holds
        await self._verify_clocks(observation, view)
        if self.rollout.holding is None:  # default clocks run, whatever was decided
            rollout.state = rollout.state.at_default()
        waits = rollout.backoff.wait(self._services.now_s())
        ledger, uuids = self._services.energy.ledger, observation.job.placement.uuids
        if self.policy.parked and not all(map(ledger.is_unused, uuids)):
            waits = USED_AGAIN
        found = (*holds, *((Veto("back-off", waits),) if waits else ()))
        if await rollout.clear_orphaned(observation, view):
            rollout.action = "cleared orphaned leases of an earlier epoch or attempt"
            words = "clearing orphaned leases of an earlier epoch or attempt: default clocks"
            return (*found, Veto("orphaned", words))
        return found

    async def _leave_enforce(self, observation: JobObservation) -> None:
        """Releases the job's GPUs; a reservation by someone else counts as a failure."""
        reservation = observation.job.reservation
        if self.rollout.holding is None:
            return
        if reservation:
            self.rollout.backoff.fail(reservation, self._services.now_s())
        await self.release_all(reservation or f"mode is now {self.policy.mode}")

    async def _verify_clocks(self, observation: JobObservation, view: View) -> None:
        """Releases all GPUs where one drifted."""
        rollout, holding = self.rollout, self.rollout.holding
        if holding is None or not rollout.is_newer(view):
            return
        if used := used_again(holding, observation.job):
            self._services.energy.ledger.note_used(used, self._services.unix_s())
            await self.release_all(USED_AGAIN)
        elif why := drift(holding, observation, view):
            self._services.metrics.drifts += 1
            rollout.backoff.fail(why, self._services.now_s())
            await self.release_all(why)
            generation = holding.plan.generation
            self._services.audit.post("drift", self.policy.name, why, generation=generation)
        elif rollout.held_s() > FORGIVE_S:
            rollout.backoff.forgive()

    def _learn(self, observation: JobObservation, view: View, *, examined: bool) -> None:
        """Predictions are compared with measurements first, then learn from them."""
        learner, job = self._services.learner, observation.job
        shifted = observation.fresh.gpu_shift
        recovered = shifted is not None and shifted.recovered
        if shifted and not (recovered and self._services.predictions.drop(job.workload)):
            for uuid in shifted.uuids:
                learner.forget_gpu(job.workload, uuid)
        if examined:
            self._taught += 1
            fresh, turn, before = observation.fresh, self._taught, self._power_error
            self._power_error = teach(job, fresh, learner, gpus=view.gpus, before=before, turn=turn)

    def _planning_input(
        self,
        observation: JobObservation,
        view: View,
        vetoes: tuple[Veto, ...],
        predicted: Prediction | None,
        *,
        examined: bool,
    ) -> PlanningInput:
        services, holding, applied = self._services, self.rollout.holding, self.applied
        job, measured = observation.job, observation.job.measured
        locks, asked = measured.locks, holding.locks if holding else {}
        running = {uuid: asked.get(uuid, 0) for uuid in locks}
        evaluates = measured.phase.kind == "evaluate"
        unready = "" if self.state.clocks is not None else services.unready()
        inputs = PlanningInput(
            view=view,
            job=without_limits(job, view.gpus, self.state.costs),
            mode=self.policy.mode,
            baseline_progress=progress(measured.current_iterations, measured.current),
            running=running,
            measured_applied=self.policy.mode == "enforce" and running == dict(locks),
            stale_s=self._services.stale_s,
            host_power_w=self._cluster.policy.cost.host_power_w,
            vetoes=(*vetoes, *((Veto("unready", unready),) if unready else ())),
            allotted_s=services.shared_budget.share(self.name).deadline_s,
            examined=examined,
            predicted=predicted,
            limits_w=holding.limits_w if holding else {},
            power_budget=services.power_budget.needed(self._cluster.policy),
            other_phase=applied is not None and evaluates != (applied.phase == "evaluate"),
        )
        if job.policy.is_order:
            return inputs
        step = job_step(
            inputs,
            observation,
            unix_s=self._services.unix_s(),
            applied=applied,
            suspected=self._breaker.suspected,
        )
        words = self._default_windows.step(step)
        if not words:
            return inputs
        return replace(inputs, vetoes=(*inputs.vetoes, Veto("default-window", words)))

    # -- a plan ----------------------------------------------------------------------------

    async def _plan_and_apply(self, observed: Observed) -> None:
        """A decision, guarded against the cluster as it is now, and its commands."""
        observation = observed.observation
        decision = self._planning.decide(observed.inputs, self.state, self.applied)
        holds = self._services.holds.vetoes(self.name)
        if holds:  # an operator's command arrived since the step looked
            decision = given_up(self.state, holds[0])
        if decision is None:
            self.rollout.wait(observation.job.policy)
            return
        view = self._refreshed(observed) if decision.plan else observed.view
        ttl_s = self._cluster.ttl_s()
        await self.rollout.apply(decision, observation, view, ttl_s)
        self._ask_frontier(observation.job)
        if self.rollout.incomplete is not None:  # slower figures are computed beside the steps
            asked, self.rollout.incomplete = self.rollout.incomplete, None
            work = self._services.planners.completion(*asked[1:])
            done = partial(self.rollout.complete, asked[0])
            self._services.background.want(("completion", self.name), work, done)

    def _refreshed(self, observed: Observed) -> View:
        """The observation's view with the job's own agents and GPUs as of now."""
        view, now_s = observed.view, self._services.now_s()
        uuids = observed.observation.job.placement.uuids
        state = self._services.fleet.observe(
            now_s, {view.gpus[uuid].address for uuid in uuids if uuid in view.gpus}
        )
        nodes = {node.address: node for node in (*view.nodes, *state.nodes)}
        waited_s = now_s - view.now_s
        jobs = tuple(_aged(job, waited_s) for job in view.jobs)
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        return View(now_s=now_s, nodes=tuple(nodes.values()), gpus=gpus, jobs=jobs)

    def _ask_frontier(self, job: JobState) -> None:
        costs = self.state.costs
        if costs is not None and job.measured.baseline is not None:
            granularity, now_s = self.state.choice.granularity, self._services.now_s()
            prices = self._cluster.policy.cost.prices(hosts=False)
            self._services.frontiers.ask(self.name, costs, granularity, prices, now_s)

    # -- what others see -------------------------------------------------------------------

    def _frontier(self, job: JobState) -> tuple[FrontierPoint, ...]:
        """The newest frontier in measured seconds; empty while unknown."""
        costs, frontiers = self.state.costs, self._services.frontiers
        return frontiers.points(self.name, costs, job.measured.baseline) if costs else ()

    def least_cost(self, prices: Prices) -> float | None:
        """The slowdown of the point of its frontier where energy and GPU time cost least; None
        while there is no frontier. Energies of a frontier have the hosts' in them, so that
        `prices` have none.
        """
        observed, gpus = self.observed, 0
        if observed is None:
            return None
        job = observed.observation.job
        points, gpus = self._frontier(job), len(job.placement.uuids)
        if not points:
            return None
        each = [Iteration(one.iteration_time_s, one.energy_j) for one in points]
        return least_cost(each, gpus, prices).time_s / each[0].time_s - 1.0

    def demand(self, job: JobState, gpus: Mapping[str, GpuView], host_power_w: float) -> Demand:
        """The job's demand on the power budget. Hosts are in the frontier's energies already:
        planning charges them.
        """
        policy, uuids = job.policy, job.placement.uuids
        costs = self.state.costs if policy.profile is not None else None
        if costs is not None:
            job = without_limits(job, gpus, costs)
        demand = Demand(
            policy.name,
            policy.weight,
            job.deadline_s or 0.0,
            mode=policy.mode,
            uuids=tuple(sorted(uuids)),
        )
        if costs is None:
            return demand
        hosts_w = host_power_w * len(uuids)
        demand = self._drawing(demand, costs, hosts_w)
        ratio, frontiers = self._power_ratio, self._services.frontiers
        points = frontiers.points(self.name, costs, job.measured.baseline, beyond=True)
        frontier = (
            Point(
                one.iteration_time_s,
                hosts_w + ratio * (one.energy_j / one.iteration_time_s - hosts_w),
            )
            for one in points
        )
        return replace(demand, frontier=tuple(frontier), power_ratio=ratio, digest=costs.digest)

    def _drawing(self, demand: Demand, costs: Costs, hosts_w: float) -> Demand:
        """With what its GPUs draw at the clocks that they hold."""
        plan, clocks = self.applied, self.state.clocks
        needed = needed_w(costs, clocks) if clocks else None
        if plan is None or plan.forecast is None or needed is None:
            return demand
        mean_w = plan.forecast.energy_j / plan.forecast.iteration_time_s - hosts_w
        needs_w = {
            uuid: power_w
            for stage, power_w in zip(costs.gpus, needed, strict=True)
            for uuid in stage
        }
        share = self._services.shared_budget.share(self.name)
        planned_w = max(0.0, (share.power_w or 0.0) - hosts_w) / share.power_ratio
        allotted_s, deadline_s = share.deadline_s, plan.deadline_s or math.inf
        if planned_w and abs(deadline_s / (allotted_s or deadline_s) - 1.0) < ALLOTTED_STEP:
            ratio = share.mean_ratio * mean_w / planned_w
            self._power_ratio = min(max(ratio, 1.0 / POWER_RATIO_MAX), POWER_RATIO_MAX)
        return replace(demand, mean_w=mean_w, needs_w=needs_w)

    def board(self, observed: Observed) -> JobBoard:
        """The job as its last step left it."""
        services, windows = self._services, self._default_windows
        view, holding, rollout = observed.observation.job, self.rollout.holding, self.rollout
        if holding and as_asked(holding, view):  # a power limit may have another generation
            view = replace(view, generation_running=holding.plan.generation)
        timing = timing_of(view, observed.view.gpus)
        wait, ignored = self._planning.wait(), view.placement.ignored
        long_wait = wait is not None and wait.waited_s > SOLVER_WAIT_LONG_S
        evaluates = view.measured.phase.kind == "evaluate"  # costs are those of training
        return JobBoard(
            view=view,
            mode=self.policy.mode,
            sentence=rollout.sentence
            + (f"; {wait.sentence}" if wait and long_wait else "")
            + (f"; ignored: {ignored}" if ignored else ""),
            decision=rollout.decision,
            applied=self.applied,
            frontier=() if evaluates else self._frontier(observed.observation.job),
            predict_error_time_ratio=services.learner.learning_stats(view.workload).error,
            predict_error_power_ratio=self._power_error,
            choice=self.state.choice,
            timing=None if isinstance(timing, str) else timing,
            delay=delay_of(view, observed.view.gpus),
            holds=services.holds.of(self.name),
            trips=services.holds.trips(self.name),
            holdout=windows.holdouts(self._services.unix_s()),
            default_time=windows.time(),
            account=windows.account(),
            vetoes=in_order(vetoes(observed.inputs)),
            solver_wait=wait,
            computing=rollout.computing,
            learnt=self._learnt(observed),
        )

    def _learnt(self, observed: Observed) -> Learnt:
        """What its own work taught, what other jobs say, and which GPUs have another pace."""
        job, gpus = observed.observation.job, observed.view.gpus
        own = self._services.predictions.learnt(job.workload) if job.policy.profile else Learnt()
        text = "; ".join(filter(None, (own.text, self._services.predictions.sentence(job))))
        drifting = (
            GpuShift((uuid,), shift.ratio).text([gpus[uuid].place if uuid in gpus else uuid])
            for shift in (job.measured.drift.gpu_shift,)
            if shift
            for uuid in shift.uuids
        )
        return replace(own, text=text, drifting=tuple(drifting))


def _aged(job: JobState, waited_s: float) -> JobState:
    """The job when its newest report is so much older."""
    placement = job.placement
    older = replace(placement, report_age_s=placement.report_age_s + waited_s)
    return replace(job, placement=older)
