"""What one job of the policy has been through, and what is done for it in a pass.

The steward sees to what stands in the way of a plan, has the planner's decision enacted, and
stands back for a while after a failure.
"""

from dataclasses import replace

from joulecut_controller.board import FrontierPoint, JobBoard
from joulecut_controller.observe.iteration_stats import BASELINE_ITERATIONS_MIN
from joulecut_controller.observe.observer import Sighting
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import Case
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reconcile.applied_plan import Tenure
from joulecut_controller.reconcile.backoff import Backoff
from joulecut_controller.reconcile.baseline_record import BaselineRecord
from joulecut_controller.reconcile.context import Desk
from joulecut_controller.reconcile.drift import drift_of
from joulecut_controller.reconcile.leases import Outcome
from joulecut_controller.reconcile.online_profiler import Apprentice
from joulecut_controller.reconcile.plan_rollout import Enactment, Occasion
from joulecut_controller.reconcile.training_samples import Errors
from joulecut_controller.view import View

FORGIVE_S = 60.0  # a plan held so long is a success, and earlier failures are forgotten


class Steward:
    """One job from pass to pass; `enactment` has what was decided for it, and what came of that."""

    def __init__(self, desk: Desk, policy: JobPolicy) -> None:
        self._desk = desk
        self.policy = policy
        self.apprentice = Apprentice()
        self.errors = Errors()
        self._tenure = Tenure(desk, policy.name)
        self._baseline = BaselineRecord(desk.store, policy.name)
        self._backoff = Backoff(desk.interval_s)
        self.enactment = Enactment(desk, self._tenure, self._backoff)

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases now."""
        return self._tenure.applied

    @property
    def learning(self) -> str:
        """What is still to be learnt of a job without a profile; empty once that is enough."""
        advice = self.apprentice.advice
        if self.policy.profile is not None or (advice is not None and advice.verdict == "enough"):
            return ""
        return "the job is still being learnt"

    # -- before planning -------------------------------------------------------------------

    async def settle(self, sighting: Sighting, view: View) -> str:
        """Sees to what stands in the way of a plan; answers why there can be none now."""
        enacted, lost = self.enactment, self._desk.leases.lost
        enacted.did = ""
        self.policy = sighting.view.policy  # its mode, as far as it can be had now
        self._baseline.keep(sighting)
        if lost:
            self._tenure.forget()
            return lost
        mode, name = self.policy.mode, self.policy.name
        holding = self._tenure.holding
        if mode != "enforce":
            reservation = sighting.view.reservation
            if holding and reservation:
                self._backoff.fail(reservation, self._desk.now_s())
            if holding:
                await self.retire(reservation or f"mode is now {mode}")
            return ""
        if holding:
            self._tenure.credit(sighting)
            drift = drift_of(holding, sighting, view)
            if drift:
                self._backoff.fail(drift, self._desk.now_s())
                await self.retire(drift)
                self._desk.audit.tell("drift", name, drift, generation=holding.plan.generation)
            elif self._tenure.held_s() > FORGIVE_S:
                self._backoff.forgive()
        if self._tenure.holding is None:  # whatever was decided: default clocks run
            enacted.standing = replace(enacted.standing, clocks=None)
        strays = self._tenure.strays(sighting, view)
        if strays:
            await self._tenure.clear(strays)
            enacted.did = "cleared what an earlier term or attempt left"
            return "giving back what an earlier term or attempt left: default clocks"
        return self._backoff.wait(self._desk.now_s())

    def learn(self, sighting: Sighting, view: View) -> None:
        """Notes a window of a job without a profile, and writes down what was learnt."""
        name = self.policy.name
        if self.policy.profile is not None:
            return
        kept = self._desk.store.notebook(name) if self.apprentice.new_to(sighting.shape) else ""
        text = self.apprentice.learn(sighting, view.gpus, view.now_s, kept)
        if text:
            self._desk.store.keep_notebook(name, text)

    def case(self, sighting: Sighting, view: View, host_power_w: float, paused: str) -> Case:
        """The planner's picture of this job in this pass."""
        holding = self._tenure.holding
        locks = sighting.measured.locks
        running = {uuid: holding.locks.get(uuid, 0) if holding else 0 for uuid in locks}
        counted = sighting.measured.current_iterations
        return Case(
            view=view,
            job=sighting.view,
            mode=self.policy.mode,
            silent=sighting.layout.silent,
            baseline_progress=(counted, BASELINE_ITERATIONS_MIN),
            running=running,
            measured_applied=self.policy.mode == "enforce" and running == dict(locks),
            stale_s=self._desk.stale_s,
            host_power_w=host_power_w,
            paused=paused,
        )

    # -- after planning --------------------------------------------------------------------

    async def carry_out(
        self, decision: Decision, case: Case, sighting: Sighting, view: View, ttl_s: float
    ) -> None:
        """Makes the decision true, or says why not. `view` is as fresh as can be."""
        await self.enactment.carry_out(Occasion(decision, case, sighting, view, ttl_s))

    async def retire(self, reason: str) -> Outcome:
        """Default clocks for all that is held; whatever the store says."""
        return await self.enactment.retire(reason)

    def board(self, sighting: Sighting, frontier: tuple[FrontierPoint, ...]) -> JobBoard:
        return JobBoard(
            view=sighting.view,
            mode=self.policy.mode,
            sentence=self.enactment.sentence,
            decision=self.enactment.decision,
            applied=self.applied,
            frontier=frontier,
            saved_predicted_j=self._tenure.account.predicted_j,
            saved_measured_j=self._tenure.account.measured_j,
            predict_error_time_ratio=self.errors.time_ratio,
            predict_error_power_ratio=self.errors.power_ratio,
            probing=self.apprentice.advice if self.policy.profile is None else None,
        )
