"""One pass: observe, predict, plan, guard, apply, verify, publish. It has no input.

Start-up, recovery and a quiet Tuesday are the same pass: it looks, compares what is with
what should be, and does the difference. With nothing new it does nothing. Whatever it
cannot see or explain ends in default clocks, and every plan stands in the audit trail
before it is carried out.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from joulecut_controller.board import Board, FrontierPoint
from joulecut_controller.observe.observer import Observer, Sighting
from joulecut_controller.plan.answers import Answers, Prepare
from joulecut_controller.plan.case import Case
from joulecut_controller.plan.forecast import completed
from joulecut_controller.plan.guard import Check
from joulecut_controller.plan.planner import Decision, decide, given_up
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Fleet, FleetState, Store
from joulecut_controller.reconcile.audit import Audit
from joulecut_controller.reconcile.breakers import Breakers
from joulecut_controller.reconcile.budgets import Budgets, Party
from joulecut_controller.reconcile.commands import Commands
from joulecut_controller.reconcile.desk import Desk
from joulecut_controller.reconcile.frontiers import Frontier, Frontiers
from joulecut_controller.reconcile.holdouts import Holdouts
from joulecut_controller.reconcile.holds import Holds
from joulecut_controller.reconcile.learning import Learner, Learning
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.reconcile.lessons import teach
from joulecut_controller.reconcile.mandate import Mandate, PolicySource
from joulecut_controller.reconcile.meters import Meters
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.shadows import Shadows
from joulecut_controller.reconcile.steward import Steward
from joulecut_controller.reconcile.stragglers import Keep, Stragglers
from joulecut_controller.reconcile.studies import Studies
from joulecut_controller.reconcile.terms import overtaken
from joulecut_controller.view import View
from joulecut_controller.workload import Profile
from joulecut_wire.errors import JoulecutError

# Looking at ten thousand GPUs takes tens of milliseconds: not once for each of a hundred jobs.
FRESH_S = 0.1


@dataclass(frozen=True, slots=True)
class Solving:
    """What is asked of the solver."""

    prepare: Prepare
    check: Check
    frontier: Frontier
    keep: Keep | None = None  # a frontier to answer stragglers from; None: the solver does


class Reconciler:
    """Runs passes and heartbeats of one leadership term."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: Store,
        source: PolicySource,
        policy: Policy,
        learner: Learner,
        solving: Solving,
        epoch: int,
        pacing: Pacing,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
        unready: Callable[[], str] = lambda: "",
    ) -> None:
        self._unready = unready
        self._fleet = fleet
        self._learner = learner
        self._learner.set_profiles(_profiles(policy))
        self._studies = Studies()
        self._stragglers = Stragglers(solving.keep, self._studies)
        self._answers = Answers(solving.prepare, frontier=self._stragglers.of)
        self._studied = Answers(solving.prepare)  # another thread than the passes' answers
        self._frontiers = Frontiers(solving.frontier, self._studies)
        self._budgets = Budgets()
        self._pacing = pacing
        self._now_s, self._unix_s = now_s, unix_s
        self._leases = Leases(fleet, epoch)
        self._desk = Desk(
            store=store,
            audit=Audit(store, unix_s),
            leases=self._leases,
            observer=Observer(lag_s=pacing.lag_s, stale_s=pacing.stale_s),
            check=solving.check,
            epoch=epoch,
            interval_s=pacing.interval_s,
            stale_s=pacing.stale_s,
            now_s=now_s,
            unix_s=unix_s,
        )
        self._store = store
        self._mandate = Mandate(source, policy, self._desk.audit)
        self._learning = Learning(learner, store, self._desk.audit, self._studies)
        self._stewards: dict[str, Steward] = {}
        self._holds = Holds(store, unix_s)
        self._shadows = Shadows(store, unix_s)
        self._holdouts = Holdouts(store, self._desk.audit, unix_s, lag_s=pacing.lag_s)
        self._breakers = Breakers(self._holds, self._desk.audit, pacing.lag_s)
        self.commands = self._order_desk()
        self._lost = ""
        self._unrenewed: set[str] = set()
        self._pass_number = 0
        self._passed_s = now_s()
        self.meters = Meters()
        self.board: Board | None = None

    def _order_desk(self) -> Commands:
        return Commands(
            fleet=self._fleet,
            leases=self._leases,
            holds=self._holds,
            audit=self._desk.audit,
            stewards=self._stewards,
            lost=lambda: self._lost,
            view=lambda: self.board.view if self.board else None,
            now_s=self._now_s,
            unix_s=self._unix_s,
        )

    @property
    def epoch(self) -> int:
        return self._desk.epoch

    @property
    def leads(self) -> bool:
        return not self._lost

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self._mandate.policy

    def ask_reload(self) -> None:
        """The next pass reads the policy again, changed or not."""
        self._mandate.ask()

    def ttl_s(self) -> float:
        return self._pacing.ttl_within_s(_ttl_max_s(self._fleet.observe(self._now_s())))

    async def run_pass(self) -> Board:
        """One pass; a JoulecutError in it (a store that is full) ends it with a word on the
        board, and with heartbeats that stop if it lasts.
        """
        begun_s = self._now_s()
        self._pass_number += 1
        try:
            board = await self._pass()
        except JoulecutError as error:
            self.meters.results["failed"] += 1
            board = self._failed_board(f"the pass failed: {error}")
        else:
            self._passed_s = self._now_s()
            self.meters.last_success_unix_s = self._unix_s()
            acted = any(steward.did for steward in self._stewards.values())
            self.meters.results["changed" if acted else "unchanged"] += 1
        self.meters.passes.add(self._now_s() - begun_s)
        self.board = board
        return board

    async def beat(self) -> None:
        """One heartbeat for all leases, unless no pass has ended for too long."""
        if self._lost or self._now_s() - self._passed_s > self._pacing.dead_s:
            return
        outcomes = await self._leases.renew(self.ttl_s())
        for job, outcome in outcomes.items():
            if not outcome.refused:
                self._unrenewed.discard(job)
            elif job not in self._unrenewed:
                with suppress(JoulecutError):  # what the store says stops no heartbeat
                    self._desk.audit.note("renew", job, f"not renewed: {outcome.first_refusal}")
                    self._unrenewed.add(job)

    def stand_down(self, why: str) -> None:
        """This term is over: nothing more is commanded, and what was held runs out."""
        self._lost = why
        self._leases.forget_all()

    async def stop(self, reason: str) -> None:
        """Gives everything back; what does not answer runs out."""
        await self._studies.stop()
        if not self._lost:
            with suppress(JoulecutError):  # GPUs are given back, whatever the store says
                self._learning.keep()
            await asyncio.gather(*(s.retire(reason) for s in self._stewards.values()))

    async def _pass(self) -> Board:
        await self._reload_policy()
        if not self._learning.begun:
            await asyncio.to_thread(self._learning.begin)
        state = self._fleet.observe(self._now_s())
        view, sightings = self._desk.observer.look(
            self.policy, state, self._fleet.take_reports(), self._now_s(), self._store.baseline
        )
        self._see_epoch(state)
        self._share_power(sightings)
        cases: dict[str, Case] = {}
        host_power_w = self.policy.cost.host_power_w
        for name, sighting in sightings.items():
            steward = self._stewards[name]
            paused = await self._settle(name, sighting, view)
            steward.errors = teach(
                sighting.view,
                sighting.measured,
                self._learner,
                gpus=view.gpus,
                before=steward.errors,
                now_s=view.now_s,
            )
            steward.learn(sighting, view)
            self._shadows.see(sighting, view)
            cases[name] = replace(
                steward.case(sighting, view, host_power_w, paused),
                unready=self._unready(),
                allotted_s=self._budgets.deadline_s(name),
            )
            cases[name] = replace(
                cases[name],
                holdout=self._holdouts.step(
                    cases[name], sighting, steward.applied, steward.learning
                ),
            )
        decisions = await asyncio.to_thread(self._think, cases)
        async with self.commands.acting:
            fresh, ttl_s = None, self.ttl_s()
            for name, decided in decisions.items():
                # A hold may be younger than the decision.
                word = self._holds.word(name)
                held = replace(given_up(decided.standing, word), topic="paused") if word else None
                decision = held or decided
                if decision.commands and (fresh is None or self._now_s() - fresh.now_s > FRESH_S):
                    fresh = self._refreshed(view)
                await self._stewards[name].carry_out(
                    decision, cases[name], sightings[name], fresh or view, ttl_s
                )
        for name in decisions:
            self._shadows.note(sightings[name], self._stewards[name].study)
            self._complete(name)
        if not self._lost:
            self._learning.step(self._now_s())
            self._holds.refresh()
        return self._show(view, sightings)

    async def _settle(self, name: str, sighting: Sighting, view: View) -> str:
        """Why nothing may be planned for a job now; what a hold ends is given back at once."""
        held, allotted_s = self._leases.of(name) is not None, self._budgets.deadline_s(name)
        self._breakers.look(sighting, held=held, now_s=view.now_s, allotted_s=allotted_s)
        self._breakers.rearm(sighting)
        steward, word = self._stewards[name], self._holds.word(name)
        paused = await steward.settle(sighting, view, self._lost)
        if word and not self._lost:
            await steward.retire(word)
        return paused if self._lost else word or paused

    def _share_power(self, sightings: Mapping[str, Sighting]) -> None:
        """What the power budget asks of each job; with nothing new it stays as it is."""
        parties = []
        for name, sighting in sightings.items():
            costs = self._stewards[name].standing.costs
            points = self._frontier(name, sighting)
            parties.append(Party(sighting.view, points, costs.digest if costs and points else ""))
        told = self._budgets.settle(
            self.policy.power_budget_w, parties, self.policy.cost.host_power_w
        )
        if told:
            self._desk.audit.note("plan", "", told)

    def _frontier(self, name: str, sighting: Sighting) -> tuple[FrontierPoint, ...]:
        """The newest frontier of a job in its own seconds; empty while unknown."""
        costs = self._stewards[name].standing.costs
        return self._frontiers.points(name, costs, sighting.view.baseline) if costs else ()

    def _complete(self, name: str) -> None:
        """Has the rest of a new plan's figures computed beside the passes."""
        steward = self._stewards[name]
        if steward.study is None:
            return
        generation, choice = steward.study
        steward.study = None
        self._studies.want(
            ("completion", name),
            partial(completed, choice.forecast, choice.prospect, choice.before, self._studied),
            partial(steward.complete, generation),
        )

    def _think(self, cases: Mapping[str, Case]) -> dict[str, Decision]:
        """The only part that may take long; it runs beside heartbeats and the page."""
        decisions = {}
        for name, case in cases.items():
            begun_s = self._now_s()
            steward = self._stewards[name]
            standing = steward.standing
            try:
                if _unprofiled(case):
                    decisions[name] = steward.apprentice.decide(case, standing)
                else:
                    decisions[name] = decide(case, standing, self._learner, self._answers)
            except (ValueError, ArithmeticError) as error:  # one job's numbers are no one else's
                decisions[name] = given_up(standing, f"cannot be planned: {error}: no change")
            if decisions[name].verdict == "change":
                self.meters.plans.add(self._now_s() - begun_s)
        return decisions

    def _refreshed(self, view: View) -> View:
        """The same picture with agents and GPUs as they are now, for the guard."""
        now_s = self._now_s()
        state = self._fleet.observe(now_s)
        waited_s = now_s - view.now_s
        jobs = tuple(replace(job, report_age_s=job.report_age_s + waited_s) for job in view.jobs)
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        return View(now_s=now_s, nodes=state.nodes, gpus=gpus, jobs=jobs)

    async def _reload_policy(self) -> None:
        if self._mandate.refresh():
            self._learner.set_profiles(_profiles(self.policy))
        jobs = {job.name: job for job in self.policy.jobs}
        for name in [name for name in self._stewards if name not in jobs]:
            await self._stewards.pop(name).retire("the job left the policy")
        for name, job in jobs.items():
            steward = self._stewards.setdefault(name, Steward(self._desk, job))
            steward.policy = job
        self._unrenewed.intersection_update(jobs)
        self._breakers.keep_only(jobs)
        self._holdouts.keep_only(jobs)
        self._frontiers.keep_only(jobs)
        self._stragglers.keep_only(jobs)
        self._studies.keep_only(set(jobs))
        self._shadows.keep_only(jobs)

    def _see_epoch(self, state: FleetState) -> None:
        """A larger term anywhere means another controller leads; two must not duel."""
        lost = overtaken(state.nodes, self.epoch)
        if not lost or self._lost:
            return
        self._lost = lost
        self._leases.forget_all()
        self._desk.audit.note("lead", "", self._lost)

    def _show(self, view: View, sightings: Mapping[str, Sighting]) -> Board:
        boards = []
        learnt = {
            name: self._learning.learnt(name)
            for name, sighting in sightings.items()
            if sighting.view.policy.profile is not None
        }
        self._learning.see_drift(learnt)
        for name, sighting in sightings.items():
            steward = self._stewards[name]
            costs = steward.standing.costs
            if costs is not None and sighting.view.baseline is not None:
                granularity = steward.policy.clocks.granularity
                self._frontiers.ask(name, costs, granularity, self._now_s())
                if _may_wait(sighting):
                    self._stragglers.ask(name, costs, granularity, self._now_s())
            shown = steward.board(sighting, self._frontier(name, sighting))
            shown = replace(shown, holds=self._holds.of(name), trips=self._holds.trips(name))
            shown = replace(shown, holdout=self._holdouts.shown(name))
            verdict = self._shadows.verdict(sighting, shown.decision, view)
            shown = replace(shown, advisable=verdict)
            boards.append(replace(shown, learnt=learnt.get(name, shown.learnt)))
        did = "; ".join(f"{n}: {s.did}" for n, s in self._stewards.items() if s.did)
        return Board(
            at_unix_s=self._unix_s(),
            pass_number=self._pass_number,
            epoch=self.epoch,
            sentence=self._lost or did or self._budgets.complaint or "nothing to do",
            view=view,
            jobs=tuple(boards),
            events=self._desk.audit.newest,
            policy_source=self.policy.source,
            policy_digest=self.policy.digest,
            policy_error=self._mandate.error,
            budget=self._budgets.shares,
            interval_s=self._pacing.interval_s,
            holds=self._holds.all,
            policy=self.policy,
        )

    def _failed_board(self, sentence: str) -> Board:
        last = self.board or Board(
            at_unix_s=self._unix_s(),
            pass_number=0,
            epoch=self.epoch,
            sentence="",
            view=View(now_s=self._now_s()),
            jobs=(),
            events=(),
            interval_s=self._pacing.interval_s,
        )
        return replace(
            last, at_unix_s=self._unix_s(), pass_number=self._pass_number, sentence=sentence
        )


def _profiles(policy: Policy) -> dict[str, Profile]:
    return {job.name: job.profile for job in policy.jobs if job.profile is not None}


def _may_wait(sighting: Sighting) -> bool:
    """Whether the job has siblings that it meets once an iteration."""
    pipeline, view = sighting.view.policy.pipeline, sighting.view
    if pipeline is None or pipeline.sync != "iteration":
        return False
    return pipeline.data_parallel > 1 or view.peer_iteration_time_s is not None


def _ttl_max_s(state: FleetState) -> float:
    """The shortest of what the agents allow; 0 while none has said."""
    return min((node.ttl_max_s for node in state.nodes if node.ttl_max_s > 0), default=0.0)


def _unprofiled(case: Case) -> bool:
    """Nobody measured this job before: it is learnt while it runs."""
    policy = case.job.policy
    return policy.profile is None and policy.pipeline is not None
