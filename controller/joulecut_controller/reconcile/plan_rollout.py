"""From a decision to what is true: its number, the guard's word, the trail, and the clocks.

The planner decides and `tenure` holds; between them a decision may still be refused, be the
same refusal as before, or fail with the store. What stands afterwards is kept here, and the
next decision is made from it.
"""

from dataclasses import dataclass, replace

from joulecut_controller.observe.observer import Sighting
from joulecut_controller.plan.actions import give_back
from joulecut_controller.plan.guard import refusal
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planner import Choice, Decision
from joulecut_controller.plan.planning_input import Case, Standing
from joulecut_controller.reconcile.applied_plan import Tenure
from joulecut_controller.reconcile.backoff import Backoff
from joulecut_controller.reconcile.context import Desk
from joulecut_controller.reconcile.draft import Draft, draft_of_choice, draft_of_trial
from joulecut_controller.reconcile.leases import Outcome
from joulecut_controller.view import View
from joulecut_wire.errors import JoulecutError


@dataclass(frozen=True, slots=True)
class Occasion:
    """A decision and what it was made on. `view` is as fresh as can be."""

    decision: Decision
    case: Case
    sighting: Sighting
    view: View
    ttl_s: float

    def draft(self) -> Draft | None:
        """What would be done; None where the decision asks for no clocks."""
        decision = self.decision
        if decision.trial is not None:
            return draft_of_trial(decision.trial)
        if decision.verdict == "change" and decision.choice is not None:
            return draft_of_choice(decision.choice, self.sighting.view, self.case.running)
        return None


