"""The plan whose clocks one job's GPUs hold: applied and released, each step in the audit log.

The leases stand before their result is written: where the store fails then, the log has a gap, but
the controller still knows what it holds.
"""

import math
from collections.abc import Mapping

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.actions import counted
from joulecut_controller.plan.plan import Plan
from joulecut_controller.reconcile.context import ReconcileContext, in_thread
from joulecut_controller.reconcile.leases import Holding, Outcome, Place
from joulecut_controller.reference.reference import EFFECT_SD, Figure
from joulecut_controller.view import BUDGET_JOB, GpuView, JobState, View

CLOCK_TOLERANCE_RATIO = 0.02  # a clock one step (15 MHz) above what was asked is not drift


class AppliedPlan:
    """The plan held under leases for one job, and since when."""

    def __init__(self, context: ReconcileContext, job: str) -> None:
        self._context = context
        self._job = job
        self._acted_s = float("-inf")
        self.generation_last = 0  # the newest used for this job in this term

    @property
    def plan(self) -> Plan | None:
        """None at default clocks."""
        return self.holding.plan if self.holding else None

    @property
    def generation(self) -> int:
        """Of the plan; 0 at default clocks."""
        return self.plan.generation if self.plan else 0

    @property
    def holding(self) -> Holding | None:
        return self._context.leases.of(self._job)

    def held_s(self) -> float:
        """Seconds since the last command for the job; infinite before any."""
        return self._context.now_s() - self._acted_s

    async def apply(self, plan: Plan, view: View, ttl_s: float) -> tuple[Outcome, str]:
        """Applies a plan's clocks, or puts all of them back; returns the counts in words."""
        context = self._context
        self.generation_last = plan.generation
        outcome = await context.leases.apply(plan, view.gpus, ttl_s)
        self._acted()
        counts = "; ".join(outcome.refused) if outcome.refused else counted(plan.actions)
        await in_thread(
            context.audit.note,
            "apply",
            self._job,
            f"put back, because refused: {counts}" if outcome.refused else f"applied: {counts}",
            generation=plan.generation,
            ttl_s=ttl_s,
            settings={action.uuid: action.clock_mhz for action in plan.actions},
            steps={
                action.uuid: [(step.offset_s, step.clock_max_mhz) for step in action.steps]
                for action in plan.actions
                if action.steps
            },
            limits_w={one.uuid: one.power_limit_w for one in plan.actions if one.power_limit_w},
            refused=outcome.refused,
        )
        return outcome, counts

    async def release(self, reason: str) -> tuple[Outcome, str]:
        """Default clocks for everything held; returns what was done in words.

        Does not wait for the store: what an operator or the breaker ends has ended.
        """
        holding = self.holding
        if holding is None:
            return Outcome(), ""
        outcome = await self._context.leases.release(self._job, reason)
        self._acted()
        done = f"{outcome.settings} GPUs back to default clocks: {reason}"
        if outcome.refused:
            done += f" (not answered, their leases run out: {'; '.join(outcome.refused)})"
        self._context.audit.post("clear", self._job, done, generation=holding.plan.generation)
        return outcome, done

    def drift(self, observation: JobObservation, view: View) -> str:
        """Difference between devices and commands; empty without one. A view older than the last
        command is not compared: that command was sent during the pass.
        """
        holding = self.holding
        if holding is None or view.now_s <= self._acted_s:
            return ""
        return _drift(holding, observation, view)

    def used_again(self, observation: JobObservation, view: View) -> set[str]:
        """Unused GPUs that work again: their agent has ended the lease, or they left the entry."""
        holding = self.holding
        if holding is None or view.now_s <= self._acted_s:
            return set()
        locks = observation.job.measured.locks
        unused = (action.uuid for action in holding.plan.actions if action.unused_mhz)
        return {uuid for uuid in unused if not locks.get(uuid)}

    def orphaned_leases(self, observation: JobObservation, view: View) -> dict[str, list[Place]]:
        """Leases on the job's GPUs that this controller does not hold, by the job they name."""
        context = self._context
        orphaned: dict[str, list[Place]] = {}
        if view.now_s <= self._acted_s:
            return orphaned
        for uuid in observation.job.placement.uuids:
            gpu = view.gpus.get(uuid)
            lease = gpu.snapshot.lease if gpu and gpu.snapshot else None
            if gpu is None or lease is None or lease.epoch > context.epoch:
                continue
            if lease.job == BUDGET_JOB:  # without clocks, and not renewed
                continue
            if gpu.behind:
                continue
            ours = lease.epoch >= context.claims.first
            if not (ours and context.leases.owns(lease.job, lease.generation)):
                orphaned.setdefault(lease.job, []).append(Place(gpu.address, uuid))
        return orphaned

    async def clear(self, orphaned: Mapping[str, list[Place]]) -> None:
        """Default clocks for orphaned leases."""
        for job, places in orphaned.items():
            reason = f"left by job {job} of an earlier epoch or attempt"
            outcome = await self._context.leases.clear(job, places, reason)
            self._context.audit.post(
                "clear",
                self._job,
                f"{len(places)} GPUs: {reason}",
                refused=outcome.refused,
            )
        self._acted()

    def _acted(self) -> None:
        now_s, holding = self._context.now_s(), self.holding
        self._acted_s = now_s
        steps, locks = (holding.plan.actions, holding.locks) if holding else ((), {})
        changes = ((one.uuid, one.steps or one.marks or one.power_limit_w) for one in steps)
        schedule = tuple((uuid, each) for uuid, each in changes if each)
        forecast = holding.plan.forecast if holding else None
        self._context.observer.stats.changed(
            self._job,
            locks,
            now_s,
            schedule=schedule,
            slowdown=_predicted(holding.plan) if holding else None,
            operations=forecast.operations if forecast else None,
        )


def _predicted(plan: Plan) -> Figure | None:
    """The slowdown of a plan at equal work, as predicted before anything corrects it."""
    made = plan.forecast
    if made is None:
        return None
    slower = made.modelled
    if slower is None:
        slower = math.log(made.iteration_time_s / made.baseline_time_s)
    return Figure(slower, EFFECT_SD)


def as_asked(holding: Holding, job: JobState) -> bool:
    """Whether every GPU of the job shows exactly the lock that was asked for it."""
    locks, asked = job.measured.locks, holding.locks
    return {uuid: asked.get(uuid, 0) for uuid in locks} == dict(locks)


def _unlimited(gpu: GpuView | None, limit_w: float | None) -> bool:
    """Whether a GPU shows no lease of the power limit that it should have."""
    if limit_w is None or gpu is None or gpu.snapshot is None or gpu.behind:
        return False
    lease = gpu.snapshot.lease
    return lease is None or lease.power_limit_w != limit_w


def _drift(holding: Holding, observation: JobObservation, view: View) -> str:
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
