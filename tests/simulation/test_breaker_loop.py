"""The breaker in the whole loop: what saves a job when everything that plans for it is wrong."""

import itertools

import numpy as np
import pytest
from worlds import Controller, World

from joulecut_controller.policy.policy import Slo
from joulecut_controller.reconcile.holds import STAND_BACK_S
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.trust.breaker import WINDOWS
from joulecut_engine.estimate.estimator import Prediction, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_wire.errors import Unavailable

PASSES_TO_PLAN = 25
INTERVAL_S = 2.0  # an iteration takes more than a second


class Liar(OnlineEstimator):
    """A predictor for which no clock costs time, and the cheapest is another every 6 s.

    Planner and guard believe it, and no plan runs long enough to be found late: neither pace
    nor check nor guard can save the job.
    """

    def __init__(self, world: World) -> None:
        super().__init__({})
        self._world = world

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        honest = super().predict(subject, clocks_mhz)
        if honest is None:
            return None
        fastest = super().predict(subject, (self._world.sku.clock_max_mhz,))
        flat_s = np.full_like(honest.time_s, fastest.time_s[0])
        power_w = np.full_like(honest.power_w, fastest.power_w[0])
        power_w[int(self._world.now_s / 6.0) % min(2, len(clocks_mhz))] *= 0.6
        return Prediction(clocks_mhz, flat_s, power_w)


def lied_to(world: World, store: DatabaseStore, slo: Slo | None = None) -> Controller:
    """A controller that has acted on the lie."""
    policy = world.policy(slo=slo)
    controller = Controller(world, store, policy, learner=Liar(world), interval_s=INTERVAL_S)
    controller.run(PASSES_TO_PLAN * 10, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence
    return controller


def slow_world(seed: int = 1, card: str = "a100-sxm") -> World:
    """Iterations of more than a second: few of them between two lies."""
    return World(stages=2, microbatches=8, scale=0.85, seed=seed, card=card)


def late(world: World, since: int, limit_s: float) -> int:
    """Iterations at lower clocks that took longer than the target allows."""
    top = {world.sku.clock_max_mhz}
    return sum(
        set(clocks.values()) != top and time_s > limit_s
        for _, time_s, clocks in world.history[since:]
    )


def times_lowered(world: World, since: int) -> int:
    """How often clocks went from default to lower ones."""
    top = {world.sku.clock_max_mhz}
    lowered = [set(clocks.values()) != top for _, _, clocks in world.history[since:]]
    return sum(now and not before for before, now in itertools.pairwise([False, *lowered]))


@pytest.mark.first
def test_two_slow_windows_clear_the_job_and_three_trips_end_control(store: DatabaseStore) -> None:
    """Predictor, planner and guard are all wrong, and stay wrong: only the breaker is left."""
    world, slo = slow_world(), Slo(max_slowdown=0.02)
    default_s = world.plant.iterate([world.sku.clock_max_mhz] * world.stages).own_s
    controller = lied_to(world, store, slo)
    for trip in range(1, 4):
        before = len(world.history)
        controller.run(3000, until=lambda trip=trip: controller.job.trips == trip)
        assert world.at_default()
        # Two windows in a row, one before them that was late in part, and the steps in between.
        assert late(world, before, slo.deadline_s(default_s)) <= 3 * WINDOWS[0] + 4
        assert controller.job.applied is None
        assert controller.job.trips == trip
        (hold,) = controller.job.holds
        assert hold.kind == "breaker"
        if trip < 3:
            controller.run(4)
            world.advance(STAND_BACK_S[trip - 1] - 20.0)
            controller.run(4)
            assert world.at_default()
            assert "the breaker released the GPUs" in controller.job.sentence
            controller.run(1500, until=lambda: not world.at_default())
            assert not world.at_default(), controller.job.sentence
    assert "`joulecut resume demo` arms it again" in controller.job.sentence
    sent = len(world.sent("apply"))
    world.advance(STAND_BACK_S[0])
    controller.run(30)
    policy = world.policy(slo=slo)
    again = Controller(world, store, policy, learner=Liar(world), interval_s=INTERVAL_S)
    again.run(40)
    assert world.at_default(), "a restart does not arm it again"
    assert len(world.sent("apply")) == sent
    assert len([text for text in controller.events("hold") if "trip 3 of 3" in text]) == 1


STEPS = 8  # iterations between two windows
CHANGING = 3  # iterations that begin before lowered clocks are known to be in force, in no window
LATE_IN_PART = WINDOWS[0] - 4  # the window before two late ones


@pytest.mark.parametrize(
    ("seed", "budget", "card", "as_rate", "more"),
    [
        pytest.param(11, 0.01, "a40", False, 0, marks=pytest.mark.nightly),
        pytest.param(13, 0.0, "a100-sxm", False, 0, marks=pytest.mark.nightly),
        (1, 0.03, "a100-sxm", True, LATE_IN_PART),
    ],
)
def test_no_job_is_slow_for_longer_than_two_windows_whatever_the_plans(
    store: DatabaseStore, seed: int, budget: float, card: str, as_rate: bool, more: int
) -> None:
    world = slow_world(seed, card)
    default_s = world.plant.iterate([world.sku.clock_max_mhz] * world.stages).own_s
    allowed_s = default_s * (1.0 + budget)
    slo = Slo(max_slowdown=budget)
    if as_rate:
        slo = Slo(max_iteration_time_s=allowed_s, given_as="min_rate")
    controller = lied_to(world, store, slo)
    before = len(world.history)
    controller.run(300, until=lambda: controller.job.trips == 1)
    assert world.at_default()
    # Planner and breaker are independent: a plan found late is tried again, later each time.
    hidden = CHANGING * (times_lowered(world, before) - 1)
    assert late(world, before, allowed_s) <= 2 * WINDOWS[0] + STEPS + more + hidden


def test_the_breaker_works_where_the_store_fails(store: DatabaseStore) -> None:
    world = slow_world()
    controller = lied_to(world, store)

    class Full(DatabaseStore):
        def keep_record(self, *_: object, **how: object) -> None:
            raise Unavailable("the disk is full")

    store.__class__ = Full
    controller.run(600, until=lambda: bool(controller.job.trips))
    controller.run(5)
    assert world.at_default()
    controller.run(10)
    assert world.at_default()
    store.__class__ = DatabaseStore
