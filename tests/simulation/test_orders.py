"""A person's orders in the whole loop: held at once, through restarts, and undone by a word."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from worlds import Controller, World

from joulecut_controller.orders import Done, Order
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.problem import ChangeLimits, Problem
from joulecut_engine.optimize.solver import Solver
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import NO_KEEPER


def enforcing(world: World, store: DatabaseStore) -> Controller:
    controller = Controller(world, store, world.policy())
    controller.run(40, until=lambda: not world.at_default())
    assert not world.at_default(), controller.boards[-1].sentence
    return controller


def obeyed(controller: Controller, order: Order) -> Done:
    return asyncio.run(controller.reconciler.commands.execute(order))


def test_a_pause_gives_back_at_once_and_holds_through_a_restart(
    world: World, store: DatabaseStore
) -> None:
    controller = enforcing(world, store)
    done = obeyed(controller, Order("pause", job="demo", reason="reset", by="alice"))
    assert done.complete
    assert done.gpus == world.stages
    assert world.at_default(), "before any pass"
    sent = len(world.sent("apply"))
    controller.run(30)
    assert controller.job.sentence == "paused by alice: reset; `joulecut resume demo` ends it"
    (hold,) = controller.job.holds
    assert (hold.kind, hold.by, hold.reason) == ("pause", "alice", "reset")
    assert any("pause by alice" in text for text in controller.events("hold"))
    again = Controller(world, store, world.policy())
    again.run(40)
    assert world.at_default()
    assert len(world.sent("apply")) == sent
    done = obeyed(again, Order("resume", job="demo", by="bob"))
    assert done.sentence == "the hold of demo ended"
    again.run(40, until=lambda: not world.at_default())
    assert not world.at_default()


def test_a_restore_asks_nothing_of_nodes_without_a_keeper(
    world: World, store: DatabaseStore
) -> None:
    """Each was refused, and said to have a lease that runs out."""
    for agent in world.agents.values():
        agent.controllable, agent.reason = False, NO_KEEPER
    controller = Controller(world, store, world.policy())
    controller.run(3)
    done = obeyed(controller, Order("restore", by="alice"))
    assert done.complete
    assert done.gpus == 0
    assert f"{world.stages} without a keeper" in done.sentence
    assert not world.sent("clear")


def test_all_is_all_and_a_single_job_cannot_leave_it(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    assert obeyed(controller, Order("pause", by="alice")).complete
    assert world.at_default()
    done = obeyed(controller, Order("resume", job="demo", by="bob"))
    assert done.refused == "conflict"
    assert "`joulecut resume --all` ends it" in done.sentence
    controller.run(20)
    assert world.at_default()
    assert obeyed(controller, Order("resume", by="bob")).complete
    controller.run(40, until=lambda: not world.at_default())
    assert not world.at_default()


@pytest.mark.parametrize(
    "order",
    [
        Order("restore", job="demo", by="alice"),
        Order("restore", node="n1", by="alice"),
        Order("restore", by="alice"),
    ],
)
def test_a_restore_clears_whoever_holds_the_gpus(
    world: World, store: DatabaseStore, order: Order
) -> None:
    controller = enforcing(world, store)
    done = obeyed(controller, order)
    assert done.complete
    assert world.at_default()
    assert {call.op for call in world.calls[-2:]} == {"clear"}
    controller.run(30)
    assert world.at_default(), "a job is given back whole, and stays so"
    assert "restored and paused by alice" in controller.job.sentence


def test_a_restore_in_recommend_mode_clears_what_another_left(
    world: World, store: DatabaseStore
) -> None:
    enforcing(world, store)
    successor = Controller(world, store, world.policy("recommend"))
    successor.run(1)
    assert not world.at_default()
    assert obeyed(successor, Order("restore", by="alice")).complete
    assert world.at_default()


def test_a_lost_agent_is_named_and_runs_out(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    world.agents["n2:1"].connected = False
    done = obeyed(controller, Order("pause", job="demo", by="alice"))
    assert not done.complete
    assert "n2:1" in done.unanswered[0]
    assert not world.agents["n1:1"].leases
    controller.run(4)
    assert world.at_default()


def test_an_order_during_a_long_solve_is_not_undone_by_it(
    world: World, store: DatabaseStore
) -> None:
    """The plan is being thought about when the pause comes: it must not be applied after it."""
    asked: list[Order] = []
    loops: list[asyncio.AbstractEventLoop] = []

    class Slow(Solver):
        def __init__(
            self, problem: Problem, granularity: Granularity, limits: ChangeLimits
        ) -> None:
            super().__init__(problem, granularity, limits)
            if not asked and loops:
                order = Order("pause", job="demo", by="alice")
                asked.append(order)
                execute = controller.reconciler.commands.execute(order)
                done = asyncio.run_coroutine_threadsafe(execute, loops[0]).result(60)
                assert done.complete

    planners = ThreadPoolExecutor(1)
    controller = Controller(world, store, world.policy(), prepare=Slow, planners=planners)

    async def go() -> None:
        loops.append(asyncio.get_running_loop())
        for _ in range(40):
            world.advance(1.0)
            controller.boards.append(await controller.reconciler.run_pass())
            await asyncio.sleep(0.02)  # the answer arrives between two passes
        while not asked:
            await asyncio.sleep(0.02)
        controller.boards.append(await controller.reconciler.run_pass())

    with planners:
        asyncio.run(go())
    assert asked, "nothing was solved"
    assert world.sent("apply") == []
    assert "paused by alice" in controller.job.sentence


def test_unknown_names_are_named_with_those_there_are(world: World, store: DatabaseStore) -> None:
    controller = enforcing(world, store)
    for order, known in (
        (Order("pause", job="x"), "demo"),
        (Order("resume", job="x"), "demo"),
        (Order("restore", job="x"), "demo"),
        (Order("restore", node="x"), "n1, n1:1, n2, n2:1"),
    ):
        done = obeyed(controller, order)
        assert done.refused == "unknown"
        assert done.sentence.endswith(f"there are: {known}")
    assert not world.at_default()
    assert controller.events("hold") == []


def test_where_the_store_fails_the_gpus_still_come_back(world: World, store: DatabaseStore) -> None:
    class Full(DatabaseStore):
        def keep_record(self, *_: object, **how: object) -> None:
            raise Unavailable("the disk is full")

    controller = enforcing(world, store)
    store.__class__ = Full
    done = obeyed(controller, Order("pause", job="demo", by="alice"))
    assert done.refused == "failed"
    assert "a restart would forget it: the disk is full" in done.sentence
    assert world.at_default()
    controller.run(20)
    assert world.at_default()
