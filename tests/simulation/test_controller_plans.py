"""What the solver offers to a running job: margins, waiting, a power budget, other schedules."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from at_once import AtOnce
from enforced import PASSES_TO_PLAN, enforcing
from worlds import Controller, World, few_points

from joulecut_controller.policy.policy import Slo
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity, Kind, Pipeline, Profile, Schedule
from joulecut_engine.graph.shape import chunks_of, part_of
from joulecut_engine.money import Prices
from joulecut_engine.optimize.problem import Problem, Solution

T = TypeVar("T")


def test_a_straggler_is_waited_for_and_its_recovery_is_not(
    world: World, store: DatabaseStore
) -> None:
    controller = enforcing(world, store)
    before = world.clocks_mhz()
    alone_s = world.recent_s()
    world.peer_s = alone_s * 1.15
    took = controller.run(6, until=lambda: world.clocks_mhz() != before)
    assert took <= 3
    during = world.clocks_mhz()
    assert all(during[uuid] <= before[uuid] for uuid in before)
    assert sum(during.values()) < sum(before.values())
    controller.run(20)
    assert world.recent_s() <= world.peer_s * 1.005
    applied = controller.job.applied
    assert "is waited for" in applied.reason
    world.peer_s = 0.0
    # Clocks of its own deadline again, which one more measurement may move by a step of 15 MHz.
    took = controller.run(
        6,
        until=lambda: all(world.clocks_mhz()[uuid] >= mhz - 15 for uuid, mhz in before.items()),
    )
    assert took <= 3
    controller.run(15)
    assert world.recent_s() <= alone_s * 1.005


class Busy(AtOnce):
    """Workers that keep their answers while `busy`."""

    def __init__(self) -> None:
        super().__init__()
        self.busy, self._asked = False, list[Callable[[], None]]()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if not self.busy:
            return super().submit(fn, *args, **kwargs)
        done: Future[T] = Future()
        self._asked.append(lambda: done.cancelled() or done.set_result(fn(*args, **kwargs)))
        return done

    def answer(self) -> None:
        self.busy = False
        for one in self._asked:
            one()


def test_clocks_for_a_straggler_do_not_outlive_it_while_the_solver_is_busy(
    world: World, store: DatabaseStore
) -> None:
    planners = Busy()
    controller = Controller(world, store, world.policy(), planners=planners)
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    controller.run(15)
    alone_s = world.recent_s()
    world.peer_s = alone_s * 1.15
    controller.run(20)
    assert "is waited for" in controller.job.applied.reason
    planners.busy, world.peer_s = True, 0.0
    policy = world.policy(slo=Slo(max_slowdown=0.03), digest="2")  # another question
    controller.source.put(policy)
    assert controller.run(6, until=world.at_default) <= 3
    assert controller.job.sentence.startswith("the sibling waited for is fast again")
    planners.answer()
    controller.run(10, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence
    controller.run(15)
    assert world.recent_s() <= alone_s * 1.015


def test_layerwise_synchronisation_gets_no_credit_for_waiting(
    world: World, store: DatabaseStore
) -> None:
    controller = enforcing(world, store, pipeline=replace(world.pipeline, sync="layer"))
    plans = controller.plans()
    world.peer_s = world.recent_s() * 1.15
    controller.run(15)
    assert controller.plans() == plans


def test_a_power_budget_slows_an_enforced_job_and_lets_it_go_again(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = world.policy(slo=Slo(max_slowdown=0.0, tolerance=0.0))
    controller = Controller(world, store, policy, frontier=few_points)
    controller.run(200, until=lambda: bool(controller.job.frontier))
    default_s = world.recent_s()
    drawn_w = controller.job.frontier[0].energy_j / controller.job.frontier[0].iteration_time_s
    tight = replace(policy, power_budget_w=0.93 * drawn_w, digest="tight")
    controller.source.put(tight)
    controller.run(60, until=lambda: controller.job.applied is not None)
    plan, budget = controller.job.applied, controller.boards[-1].budget
    assert plan is not None, controller.job.sentence
    assert budget is not None
    assert "power budget" in plan.reason
    assert plan.forecast.slowdown_ratio > 0.005
    assert plan.forecast.energy_j / plan.forecast.iteration_time_s <= tight.power_budget_w * 1.005
    controller.run(40)
    current = controller.job.view.measured.current
    assert current.power_w <= tight.power_budget_w * 1.03
    controller.source.put(replace(policy, digest="free"))
    controller.run(20)
    assert world.recent_s() <= default_s * 1.001
    assert controller.boards[-1].budget is None


def test_a_power_budget_only_advises_where_nothing_is_enforced(store: DatabaseStore) -> None:
    world = World(stages=2, microbatches=8)
    policy = replace(world.policy("recommend", slo=Slo(max_slowdown=0.0)), power_budget_w=1.0)
    controller = Controller(world, store, policy, frontier=few_points)
    controller.run(200, until=lambda: bool(controller.job.frontier))
    controller.run(5)
    assert world.calls == []
    assert any("no plans keep" in text for text in controller.events("plan"))
    assert sum("no plans keep" in text for text in controller.events("plan")) == 1
    budget = controller.boards[-1].budget
    assert budget.complaint


@pytest.mark.parametrize(
    "schedule",
    [
        "zb-v",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("zb-h1", "dualpipe-v")),
        "interleaved-1f1b",
    ],
)
def test_other_schedules_are_planned_from_a_profile_of_their_kinds(
    store: DatabaseStore, schedule: Schedule
) -> None:
    world = World(stages=2, microbatches=8)
    pipeline = Pipeline(schedule, 2, 8, chunks=chunks_of(schedule, None))
    chunks = pipeline.chunks
    parts: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for (stage, kind), menu in world.profile().options.items():
        split: tuple[tuple[Kind, float], ...] = ((kind, 1.0),)
        if kind == "backward":
            split += (("input", 0.5), ("weight", 0.5))
        for chunk in range(chunks):
            for part, share in split:
                ratio = share / chunks
                parts[part_of(pipeline, stage, chunk), part] = tuple(
                    ClockOption(o.clock_mhz, o.time_s * ratio, o.energy_j * ratio) for o in menu
                )
    profile = Profile({key: parts[key] for key in sorted(parts)}, "made")
    # What the job measures is another schedule's time; an absolute target far off fits any.
    policy = world.policy("recommend", pipeline=pipeline, profile=profile)
    priced: list[Problem] = []

    def frontier(
        problem: Problem, points: int, granularity: Granularity, *, prices: Prices | None
    ) -> tuple[Solution, ...]:
        priced.append(problem)
        return ()

    controller = Controller(world, store, policy, frontier=frontier)
    controller.run(PASSES_TO_PLAN)
    sentence = controller.job.sentence
    assert "graph predicts" in sentence or controller.job.decision is not None, sentence
    controller.run(100, until=lambda: bool(priced))
    assert len(priced[-1].graph.operations) >= 2 * 8 * chunks * 2


def test_a_job_is_measured_again_before_a_plan_rests_on_another_profile(
    store: DatabaseStore,
) -> None:
    world = World()
    controller = enforcing(world, store)
    held, sent = controller.plans()[-1], len(world.sent("apply"))
    other = world.policy(digest="2", profile=world.profile(lowest_mhz=950))
    controller.source.put(other)
    controller.run(1)
    assert world.at_default()
    assert controller.job.view.measured.baseline is None
    begun_s = world.now_s
    controller.run(PASSES_TO_PLAN, until=lambda: len(world.sent("apply")) > sent)
    assert not world.at_default()
    baseline = controller.job.view.measured.baseline
    assert world.now_s - begun_s > 0.9 * baseline.iterations * baseline.time_mean_s
    assert controller.plans()[-1] > held
