"""One job's step: the job is observed, what is applied is verified, measurements are learnt from,
and a plan is made and applied.

A step looks at the job's own agents and GPUs. One that goes on with a worker's answer goes on with
the picture of a moment ago. A plan is guarded against the cluster as it is when its commands go
out, not as the step saw it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from joulecut_controller.board import JobBoard, Learnt
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.planner import SOLVING, Decision, given_up, vetoes
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.veto import Veto, in_order
from joulecut_controller.ports import Fleet, FleetState
from joulecut_controller.power.limits import without_limits
from joulecut_controller.reconcile.cluster_step import Cluster
from joulecut_controller.reconcile.context import JobServices, ReconcileContext
from joulecut_controller.reconcile.inbox import Inbox
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.planning_step import PlanningStep
from joulecut_controller.reconcile.training_samples import teach
from joulecut_controller.reconcile.trust_inputs import advice_to_enforce, job_seen
from joulecut_controller.view import JobState, View
from joulecut_engine.estimate.online import OnlineEstimator

PICTURE_S = 0.5  # agents sample once a second: a younger picture shows the same
# Of very many jobs each is examined in turn: predictions compared and taught, prices and plan
# checked in full (25 ms). A hundred jobs have their turn every minute. A job that is late or has
# changed is planned at once.
EXAMINED_PER_INTERVAL = 8


@dataclass(frozen=True, slots=True)
class Picture:
    """One job as its last step saw it: what its next decision is made of. The view has the job's
    own agents and GPUs, and every job as it was seen last.
    """

    inputs: PlanningInput
    observation: JobObservation
    view: View


@dataclass(frozen=True, slots=True)
class JobSteps:
    """The steps of all jobs of one leadership term. `unready` says why no plan can be made yet,
    `acting` is the lock of a job's clocks, `news` asks for another look at a job soon.
    """

    fleet: Fleet
    context: ReconcileContext
    services: JobServices
    planning: PlanningStep
    learner: OnlineEstimator
    inbox: Inbox
    cluster: Cluster
    jobs: dict[str, JobController]
    unready: Callable[[], str]
    acting: Callable[[str], asyncio.Lock]
    news: Callable[[str], None]
    pictures: dict[str, Picture] = field(default_factory=dict)
    outdated: set[str] = field(default_factory=set)  # jobs whose picture is not gone on with
    examined_s: dict[str, float] = field(default_factory=dict)

    async def step(self, name: str) -> None:
        """Reconciles one job. One that left the policy is released and forgotten."""
        async with self.acting(name):
            if name not in self.jobs:
                return
            if name not in self.cluster.policies:
                await self.leave(name)
                return
            picture = self._recent(name)
            if picture is not None:
                await self.plan_and_apply(name, picture)
                return
            picture = await self.look(name)
            await asyncio.sleep(0)
            await self.plan_and_apply(name, picture)
            await self.note(name, picture)

    async def leave(self, name: str) -> None:
        """The job left the policy."""
        await self.jobs[name].release_all("the job left the policy")
        del self.jobs[name]
        self.pictures.pop(name, None)
        self.examined_s.pop(name, None)

    def _recent(self, name: str) -> Picture | None:
        """The picture that the step goes on with; None where it looks again."""
        picture = self.pictures.get(name)
        if picture is None or name in self.outdated:
            return None
        return picture if self.context.now_s() - picture.view.now_s < PICTURE_S else None

    async def look(self, name: str) -> Picture:
        """Observes, verifies, and learns from what was measured; streams, heartbeats and timers
        come in between.
        """
        self.outdated.discard(name)
        examined = self._examined(name)
        observation, view = self.observe(name, loads=examined)
        await asyncio.sleep(0)
        vetoes = await self.verify(name, observation, view)
        await asyncio.sleep(0)
        self.estimate(name, observation, view, examined=examined)
        await asyncio.sleep(0)
        inputs = self.planning_input(name, observation, view, vetoes, examined=examined)
        before, picture = self.pictures.get(name), Picture(inputs, observation, view)
        self.pictures[name] = picture
        phase = observation.job.measured.phase
        if before is not None and before.observation.job.measured.phase != phase:
            self.news(name)  # the pipeline of a phase is known from the next look on
        return picture

    def observe(self, name: str, *, loads: bool) -> tuple[JobObservation, View]:
        """The job with its own agents and GPUs, as of now."""
        now_s, observer = self.context.now_s(), self.context.observer
        reports, known = self.inbox.take(name), self.cluster.seen.gpus
        uuids = observer.gpus_of(name, reports)
        addresses = {known[uuid].address for uuid in uuids if uuid in known}
        state = self.fleet.observe(now_s, addresses) if addresses else FleetState((), ())
        recall = self.jobs[name].baseline.recall
        policy = self.cluster.policies[name]
        observation, view = observer.look(policy, state, reports, now_s, recall, loads=loads)
        others = (one.observation.job for other, one in self.pictures.items() if other != name)
        return observation, replace(view, jobs=(*others, observation.job))

    def _examined(self, name: str) -> bool:
        """Whether it is this job's turn."""
        now_s, last_s, jobs = self.context.now_s(), self.examined_s.get(name), len(self.jobs)
        every_s = self.context.interval_s * jobs / EXAMINED_PER_INTERVAL
        if last_s is None:  # jobs that begin together have their turns one after another
            self.examined_s[name] = now_s - every_s * len(self.examined_s) / jobs
            return True
        if now_s - last_s < every_s:
            return False
        self.examined_s[name] = now_s
        return True

    async def note(self, name: str, picture: Picture) -> None:
        """Keeps what the step measured, and starts computing what takes seconds."""
        job, services, observation = self.jobs[name], self.services, picture.observation
        await job.baseline.keep(observation)
        services.first_savings.see(observation, job.profiler, picture.view)
        now_s = self.context.now_s()
        services.refresh_frontiers(job.rollout.state, observation, now_s)

    async def verify(self, name: str, observation: JobObservation, view: View) -> tuple[Veto, ...]:
        """Breaker, drift and orphaned leases. Returns why the job may not be planned now."""
        services, job, leases = self.services, self.jobs[name], self.context.leases
        held, allotted_s = leases.of(name) is not None, services.budgets.deadline_s(name)
        services.breakers.look(observation, held=held, now_s=view.now_s, allotted_s=allotted_s)
        services.breakers.rearm(observation)
        holds = services.holds.vetoes(name)
        found = await job.verify(observation, view, holds)
        if holds and not leases.lost:
            await job.release_all(holds[0].text)
        return found

    def estimate(
        self, name: str, observation: JobObservation, view: View, *, examined: bool
    ) -> None:
        """Predictions are compared with measurements first, then learn from them."""
        job = self.jobs[name]
        shifted = observation.fresh.gpu_shift
        for uuid in shifted.uuids if shifted else ():
            self.learner.forget_gpu(name, uuid)
        if examined:
            job.taught += 1
            job.errors = teach(
                observation.job,
                observation.fresh,
                self.learner,
                gpus=view.gpus,
                before=job.errors,
                turn=job.taught,
            )
        job.profile_online(observation, view)

    def planning_input(
        self,
        name: str,
        observation: JobObservation,
        view: View,
        vetoes: tuple[Veto, ...],
        *,
        examined: bool,
    ) -> PlanningInput:
        job, services = self.jobs[name], self.services
        host_power_w = self.cluster.policy.cost.host_power_w
        inputs = job.planning_input(observation, view, host_power_w, vetoes)
        # A plan of an earlier term needs no solver to go on.
        resumes = inputs.earlier is not None or job.rollout.state.clocks is not None
        unready = "" if resumes else self.unready()
        inputs = replace(
            inputs,
            job=without_limits(inputs.job, view.gpus, job.rollout.state.costs),
            vetoes=(*inputs.vetoes, *((Veto("unready", unready),) if unready else ())),
            allotted_s=services.budgets.deadline_s(name),
            examined=examined,
        )
        seen = job_seen(
            inputs,
            observation,
            unix_s=self.context.unix_s(),
            applied=job.applied,
            learning=job.learning,
            wanted=job.rollout.state.look_wanted,
            suspected=services.breakers.suspected(name),
        )
        words = services.default_windows.step(seen)
        if not words:
            return inputs
        return replace(inputs, vetoes=(*inputs.vetoes, Veto("default-window", words)))

    async def plan_and_apply(self, name: str, picture: Picture) -> None:
        """A decision, guarded against the cluster as it is now, and its commands."""
        job = self.jobs[name]
        decision = self._unless_held(name, self.planning.decide(picture.inputs, job))
        if decision.topic == SOLVING:
            job.rollout.wait(decision, picture.observation.job.policy)
            return
        fresh = self._refreshed(picture) if decision.plan else picture.view
        await job.apply(decision, picture.inputs, picture.observation, fresh, self.cluster.ttl_s())
        self._complete_prediction(job)

    def _unless_held(self, name: str, decision: Decision) -> Decision:
        """Default clocks where an operator's command arrived since the step looked."""
        holds = self.services.holds.vetoes(name)
        return given_up(decision.state, holds[0]) if holds else decision

    def _refreshed(self, picture: Picture) -> View:
        """The picture's view with the job's own agents and GPUs as of now."""
        view, now_s = picture.view, self.context.now_s()
        uuids = picture.observation.job.placement.uuids
        state = self.fleet.observe(
            now_s, {view.gpus[uuid].address for uuid in uuids if uuid in view.gpus}
        )
        nodes = {node.address: node for node in (*view.nodes, *state.nodes)}
        waited_s = now_s - view.now_s
        jobs = tuple(_aged(job, waited_s) for job in view.jobs)
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        return View(now_s=now_s, nodes=tuple(nodes.values()), gpus=gpus, jobs=jobs)

    def _complete_prediction(self, job: JobController) -> None:
        """The slower figures of a new plan are computed beside the steps."""
        rollout, services = job.rollout, self.services
        if rollout.incomplete is not None:
            asked, rollout.incomplete = rollout.incomplete, None
            work, done = self.planning.completion(*asked[1:]), partial(rollout.complete, asked[0])
            services.background.want(("completion", job.policy.name), work, done)

    def _vetoes(self, inputs: PlanningInput) -> tuple[Veto, ...]:
        """All of them. A job that is learnt needs no profile."""
        found = vetoes(inputs)
        learnt = inputs.job.policy.pipeline is not None
        return in_order(veto for veto in found if not (learnt and veto.kind == "profile"))

    def board(self, name: str, learned: Learnt | None) -> JobBoard:
        """The job as its last step left it."""
        job, services, picture = self.jobs[name], self.services, self.pictures[name]
        observation = picture.observation
        frontier = services.frontier(job.rollout.state, observation)
        shown = job.board(observation, frontier, picture.view.gpus)
        windows = services.default_windows
        shown = replace(
            shown,
            holds=services.holds.of(name),
            trips=services.holds.trips(name),
            holdout=windows.holdouts(name, self.context.unix_s()),
            default_time=windows.time(name),
            account=windows.account(name),
            vetoes=self._vetoes(picture.inputs),
            learnt=learned or Learnt(services.first_savings.sentence(name)),
        )
        return replace(shown, advisable=advice_to_enforce(shown))


def _aged(job: JobState, waited_s: float) -> JobState:
    """The job when its newest report is so much older."""
    placement = job.placement
    older = replace(placement, report_age_s=placement.report_age_s + waited_s)
    return replace(job, placement=older)
