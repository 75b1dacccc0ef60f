"""What one job of the policy has been through, and what is done for it in a pass.

The planner decides, the guard may refuse, `tenure` carries out; the steward puts the three
in order for its job, and stands back for a while after a failure.
"""

from dataclasses import replace

from joulecut_controller.board import FrontierPoint, JobBoard
from joulecut_controller.observe.ledger import BASELINE_ITERATIONS_MIN
from joulecut_controller.observe.observer import Sighting
from joulecut_controller.plan.actions import give_back
from joulecut_controller.plan.case import Case, Standing
from joulecut_controller.plan.guard import refusal
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planner import Choice, Decision
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.reconcile.apprentice import Apprentice
from joulecut_controller.reconcile.backoff import Backoff
from joulecut_controller.reconcile.baseline_record import BaselineRecord
from joulecut_controller.reconcile.desk import Desk
from joulecut_controller.reconcile.draft import Draft, draft_of_choice, draft_of_trial
from joulecut_controller.reconcile.drift import drift_of
from joulecut_controller.reconcile.leases import Outcome
from joulecut_controller.reconcile.lessons import Errors
from joulecut_controller.reconcile.tenure import Tenure
from joulecut_controller.view import View
from joulecut_wire.errors import JoulecutError

FORGIVE_S = 60.0  # a plan held so long is a success, and earlier failures are forgotten


