"""What one job of the policy has been through, and what is done for it in a pass.

The planner decides, the guard may refuse, `leases` carries out; the steward puts the three
in order for its job, writes the trail, and stands back for a while after a failure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from joulecut_controller.board import FrontierPoint, JobBoard
from joulecut_controller.observe.ledger import BASELINE_ITERATIONS_MIN
from joulecut_controller.observe.observer import Observer, Sighting
from joulecut_controller.plan.actions import actions_for, give_back
from joulecut_controller.plan.case import Case, Standing
from joulecut_controller.plan.guard import Authority, Check, refusal
from joulecut_controller.plan.plan import Action, Forecast, Plan
from joulecut_controller.plan.planner import Choice, Decision
from joulecut_controller.plan.trial import Trial
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.account import Account
from joulecut_controller.reconcile.apprentice import Apprentice
from joulecut_controller.reconcile.audit import Audit
from joulecut_controller.reconcile.drift import as_asked, drift_of
from joulecut_controller.reconcile.leases import Leases, Outcome, Place
from joulecut_controller.reconcile.lessons import Errors
from joulecut_controller.view import View, Window
from joulecut_wire.errors import JoulecutError

# Agents sample once a second; until a sample was taken after a command, the lease shown may
# be the one before. Drift is not judged sooner.
LEASE_SHOWN_S = 1.0
RETRY_S_MAX = 300.0  # a refusal that lasts needs a person, who should not wait longer
FORGIVE_S = 60.0  # a plan held so long is a success, and earlier failures are forgotten
BASELINE_NEWS_RATIO = 0.002  # a baseline that moved less is not written again


@dataclass(frozen=True, slots=True)
class Desk:
    """What every steward works with."""

    store: Store
    audit: Audit
    leases: Leases
    observer: Observer
    check: Check
    epoch: int
    interval_s: float
    stale_s: float
    now_s: Callable[[], float]
    unix_s: Callable[[], float]


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
        self._account = Account()
        self._decision: Plan | None = None
        self._applied: Plan | None = None
        self._sentence = ""
        self._topic = ""
        self._late = False
        self._refused_as: tuple[object, ...] = ()
        self._generation_last = 0
        self._failures = 0
        self._retry_s = float("-inf")
        self._failed_with = ""
        self._acted_s = float("-inf")
        self._stored: tuple[str, Window] | None = None

    @property
    def applied(self) -> Plan | None:
        """The plan whose clocks are held under leases now."""
        return self._applied

    @property
    def learning(self) -> str:
        """What is still to be learnt of a job without a profile; empty once that is enough."""
        advice = self.apprentice.advice
        if self.policy.profile is not None or (advice is not None and advice.verdict == "enough"):
            return ""
        return "the job is still being learnt"

    # -- before planning -------------------------------------------------------------------

    async def settle(self, sighting: Sighting, view: View, lost: str) -> str:
        """Sees to what stands in the way of a plan; answers why there can be none now."""
        self.did = ""
        self.policy = sighting.view.policy  # its mode, as far as it can be had now
        self._keep_baseline(sighting)
        if lost:
            self._applied = None
            return lost
        mode, name, now_s = self.policy.mode, self.policy.name, self._desk.now_s()
        holding = self._desk.leases.of(name)
        if mode != "enforce":
            reservation = sighting.view.reservation
            if holding and reservation:
                self._fail(reservation)
            if holding:
                await self._release(reservation or f"mode is now {mode}")
            return ""
        if holding:
            self._account_for(sighting)
            drift = drift_of(holding, sighting, view)
            if drift:
                self._fail(drift)
                await self._release(drift)
                self._desk.audit.note("drift", name, drift, generation=holding.plan.generation)
            elif now_s - self._acted_s > FORGIVE_S:
                self._failures = 0
        if self._desk.leases.of(name) is None:  # whatever was decided: default clocks run
            self.standing = replace(self.standing, clocks=None)
        strays = self._strays(sighting, view, now_s)
        if strays:
            await self._clear_strays(strays)
            return "giving back what an earlier term or attempt left: default clocks"
        if now_s < self._retry_s:
            wait_s = self._retry_s - now_s
            return f"standing back for {wait_s:.0f} s after: {self._failed_with}"
        return ""

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
        holding = self._desk.leases.of(self.policy.name)
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
        if decision.late and not self._late and current and self._applied:
            self._desk.audit.note(
                "verify",
                name,
                f"late: {current.time_mean_s:.4g} s measured over {current.iterations} "
                f"iterations, {self._applied.deadline_s or 0.0:.4g} s allowed; backing off",
                generation=self._applied.generation,
            )
        self._late = decision.late
        if decision.trial is not None:
            await self._try(decision.trial, decision.reason, case, sighting, view=view, ttl_s=ttl_s)
            return
        if decision.verdict == "change" and decision.choice is not None:
            await self._change(
                decision.choice,
                decision.reason,
                case,
                sighting,
                view=view,
                ttl_s=ttl_s,
                before=before,
            )
            return
        if decision.verdict == "default" and self._desk.leases.of(name):
            await self._restore(decision.reason, sighting)
        elif decision.verdict == "default" or decision.topic == "nothing":
            self._decision = self._no_change(decision.reason)
        if decision.topic != self._topic and decision.verdict == "default":
            self._desk.audit.note("plan", name, decision.reason)
            self.did = self.did or decision.reason

    def complete(self, generation: int, forecast: Forecast) -> None:
        """Figures that took longer than the decision; the decision itself stays as it is."""
        if self._decision is None or self._decision.generation != generation:
            return
        self._decision = replace(self._decision, forecast=forecast)
        if self._applied is not None and self._applied.generation == generation:
            self._applied = self._decision
        self._desk.store.keep_plan(self._decision)

    async def retire(self, reason: str) -> Outcome:
        """The job left the policy, is held, or the controller ends: nothing of it is kept."""
        return await self._release(reason)

    def board(self, sighting: Sighting, frontier: tuple[FrontierPoint, ...]) -> JobBoard:
        return JobBoard(
            view=sighting.view,
            mode=self.policy.mode,
            sentence=self._sentence,
            decision=self._decision,
            applied=self._applied,
            frontier=frontier,
            saved_predicted_j=self._account.predicted_j,
            saved_measured_j=self._account.measured_j,
            predict_error_time_ratio=self.errors.time_ratio,
            predict_error_power_ratio=self.errors.power_ratio,
            probing=self.apprentice.advice if self.policy.profile is None else None,
        )

    # -- parts -----------------------------------------------------------------------------

    async def _change(
        self,
        choice: Choice,
        reason: str,
        case: Case,
        sighting: Sighting,
        *,
        view: View,
        ttl_s: float,
        before: Standing,
    ) -> None:
        desk, enforced = self._desk, case.mode == "enforce"
        authority = Authority(
            epoch=desk.epoch,
            generation_last=self._generation_last,
            ttl_s=ttl_s,
            snapshot_age_max_s=desk.stale_s,
            report_age_max_s=sighting.layout.silence_limit_s,
            problem=choice.costs.problem,
            goal=choice.goal,
        )
        plan = self._draft(choice, reason, actions_for(sighting.view, choice, case.running))
        why = refusal(plan, view, authority, desk.check)
        if enforced and why:  # what runs is still what ran before
            held = before.clocks if before.mode == case.mode else None
            self.standing = replace(self.standing, clocks=held, changed_s=before.changed_s)
        if why and self._refused_as == (choice.clocks, why):
            self._sentence = f"refused: {why}"
            return
        plan = replace(plan, generation=desk.store.next_generation())
        plan = replace(plan, refused=why or refusal(plan, view, authority, desk.check))
        desk.audit.plan(plan)
        self._decision = plan
        self._refused_as = (choice.clocks, why) if why else ()
        self.did = f"plan {plan.generation} {case.mode}ed: {reason}"
        self.study = (plan.generation, choice)
        if plan.refused:
            self.did = self._sentence = f"plan {plan.generation} refused: {plan.refused}"
        elif enforced:
            await self._apply(plan, view, ttl_s)

    async def _try(
        self,
        trial: Trial,
        reason: str,
        case: Case,
        sighting: Sighting,
        *,
        view: View,
        ttl_s: float,
    ) -> None:
        """Carries out a step of learning, unless the guard has a word against it."""
        desk = self._desk
        authority = Authority(
            epoch=desk.epoch,
            generation_last=self._generation_last,
            ttl_s=ttl_s,
            snapshot_age_max_s=desk.stale_s,
            report_age_max_s=sighting.layout.silence_limit_s,
            problem=None,
            goal=None,
            reach_mhz=trial.reach_mhz,
        )
        plan = replace(
            self._no_change(reason),
            generation=self._generation_last + 1,
            actions=trial.actions,
            deadline_s=trial.deadline_s,
            forecast=trial.forecast,
        )
        why = refusal(plan, view, authority, desk.check)
        clocks = tuple(action.clock_mhz for action in trial.actions)
        if why and self._refused_as == (clocks, why):
            self._sentence = f"refused: {why}"
            return
        plan = replace(plan, generation=desk.store.next_generation())
        plan = replace(plan, refused=why or refusal(plan, view, authority, desk.check))
        desk.audit.plan(plan)
        self._decision = plan
        self._refused_as = (clocks, why) if why else ()
        self.did = f"plan {plan.generation} {case.mode}ed: {reason}"
        if plan.refused:
            self.did = self._sentence = f"plan {plan.generation} refused: {plan.refused}"
        else:
            await self._apply(plan, view, ttl_s)

    async def _apply(self, plan: Plan, view: View, ttl_s: float) -> None:
        desk, name = self._desk, plan.job
        self._generation_last = plan.generation
        outcome = await desk.leases.bring(plan, view.gpus, ttl_s)
        done = "; ".join(outcome.refused) if outcome.refused else _counted(plan.actions)
        desk.audit.note(
            "apply",
            name,
            f"put back, because refused: {done}" if outcome.refused else f"applied: {done}",
            generation=plan.generation,
            ttl_s=ttl_s,
            settings={action.uuid: action.clock_mhz for action in plan.actions},
            refused=outcome.refused,
        )
        holding = desk.leases.of(name)
        self._applied = plan if holding else None
        self._acted(holding.locks if holding else {})
        if outcome.refused:
            self.standing = replace(self.standing, clocks=None)
            self._fail(outcome.first_refusal)
            self.did = self._sentence = f"plan {plan.generation} put back: {outcome.first_refusal}"
        else:
            self.did = f"plan {plan.generation} applied: {done}; {plan.reason}"

    async def _restore(self, reason: str, sighting: Sighting) -> None:
        """A plan whose content is: default clocks."""
        holding = self._desk.leases.of(self.policy.name)
        locks = holding.locks if holding else {}
        await self._release(reason)  # first: giving back must not wait for a store
        generation = self._desk.store.next_generation()
        plan = replace(
            self._no_change(reason),
            generation=generation,
            parent=holding.plan.generation if holding else 0,
            actions=give_back(sighting.view, locks, reason),
        )
        self._generation_last = generation
        self._decision = plan
        self._desk.audit.plan(plan)

    async def _release(self, reason: str) -> Outcome:
        name = self.policy.name
        holding = self._desk.leases.of(name)
        if holding is None:
            return Outcome()
        outcome = await self._desk.leases.give_back(name, reason)
        text = f"{outcome.settings} GPUs back to default clocks: {reason}"
        if outcome.refused:
            text += f" (not answered, their leases run out: {'; '.join(outcome.refused)})"
        self._applied = None
        self.standing = replace(self.standing, clocks=None, goal=None)
        self._acted({})
        self.did = text
        self._desk.audit.note("clear", name, text, generation=holding.plan.generation)
        return outcome

    def _acted(self, locks: Mapping[str, int]) -> None:
        now_s = self._desk.now_s()
        self._acted_s = now_s
        self._desk.observer.changed(self.policy.name, locks, now_s, now_s + LEASE_SHOWN_S)

    def _fail(self, reason: str) -> None:
        self._failures += 1
        self._failed_with = reason
        wait_s = min(self._desk.interval_s * 2.0 ** min(self._failures, 16), RETRY_S_MAX)
        self._retry_s = self._desk.now_s() + wait_s

    def _strays(self, sighting: Sighting, view: View, now_s: float) -> dict[str, list[Place]]:
        """Leases on the job's GPUs that nobody of ours holds, by the job they name."""
        strays: dict[str, list[Place]] = {}
        for uuid in sighting.layout.uuids:
            gpu = view.gpus.get(uuid)
            lease = gpu.snapshot.lease if gpu and gpu.snapshot else None
            if gpu is None or lease is None or lease.epoch > self._desk.epoch:
                continue
            if now_s - gpu.age_s < self._acted_s + LEASE_SHOWN_S:
                continue  # it may show what was before our last command
            ours = lease.epoch == self._desk.epoch
            if not (ours and self._desk.leases.owns(lease.job, lease.generation)):
                strays.setdefault(lease.job, []).append(Place(gpu.address, uuid))
        return strays

    async def _clear_strays(self, strays: Mapping[str, list[Place]]) -> None:
        for job, places in strays.items():
            reason = f"left by job {job} of an earlier term or attempt"
            outcome = await self._desk.leases.clear(job, places, reason)
            self._desk.audit.note(
                "clear",
                self.policy.name,
                f"{len(places)} GPUs: {reason}",
                refused=outcome.refused,
            )
        self._acted({})
        self.did = "cleared what an earlier term or attempt left"

    def _account_for(self, sighting: Sighting) -> None:
        holding = self._desk.leases.of(self.policy.name)
        if self._applied and holding and as_asked(holding, sighting):
            self._account = self._account.after(sighting.measured, self._applied)

    def _keep_baseline(self, sighting: Sighting) -> None:
        """Writes a baseline down when it says something new."""
        baseline, stored = sighting.measured.baseline, self._stored
        if baseline is None:
            return
        if stored and stored[0] == sighting.shape:
            moved = abs(baseline.time_mean_s / stored[1].time_mean_s - 1.0)
            richer = stored[1].energy_j is None and baseline.energy_j is not None
            if moved < BASELINE_NEWS_RATIO and not richer:
                return
        self._desk.store.keep_baseline(self.policy.name, sighting.shape, baseline)
        self._stored = (sighting.shape, baseline)

    def _draft(self, choice: Choice, reason: str, actions: tuple[Action, ...]) -> Plan:
        """The plan before it has its number; the one given is larger than any before."""
        return replace(
            self._no_change(reason),
            generation=self._generation_last + 1,
            actions=actions,
            deadline_s=choice.deadline_s,
            forecast=choice.forecast,
            solution=choice.solution,
        )

    def _no_change(self, reason: str) -> Plan:
        running = self._applied.generation if self._applied else 0
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


def _counted(actions: tuple[Action, ...]) -> str:
    """`5 lowered, 1 raised, 2 at default clocks`, of what happened."""
    words = {"lower": "lowered", "raise": "raised", "hold": "held", "clear": "back to default"}
    counts = {verb: sum(action.verb == verb for action in actions) for verb in words}
    return ", ".join(f"{n} {words[verb]}" for verb, n in counts.items() if n) + " (GPUs)"
