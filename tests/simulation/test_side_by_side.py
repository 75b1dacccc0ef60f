"""Jobs are decided side by side: no heartbeat or other job waits for a job's plan, or fails with
its errors. A plan meets the cluster as it is when it is ready; news of a job are taken up at once.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, TypeVar, cast

from enforced import PASSES_TO_PLAN
from held_out import HeldOutWorld, Pair
from worlds import Controller, World

from joulecut_controller.board import JobBoard
from joulecut_controller.plan.solver_cache import Question, Times
from joulecut_controller.policy.policy import Policy, Slo
from joulecut_controller.ports import FleetState, Store, StoredBaseline
from joulecut_controller.store.database import DatabaseStore

T = TypeVar("T")
SLOW = "left"
PASSES = 200
LIMIT_S = 90.0  # the loop also solves here; on a busy machine that takes its time


class SlowForOneJob(Executor):
    """Works at once, but keeps back what is asked for the costs of `policy`'s slow job."""

    def __init__(self, blocking_power_w: float) -> None:
        self._blocking_power_w = blocking_power_w
        self.slow = True
        self._kept: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()

        def work() -> None:
            if done.set_running_or_notify_cancel():
                done.set_result(fn(*args, **kwargs))

        asked: Question | Times = args[1]
        if self.slow and self._blocking_power_w == asked.costs.blocking_power_w:
            self._kept.append(work)
        else:
            work()
        return done

    @property
    def waiting(self) -> int:
        return len(self._kept)

    def catch_up(self) -> None:
        """The worker is quick again, and answers what was asked."""
        self.slow = False
        for work in self._kept:
            work()
        self._kept.clear()


def slow_job_of(pair: Pair, **changes: Any) -> tuple[Policy, float]:
    """The pair's policy, whose slow job has costs of its own."""
    policy = pair.held_out_policy(0.0)
    slow_w = policy.jobs[0].blocking_power_w + 1.0
    first = replace(policy.jobs[0], blocking_power_w=slow_w, **changes)
    return replace(policy, jobs=(first, policy.jobs[1])), slow_w


def with_slow_job(store: DatabaseStore) -> tuple[Controller, SlowForOneJob, Pair]:
    pair = Pair(HeldOutWorld(job=SLOW), HeldOutWorld(job="right", seed=2))
    policy, slow_w = slow_job_of(pair)
    workers = SlowForOneJob(slow_w)
    controller = pair.controlled(store, 0.0, workers)
    controller.source.put(policy)
    return controller, workers, pair


def job(controller: Controller, name: str) -> JobBoard:
    return next(one for one in controller.boards[-1].jobs if one.view.policy.name == name)


def test_a_slow_plan_holds_up_neither_the_other_job_nor_its_leases(store: DatabaseStore) -> None:
    controller, workers, _ = with_slow_job(store)
    applied_at: list[int] = []

    def until() -> bool:
        passes = len(controller.boards)
        if job(controller, "right").applied and not applied_at:
            applied_at.append(passes)
        if applied_at and passes > applied_at[0] + 20 and workers.waiting:
            assert job(controller, SLOW).applied is None
            assert "at work" in job(controller, SLOW).sentence
            assert job(controller, "right").applied, "its leases were not renewed"
            workers.catch_up()
        return job(controller, SLOW).applied is not None

    controller.run(PASSES, until=until)
    assert job(controller, SLOW).applied is not None
    assert job(controller, "right").applied is not None
    assert not [event for event in controller.events("apply") if "refused" in event]


def test_what_a_job_says_of_its_plan_stands_while_the_next_one_is_computed(
    store: DatabaseStore,
) -> None:
    controller, workers, pair = with_slow_job(store)
    workers.slow = False
    controller.run(PASSES, until=lambda: job(controller, SLOW).applied is not None)
    workers.slow = True  # from now on its questions stay without an answer
    controller.run(PASSES, until=lambda: workers.waiting > 0)
    assert workers.waiting
    assert "at work" not in job(controller, SLOW).sentence
    changed, _ = slow_job_of(pair, slo=Slo(max_slowdown=0.05))
    controller.source.put(changed)
    controller.run(PASSES, until=lambda: "at work" in job(controller, SLOW).sentence)
    assert "at work" in job(controller, SLOW).sentence, "a new target has no plan yet"


def test_an_answer_to_a_picture_that_has_changed_is_not_applied(store: DatabaseStore) -> None:
    controller, workers, pair = with_slow_job(store)

    def until() -> bool:
        if workers.waiting and workers.slow:
            changed, _ = slow_job_of(pair, slo=Slo(max_slowdown=0.05))
            controller.source.put(changed)
            workers.slow = False  # the next pass reads the policy; the old answers come later
        elif workers.waiting:
            workers.catch_up()
        return job(controller, SLOW).applied is not None

    controller.run(PASSES, until=until)
    applied, baseline = job(controller, SLOW).applied, job(controller, SLOW).view.measured.baseline
    assert applied.deadline_s > 1.04 * baseline.time_mean_s


