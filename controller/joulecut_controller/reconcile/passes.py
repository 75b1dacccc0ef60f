"""The steps of one pass, in order: each takes what the one before made, and none has an input.

What goes wrong with one job (a store that takes no plan of it) is kept until all jobs had their
turn: whoever is to be sped up or given back waits for nobody.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from joulecut_controller.board import Board
from joulecut_controller.observe.observer import Sighting
from joulecut_controller.plan.planner import Decision, given_up
from joulecut_controller.plan.planning_input import Case
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Fleet, FleetState
from joulecut_controller.reconcile.context import Desk
from joulecut_controller.reconcile.display import Display
from joulecut_controller.reconcile.job_controller import Steward
from joulecut_controller.reconcile.job_services import Instruments
from joulecut_controller.reconcile.learning import Learner
from joulecut_controller.reconcile.planning_step import Thinking
from joulecut_controller.reconcile.policy_watcher import Mandate
from joulecut_controller.reconcile.terms import overtaken
from joulecut_controller.reconcile.training_samples import teach
from joulecut_controller.view import View
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.errors import JoulecutError

# Looking at ten thousand GPUs takes tens of milliseconds: not once for each of a hundred jobs.
FRESH_S = 0.1


@dataclass(frozen=True, slots=True)
class Passes:
    """What a pass works with. `acting` is held by whoever changes clocks, `ttl_s` is what leases
    last, `unready` says why no plan can be made yet.
    """

    fleet: Fleet
    desk: Desk
    mandate: Mandate
    instruments: Instruments
    learner: Learner
    thinking: Thinking
    display: Display
    stewards: dict[str, Steward]
    acting: asyncio.Lock
    ttl_s: Callable[[], float]
    unready: Callable[[], str]

    async def run(self, number: int) -> Board:
        """One pass, of that number. Raises JoulecutError where something could not be done."""
        kept = self.instruments
        self.desk.audit.catch_up()
        await self._follow_policy()
        if not kept.learning.begun:
            await asyncio.to_thread(kept.learning.begin)
        state = self.fleet.observe(self.desk.now_s())
        view, sightings = self.desk.observer.look(
            self.mandate.policy,
            state,
            self.fleet.take_reports(),
            self.desk.now_s(),
            self.desk.store.baseline,
        )
        self._see_epoch(state)
        self._share_power(sightings)
        cases, failed = await self._prepare(view, sightings)
        decisions = await asyncio.to_thread(self.thinking.decide, cases, self.stewards)
        failed += await self._carry_out(decisions, cases, sightings, view)
        if failed:
            raise failed[0]
        for name in decisions:
            kept.shadows.note(sightings[name], self.stewards[name].enactment.study)
            self._complete(name)
        if not self.desk.leases.lost:
            await kept.learning.step(self.desk.now_s())
            kept.holds.refresh()
        for name, sighting in sightings.items():
            kept.ask(self.stewards[name].enactment.standing, sighting, self.desk.now_s())
        profiled = [name for name in sightings if sightings[name].view.policy.profile is not None]
        return self.display.board(
            view,
            sightings,
            self.stewards,
            learnt=kept.learning.told(profiled),
            pass_number=number,
        )

    async def _prepare(
        self, view: View, sightings: Mapping[str, Sighting]
    ) -> tuple[dict[str, Case], list[JoulecutError]]:
        """What is to be decided for each job, and what went wrong with the others: the store
        may fail for one of them, and the rest must not wait for that to be sped up or given back.
        """
        cases, failed = dict[str, Case](), list[JoulecutError]()
        for name, sighting in sightings.items():
            try:
                cases[name] = await self._case(name, sighting, view)
            except JoulecutError as error:
                failed.append(error)
        return cases, failed

    async def _case(self, name: str, sighting: Sighting, view: View) -> Case:
        kept, steward = self.instruments, self.stewards[name]
        paused = await self._settle(name, sighting, view)
        steward.errors = teach(
            sighting.view,
            sighting.measured,
            self.learner,
            gpus=view.gpus,
            before=steward.errors,
            now_s=view.now_s,
        )
        steward.learn(sighting, view)
        kept.shadows.see(sighting, view)
        case = replace(
            steward.case(sighting, view, self.mandate.policy.cost.host_power_w, paused),
            unready=self.unready(),
            allotted_s=kept.budgets.deadline_s(name),
        )
        holdout = kept.holdouts.step(case, sighting, steward.applied, steward.learning)
        return replace(case, holdout=holdout)

    async def _settle(self, name: str, sighting: Sighting, view: View) -> str:
        """Why nothing may be planned for a job now; what a hold ends is given back at once."""
        kept, steward, leases = self.instruments, self.stewards[name], self.desk.leases
        held, allotted_s = leases.of(name) is not None, kept.budgets.deadline_s(name)
        kept.breakers.look(sighting, held=held, now_s=view.now_s, allotted_s=allotted_s)
        kept.breakers.rearm(sighting)
        word = kept.holds.word(name)
        paused = await steward.settle(sighting, view)
        if leases.lost or not word:
            return paused
        await steward.retire(word)
        return word

    async def _carry_out(
        self,
        decisions: Mapping[str, Decision],
        cases: Mapping[str, Case],
        sightings: Mapping[str, Sighting],
        view: View,
    ) -> list[JoulecutError]:
        """Makes decisions true, and answers what went wrong with which; no job's trouble keeps
        another from its clocks.
        """
        failed = list[JoulecutError]()
        async with self.acting:
            fresh, ttl_s = None, self.ttl_s()
            for name, decided in decisions.items():
                # A hold may be younger than the decision.
                word = self.instruments.holds.word(name)
                held = replace(given_up(decided.standing, word), topic="paused") if word else None
                decision = held or decided
                if decision.commands and (
                    fresh is None or self.desk.now_s() - fresh.now_s > FRESH_S
                ):
                    fresh = self._refreshed(view)
                try:
                    await self.stewards[name].carry_out(
                        decision, cases[name], sightings[name], fresh or view, ttl_s
                    )
                except JoulecutError as error:
                    failed.append(error)
        return failed

    def _share_power(self, sightings: Mapping[str, Sighting]) -> None:
        """What the power budget asks of each job; with nothing new it stays as it is."""
        kept, cost = self.instruments, self.mandate.policy.cost
        parties = [
            kept.party(self.stewards[name].enactment.standing, s) for name, s in sightings.items()
        ]
        told = kept.budgets.settle(self.mandate.policy.power_budget_w, parties, cost.host_power_w)
        if told:
            self.desk.audit.tell("plan", "", told)

    def _complete(self, name: str) -> None:
        """Has the rest of a new plan's figures computed beside the passes."""
        enacted = self.stewards[name].enactment
        if enacted.study is None:
            return
        generation, choice = enacted.study
        enacted.study = None
        work = self.thinking.completion(choice)
        key, done = ("completion", name), partial(enacted.complete, generation)
        self.instruments.studies.want(key, work, done)

    def _refreshed(self, view: View) -> View:
        """The same picture with agents and GPUs as they are now, for the guard."""
        now_s = self.desk.now_s()
        state = self.fleet.observe(now_s)
        waited_s = now_s - view.now_s
        jobs = tuple(replace(job, report_age_s=job.report_age_s + waited_s) for job in view.jobs)
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        return View(now_s=now_s, nodes=state.nodes, gpus=gpus, jobs=jobs)

    async def _follow_policy(self) -> None:
        if await self.mandate.refresh():
            self.learner.set_profiles(profiles(self.mandate.policy))
        jobs = {job.name: job for job in self.mandate.policy.jobs}
        for name in [name for name in self.stewards if name not in jobs]:
            await self.stewards.pop(name).retire("the job left the policy")
        for name, job in jobs.items():
            steward = self.stewards.setdefault(name, Steward(self.desk, job))
            steward.policy = job
        self.instruments.keep_only(jobs)

    def _see_epoch(self, state: FleetState) -> None:
        """A larger term anywhere means another controller leads; two must not duel."""
        lost = overtaken(state.nodes, self.desk.epoch)
        if not lost or self.desk.leases.lost:
            return
        self.desk.leases.end(lost)
        self.desk.audit.tell("lead", "", lost)


def profiles(policy: Policy) -> dict[str, Profile]:
    """Of the jobs that have one, by job."""
    return {job.name: job.profile for job in policy.jobs if job.profile is not None}
