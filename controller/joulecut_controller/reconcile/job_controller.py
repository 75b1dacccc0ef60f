"""One job of the policy from pass to pass: what is verified, remembered and done for it.

After a failure the job backs off: twice as long after each one, until a plan has held.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from joulecut_controller.board import JobBoard
from joulecut_controller.observe.baseline import Recalled, progress
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.earlier import EarlierPlan, read, rests_on
from joulecut_controller.plan.granularity import timing_of
from joulecut_controller.plan.plan import FrontierPoint, Plan
from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.traces import Delay, delay_of
from joulecut_controller.plan.veto import Veto
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import StoredBaseline
from joulecut_controller.reconcile.applied_plan import AppliedPlan, as_asked
from joulecut_controller.reconcile.context import ReconcileContext, in_thread
from joulecut_controller.reconcile.leases import Outcome, Place
from joulecut_controller.reconcile.online_profiler import OnlineProfiler
from joulecut_controller.reconcile.plan_rollout import PlanRollout
from joulecut_controller.reconcile.training_samples import Errors
from joulecut_controller.view import BaselineDrift, GpuView, View

FORGIVE_S = 60.0  # a plan held so long is a success; earlier failures are forgotten
RETRY_S_MAX = 300.0  # a refusal that lasts needs an operator, who should not wait longer
DOUBLINGS_MAX = 16  # of an interval: more than RETRY_S_MAX needs at any allowed interval
BASELINE_STEP_RATIO = 0.002  # a mean that moved less plans the same clocks
BASELINE_STEP_S = 300.0  # a new leader looks so much sooner at most
# Topics of decisions that wait for reports or readings of a job, which a new leader has not had
# yet. Leases of an earlier term are not renewed meanwhile.
AWAITED = frozenset(("layout", "stale"))


class Backoff:
    """Wait after failures of one job; doubles with each, up to RETRY_S_MAX."""

    def __init__(self, interval_s: float) -> None:
        """The first failure costs two intervals."""
        self._interval_s = interval_s
        self._failures = 0
        self._until_s = float("-inf")
        self._reason = ""

    def fail(self, reason: str, now_s: float) -> None:
        self._failures += 1
        self._reason = reason
        doublings = min(self._failures, DOUBLINGS_MAX)
        self._until_s = now_s + min(self._interval_s * 2.0**doublings, RETRY_S_MAX)

    def forgive(self) -> None:
        """A wait that has begun goes on; the next failure counts as the first."""
        self._failures = 0

    def wait(self, now_s: float) -> str:
        """Why nothing is tried now; empty where it may be."""
        if now_s >= self._until_s:
            return ""
        return f"backing off for {self._until_s - now_s:.0f} s after: {self._reason}"


class BaselineRecord:
    """One job's baseline in the store: a new leader goes on with it, and knows when to look again.

    Written only when it changed by BASELINE_STEP_RATIO or has become newer by BASELINE_STEP_S: at
    default clocks both move with every iteration.
    """

    def __init__(self, context: ReconcileContext, job: str) -> None:
        self._context, self._job = context, job
        self._kept: tuple[str, StoredBaseline] | None = None  # with the shape of the job it is of

    def recall(self, shape: str) -> Recalled | None:
        """What an earlier controller measured in this shape. Raises Unavailable."""
        store = self._context.store
        kept = store.baseline(self._job, shape)
        if kept is None:
            return None
        self._kept = (shape, kept)
        first = store.baseline(self._job, _first(shape)) or kept
        age_s = math.inf
        if kept.measured_unix_s is not None:
            age_s = self._context.unix_s() - kept.measured_unix_s
        # Below 0 the wall clock was set back since, and the age is not known.
        return Recalled(kept.window, first.window, age_s if age_s >= 0.0 else math.inf)

    async def keep(self, observation: JobObservation) -> None:
        """Raises Unavailable; the next pass then tries again."""
        baseline, drift = observation.job.measured.baseline, observation.job.measured.drift
        if baseline is None:
            return
        made = StoredBaseline(baseline, self._measured_unix_s(drift))
        kept = self._kept
        shape = observation.shape
        if kept and kept[0] == shape and not _differs(made, kept[1]):
            return
        first = replace(baseline, time_mean_s=baseline.time_mean_s / drift.moved_ratio)
        await in_thread(self._write, shape, made, StoredBaseline(first))
        self._kept = (shape, made)

    def _measured_unix_s(self, drift: BaselineDrift) -> float | None:
        """None where the job has changed since, so that a new leader looks soon."""
        age_s = self._context.now_s() - drift.measured_s
        moved = drift.shift_ratio != 1.0 or drift.gpu_shift is not None or drift.outrun
        if moved or not math.isfinite(age_s):
            return None
        return self._context.unix_s() - age_s

    def _write(self, shape: str, made: StoredBaseline, first: StoredBaseline) -> None:
        self._context.store.keep_baseline(self._job, shape, made)
        self._context.store.keep_baseline(self._job, _first(shape), first)


def _first(shape: str) -> str:
    """The name under which the store has the first baseline of this shape."""
    return f"{shape} first"


def _differs(made: StoredBaseline, kept: StoredBaseline) -> bool:
    """Whether a new leader would notice."""
    new, old = made.window, kept.window
    moved = abs(new.time_mean_s / old.time_mean_s - 1.0) >= BASELINE_STEP_RATIO
    richer = old.energy_j is None and new.energy_j is not None
    if made.measured_unix_s is None or kept.measured_unix_s is None:
        return moved or richer or made.measured_unix_s != kept.measured_unix_s
    newer_s = abs(made.measured_unix_s - kept.measured_unix_s)
    return moved or richer or newer_s >= BASELINE_STEP_S


class JobController:
    """One job. `rollout` holds the last decision and its outcome."""

    def __init__(self, context: ReconcileContext, policy: JobPolicy) -> None:
        self._context = context
        self.policy = policy
        self.profiler = OnlineProfiler()
        self._delay: Delay | None = None
        self.errors = Errors()
        self.taught = 0  # passes in which the estimators learned from it
        self._applied_plan = AppliedPlan(context, policy.name)
        self.baseline = BaselineRecord(context, policy.name)
        self._orphaned: dict[str, list[Place]] = {}  # as the last pass saw them
        self._earlier: EarlierPlan | None = None  # the plan that these leases are of
        self._backoff = Backoff(context.interval_s)
        self.rollout = PlanRollout(context, self._applied_plan, self._backoff.fail)

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases now."""
        return self._applied_plan.plan

    @property
    def learning(self) -> str:
        """Why a job without a profile is not measured yet; empty once it is learned."""
        advice = self.profiler.advice
        if self.policy.profile is not None or (advice is not None and advice.verdict == "enough"):
            return ""
        return "the job is still being learned"

    async def verify(
        self, observation: JobObservation, view: View, holds: tuple[Veto, ...] = ()
    ) -> tuple[Veto, ...]:
        """Checks what is applied against what is observed and releases what must not stay. `holds`
        say why the job must not be controlled.

        Returns the vetoes of this controller: commands, the breaker, failures, leases.
        """
        self._orphaned, self._earlier = {}, None
        rollout, lost = self.rollout, self._context.leases.lost
        self.policy = observation.job.policy  # its mode as far as it is possible now
        if lost:
            self._applied_plan.forget()
            return (Veto("term", lost),)
        if self.policy.mode != "enforce":
            await self._leave_enforce(observation)
            return holds
        if self._applied_plan.holding:
            await self._verify_clocks(observation, view)
        if self._applied_plan.holding is None:  # default clocks run, whatever was decided
            rollout.state = replace(rollout.state, clocks=None)
        waits = self._backoff.wait(self._context.now_s())
        found = (*holds, *((Veto("back-off", waits),) if waits else ()))
        self._orphaned = self._applied_plan.orphaned_leases(observation, view)
        if self._orphaned and not found:
            self._earlier = self._earlier_plan(observation, view)
        if self._orphaned and self._earlier is None:
            await self._clear_orphaned()
            words = "clearing orphaned leases of an earlier term or attempt: default clocks"
            return (*found, Veto("orphaned", words))
        return found

    def _earlier_plan(self, observation: JobObservation, view: View) -> EarlierPlan | None:
        """The stored plan of an earlier term that all orphaned leases are of, if it was made for
        the job as it is now. Raises Unavailable.
        """
        name, job = self.policy.name, observation.job
        if job.policy.profile is None or self._orphaned.keys() != {name}:
            return None
        leases = [
            gpu.snapshot.lease
            for place in self._orphaned[name]
            if (gpu := view.gpus.get(place.uuid)) and gpu.snapshot and gpu.snapshot.lease
        ]
        generations = {lease.generation for lease in leases}
        if len(generations) != 1 or any(lease.epoch >= self._context.epoch for lease in leases):
            return None
        found = read(self._context.store.last_plan_json(name, generations.pop()))
        if (
            found is None or job.placement.complaint
        ):  # until all have reported, the job's shape is not known
            return found
        same = found.resumption.rests_on == rests_on(job.policy, observation.shape, job.running)
        return found if same else None

    async def _clear_orphaned(self) -> None:
        orphaned, self._orphaned = self._orphaned, {}
        await self._applied_plan.clear(orphaned)
        self.rollout.action = "cleared orphaned leases of an earlier term or attempt"

    async def _leave_enforce(self, observation: JobObservation) -> None:
        """Releases the job's GPUs; a reservation by someone else counts as a failure."""
        reservation = observation.job.reservation
        if self._applied_plan.holding is None:
            return
        if reservation:
            self._backoff.fail(reservation, self._context.now_s())
        await self.release_all(reservation or f"mode is now {self.policy.mode}")

    async def _verify_clocks(self, observation: JobObservation, view: View) -> None:
        """Releases all GPUs where one drifted."""
        holding = self._applied_plan.holding
        assert holding is not None
        drift = self._applied_plan.drift(observation, view)
        if drift:
            self._backoff.fail(drift, self._context.now_s())
            await self.release_all(drift)
            generation = holding.plan.generation
            self._context.audit.post("drift", self.policy.name, drift, generation=generation)
        elif self._applied_plan.held_s() > FORGIVE_S:
            self._backoff.forgive()

    def profile_online(self, observation: JobObservation, view: View) -> None:
        """Adds a finished window to the measurements of a job without a profile."""
        name, store = self.policy.name, self._context.store
        if observation.job.policy.profile is not None:
            return
        kept, key = "", f"{name} {observation.job.measured.phase.key}".rstrip()
        if self.profiler.new_to(observation.shape):
            # An older store has one notebook for all phases of a job.
            kept = store.notebook(key) or store.notebook(name)
        text = self.profiler.learn(observation, view.gpus, kept)
        if text:
            store.keep_notebook(key, text)

    def planning_input(
        self,
        observation: JobObservation,
        view: View,
        host_power_w: float,
        vetoes: tuple[Veto, ...],
    ) -> PlanningInput:
        holding = self._applied_plan.holding
        locks, asked = observation.job.measured.locks, holding.locks if holding else {}
        running = {uuid: asked.get(uuid, 0) for uuid in locks}
        if self._earlier is not None:
            running = dict(locks)
        measured = observation.job.measured
        applied, evaluates = self.applied, measured.phase.kind == "evaluate"
        plan = applied or self.rollout.decision
        prices = dict(plan.forecast.saved_by_granularity) if plan and plan.forecast else {}
        return PlanningInput(
            view=view,
            job=observation.job,
            mode=self.policy.mode,
            baseline_progress=progress(measured.current_iterations, measured.current),
            running=running,
            measured_applied=self.policy.mode == "enforce" and running == dict(locks),
            stale_s=self._context.stale_s,
            host_power_w=host_power_w,
            vetoes=vetoes,
            prices=prices,
            earlier=self._earlier,
            other_phase=applied is not None and evaluates != (applied.phase == "evaluate"),
        )

    async def apply(
        self,
        decision: Decision,
        inputs: PlanningInput,
        observation: JobObservation,
        view: View,
        ttl_s: float,
    ) -> None:
        """Guards the decision and applies it. `view` is as fresh as it can be. Leases of an earlier
        term that it does not go on with are cleared.
        """
        await self.rollout.apply(decision, inputs, observation, view, ttl_s)
        left = self._orphaned and self._applied_plan.holding is None
        if left and decision.topic not in AWAITED:
            await self._clear_orphaned()

    async def release_all(self, reason: str) -> Outcome:
        """Default clocks for everything held for the job, even while the store fails."""
        return await self.rollout.release_all(reason)

    def board(
        self,
        observation: JobObservation,
        frontier: tuple[FrontierPoint, ...],
        gpus: Mapping[str, GpuView],
    ) -> JobBoard:
        view, holding = observation.job, self._applied_plan.holding
        if holding and as_asked(holding, observation):  # a power limit may have another generation
            view = replace(view, generation_running=holding.plan.generation)
        timing = timing_of(view, gpus)
        costs = self.rollout.state.costs
        graph = costs.problem.graph if costs else None
        self._delay = delay_of(view, graph, gpus, self._delay) if graph else None
        return JobBoard(
            view=view,
            mode=self.policy.mode,
            sentence=_with_refusal(self.rollout.sentence, view.policy.opt_in_refused),
            decision=self.rollout.decision,
            applied=self.applied,
            frontier=frontier,
            predict_error_time_ratio=self.errors.time_ratio,
            predict_error_power_ratio=self.errors.power_ratio,
            probing=self.profiler.advice if self.policy.profile is None else None,
            probed=self.profiler.probed if self.policy.profile is None else None,
            rung=self.rollout.state.rung,
            timing=None if isinstance(timing, str) else timing,
            delay=self._delay,
        )


def _with_refusal(sentence: str, refusal: str) -> str:
    """The job's sentence, with the reason why its opt-in is refused."""
    return f"{sentence}; opt-in refused: {refusal}" if refusal else sentence
