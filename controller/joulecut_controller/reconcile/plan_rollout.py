"""From a decision to applied clocks: guard, number, audit log, leases.

A decision may be refused by the guard, repeat an earlier refusal, or fail with the store. The
state that follows is kept here; the next decision starts from it. After a failure the job backs
off: twice as long after each one, until a plan has held. The leases stand before their result is
written: where the store fails then, the log has a gap, but the controller knows what it holds.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from joulecut_controller.observe.iteration_stats import IterationStats
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.actions import counted, release_actions
from joulecut_controller.plan.evaluation import Comparison, Evaluation
from joulecut_controller.plan.goal import ALLOWED_STEP
from joulecut_controller.plan.guard import Authority, refusal
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reconcile.context import ReconcileContext, in_thread
from joulecut_controller.reconcile.leases import Holding, Outcome, Place
from joulecut_controller.reference.reference import EFFECT_SD, Figure
from joulecut_controller.view import BUDGET_JOB, GpuView, JobState, View
from joulecut_wire.errors import JoulecutError

RETRY_S_MAX = 300.0  # a refusal that lasts needs an operator, who should not wait longer
CLOCK_TOLERANCE_RATIO = 0.02  # one step of the table (15 MHz) above the command is not drift
DOUBLINGS_MAX = 16  # of an interval: more than RETRY_S_MAX needs at any allowed interval


@dataclass(slots=True)
class Backoff:
    """Wait after failures of one job: two intervals after the first, and twice as long after each,
    up to RETRY_S_MAX.
    """

    interval_s: float
    _failures: int = 0
    _until_s: float = -math.inf
    _reason: str = ""

    def fail(self, reason: str, now_s: float) -> None:
        self._failures += 1
        self._reason = reason
        doublings = min(self._failures, DOUBLINGS_MAX)
        self._until_s = now_s + min(self.interval_s * 2.0**doublings, RETRY_S_MAX)

    def forgive(self) -> None:
        """A wait that has begun goes on; the next failure counts as the first."""
        self._failures = 0

    def wait(self, now_s: float) -> str:
        """Why nothing is tried now; empty where it may be."""
        if now_s >= self._until_s:
            return ""
        return f"backing off for {math.ceil(self._until_s - now_s)} s after: {self._reason}"


class PlanRollout:
    """The last decision of one job, its outcome, and the plan whose clocks its GPUs hold.

    `action` is what this pass did for the job, empty where nothing changed. `incomplete` is the
    generation of a plan whose forecast still lacks the figures that take seconds, and what they are
    computed from.
    """

    def __init__(self, context: ReconcileContext, job: str, stats: IterationStats) -> None:
        self._context, self._job, self._stats = context, job, stats
        self.backoff = Backoff(context.interval_s)
        self.state = PlannerState()
        self.incomplete: tuple[int, Forecast, Comparison, Evaluation] | None = None
        self.action = ""
        self.action_failed = False
        self.sentence = ""
        # Where `sentence` is no reason for default clocks.
        self._stands_for: JobPolicy | None = None
        self.computing = False
        self.decision: Plan | None = None
        self._topic = ""
        self._late = False
        self._refused_as: tuple[object, ...] = ()
        self._generation_last = 0  # the newest used for this job in this term
        self._acted_s = -math.inf  # the newest command

    @property
    def holding(self) -> Holding | None:
        return self._context.leases.of(self._job)

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases; None at default clocks."""
        return self.holding.plan if self.holding else None

    @property
    def generation(self) -> int:
        """Of the plan that is held; 0 at default clocks."""
        return self.applied.generation if self.applied else 0

    def held_s(self) -> float:
        """Seconds since the last command for the job; infinite before any."""
        return self._context.now_s() - self._acted_s

    def is_newer(self, view: View) -> bool:
        """Whether the view shows the effect of the last command: an older one is compared with
        nothing.
        """
        return view.now_s > self._acted_s

    async def apply(
        self,
        decision: Decision,
        observation: JobObservation,
        view: View,
        ttl_s: float,
    ) -> None:
        """Applies the decision, or says why not. Where the store fails, the state before stands
        and the next pass decides again.
        """
        before, job = self.state, observation.job
        self.state = decision.state
        reason = decision.reason
        if decision.topic == "steady" and self.decision is not None:
            reason = f"plan {self.decision.generation} unchanged"
        if job.reservation:
            reason = f"recommend only: {job.reservation}; {reason}"
        elif job.hindrance and job.policy.mode == "recommend" and decision.plan is not None:
            reason = f"{reason}; not enforceable now: {job.hindrance}"
        decision = replace(decision, reason=reason)
        self.sentence, self.computing = reason, False
        self._stands_for = job.policy if decision.verdict != "default" else None
        try:
            self._log_lateness(decision, job)
            plan = decision.plan
            if plan is None:
                await self._apply_none(decision, job)
            else:
                authority = Authority(
                    epoch=self._context.epoch,
                    generation_last=self._generation_last,
                    ttl_s=ttl_s,
                    snapshot_age_max_s=self._context.stale_s,
                    report_age_max_s=job.placement.silence_limit_s,
                )
                await self._change(
                    plan,
                    decision,
                    observation=observation,
                    view=view,
                    authority=authority,
                    before=before,
                )
        except JoulecutError:
            same = self._keeps(before)
            self.state = before
            if decision.late or not decision.solved or not same:
                raise
            # The clocks held keep their promise, and better ones wait for the store.
        self._topic = decision.topic

    def wait(self, policy: JobPolicy) -> None:
        """The decision is still being computed; the clocks stay, and under the same policy the
        sentence about them does.
        """
        if policy != self._stands_for:
            self.sentence, self._stands_for = "the solver is at work on a plan", None
            self.computing = True

    async def release_all(self, reason: str) -> Outcome:
        """Default clocks for everything held for the job, even while the store fails: what an
        operator or the breaker ends has ended.
        """
        holding = self.holding
        if holding is None:
            return Outcome()
        outcome = await self._context.leases.release(self._job, reason)
        self._acted()
        self.state = self.state.at_default()
        self.action = f"{outcome.settings} GPUs back to default clocks: {reason}"
        if outcome.refused:
            unanswered = "; ".join(outcome.refused)
            self.action += f" (not answered, their leases run out: {unanswered})"
        generation = holding.plan.generation
        self._context.audit.post("clear", self._job, self.action, generation=generation)
        return outcome

    async def clear_orphaned(self, observation: JobObservation, view: View) -> bool:
        """Default clocks for leases on the job's GPUs that this controller does not hold. Returns
        whether there were any.
        """
        context = self._context
        orphaned: defaultdict[str, list[Place]] = defaultdict(list)
        for uuid in observation.job.placement.uuids if self.is_newer(view) else ():
            gpu = view.gpus.get(uuid)
            lease = gpu.snapshot.lease if gpu and gpu.snapshot else None
            if gpu is None or lease is None or lease.epoch > context.epoch or gpu.behind:
                continue
            if lease.job == BUDGET_JOB:  # without clocks, and not renewed
                continue
            ours = lease.epoch >= context.claims.first
            if not (ours and context.leases.owns(lease.job, lease.generation)):
                orphaned[lease.job].append(Place(gpu.address, uuid))
        for job, places in orphaned.items():
            reason = f"left by job {job} of an earlier epoch or attempt"
            outcome = await context.leases.clear(job, places, reason)
            text = f"{len(places)} GPUs: {reason}"
            context.audit.post("clear", self._job, text, refused=outcome.refused)
        if orphaned:
            self._acted()
        return bool(orphaned)

    async def complete(self, generation: int, forecast: Forecast) -> None:
        """Adds the figures that took longer than the decision."""
        if self.decision is None or self.decision.generation != generation:
            return
        self.decision = replace(self.decision, forecast=forecast)
        self._context.leases.complete(self.decision)

    async def _apply_none(self, decision: Decision, job: JobState) -> None:
        """Default clocks, or nothing new."""
        if decision.verdict == "default" and self.holding:
            await self._restore(decision.reason, job)
        elif decision.verdict == "default" or decision.topic == "nothing":
            self.decision = self._no_change(decision.reason, job)
        if decision.topic != self._topic and decision.verdict == "default":
            self._context.audit.post("plan", job.policy.name, decision.reason)
            self.action = self.action or decision.reason

    def _keeps(self, before: PlannerState) -> bool:
        """Whether the clocks held are for the same promise as those of the decision."""
        now, held = self.state, self.holding
        if held is None or not before.runs or before.goal is None:
            return False
        waits = now.goal is not None and now.goal.waits
        return before.goal.waits == waits and abs(now.allowed - before.allowed) <= ALLOWED_STEP

    def _log_lateness(self, decision: Decision, job: JobState) -> None:
        """One line when iterations under the plan begin to miss their deadline."""
        applied, known = self.applied, job.measured.reference
        if decision.late and not self._late and applied and applied.deadline_s and known:
            default_s = math.exp(known.default.mean)
            self._context.audit.post(
                "verify",
                job.policy.name,
                f"late: {default_s * math.exp(known.slowdown.mean):.4g} s an iteration measured "
                f"({math.expm1(known.slowdown.mean):+.2%} ± {known.slowdown.sd:.2%} of default "
                f"clocks), {applied.deadline_s:.4g} s allowed; backing off",
                generation=applied.generation,
            )
        self._late = decision.late

    async def _change(
        self,
        plan: Plan,
        decision: Decision,
        *,
        observation: JobObservation,
        view: View,
        authority: Authority,
        before: PlannerState,
    ) -> None:
        """Guards the plan, numbers it, logs it and, in mode enforce, applies it."""
        job = observation.job
        context, mode, reason = self._context, job.policy.mode, decision.reason
        plan = replace(
            plan,
            generation=self._generation_last + 1,
            parent=self.generation,
            reason=reason,
            made_at_unix_s=context.unix_s(),
            granularity_asked=job.policy.clocks.granularity,
            phase=job.measured.phase.kind,
        )
        why = refusal(plan, view, authority, context.check)
        if decision.solved and why:  # the clocks before stand, and the next step decides again
            held = before.clocks if before.mode == mode and before.runs else None
            self.state = replace(
                self.state,
                clocks=held,
                asked=before.asked,
                changes=before.changes,
                changed_s=before.changed_s,
            )
        if why and decision.late and mode == "enforce" and self.holding:
            # The clocks in force are too slow, and those that would mend it must not be set.
            await self._restore(f"late, and the next plan is refused: {why}", job)
            return
        if why and self._refused_as == (_asked(plan), why):
            self.sentence = f"refused: {why}"
            return
        plan = replace(plan, generation=await in_thread(context.store.next_generation))
        why = why or refusal(plan, view, authority, context.check)
        plan = replace(plan, refused=why, basis=None)
        await in_thread(context.audit.plan, plan)
        self.decision = plan
        self._refused_as = (_asked(plan), why) if why else ()
        done = "enforced" if mode == "enforce" else f"{mode}ed"
        self.action = f"plan {plan.generation} {done}: {reason}"
        self.action_failed = bool(plan.refused)
        if plan.forecast and decision.solved:
            self.incomplete = (plan.generation, plan.forecast, *decision.solved)
        if plan.refused:
            self.action = self.sentence = f"plan {plan.generation} refused: {plan.refused}"
        elif mode == "enforce":
            await self.set_clocks(plan, view, authority.ttl_s)

    async def set_clocks(self, plan: Plan, view: View, ttl_s: float) -> None:
        """Applies a plan's clocks, or puts all of them back."""
        context, actions = self._context, plan.actions
        self._generation_last = plan.generation
        outcome = await context.leases.apply(plan, view.gpus, ttl_s)
        self._acted()
        counts = "; ".join(outcome.refused) if outcome.refused else counted(actions)
        await in_thread(
            context.audit.note,
            "apply",
            self._job,
            f"put back, because refused: {counts}" if outcome.refused else f"applied: {counts}",
            generation=plan.generation,
            ttl_s=ttl_s,
            settings={one.uuid: one.clock_mhz for one in actions},
            steps={
                one.uuid: [(step.offset_s, step.clock_max_mhz) for step in one.steps]
                for one in actions
                if one.steps
            },
            limits_w={one.uuid: one.power_limit_w for one in actions if one.power_limit_w},
            refused=outcome.refused,
        )
        if not outcome.refused:
            self.action = f"plan {plan.generation} applied: {counts}; {plan.reason}"
            return
        self.state = self.state.at_default()
        self.backoff.fail(outcome.first_refusal, self._acted_s)
        self.action = self.sentence = f"plan {plan.generation} put back: {outcome.first_refusal}"
        self.action_failed = True

    def _acted(self) -> None:
        """A command was sent: what is measured from now on is of other clocks."""
        self._acted_s, holding = self._context.now_s(), self.holding
        plan = holding.plan if holding else None
        actions, forecast = (plan.actions, plan.forecast) if plan else ((), None)
        changes = ((one.uuid, one.steps or one.power_limit_w) for one in actions)
        self._stats.changed(
            holding.locks if holding else {},
            self._acted_s,
            schedule=tuple((uuid, each) for uuid, each in changes if each),
            slowdown=_predicted(forecast) if forecast else None,
            operations=forecast.operations if forecast else None,
        )

    async def _restore(self, reason: str, job: JobState) -> None:
        """A plan of default clocks. The GPUs are released first: that waits for no store."""
        holding = self.holding
        locks = holding.locks if holding else {}
        await self.release_all(reason)
        generation = await in_thread(self._context.store.next_generation)
        plan = replace(
            self._no_change(reason, job),
            generation=generation,
            parent=holding.plan.generation if holding else 0,
            actions=release_actions(job, locks, reason),
        )
        self._generation_last = generation
        self.decision = plan
        await in_thread(self._context.audit.plan, plan)

    def _no_change(self, reason: str, job: JobState) -> Plan:
        running, policy = self.generation, job.policy
        return Plan(
            job=policy.name,
            generation=running,
            parent=running,
            mode=policy.mode,
            granularity=self.state.choice.granularity,
            reason=reason,
            made_at_unix_s=self._context.unix_s(),
            granularity_asked=policy.clocks.granularity,
            granularity_why=self.state.choice.why,
        )