class BrokenForOneJob(Pair):
    """Two worlds, and a fault in what is asked of the slow job's agents."""

    def __init__(self, left: HeldOutWorld, right: HeldOutWorld, *, broken: bool) -> None:
        super().__init__(left, right)
        self.left, self.broken = left, broken

    def observe(self, now_s: float, addresses: object = ()) -> FleetState:
        if self.broken and addresses and set(addresses) <= self.left.agents.keys():
            raise ZeroDivisionError("a fault")
        return super().observe(now_s)


def test_a_job_that_cannot_be_reconciled_from_the_start_costs_no_other_its_plan(
    store: DatabaseStore,
) -> None:
    pair = BrokenForOneJob(HeldOutWorld(job=SLOW), HeldOutWorld(job="right", seed=2), broken=True)
    controller = pair.controlled(store, 0.0)
    controller.run(PASSES, until=lambda: bool(job(controller, "right").applied))
    assert job(controller, "right").applied
    board = controller.boards[-1]
    assert [one.view.policy.name for one in board.jobs] == ["right"]
    assert board.warnings[0].startswith("left cannot be reconciled: ZeroDivisionError at test_side")
    assert board.sentence.endswith(": a fault")
    lines = [line for one in controller.boards for line in one.lines]
    assert {(line.job, line.level) for line in lines} == {("left", "error"), ("right", "info")}
    assert not any("right" in line.text for line in lines if line.job == "left")
    controller.run(2 * PASSES_TO_PLAN)
    assert job(controller, "right").applied, "its leases are renewed"
    assert sum("cannot be reconciled" in text for text in controller.events("plan")) == 1
    pair.broken = False
    controller.run(PASSES, until=lambda: len(controller.boards[-1].jobs) == 2)
    controller.run(1)
    assert not controller.boards[-1].warnings


def test_the_leases_of_a_job_that_cannot_be_reconciled_any_more_run_out(
    store: DatabaseStore,
) -> None:
    left = HeldOutWorld(job=SLOW)
    pair = BrokenForOneJob(left, HeldOutWorld(job="right", seed=2), broken=False)
    controller = pair.controlled(store, 0.0)
    controller.run(PASSES, until=lambda: all(one.applied for one in controller.boards[-1].jobs))
    assert not left.at_default()
    pair.broken = True
    controller.run(3)
    assert "cannot be reconciled: ZeroDivisionError" in job(controller, SLOW).sentence
    assert not left.at_default()
    controller.run(10)
    assert left.at_default()
    assert job(controller, "right").applied


def test_news_of_a_job_do_not_wait_for_its_interval(store: DatabaseStore) -> None:
    world = World(seed=3)
    controller = Controller(world, store, world.policy("recommend"), interval_s=60.0)

    def seen_again(seconds: float) -> bool:
        before = controller.boards[-1].jobs[0].view
        world.advance(seconds)
        controller.boards.append(asyncio.run(controller.reconciler.run_pass()))
        return controller.boards[-1].jobs[0].view is not before

    controller.run(10)
    assert not seen_again(5.0), "more of the same waits"
    assert not seen_again(5.0)
    world.slow_ratio = 1.5
    assert seen_again(1.0), "another kind of iteration does not"
    assert not seen_again(5.0)


class WaitsForTheLoop:
    """A store each of whose writes about a plan ends only once the event loop has gone on. `held`:
    what the thread of the event loop has called itself.
    """

    def __init__(self, store: DatabaseStore) -> None:
        self._store, self.turns = store, threading.Semaphore(0)
        self.waited: list[bool] = []
        self.held: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self.held.append(name)
            return getattr(self._store, name)(*args, **kwargs)

        return called

    def _wait(self) -> None:
        while self.turns.acquire(blocking=False):
            pass
        self.waited.append(self.turns.acquire(timeout=LIMIT_S))

    def next_generation(self) -> int:
        self._wait()
        return self._store.next_generation()

    def keep_baseline(self, job: str, shape: str, kept: StoredBaseline) -> None:
        self._wait()
        self._store.keep_baseline(job, shape, kept)


def test_no_heartbeat_waits_for_the_store(store: DatabaseStore) -> None:
    world = World()
    slow = WaitsForTheLoop(store)
    controller = Controller(world, cast("Store", slow), world.policy())
    slow.held.clear()

    async def turn() -> None:
        while True:
            slow.turns.release()
            await asyncio.sleep(0.001)

    async def go() -> None:
        turning = asyncio.create_task(turn())
        for _ in range(2 * PASSES_TO_PLAN):
            world.advance(1.0)
            await controller.reconciler.run_pass()
            if not world.at_default():
                break
        while any(task.get_name() == "studies" for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        turning.cancel()

    asyncio.run(go())
    assert not world.at_default()
    assert len(slow.waited) > 1
    assert all(slow.waited)
    assert slow.held == []
