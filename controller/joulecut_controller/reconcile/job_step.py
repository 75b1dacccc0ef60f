"""One job's step: what is applied is verified, measurements are learnt from, a plan is made and
applied.

A plan is guarded against the cluster as it is when its commands go out, not as the step saw it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from joulecut_controller.board import JobBoard, Learnt
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.planner import SOLVING, Decision, given_up
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.power_limits import without_limits
from joulecut_controller.plan.veto import Veto
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Fleet
from joulecut_controller.reconcile.context import JobServices, ReconcileContext
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.planning_step import PlanningStep
from joulecut_controller.reconcile.training_samples import teach
from joulecut_controller.reconcile.trust_inputs import advice_to_enforce, job_seen
from joulecut_controller.view import View
from joulecut_engine.estimate.online import OnlineEstimator


@dataclass(frozen=True, slots=True)
class Picture:
    """One job as the last pass saw it: what its next decision is made of."""

    inputs: PlanningInput
    observation: JobObservation
    view: View


@dataclass(frozen=True, slots=True)
class JobSteps:
    """The steps of all jobs of one leadership term. `policy`, `ttl_s`, `unready` and `examined`
    answer as of now; see `Reconciler`.
    """

    fleet: Fleet
    context: ReconcileContext
    services: JobServices
    planning: PlanningStep
    learner: OnlineEstimator
    jobs: dict[str, JobController]
    policy: Callable[[], Policy]
    ttl_s: Callable[[], float]
    unready: Callable[[], str]
    examined: Callable[[str], bool]
    pictures: dict[str, Picture] = field(default_factory=dict)

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

    def estimate(self, name: str, observation: JobObservation, view: View) -> None:
        """Predictions are compared with measurements first, then learn from them."""
        job = self.jobs[name]
        shifted = observation.measured.gpu_shift
        for uuid in shifted.uuids if shifted else ():
            self.learner.forget_gpu(name, uuid)
        if self.examined(name):
            job.taught += 1
            job.errors = teach(
                observation.view,
                observation.measured,
                self.learner,
                gpus=view.gpus,
                before=job.errors,
                turn=job.taught,
            )
        job.profile_online(observation, view)

    def planning_input(
        self, name: str, observation: JobObservation, view: View, vetoes: tuple[Veto, ...]
    ) -> PlanningInput:
        job, services = self.jobs[name], self.services
        host_power_w = self.policy().cost.host_power_w
        inputs = job.planning_input(observation, view, host_power_w, vetoes)
        # A plan of an earlier term needs no solver to go on.
        resumes = inputs.earlier is not None or job.rollout.state.clocks is not None
        unready = "" if resumes else self.unready()
        inputs = replace(
            inputs,
            job=without_limits(inputs.job, view.gpus, job.rollout.state.costs),
            vetoes=(*inputs.vetoes, *((Veto("unready", unready),) if unready else ())),
            allotted_s=services.budgets.deadline_s(name),
            examined=self.examined(name),
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
        inputs = replace(inputs, slowdown=services.default_windows.slowdown(name))
        if not words:
            return inputs
        return replace(inputs, vetoes=(*inputs.vetoes, Veto("default-window", words)))

    async def plan_and_apply(self, name: str) -> None:
        """A decision, guarded against the cluster as it is now, and its commands."""
        job, picture = self.jobs[name], self.pictures[name]
        decision = self._unless_held(name, self.planning.decide(picture.inputs, job))
        if decision.topic == SOLVING:
            job.rollout.wait(decision, picture.observation.view.policy)
            return
        fresh = self._refreshed(picture) if decision.commands else picture.view
        await job.apply(decision, picture.inputs, picture.observation, fresh, self.ttl_s())
        self._complete_prediction(job)

    def _unless_held(self, name: str, decision: Decision) -> Decision:
        """Default clocks where an operator's command arrived since the pass looked."""
        holds = self.services.holds.vetoes(name)
        return given_up(decision.state, holds[0]) if holds else decision

    def _refreshed(self, picture: Picture) -> View:
        """The picture's view with the job's own agents and GPUs as of now."""
        view, now_s = picture.view, self.context.now_s()
        uuids = picture.observation.placement.uuids
        state = self.fleet.observe(
            now_s, {view.gpus[uuid].address for uuid in uuids if uuid in view.gpus}
        )
        nodes = {node.address: node for node in (*view.nodes, *state.nodes)}
        waited_s = now_s - view.now_s
        jobs = tuple(replace(job, report_age_s=job.report_age_s + waited_s) for job in view.jobs)
        gpus = {gpu.uuid: gpu for gpu in state.gpus}
        return View(now_s=now_s, nodes=tuple(nodes.values()), gpus=gpus, jobs=jobs)

    def _complete_prediction(self, job: JobController) -> None:
        """The slower figures of a new plan are computed beside the passes."""
        rollout, services = job.rollout, self.services
        if rollout.incomplete is not None:
            (generation, choice), rollout.incomplete = rollout.incomplete, None
            work, done = self.planning.completion(choice), partial(rollout.complete, generation)
            services.background.want(("completion", job.policy.name), work, done)

    def board(
        self, name: str, observation: JobObservation, view: View, learned: Learnt | None
    ) -> JobBoard:
        job, services = self.jobs[name], self.services
        frontier = services.frontier(job.rollout.state, observation)
        shown = job.board(observation, frontier, view.gpus)
        windows, account = services.default_windows, services.default_windows.account(name)
        shown = replace(
            shown,
            holds=services.holds.of(name),
            trips=services.holds.trips(name),
            holdout=windows.holdouts(name, self.context.unix_s()),
            default_time=windows.time(name),
            saved_predicted_j=account.predicted_j,
            saved_measured_j=account.measured_j,
            saved_known_ratio=account.known_ratio,
            slowdown=account.slowdown,
            learnt=learned or Learnt(services.first_savings.sentence(name)),
        )
        return replace(shown, advisable=advice_to_enforce(shown))
