"""The breaker in the whole loop: what saves a job when everything that plans for it is wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import Controller, World

from joulecut_controller.policy.policy import Slo
from joulecut_controller.reconcile.holds import STAND_BACK_S
from joulecut_controller.solve.problem import Goal, Problem, Solution
from joulecut_controller.solve.solver import Solver
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.verify.breaker import WINDOWS
from joulecut_controller.workload import Granularity
from joulecut_sim.plant import Noise
from joulecut_wire.errors import Unavailable

PASSES_TO_PLAN = 25


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    made = open_store(f"sqlite:///{tmp_path}/controller.db")
    yield made
    made.close()


class Liar:
    """A solver that plans 30 % slower than it says, whatever it is asked."""

    def __init__(self, problem: Problem, granularity: Granularity) -> None:
        self._solver = Solver(problem, granularity)

    @property
    def fastest_s(self) -> float:
        return self._solver.fastest_s

    def solve(self, goal: Goal, hints: Sequence[Solution] = ()) -> Solution:
        slow = self._solver.solve(Goal(self.fastest_s * 1.3, goal.waits), hints)
        return replace(slow, iteration_time_s=goal.deadline_s)


def believes_all(problem: Problem, goal: Goal, solution: Solution) -> tuple[str, ...]:
    """A second opinion that finds no fault."""
    return ()


def lied_to(world: World, store: DatabaseStore, slo: Slo | None = None) -> Controller:
    """A controller whose solver and checker both lie, once it has acted on that."""
    policy = world.policy(slo=slo)
    controller = Controller(world, store, policy, prepare=Liar, judge=believes_all)
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence
    return controller


def slow_iterations(world: World, allowed_s: float) -> int:
    return sum(duration_s > allowed_s for _, duration_s, _ in world.history)


@pytest.mark.parametrize(
    "slo", [Slo(max_slowdown=0.02), Slo(max_iteration_time_s=0.0, given_as="min_rate")]
)
def test_two_slow_windows_clear_the_job_and_three_trips_end_control(
    store: DatabaseStore, slo: Slo
) -> None:
    """Planner, solver and guard are all wrong, and stay wrong: only the breaker is left."""
    world = World()
    default_s = world.plant.iterate([world.sku.clock_max_mhz] * world.stages).own_s
    if slo.max_slowdown is None:
        slo = replace(slo, max_iteration_time_s=default_s * 1.03)
    controller = lied_to(world, store, slo)
    for trip in range(1, 4):
        before = len(world.history)
        assert controller.run(60, until=world.at_default) < 60, trip
        took = len(world.history) - before
        assert took <= 2 * WINDOWS[0] + 20, "two windows, and a lease of reports on the way"
        assert controller.job.applied is None
        assert controller.job.trips == trip
        (hold,) = controller.job.holds
        assert hold.kind == "breaker"
        if trip < 3:
            wait = int(STAND_BACK_S[trip - 1] / controller.interval_s)
            controller.run(wait - 5)
            assert world.at_default()
            assert "the breaker gave the GPUs back" in controller.job.sentence
            controller.run(40, until=lambda: not world.at_default())
            assert not world.at_default(), controller.job.sentence
    assert "`joulecut resume demo` arms it again" in controller.job.sentence
    sent = len(world.sent("apply"))
    controller.run(int(2 * STAND_BACK_S[-1]))
    again = Controller(world, store, world.policy(slo=slo), prepare=Liar, judge=believes_all)
    again.run(30)
    assert world.at_default(), "a restart does not arm it again"
    assert len(world.sent("apply")) == sent
    assert len([text for text in controller.events("hold") if "trip 3 of 3" in text]) == 1


def test_without_the_breaker_the_lie_would_stand(store: DatabaseStore) -> None:
    """What the test above rests on: the planner sees that it is late, and can do nothing."""
    world = World()
    controller = lied_to(world, store)
    clocks = world.clocks_mhz()
    controller.run(60, until=world.at_default)
    assert "measured late" in controller.events("plan")[-2] or any(
        "backing off" in text for text in controller.events("verify")
    )
    held = {tuple(sorted(seen.items())) for _, _, seen in world.history[-2 * WINDOWS[0] :]}
    assert held == {tuple(sorted(clocks.items()))}, "no plan ever changed a clock"


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    budget=st.sampled_from((0.0, 0.01, 0.05)),
    noise=st.sampled_from((0.0, 0.005, 0.02)),
    cards=st.sampled_from(("a40", "a100-sxm")),
)
def test_no_job_is_slow_for_long_whatever_the_plans(
    tmp_path_factory: pytest.TempPathFactory, seed: int, budget: float, noise: float, cards: str
) -> None:
    """From outside: how many iterations beyond the budget a lying controller can cause."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('s')}/c.db")
    world = World(card=cards, stages=2, microbatches=6, noise=Noise(0.0, noise), seed=seed)
    controller = Controller(
        world, store, world.policy(slo=Slo(max_slowdown=budget)), prepare=Liar, judge=believes_all
    )
    controller.run(int(sum(STAND_BACK_S)) + 400)
    default_s = min(duration_s for _, duration_s, _ in world.history)
    slow = slow_iterations(world, default_s * (1.0 + budget + 0.15 + 4 * noise))
    per_pass = controller.interval_s / default_s
    assert slow <= 3 * (2 * WINDOWS[0] + 4 * per_pass + 8)
    store.close()


def test_an_honest_controller_is_never_stopped(store: DatabaseStore) -> None:
    """Thousands of noisy iterations, a new target, a straggler: no trip."""
    world = World(noise=Noise(0.005, 0.01), seed=7)
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=0.02)))
    controller.run(1200)
    assert not world.at_default()
    controller.source.put(world.policy(slo=Slo(max_slowdown=0.05), digest="2"))
    controller.run(600)
    world.peer_s = world.recent_s() * 1.2
    controller.run(300)
    world.peer_s = 0.0
    controller.run(900)
    assert len(world.history) > 3000
    assert controller.events("hold") == []
    assert not world.at_default()


def test_a_job_that_became_slower_by_itself_is_acquitted(store: DatabaseStore) -> None:
    """The trip is safe and cheap: default clocks show the same, and control goes on."""
    world = World()
    controller = Controller(world, store, world.policy(slo=Slo(max_slowdown=0.02)))
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    world.slow_ratio = 1.25  # another data set, a slower file system
    controller.run(int(STAND_BACK_S[0]) + 120)
    assert not world.at_default(), controller.job.sentence
    assert controller.job.trips == 0
    trips = [text for text in controller.events("hold") if "trip 1 of 3" in text]
    acquittals = [text for text in controller.events("hold") if "does not count" in text]
    assert len(trips) == len(acquittals) <= 1


def test_the_breaker_works_where_the_store_fails(store: DatabaseStore) -> None:
    world = World()
    controller = lied_to(world, store)
    keep = store.keep_record

    class Full(DatabaseStore):
        def keep_record(self, record: object) -> None:
            raise Unavailable("the disk is full")

    store.__class__ = Full
    controller.run(60, until=world.at_default)
    assert world.at_default()
    assert controller.run(40) == 40
    assert world.at_default()
    store.__class__ = DatabaseStore
    assert keep is not None
