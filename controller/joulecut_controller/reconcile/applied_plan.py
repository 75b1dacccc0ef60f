"""What one job holds of its GPUs: taken and given back, with every step in the trail.

Between the steward, who decides when, and `leases`, which talks to agents. What was taken
stands before its result is written down: a store that fails then leaves a trail with a gap,
never a controller that misjudges what it holds.
"""

from collections.abc import Mapping

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.actions import counted
from joulecut_controller.plan.plan import Plan
from joulecut_controller.reconcile.account import Account
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.drift import as_asked
from joulecut_controller.reconcile.leases import Holding, Outcome, Place
from joulecut_controller.view import View

# Agents sample once a second; until a sample was taken after a command, the lease shown may
# be the one before. Drift is not judged sooner.
LEASE_SHOWN_S = 1.0


class AppliedPlan:
    """The plan whose clocks are held for one job, since when, and what that saved."""

    def __init__(self, context: ReconcileContext, job: str) -> None:
        self._context = context
        self._job = job
        self._acted_s = float("-inf")
        self._applied: Plan | None = None
        self._generation_last = 0
        self._account = Account()

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases now."""
        return self._applied

    @property
    def generation(self) -> int:
        """Of the plan that is applied; 0 for default clocks."""
        return self._applied.generation if self._applied else 0

    @property
    def generation_last(self) -> int:
        """The newest that agents were told of in this term."""
        return self._generation_last

    @property
    def account(self) -> Account:
        return self._account

    @property
    def holding(self) -> Holding | None:
        return self._context.leases.of(self._job)

    def held_s(self) -> float:
        """Since the last command for the job; infinite before any."""
        return self._context.now_s() - self._acted_s

    def forget(self) -> None:
        """Another controller leads: what was held runs out."""
        self._applied = None

    def complete(self, plan: Plan) -> None:
        """The plan that is applied, with figures that took longer."""
        if self._applied is not None and self._applied.generation == plan.generation:
            self._applied = plan

    def passed(self, generation: int) -> None:
        """A number was given to something other than clocks; no later plan may have it."""
        self._generation_last = generation

    def credit(self, observation: JobObservation) -> None:
        """Counts the iterations of this pass, where they ran under the plan's clocks."""
        holding = self.holding
        if self._applied and holding and as_asked(holding, observation):
            self._account = self._account.after(observation.measured, self._applied)

    async def take(self, plan: Plan, view: View, ttl_s: float) -> tuple[Outcome, str]:
        """Makes a plan's clocks true, or puts all of them back; answers with what was done."""
        context = self._context
        self._generation_last = plan.generation
        outcome = await context.leases.apply(plan, view.gpus, ttl_s)
        holding = self.holding
        self._applied = plan if holding else None
        self._acted(holding.locks if holding else {})
        done = "; ".join(outcome.refused) if outcome.refused else counted(plan.actions)
        context.audit.note(
            "apply",
            self._job,
            f"put back, because refused: {done}" if outcome.refused else f"applied: {done}",
            generation=plan.generation,
            ttl_s=ttl_s,
            settings={action.uuid: action.clock_mhz for action in plan.actions},
            refused=outcome.refused,
        )
        return outcome, done

    async def release(self, reason: str) -> tuple[Outcome, str]:
        """Default clocks for all that is held; answers with what was done, or nothing.

        Whatever the store says: what a person or the breaker ends has ended.
        """
        holding = self.holding
        if holding is None:
            return Outcome(), ""
        outcome = await self._context.leases.release(self._job, reason)
        self._applied = None
        self._acted({})
        done = f"{outcome.settings} GPUs back to default clocks: {reason}"
        if outcome.refused:
            done += f" (not answered, their leases run out: {'; '.join(outcome.refused)})"
        self._context.audit.tell("clear", self._job, done, generation=holding.plan.generation)
        return outcome, done

    def orphaned_leases(self, observation: JobObservation, view: View) -> dict[str, list[Place]]:
        """Leases on the job's GPUs that nobody of ours holds, by the job they name."""
        context = self._context
        orphaned_leases: dict[str, list[Place]] = {}
        for uuid in observation.placement.uuids:
            gpu = view.gpus.get(uuid)
            lease = gpu.snapshot.lease if gpu and gpu.snapshot else None
            if gpu is None or lease is None or lease.epoch > context.epoch:
                continue
            if view.now_s - gpu.age_s < self._acted_s + LEASE_SHOWN_S:
                continue  # it may show what was before our last command
            ours = lease.epoch == context.epoch
            if not (ours and context.leases.owns(lease.job, lease.generation)):
                orphaned_leases.setdefault(lease.job, []).append(Place(gpu.address, uuid))
        return orphaned_leases

    async def clear(self, orphaned_leases: Mapping[str, list[Place]]) -> None:
        """Default clocks for what `strays` found."""
        for job, places in orphaned_leases.items():
            reason = f"left by job {job} of an earlier term or attempt"
            outcome = await self._context.leases.clear(job, places, reason)
            self._context.audit.tell(
                "clear",
                self._job,
                f"{len(places)} GPUs: {reason}",
                refused=outcome.refused,
            )
        self._acted({})

    def _acted(self, locks: Mapping[str, int]) -> None:
        now_s = self._context.now_s()
        self._acted_s = now_s
        self._context.observer.changed(self._job, locks, now_s, now_s + LEASE_SHOWN_S)
