"""The steps of one pass, in order: each takes what the one before made, and none has an input.

What goes wrong with one job (a store that takes no plan of it) is kept until all jobs had their
turn: whoever is to be sped up or given back waits for nobody.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from joulecut_controller.board import Board
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.planner import Decision, given_up
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Fleet, FleetState
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.display import Display
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.job_services import JobServices
from joulecut_controller.reconcile.learning import Learner
from joulecut_controller.reconcile.planning_step import PlanningStep
from joulecut_controller.reconcile.policy_watcher import PolicyWatcher
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
    context: ReconcileContext
    policy_watcher: PolicyWatcher
    job_services: JobServices
    learner: Learner
    planning_step: PlanningStep
    display: Display
    job_controllers: dict[str, JobController]
    acting: asyncio.Lock
    ttl_s: Callable[[], float]
    unready: Callable[[], str]

    async def run(self, number: int) -> Board:
        """One pass, of that number. Raises JoulecutError where something could not be done."""
        kept = self.job_services
        self.context.audit.catch_up()
        await self._follow_policy()
        if not kept.learning.begun:
            await asyncio.to_thread(kept.learning.begin)
        state = self.fleet.observe(self.context.now_s())
        view, observations = self.context.observer.look(
            self.policy_watcher.policy,
            state,
            self.fleet.take_reports(),
            self.context.now_s(),
            self.context.store.baseline,
        )
        self._see_epoch(state)
        self._share_power(observations)
        cases, failed = await self._prepare(view, observations)
        decisions = await asyncio.to_thread(self.planning_step.decide, cases, self.job_controllers)
        failed += await self._carry_out(decisions, cases, observations, view)
        if failed:
            raise failed[0]
        for name in decisions:
            kept.shadows.note(observations[name], self.job_controllers[name].rollout.study)
            self._complete(name)
        if not self.context.leases.lost:
            await kept.learning.step(self.context.now_s())
            kept.holds.refresh()
        for name, observation in observations.items():
            kept.ask(self.job_controllers[name].rollout.state, observation, self.context.now_s())
        profiled = [
            name for name in observations if observations[name].view.policy.profile is not None
        ]
        return self.display.board(
            view,
            observations,
            self.job_controllers,
            learnt=kept.learning.told(profiled),
            pass_number=number,
        )

    async def _prepare(
        self, view: View, observations: Mapping[str, JobObservation]
    ) -> tuple[dict[str, PlanningInput], list[JoulecutError]]:
        """What is to be decided for each job, and what went wrong with the others: the store
        may fail for one of them, and the rest must not wait for that to be sped up or given back.
        """
        cases, failed = dict[str, PlanningInput](), list[JoulecutError]()
        for name, observation in observations.items():
            try:
                cases[name] = await self._case(name, observation, view)
            except JoulecutError as error:
                failed.append(error)
        return cases, failed

    async def _case(self, name: str, observation: JobObservation, view: View) -> PlanningInput:
        kept, job_controller = self.job_services, self.job_controllers[name]
        paused = await self._settle(name, observation, view)
        job_controller.errors = teach(
            observation.view,
            observation.measured,
            self.learner,
            gpus=view.gpus,
            before=job_controller.errors,
            now_s=view.now_s,
        )
        job_controller.learn(observation, view)
        kept.shadows.see(observation, view)
        inputs = replace(
            job_controller.inputs(
                observation, view, self.policy_watcher.policy.cost.host_power_w, paused
            ),
            unready=self.unready(),
            allotted_s=kept.budgets.deadline_s(name),
        )
        holdout = kept.holdouts.step(
            inputs, observation, job_controller.applied, job_controller.learning
        )
        return replace(inputs, holdout=holdout)

    async def _settle(self, name: str, observation: JobObservation, view: View) -> str:
        """Why nothing may be planned for a job now; what a hold ends is given back at once."""
        kept, job_controller, leases = (
            self.job_services,
            self.job_controllers[name],
            self.context.leases,
        )
        held, allotted_s = leases.of(name) is not None, kept.budgets.deadline_s(name)
        kept.breakers.look(observation, held=held, now_s=view.now_s, allotted_s=allotted_s)
        kept.breakers.rearm(observation)
        word = kept.holds.word(name)
        paused = await job_controller.settle(observation, view)
        if leases.lost or not word:
            return paused
        await job_controller.release_all(word)
        return word

    async def _carry_out(
        self,
        decisions: Mapping[str, Decision],
        cases: Mapping[str, PlanningInput],
        observations: Mapping[str, JobObservation],
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
                word = self.job_services.holds.word(name)
                held = replace(given_up(decided.state, word), topic="paused") if word else None
                decision = held or decided
                if decision.commands and (
                    fresh is None or self.context.now_s() - fresh.now_s > FRESH_S
                ):
                    fresh = self._refreshed(view)
                try:
                    await self.job_controllers[name].carry_out(
                        decision, cases[name], observations[name], fresh or view, ttl_s
                    )
                except JoulecutError as error:
                    failed.append(error)
        return failed

    def _share_power(self, observations: Mapping[str, JobObservation]) -> None:
        """What the power budget asks of each job; with nothing new it stays as it is."""
        kept, cost = self.job_services, self.policy_watcher.policy.cost
        parties = [
            kept.party(self.job_controllers[name].rollout.state, s)
            for name, s in observations.items()
        ]
        told = kept.budgets.settle(
            self.policy_watcher.policy.power_budget_w, parties, cost.host_power_w
        )
        if told:
            self.context.audit.tell("plan", "", told)

    def _complete(self, name: str) -> None:
        """Has the rest of a new plan's figures computed beside the passes."""
        enacted = self.job_controllers[name].rollout
        if enacted.study is None:
            return
        generation, choice = enacted.study
        enacted.study = None
        work = self.planning_step.completion(choice)
        key, done = ("completion", name), partial(enacted.complete, generation)
        self.job_services.studies.want(key, work, done)

    def _refreshed(self, view: View) -> View:
        """The same picture with agents and GPUs as they are now, for the guard."""
        now_s = self.context.now_s()
        state = self.fleet.observe(now_s)
        waited_s = now_s - view.now_s
        jobs = tuple(replace(job, report_age_s=job.report_age_s + waited_s) for job in view.jobs)
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        return View(now_s=now_s, nodes=state.nodes, gpus=gpus, jobs=jobs)

    async def _follow_policy(self) -> None:
        if await self.policy_watcher.refresh():
            self.learner.set_profiles(profiles(self.policy_watcher.policy))
        jobs = {job.name: job for job in self.policy_watcher.policy.jobs}
        for name in [name for name in self.job_controllers if name not in jobs]:
            await self.job_controllers.pop(name).release_all("the job left the policy")
        for name, job in jobs.items():
            job_controller = self.job_controllers.setdefault(name, JobController(self.context, job))
            job_controller.policy = job
        self.job_services.keep_only(jobs)

    def _see_epoch(self, state: FleetState) -> None:
        """A larger term anywhere means another controller leads; two must not duel."""
        lost = overtaken(state.nodes, self.context.epoch)
        if not lost or self.context.leases.lost:
            return
        self.context.leases.end(lost)
        self.context.audit.tell("lead", "", lost)


def profiles(policy: Policy) -> dict[str, Profile]:
    """Of the jobs that have one, by job."""
    return {job.name: job.profile for job in policy.jobs if job.profile is not None}