class Enactment:
    """What was decided last for one job, and what came of it."""

    def __init__(self, desk: Desk, tenure: Tenure, backoff: Backoff) -> None:
        self._desk, self._tenure, self._backoff = desk, tenure, backoff
        self.standing = Standing()
        self.study: tuple[int, Choice] | None = None  # a forecast still to be completed
        self.did = ""  # what the pass did for the job, empty where nothing changed
        self.sentence = ""
        self.decision: Plan | None = None
        self._topic = ""
        self._late = False
        self._refused_as: tuple[object, ...] = ()

    async def carry_out(self, occasion: Occasion) -> None:
        """Makes the decision true, or says why not.

        Where the store fails, nothing is taken as decided: the next pass decides again.
        """
        before, decision = self.standing, occasion.decision
        self.standing = decision.standing
        reservation = occasion.sighting.view.reservation
        if reservation:
            reason = f"recommend only: {reservation}; {decision.reason}"
            occasion = replace(occasion, decision=replace(decision, reason=reason))
        try:
            await self._carry_out(occasion, before)
        except JoulecutError:
            self.standing = before
            raise
        self._topic = decision.topic

    async def retire(self, reason: str) -> Outcome:
        """Default clocks for all that is held; whatever the store says."""
        if self._tenure.holding is None:
            return Outcome()
        outcome, self.did = await self._tenure.give_back(reason)
        self.standing = replace(self.standing, clocks=None, goal=None)
        return outcome

    def complete(self, generation: int, forecast: Forecast) -> None:
        """Figures that took longer than the decision; the decision itself stays as it is."""
        if self.decision is None or self.decision.generation != generation:
            return
        self.decision = replace(self.decision, forecast=forecast)
        self._tenure.complete(self.decision)
        self._desk.store.keep_plan(self.decision)

    # -- parts -----------------------------------------------------------------------------

    async def _carry_out(self, occasion: Occasion, before: Standing) -> None:
        decision, sighting = occasion.decision, occasion.sighting
        self.sentence = decision.reason
        self._tell_late(decision, sighting)
        draft = occasion.draft()
        if draft is not None:
            await self._change(draft, occasion, before)
            return
        if decision.verdict == "default" and self._tenure.holding:
            await self._restore(decision.reason, sighting)
        elif decision.verdict == "default" or decision.topic == "nothing":
            self.decision = self._no_change(decision.reason, sighting)
        if decision.topic != self._topic and decision.verdict == "default":
            self._desk.audit.tell("plan", sighting.view.policy.name, decision.reason)
            self.did = self.did or decision.reason

    def _tell_late(self, decision: Decision, sighting: Sighting) -> None:
        """A line in the trail where iterations under the plan begin to take too long."""
        current, applied = sighting.view.current, self._tenure.applied
        if decision.late and not self._late and current and applied:
            self._desk.audit.tell(
                "verify",
                sighting.view.policy.name,
                f"late: {current.time_mean_s:.4g} s measured over {current.iterations} "
                f"iterations, {applied.deadline_s or 0.0:.4g} s allowed; backing off",
                generation=applied.generation,
            )
        self._late = decision.late

    async def _change(self, draft: Draft, occasion: Occasion, before: Standing) -> None:
        """Numbers a draft and carries it out, unless the guard has a word against it."""
        decision, view, mode = occasion.decision, occasion.view, occasion.case.mode
        desk, enforced, reason = self._desk, mode == "enforce", decision.reason
        authority = draft.authority(
            epoch=desk.epoch,
            generation_last=self._tenure.generation_last,
            ttl_s=occasion.ttl_s,
            snapshot_age_max_s=desk.stale_s,
            report_age_max_s=occasion.sighting.layout.silence_limit_s,
        )
        blank = self._no_change(reason, occasion.sighting)
        plan = draft.plan(blank, self._tenure.generation_last + 1)
        why = refusal(plan, view, authority, desk.check)
        if decision.choice and enforced and why:  # what runs is still what ran before
            held = before.clocks if before.mode == mode else None
            self.standing = replace(self.standing, clocks=held, changed_s=before.changed_s)
        if why and self._refused_as == (draft.clocks, why):
            self.sentence = f"refused: {why}"
            return
        plan = replace(plan, generation=desk.store.next_generation())
        plan = replace(plan, refused=why or refusal(plan, view, authority, desk.check))
        desk.audit.plan(plan)
        self.decision = plan
        self._refused_as = (draft.clocks, why) if why else ()
        self.did = f"plan {plan.generation} {mode}ed: {reason}"
        if decision.choice:
            self.study = (plan.generation, decision.choice)
        if plan.refused:
            self.did = self.sentence = f"plan {plan.generation} refused: {plan.refused}"
        elif enforced:
            await self._apply(plan, view, occasion.ttl_s)

    async def _apply(self, plan: Plan, view: View, ttl_s: float) -> None:
        outcome, done = await self._tenure.take(plan, view, ttl_s)
        if outcome.refused:
            self.standing = replace(self.standing, clocks=None)
            self._backoff.fail(outcome.first_refusal, self._desk.now_s())
            self.did = self.sentence = f"plan {plan.generation} put back: {outcome.first_refusal}"
        else:
            self.did = f"plan {plan.generation} applied: {done}; {plan.reason}"

    async def _restore(self, reason: str, sighting: Sighting) -> None:
        """A plan whose content is: default clocks."""
        holding = self._tenure.holding
        locks = holding.locks if holding else {}
        await self.retire(reason)  # first: giving back must not wait for a store
        generation = self._desk.store.next_generation()
        plan = replace(
            self._no_change(reason, sighting),
            generation=generation,
            parent=holding.plan.generation if holding else 0,
            actions=give_back(sighting.view, locks, reason),
        )
        self._tenure.passed(generation)
        self.decision = plan
        self._desk.audit.plan(plan)

    def _no_change(self, reason: str, sighting: Sighting) -> Plan:
        running, policy = self._tenure.generation, sighting.view.policy
        return Plan(
            job=policy.name,
            generation=running,
            parent=running,
            mode=policy.mode,
            granularity=policy.clocks.granularity,
            actions=(),
            reason=reason,
            made_at_unix_s=self._desk.unix_s(),
        )
