"""From a decision to what is true: its number, the guard's word, the trail, and the clocks.

The planner decides and `tenure` holds; between them a decision may still be refused, be the
same refusal as before, or fail with the store. What stands afterwards is kept here, and the
next decision is made from it.
"""

from dataclasses import dataclass, replace

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.actions import release_actions
from joulecut_controller.plan.guard import refusal
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planner import Choice, Decision
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.reconcile.applied_plan import AppliedPlan
from joulecut_controller.reconcile.backoff import Backoff
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.draft import Draft, draft_of_choice, draft_of_trial
from joulecut_controller.reconcile.leases import Outcome
from joulecut_controller.view import View
from joulecut_wire.errors import JoulecutError


@dataclass(frozen=True, slots=True)
class Occasion:
    """A decision and what it was made on. `view` is as fresh as can be."""

    decision: Decision
    inputs: PlanningInput
    observation: JobObservation
    view: View
    ttl_s: float

    def draft(self) -> Draft | None:
        """What would be done; None where the decision asks for no clocks."""
        decision = self.decision
        if decision.trial is not None:
            return draft_of_trial(decision.trial)
        if decision.verdict == "change" and decision.choice is not None:
            return draft_of_choice(decision.choice, self.observation.view, self.inputs.running)
        return None


class PlanRollout:
    """What was decided last for one job, and what came of it."""

    def __init__(
        self, context: ReconcileContext, applied_plan: AppliedPlan, backoff: Backoff
    ) -> None:
        self._context, self._applied_plan, self._backoff = context, applied_plan, backoff
        self.state = PlannerState()
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
        before, decision = self.state, occasion.decision
        self.state = decision.state
        reservation = occasion.observation.view.reservation
        if reservation:
            reason = f"recommend only: {reservation}; {decision.reason}"
            occasion = replace(occasion, decision=replace(decision, reason=reason))
        try:
            await self._carry_out(occasion, before)
        except JoulecutError:
            self.state = before
            raise
        self._topic = decision.topic

    async def release_all(self, reason: str) -> Outcome:
        """Default clocks for all that is held; whatever the store says."""
        if self._applied_plan.holding is None:
            return Outcome()
        outcome, self.did = await self._applied_plan.release(reason)
        self.state = replace(self.state, clocks=None, goal=None)
        return outcome

    def complete(self, generation: int, forecast: Forecast) -> None:
        """Figures that took longer than the decision; the decision itself stays as it is."""
        if self.decision is None or self.decision.generation != generation:
            return
        self.decision = replace(self.decision, forecast=forecast)
        self._applied_plan.complete(self.decision)
        self._context.store.keep_plan(self.decision)

    # -- parts -----------------------------------------------------------------------------

    async def _carry_out(self, occasion: Occasion, before: PlannerState) -> None:
        decision, observation = occasion.decision, occasion.observation
        self.sentence = decision.reason
        self._tell_late(decision, observation)
        draft = occasion.draft()
        if draft is not None:
            await self._change(draft, occasion, before)
            return
        if decision.verdict == "default" and self._applied_plan.holding:
            await self._restore(decision.reason, observation)
        elif decision.verdict == "default" or decision.topic == "nothing":
            self.decision = self._no_change(decision.reason, observation)
        if decision.topic != self._topic and decision.verdict == "default":
            self._context.audit.tell("plan", observation.view.policy.name, decision.reason)
            self.did = self.did or decision.reason

    def _tell_late(self, decision: Decision, observation: JobObservation) -> None:
        """A line in the trail where iterations under the plan begin to take too long."""
        current, applied = observation.view.current, self._applied_plan.applied
        if decision.late and not self._late and current and applied:
            self._context.audit.tell(
                "verify",
                observation.view.policy.name,
                f"late: {current.time_mean_s:.4g} s measured over {current.iterations} "
                f"iterations, {applied.deadline_s or 0.0:.4g} s allowed; backing off",
                generation=applied.generation,
            )
        self._late = decision.late

    async def _change(self, draft: Draft, occasion: Occasion, before: PlannerState) -> None:
        """Numbers a draft and carries it out, unless the guard has a word against it."""
        decision, view, mode = occasion.decision, occasion.view, occasion.inputs.mode
        context, enforced, reason = self._context, mode == "enforce", decision.reason
        authority = draft.authority(
            epoch=context.epoch,
            generation_last=self._applied_plan.generation_last,
            ttl_s=occasion.ttl_s,
            snapshot_age_max_s=context.stale_s,
            report_age_max_s=occasion.observation.placement.silence_limit_s,
        )
        blank = self._no_change(reason, occasion.observation)
        plan = draft.plan(blank, self._applied_plan.generation_last + 1)
        why = refusal(plan, view, authority, context.check)
        if decision.choice and enforced and why:  # what runs is still what ran before
            held = before.clocks if before.mode == mode else None
            self.state = replace(self.state, clocks=held, changed_s=before.changed_s)
        if why and self._refused_as == (draft.clocks, why):
            self.sentence = f"refused: {why}"
            return
        plan = replace(plan, generation=context.store.next_generation())
        plan = replace(plan, refused=why or refusal(plan, view, authority, context.check))
        context.audit.plan(plan)
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
        outcome, done = await self._applied_plan.take(plan, view, ttl_s)
        if outcome.refused:
            self.state = replace(self.state, clocks=None)
            self._backoff.fail(outcome.first_refusal, self._context.now_s())
            self.did = self.sentence = f"plan {plan.generation} put back: {outcome.first_refusal}"
        else:
            self.did = f"plan {plan.generation} applied: {done}; {plan.reason}"

    async def _restore(self, reason: str, observation: JobObservation) -> None:
        """A plan whose content is: default clocks."""
        holding = self._applied_plan.holding
        locks = holding.locks if holding else {}
        await self.release_all(reason)  # first: giving back must not wait for a store
        generation = self._context.store.next_generation()
        plan = replace(
            self._no_change(reason, observation),
            generation=generation,
            parent=holding.plan.generation if holding else 0,
            actions=release_actions(observation.view, locks, reason),
        )
        self._applied_plan.passed(generation)
        self.decision = plan
        self._context.audit.plan(plan)

    def _no_change(self, reason: str, observation: JobObservation) -> Plan:
        running, policy = self._applied_plan.generation, observation.view.policy
        return Plan(
            job=policy.name,
            generation=running,
            parent=running,
            mode=policy.mode,
            granularity=policy.clocks.granularity,
            actions=(),
            reason=reason,
            made_at_unix_s=self._context.unix_s(),
        )