class Steward:
    """One job's standing, decision and account, from pass to pass."""

    def __init__(self, desk: Desk, policy: JobPolicy) -> None:
        self._desk = desk
        self.policy = policy
        self.standing = Standing()
        self.apprentice = Apprentice()
        self.errors = Errors()
        self.study: tuple[int, Choice] | None = None  # a forecast still to be completed
        self.did = ""  # what the pass did for the job, empty where nothing changed
        self._tenure = Tenure(desk, policy.name)
        self._baseline = BaselineRecord(desk.store, policy.name)
        self._backoff = Backoff(desk.interval_s)
        self._decision: Plan | None = None
        self._sentence = ""
        self._topic = ""
        self._late = False
        self._refused_as: tuple[object, ...] = ()

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
        self.did, lost = "", self._desk.leases.lost
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
            self.standing = replace(self.standing, clocks=None)
        strays = self._tenure.strays(sighting, view)
        if strays:
            await self._tenure.clear(strays)
            self.did = "cleared what an earlier term or attempt left"
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
        """Makes the decision true, or says why not. `view` is as fresh as can be.

        Where the store fails, nothing is taken as decided: the next pass decides again.
        """
        before = self.standing
        self.standing = decision.standing
        if sighting.view.reservation:
            reason = f"recommend only: {sighting.view.reservation}; {decision.reason}"
            decision = replace(decision, reason=reason)
        try:
            await self._carry_out(decision, case, sighting, view=view, ttl_s=ttl_s, before=before)
        except JoulecutError:
            self.standing = before
            raise
        self._topic = decision.topic

    async def _carry_out(
        self,
        decision: Decision,
        case: Case,
        sighting: Sighting,
        *,
        view: View,
        ttl_s: float,
        before: Standing,
    ) -> None:
        name = self.policy.name
        self._sentence = decision.reason
        current = sighting.view.current
        if decision.late and not self._late and current and self.applied:
            self._desk.audit.tell(
                "verify",
                name,
                f"late: {current.time_mean_s:.4g} s measured over {current.iterations} "
                f"iterations, {self.applied.deadline_s or 0.0:.4g} s allowed; backing off",
                generation=self.applied.generation,
            )
        self._late = decision.late
        draft = None
        if decision.trial is not None:
            draft = draft_of_trial(decision.trial)
        elif decision.verdict == "change" and decision.choice is not None:
            draft = draft_of_choice(decision.choice, sighting.view, case.running)
        if draft is not None:
            await self._change(
                draft, decision, case, sighting, view=view, ttl_s=ttl_s, before=before
            )
            return
        if decision.verdict == "default" and self._tenure.holding:
            await self._restore(decision.reason, sighting)
        elif decision.verdict == "default" or decision.topic == "nothing":
            self._decision = self._no_change(decision.reason)
        if decision.topic != self._topic and decision.verdict == "default":
            self._desk.audit.tell("plan", name, decision.reason)
            self.did = self.did or decision.reason

    def complete(self, generation: int, forecast: Forecast) -> None:
        """Figures that took longer than the decision; the decision itself stays as it is."""
        if self._decision is None or self._decision.generation != generation:
            return
        self._decision = replace(self._decision, forecast=forecast)
        self._tenure.complete(self._decision)
        self._desk.store.keep_plan(self._decision)

    async def retire(self, reason: str) -> Outcome:
        """Default clocks for all that is held; whatever the store says."""
        if self._tenure.holding is None:
            return Outcome()
        outcome, self.did = await self._tenure.give_back(reason)
        self.standing = replace(self.standing, clocks=None, goal=None)
        return outcome

    def board(self, sighting: Sighting, frontier: tuple[FrontierPoint, ...]) -> JobBoard:
        return JobBoard(
            view=sighting.view,
            mode=self.policy.mode,
            sentence=self._sentence,
            decision=self._decision,
            applied=self.applied,
            frontier=frontier,
            saved_predicted_j=self._tenure.account.predicted_j,
            saved_measured_j=self._tenure.account.measured_j,
            predict_error_time_ratio=self.errors.time_ratio,
            predict_error_power_ratio=self.errors.power_ratio,
            probing=self.apprentice.advice if self.policy.profile is None else None,
        )

    # -- parts -----------------------------------------------------------------------------

    async def _change(
        self,
        draft: Draft,
        decision: Decision,
        case: Case,
        sighting: Sighting,
        *,
        view: View,
        ttl_s: float,
        before: Standing,
    ) -> None:
        """Numbers a draft and carries it out, unless the guard has a word against it."""
        desk, enforced, reason = self._desk, case.mode == "enforce", decision.reason
        authority = draft.authority(
            epoch=desk.epoch,
            generation_last=self._tenure.generation_last,
            ttl_s=ttl_s,
            snapshot_age_max_s=desk.stale_s,
            report_age_max_s=sighting.layout.silence_limit_s,
        )
        plan = draft.plan(self._no_change(reason), self._tenure.generation_last + 1)
        why = refusal(plan, view, authority, desk.check)
        if decision.choice and enforced and why:  # what runs is still what ran before
            held = before.clocks if before.mode == case.mode else None
            self.standing = replace(self.standing, clocks=held, changed_s=before.changed_s)
        if why and self._refused_as == (draft.clocks, why):
            self._sentence = f"refused: {why}"
            return
        plan = replace(plan, generation=desk.store.next_generation())
        plan = replace(plan, refused=why or refusal(plan, view, authority, desk.check))
        desk.audit.plan(plan)
        self._decision = plan
        self._refused_as = (draft.clocks, why) if why else ()
        self.did = f"plan {plan.generation} {case.mode}ed: {reason}"
        if decision.choice:
            self.study = (plan.generation, decision.choice)
        if plan.refused:
            self.did = self._sentence = f"plan {plan.generation} refused: {plan.refused}"
        elif enforced:
            await self._apply(plan, view, ttl_s)

    async def _apply(self, plan: Plan, view: View, ttl_s: float) -> None:
        outcome, done = await self._tenure.take(plan, view, ttl_s)
        if outcome.refused:
            self.standing = replace(self.standing, clocks=None)
            self._backoff.fail(outcome.first_refusal, self._desk.now_s())
            self.did = self._sentence = f"plan {plan.generation} put back: {outcome.first_refusal}"
        else:
            self.did = f"plan {plan.generation} applied: {done}; {plan.reason}"

    async def _restore(self, reason: str, sighting: Sighting) -> None:
        """A plan whose content is: default clocks."""
        holding = self._tenure.holding
        locks = holding.locks if holding else {}
        await self.retire(reason)  # first: giving back must not wait for a store
        generation = self._desk.store.next_generation()
        plan = replace(
            self._no_change(reason),
            generation=generation,
            parent=holding.plan.generation if holding else 0,
            actions=give_back(sighting.view, locks, reason),
        )
        self._tenure.passed(generation)
        self._decision = plan
        self._desk.audit.plan(plan)

    def _no_change(self, reason: str) -> Plan:
        running = self._tenure.generation
        return Plan(
            job=self.policy.name,
            generation=running,
            parent=running,
            mode=self.policy.mode,
            granularity=self.policy.clocks.granularity,
            actions=(),
            reason=reason,
            made_at_unix_s=self._desk.unix_s(),
        )