def _asked(plan: Plan) -> tuple[object, ...]:
    """The clocks of a plan: by operation where it was solved for, else by GPU, with limits."""
    if plan.solution is not None:
        return tuple(option.clock_mhz for option in plan.solution.clocks)
    return tuple((action.clock_mhz, action.power_limit_w) for action in plan.actions)


def _predicted(made: Forecast) -> Figure:
    """The slowdown of a plan at equal work, as predicted before anything corrects it."""
    slower = made.modelled
    if slower is None:
        slower = math.log(made.iteration_time_s / made.baseline_time_s)
    return Figure(slower, EFFECT_SD)


def as_asked(holding: Holding, job: JobState) -> bool:
    """Whether every GPU of the job shows exactly the lock that was asked for it."""
    locks, asked = job.measured.locks, holding.locks
    return {uuid: asked.get(uuid, 0) for uuid in locks} == dict(locks)


def used_again(holding: Holding, job: JobState) -> set[str]:
    """Unused GPUs that work again: their agent has ended the lease, or they left the entry."""
    unused = (action.uuid for action in holding.plan.actions if action.unused_mhz)
    return {uuid for uuid in unused if not job.measured.locks.get(uuid)}


def drift(holding: Holding, observation: JobObservation, view: View) -> str:
    """Difference between devices and commands; empty without one.

    A lease that is gone, another lock, or a clock above its lock: an external writer, or an agent
    that restarted. The caller releases the job and never fights over a clock.
    """
    measured, asked = observation.job.measured, holding.locks
    for uuid, asked_mhz in asked.items():
        gpu = view.gpus.get(uuid)
        where = f"GPU {gpu.place}" if gpu else f"GPU {uuid}"
        if uuid not in measured.locks:
            return f"{where} no longer works for the job"
        shown_mhz = measured.locks[uuid]
        if shown_mhz < min(1, asked_mhz) or _unlimited(gpu, holding.limits_w.get(uuid)):
            return f"{where} lost its lease"
        if shown_mhz != asked_mhz:
            return f"{where} is held at {shown_mhz} MHz, not at {asked_mhz} MHz"
    if not measured.settled:
        return ""
    for load in measured.loads:
        asked_mhz = asked.get(load.uuid, 0)
        if asked_mhz and load.clock_mhz > asked_mhz * (1.0 + CLOCK_TOLERANCE_RATIO):
            return f"GPU {load.uuid} runs at {load.clock_mhz} MHz, above the {asked_mhz} MHz asked"
    return ""


def _unlimited(gpu: GpuView | None, limit_w: float | None) -> bool:
    """Whether a GPU shows no lease of the power limit that it should have."""
    if limit_w is None or gpu is None or gpu.snapshot is None or gpu.behind:
        return False
    lease = gpu.snapshot.lease
    return lease is None or lease.power_limit_w != limit_w
