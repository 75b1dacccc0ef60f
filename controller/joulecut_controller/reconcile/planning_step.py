"""The planning step of a job: a decision, or none yet while workers answer the planner's questions.

A decision that waited for an answer continues with the observation that it began with: a baseline
that moves with every iteration does not change the question. An observation that differs in what
the decision depends on begins another one.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from joulecut_controller.board import SolverWait
from joulecut_controller.plan.evaluation import Comparison, Evaluation
from joulecut_controller.plan.fixed import fixed_decision
from joulecut_controller.plan.goal import is_late
from joulecut_controller.plan.guard import Check
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planner import Decision, decide, given_up, vetoes
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.predicted import as_predicted
from joulecut_controller.plan.solver_cache import (
    NOISE_KEPT,
    Ask,
    Asking,
    Prepare,
    Question,
    Soon,
    Times,
)
from joulecut_controller.plan.veto import Veto
from joulecut_controller.reconcile import worker_calls
from joulecut_controller.reconcile.frontiers import Frontier
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_engine.estimate.estimator import Estimator

# Jobs that have questions at the workers at once, so that the others wait and not all are late; as
# many as a worker keeps the preparation of.
JOBS_AT_ONCE = NOISE_KEPT
# Of one job: answers for its own deadline, a straggler's and the time now, at two granularities
# each, and spreads of as many plans. Some ten kilobytes each.
ANSWERS_KEPT = 24


Complete = Callable[[Prepare, Forecast, Comparison, Evaluation], Forecast]


@dataclass(frozen=True, slots=True)
class SolverFunctions:
    """The solver as one leadership term uses it, so that the loop imports no solver. Workers run
    all but `check`, so they are functions of modules.

    `complete` adds to a new plan's forecast what other granularities would save.
    """

    prepare: Prepare
    check: Check
    frontier: Frontier
    complete: Complete = worker_calls.completion


@dataclass(slots=True)
class Turns:
    """Which jobs ask the workers now. A turn lasts as long as a decision, from one question to the
    next: each step of a job gives it back unless an answer or the turn itself is waited for then.

    Jobs whose plan is late come first; of equals the one that has waited longest. `next_one` is
    called with a waiting job that has its turn now, for a step of it.
    """

    next_one: Callable[[str], None]
    at_once: int = JOBS_AT_ONCE
    _having: set[str] = field(default_factory=set)
    _waiting: dict[str, bool] = field(default_factory=dict)  # whether late; the oldest first
    _unanswered: set[str] = field(default_factory=set)  # whose newest step ended with a question

    @contextmanager
    def step(self, job: str) -> Iterator[None]:
        """One step of the job, however it ends."""
        self._unanswered.discard(job)
        try:
            yield
        finally:
            if job not in self._unanswered:
                self._waiting.pop(job, None)
                self._having.discard(job)
            while self._waiting and len(self._having) < self.at_once:
                waiting = self.line[0]
                del self._waiting[waiting]
                self._having.add(waiting)
                self.next_one(waiting)

    def ask(self, job: str, *, late: bool) -> bool:
        """Whether the job has its turn; else it waits for one."""
        if job not in self._having and len(self._having) < self.at_once:
            self._waiting.pop(job, None)
            self._having.add(job)
        elif job not in self._having:
            self._waiting[job] = late
        return job in self._having

    def unanswered(self, job: str) -> None:
        """This step of the job ends with a question; an answer or a turn begins the next one."""
        self._unanswered.add(job)

    @property
    def line(self) -> list[str]:
        """The jobs that wait, in their order."""
        return sorted(self._waiting, key=lambda job: not self._waiting[job])


@dataclass(slots=True)
class _UnderWay:
    """A decision on `inputs`, begun at `since_s`; `ask` is what it waits for."""

    inputs: PlanningInput
    rests_on: tuple[object, ...]
    steps: Asking[Decision]
    since_s: float
    ask: Ask | None = None


@dataclass(slots=True)
class Planners:
    """What the planning of all jobs shares. `arrived(job)` is called, in any thread, when a
    decision under way can go on.
    """

    solver: SolverFunctions
    estimator: Estimator
    workers: Executor
    arrived: Callable[[str], None]
    metrics: LoopMetrics
    now_s: Callable[[], float]
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Turns(self.arrived)

    def completion(
        self, made: Forecast, comparison: Comparison, before: Evaluation
    ) -> Callable[[], Forecast]:
        """The work that completes a forecast: what other granularities would save."""
        return partial(self.solver.complete, self.solver.prepare, made, comparison, before)


class JobPlanning:
    """One job: the decision under way, and the solver's answers to its questions."""

    def __init__(self, planners: Planners, name: str) -> None:
        self._planners, self.name = planners, name
        self._under_way: _UnderWay | None = None
        self._steady: tuple[object, ...] | None = None  # what the plan rested on that was kept last
        self._waits_since_s: float | None = None  # for workers, whatever the question was at first
        self._asked: OrderedDict[Hashable, Future[Any]] = OrderedDict()

    def decide(
        self, inputs: PlanningInput, state: PlannerState, applied: Plan | None
    ) -> Decision | None:
        """The job's decision; None while workers compute for it. Invalid numbers of one job affect
        that job alone.
        """
        if inputs.job.policy.fixed:
            return fixed_decision(inputs, state)
        if applied is not None and applied.forecast is None:
            return given_up(state, Veto("off", "nothing fixed is asked for: default clocks"))
        hindered, rests_on = bool(vetoes(inputs)), _rests_on(inputs)
        late = is_late(inputs)
        stands = not inputs.examined and not hindered and self._steady == rests_on
        if stands and self._under_way is None and not late:
            self._waits_since_s = None
            return Decision("keep", "steady", "plan unchanged", state)
        begun = self._under_way
        if begun is None or begun.rests_on != (*rests_on, hindered):
            # The jobs of other observations would be kept with each decision that waits.
            asked = replace(inputs, view=replace(inputs.view, jobs=()))
            steps = decide(asked, state, self._planners.estimator)
            begun = _UnderWay(asked, (*rests_on, hindered), steps, self._planners.now_s())
        self._under_way = None  # after an error another one begins
        try:
            decision = self._go_on(begun, late=late)
            decision = decision and as_predicted(decision, begun.inputs)
        except (ValueError, ArithmeticError) as error:
            decision = given_up(state, Veto("fault", f"cannot be planned: {error}: no change"))
        peer_s, goal = inputs.job.measured.peer_iteration_time_s, state.goal
        if decision is None and peer_s is None and goal is not None and goal.waits and state.clocks:
            words = "the sibling waited for is fast again: default clocks until a plan is made"
            decision = given_up(state, Veto("phase", words))
        if decision is None:
            self._under_way = begun
            self._planners.turns.unanswered(self.name)
            if self._waits_since_s is None:
                self._waits_since_s = self._planners.now_s()
            return None
        self._waits_since_s = None
        # A sibling, and the timing of changes within an iteration, count at once.
        alone = (
            inputs.job.measured.peer_iteration_time_s is None and not decision.state.choice.timed
        )
        self._steady = rests_on if decision.topic == "steady" and alone else None
        if decision.verdict == "change":
            self._planners.metrics.plans.add(self._planners.now_s() - begun.since_s)
            state = replace(decision.state, changed_s=inputs.view.now_s)
            decision = replace(decision, state=state)
        return decision

    def wait(self) -> SolverWait | None:
        """What the job's decision waits for; None while it waits for no worker."""
        if self._waits_since_s is None:
            return None
        line = self._planners.turns.line
        place = line.index(self.name) + 1 if self.name in line else 0
        return SolverWait(self._planners.now_s() - self._waits_since_s, place, len(line))

    def _go_on(self, under_way: _UnderWay, *, late: bool) -> Decision | None:
        """The decision; None while an answer is waited for. Raises what the solver raises."""
        reply: Any = None
        while True:
            ask = under_way.ask
            if isinstance(ask, Soon):
                future = self._answer(ask.question, late=late)
                reply = future is not None and future.done()
            elif ask is not None:
                future = self._answer(ask, late=late)
                if future is None or not future.done():
                    return None
                reply = future.result()
            try:
                under_way.ask = under_way.steps.send(reply)
            except StopIteration as ended:
                made: Decision = ended.value
                return made

    def _answer(self, ask: Question | Times, *, late: bool) -> Future[Any] | None:
        """The answer, as soon as it is there; None while the job waits for its turn."""
        future = self._asked.get(ask.key)
        if future is None or _lost(future):
            if not self._planners.turns.ask(self.name, late=late):
                return None
            prepare = self._planners.solver.prepare
            future = self._planners.workers.submit(worker_calls.reply, prepare, ask)
            self._asked[ask.key] = future
            while len(self._asked) > ANSWERS_KEPT:
                self._asked.popitem(last=False)[1].cancel()
            if not future.done():
                future.add_done_callback(lambda _: self._planners.arrived(self.name))
        self._asked.move_to_end(ask.key)
        return future


def _lost(future: Future[Any]) -> bool:
    """The worker died with the question."""
    if not future.done():
        return False
    return future.cancelled() or isinstance(future.exception(), BrokenExecutor)


def _rests_on(inputs: PlanningInput) -> tuple[object, ...]:
    """What a decision under way rests on: the same job, on the same GPUs, under the same clocks and
    bounds. What was measured of it may have moved on.
    """
    job = inputs.job
    return (
        job.policy,
        job.placement.stages,
        inputs.mode,
        inputs.running,
        any(veto.kind == "default-window" for veto in inputs.vetoes),
        inputs.allotted_s,
        inputs.host_power_w,
        job.measured.baseline is None,
        job.measured.reference and job.measured.reference.moved,
        inputs.predicted.text if inputs.predicted else "",
        job.measured.peer_iteration_time_s is None,
    )
