"""More jobs than turns at the workers, whose answers take time: every job gets its plan, and jobs
that come later get theirs.
"""

import asyncio
from argparse import Namespace
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
from at_once import AtOnce, studied
from passes import Cluster, Sharing
from worlds import HeldSource, as_made

from joulecut_controller.board import Board
from joulecut_controller.election.claims import Claims
from joulecut_controller.election.reach import LATE_S
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.planning_step import SolverFunctions
from joulecut_controller.reconcile.reconciler import Reconciler
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.solver import Solver

JOBS, LATER = 60, 20
TICK_S, ANSWERS_A_TICK = 2.5, 5  # of two busy workers
LAST_TICKS = 10  # a job may measure default clocks in one of them
TICKS = 70  # a baseline of two minutes, and some answers for each
T = TypeVar("T")


class BusyWorkers(Executor):
    """Answers what was asked of it in its order, when it is let."""

    def __init__(self) -> None:
        self._asked: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        answer: Future[T] = Future()

        def work() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    answer.set_exception(error)

        self._asked.append(work)
        return answer

    def work(self, count: int) -> None:
        for _ in range(min(count, len(self._asked))):
            self._asked.popleft()()


class Many:
    """A cluster of small jobs, its controller, and workers that may be kept from answering."""

    def __init__(self, store: DatabaseStore, jobs: int) -> None:
        sizes = {"stages": 2, "microbatches": 4}
        self.cluster = Cluster(jobs, 1, 1.0, **sizes, spread=0.3, jitter_ratio=0.01)
        self.workers = BusyWorkers()
        self.held: set[str] = set()  # jobs, in the last ticks of a run
        policy = self.cluster.policy(profiles=True, noise=1.0)
        self.reconciler = Reconciler(
            fleet=self.cluster,
            store=store,
            source=HeldSource(policy),
            policy=policy,
            learner=OnlineEstimator({}),
            solver=SolverFunctions(Solver, check, lambda *_: (), as_made),
            planners=self.workers,
            background=AtOnce(),
            claims=Claims(store.next_epoch(0)),
            pacing=Pacing(5.0, watch_s=1.0),
            now_s=lambda: self.cluster.now_s,
            unix_s=lambda: 1.8e9 + self.cluster.now_s,
        )

    async def run(self, ticks: int, answers: int = ANSWERS_A_TICK) -> Board:
        asyncio.get_running_loop().set_default_executor(AtOnce())
        self.held = set()
        for tick in range(ticks):
            self.cluster.advance(TICK_S)
            self.workers.work(answers)
            await self.reconciler.beat_all()
            board = await self.reconciler.run_pass()
            await studied()
            if tick >= ticks - LAST_TICKS:
                self.held |= {job.view.policy.name for job in board.jobs if job.applied is not None}
        return board


@pytest.mark.long
@pytest.mark.smoke
def test_every_job_is_planned_however_many_there_are(store: DatabaseStore) -> None:
    many = Many(store, JOBS + LATER)
    for job in many.cluster.jobs[JOBS:]:
        job.ends_s = many.cluster.now_s + TICKS * TICK_S

    async def both() -> tuple[int, int]:
        await many.run(TICKS)
        first = len(many.held)
        await many.run(TICKS)
        return first, len(many.held)

    assert asyncio.run(both()) == (JOBS, JOBS + LATER)


def test_three_controllers_share_the_jobs_and_each_agent_has_one_stream(tmp_path: Path) -> None:
    sizes = Namespace(controllers=3, nodes_per_job=2, iteration_s=5.0, no_profiles=True)
    sharing = Sharing(sizes, 6, tmp_path)
    asyncio.run(sharing.run(4))
    assert set(Counter(sharing.holders.values()).values()) == {2}
    streams = [one for *_, seat in sharing.members.values() for one in seat.needed or ()]
    assert sorted(streams) == sharing.cluster.nodes
    asyncio.run(sharing.stop())


def test_news_of_agents_waits_while_the_event_loop_is_late(tmp_path: Path) -> None:
    """Starved controllers lose agents and find them again; each time would ask for a step."""
    sizes = Namespace(controllers=1, nodes_per_job=1, iteration_s=5.0, no_profiles=True)
    one = Sharing(sizes, 2, tmp_path)
    reconciler = one.members[1][0]

    async def steps(late_s: float) -> int:
        before = reconciler.metrics.passes.counts[-1]
        for _ in range(4):
            one.cluster.now_s += 1.0
            reconciler.run_late(late_s)
            for node in one.cluster.nodes:
                reconciler.notice(node, owners=True)
            await reconciler.run_pass()
        return reconciler.metrics.passes.counts[-1] - before

    async def go() -> None:
        await one.run(10)
        assert await steps(0.0) > 4
        await one.run()
        assert await steps(LATE_S) <= 4, "the cluster and each job once, and what is kept"
        await one.stop()

    asyncio.run(go())
