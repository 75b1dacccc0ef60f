"""Decisions that wait for workers: each goes on where it waited, or gives way to another one."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, TypeVar

from planning import case_of, costs_of, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import Question
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_controller.reconcile.planning_step import JobPlanning, Planners, SolverFunctions
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.solver import Solver, frontier

T = TypeVar("T")
WORLD = World(stages=3, microbatches=9, scale=0.9, timed=True)  # clocks change within iterations
WORLD.history = [(1.5 * n, 1.5, {}) for n in range(4)]


class Worker(Executor):
    """Keeps questions of clocks that change within an iteration; answers all others at once."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.kept: list[Callable[[], None]] = []
        self.error: Exception | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()

        def work() -> None:
            if self.error is not None:
                done.set_exception(self.error)
            else:
                done.set_result(fn(*args, **kwargs))

        ask = args[1]
        if isinstance(ask, Question):
            self.asked.append(ask)
        if isinstance(ask, Question) and ask.granularity == "changes":
            self.kept.append(work)
        else:
            work()
        return done

    def answer(self) -> None:
        for work in self.kept:
            work()
        self.kept.clear()


def inputs(start_jitter_s: float = 0.02, slowdown: float = 0.05) -> PlanningInput:
    view = view_of(WORLD, 10.0)
    gpus = {
        uuid: replace(gpu, timing=replace(gpu.timing, start_jitter_s=start_jitter_s))
        for uuid, gpu in view.gpus.items()
        if gpu.timing is not None
    }
    job = seen(WORLD, slowdown)
    estimator = OnlineEstimator({WORLD.job: WORLD.profile()})
    return case_of(with_baseline(job, costs_of(job, view, estimator)), replace(view, gpus=gpus))


class Planning:
    """Steps of one job, each from the state that the last one left."""

    def __init__(self) -> None:
        self.worker, self.arrived, self.now_s = Worker(), list[str](), 10.0
        self.state = PlannerState()
        self.planners = Planners(
            SolverFunctions(Solver, check, frontier),
            OnlineEstimator({WORLD.job: WORLD.profile()}),
            self.worker,
            self.arrived.append,
            LoopMetrics(),
            lambda: self.now_s,
        )
        self.step_of = JobPlanning(self.planners, WORLD.job)

    def step(self, asked: PlanningInput) -> Decision | None:
        self.now_s += 5.0
        asked = replace(asked, view=replace(asked.view, now_s=self.now_s))
        with self.planners.turns.step(WORLD.job):
            made = self.step_of.decide(asked, self.state, None)
        if made is not None:
            self.state = made.state
        return made


def test_a_decision_goes_on_where_it_waited_with_the_picture_it_began_with() -> None:
    """On a busy machine each answer came after another question, for nine minutes."""
    planning = Planning()
    first = planning.step(inputs())
    assert first.plan.granularity == "gpu"
    for number in range(12):
        jitter_s = 0.02 + 0.001 * number + 0.01 * (number % 3)
        assert planning.step(inputs(jitter_s)) is None
    changes = [one for one in planning.worker.asked if one.granularity == "changes"]
    assert len(changes) == 1
    assert planning.step_of.wait().waited_s == 11 * 5.0
    planning.worker.answer()
    assert planning.arrived == [WORLD.job]
    later = planning.step(inputs())
    assert later.plan.granularity == "changes"
    assert later.state.changed_s == planning.now_s
    assert planning.step_of.wait() is None


def test_another_promise_begins_another_decision() -> None:
    planning = Planning()
    planning.step(inputs())
    assert planning.step(inputs()) is None
    paused = replace(inputs(), mode="off")
    assert planning.step(paused).topic == "off"
    other = planning.step(inputs(slowdown=0.2))
    assert other.plan.granularity == "gpu"
    assert other.plan.deadline_s > 1.1 * inputs().job.measured.baseline.time_mean_s


def test_what_the_solver_cannot_do_costs_one_decision() -> None:
    planning = Planning()
    planning.step(inputs())
    assert planning.step(inputs()) is None
    planning.worker.error = ArithmeticError("overflow")
    planning.worker.answer()
    assert planning.step(inputs()).topic == "fault"
    assert planning.step_of.wait() is None
