"""What one job of the policy has been through, and what is done for it in a pass.

The steward sees to what stands in the way of a plan, has the planner's decision enacted, and
stands back for a while after a failure.
"""

from dataclasses import replace

from joulecut_controller.board import FrontierPoint, JobBoard
from joulecut_controller.observe.iteration_stats import BASELINE_ITERATIONS_MIN
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reconcile.applied_plan import AppliedPlan
from joulecut_controller.reconcile.backoff import Backoff
from joulecut_controller.reconcile.baseline_record import BaselineRecord
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.drift import drift_of
from joulecut_controller.reconcile.leases import Outcome
from joulecut_controller.reconcile.online_profiler import Apprentice
from joulecut_controller.reconcile.plan_rollout import Occasion, PlanRollout
from joulecut_controller.reconcile.training_samples import Errors
from joulecut_controller.view import View

FORGIVE_S = 60.0  # a plan held so long is a success, and earlier failures are forgotten


class JobController:
    """One job from pass to pass; `enactment` has what was decided for it, and what came of that."""

    def __init__(self, context: ReconcileContext, policy: JobPolicy) -> None:
        self._context = context
        self.policy = policy
        self.apprentice = Apprentice()
        self.errors = Errors()
        self._applied_plan = AppliedPlan(context, policy.name)
        self._baseline = BaselineRecord(context.store, policy.name)
        self._backoff = Backoff(context.interval_s)
        self.rollout = PlanRollout(context, self._applied_plan, self._backoff)

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases now."""
        return self._applied_plan.applied

    @property
    def learning(self) -> str:
        """What is still to be learnt of a job without a profile; empty once that is enough."""
        advice = self.apprentice.advice
        if self.policy.profile is not None or (advice is not None and advice.verdict == "enough"):
            return ""
        return "the job is still being learnt"

    # -- before planning -------------------------------------------------------------------

    async def settle(self, observation: JobObservation, view: View) -> str:
        """Sees to what stands in the way of a plan; answers why there can be none now."""
        enacted, lost = self.rollout, self._context.leases.lost
        enacted.did = ""
        self.policy = observation.view.policy  # its mode, as far as it can be had now
        self._baseline.keep(observation)
        if lost:
            self._applied_plan.forget()
            return lost
        mode, name = self.policy.mode, self.policy.name
        holding = self._applied_plan.holding
        if mode != "enforce":
            reservation = observation.view.reservation
            if holding and reservation:
                self._backoff.fail(reservation, self._context.now_s())
            if holding:
                await self.release_all(reservation or f"mode is now {mode}")
            return ""
        if holding:
            self._applied_plan.credit(observation)
            drift = drift_of(holding, observation, view)
            if drift:
                self._backoff.fail(drift, self._context.now_s())
                await self.release_all(drift)
                self._context.audit.tell("drift", name, drift, generation=holding.plan.generation)
            elif self._applied_plan.held_s() > FORGIVE_S:
                self._backoff.forgive()
        if self._applied_plan.holding is None:  # whatever was decided: default clocks run
            enacted.state = replace(enacted.state, clocks=None)
        orphaned_leases = self._applied_plan.orphaned_leases(observation, view)
        if orphaned_leases:
            await self._applied_plan.clear(orphaned_leases)
            enacted.did = "cleared what an earlier term or attempt left"
            return "giving back what an earlier term or attempt left: default clocks"
        return self._backoff.wait(self._context.now_s())

    def learn(self, observation: JobObservation, view: View) -> None:
        """Notes a window of a job without a profile, and writes down what was learnt."""
        name = self.policy.name
        if self.policy.profile is not None:
            return
        kept = (
            self._context.store.notebook(name) if self.apprentice.new_to(observation.shape) else ""
        )
        text = self.apprentice.learn(observation, view.gpus, view.now_s, kept)
        if text:
            self._context.store.keep_notebook(name, text)

    def inputs(
        self, observation: JobObservation, view: View, host_power_w: float, paused: str
    ) -> PlanningInput:
        """The planner's picture of this job in this pass."""
        holding = self._applied_plan.holding
        locks = observation.measured.locks
        running = {uuid: holding.locks.get(uuid, 0) if holding else 0 for uuid in locks}
        counted = observation.measured.current_iterations
        return PlanningInput(
            view=view,
            job=observation.view,
            mode=self.policy.mode,
            silent=observation.placement.silent,
            baseline_progress=(counted, BASELINE_ITERATIONS_MIN),
            running=running,
            measured_applied=self.policy.mode == "enforce" and running == dict(locks),
            stale_s=self._context.stale_s,
            host_power_w=host_power_w,
            paused=paused,
        )

    # -- after planning --------------------------------------------------------------------

    async def carry_out(
        self,
        decision: Decision,
        inputs: PlanningInput,
        observation: JobObservation,
        view: View,
        ttl_s: float,
    ) -> None:
        """Makes the decision true, or says why not. `view` is as fresh as can be."""
        await self.rollout.carry_out(Occasion(decision, inputs, observation, view, ttl_s))

    async def release_all(self, reason: str) -> Outcome:
        """Default clocks for all that is held; whatever the store says."""
        return await self.rollout.release_all(reason)

    def board(self, observation: JobObservation, frontier: tuple[FrontierPoint, ...]) -> JobBoard:
        return JobBoard(
            view=observation.view,
            mode=self.policy.mode,
            sentence=self.rollout.sentence,
            decision=self.rollout.decision,
            applied=self.applied,
            frontier=frontier,
            saved_predicted_j=self._applied_plan.account.predicted_j,
            saved_measured_j=self._applied_plan.account.measured_j,
            predict_error_time_ratio=self.errors.time_ratio,
            predict_error_power_ratio=self.errors.power_ratio,
            probing=self.apprentice.advice if self.policy.profile is None else None,
        )
