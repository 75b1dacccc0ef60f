"""What the predictors learnt survives a controller: stopped, killed, or met by a newer file."""

import pytest
from worlds import Controller, World

from joulecut_controller.board import Learnt
from joulecut_controller.reconcile.learning import KEEP_S, NAME, packed, unpacked
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.estimate.estimator import Prediction, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import KINDS

PASSES = 400  # more than enough
LEARNED = 30  # samples


def _asked(world: World, learner: OnlineEstimator) -> list[Prediction]:
    found = [
        learner.predict(Subject(world.job, uuid, stage, kind), world.sku.clocks_mhz)
        for stage, uuid in enumerate(world.uuids)
        for kind in KINDS
    ]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


def _bytes(predictions: list[Prediction]) -> list[bytes]:
    return [array.tobytes() for one in predictions for array in (one.time_s, one.power_w)]


def _learning(world: World, store: DatabaseStore) -> tuple[Controller, OnlineEstimator]:
    """A controller in the middle of learning."""
    learner = OnlineEstimator({})
    controller = Controller(world, store, world.policy(), learner=learner)
    controller.run(PASSES, until=lambda: learner.learning_stats(world.job).taken >= LEARNED)
    assert learner.learning_stats(world.job).taken >= LEARNED
    controller.run(7)
    return controller, learner


class Unfitted(OnlineEstimator):
    """Asks for no fit of its own: what it answers is what was taken back."""

    def due(self) -> bool:
        return False


def _anew(world: World, store: DatabaseStore) -> tuple[Controller, OnlineEstimator]:
    """The next controller, which has taken back what there is, and seen nothing yet."""
    learner = Unfitted({})
    controller = Controller(world, store, world.policy("recommend"), learner=learner)
    world.running = False
    world.take_reports()
    controller.run(1)
    return controller, learner


def test_a_controller_that_was_killed_loses_no_more_than_the_last_moments(
    store: DatabaseStore,
) -> None:
    """Nobody says good-bye: what the store holds is at most `KEEP_S` old."""
    world = World()
    first, before = _learning(world, store)
    kept = before.state()
    taken = before.learning_stats(world.job).taken
    first.run(int(KEEP_S) + 1)
    _, after = _anew(world, store)
    assert taken < after.learning_stats(world.job).taken <= before.learning_stats(world.job).taken
    assert after.state()["window"] != kept["window"]


def _version(content: str) -> str:
    return packed({**unpacked(content), "version": 99})


def _nonsense(content: str) -> str:
    state = unpacked(content)
    return packed({**state, "window": [["not", "a", "cell"]]})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "not packed at all", "damaged"),
        (lambda text: packed({})[:-4], "damaged"),
        (_version, "version 99, not 2"),
        (_nonsense, "not the state of an estimator"),
    ],
    ids=["cut", "text", "short", "newer", "nonsense"],
)
def test_damaged_state_is_one_line_and_learning_starts_over(
    store: DatabaseStore, damage: object, said: str
) -> None:
    assert callable(damage)
    world = World()
    first, _ = _learning(world, store)
    first.stop()
    store.keep_learnt(NAME, damage(store.learnt(NAME)))
    second, after = _anew(world, store)
    (line,) = second.events("learn")
    assert "starts empty" in line
    assert said in line
    assert "\n" not in line
    assert after.learning_stats(world.job).taken == 0
    fresh = OnlineEstimator({world.job: world.profile()})
    assert _bytes(_asked(world, after)) == _bytes(_asked(world, fresh))


def test_another_profile_starts_over(store: DatabaseStore) -> None:
    world = World()
    first, _ = _learning(world, store)
    first.stop()
    learner = OnlineEstimator({})
    policy = world.policy("recommend", profile=world.profile(lowest_mhz=900))
    second = Controller(world, store, policy, learner=learner)
    world.running = False
    world.take_reports()
    second.run(1)
    assert learner.learning_stats(world.job).taken == 0
    fresh = OnlineEstimator({world.job: world.profile(lowest_mhz=900)})
    assert _bytes(_asked(world, learner)) == _bytes(_asked(world, fresh))


def test_a_fit_is_put_in_force_in_a_later_pass_and_passes_do_not_wait(
    store: DatabaseStore,
) -> None:
    world = World()
    learner = OnlineEstimator({})
    controller = Controller(world, store, world.policy("recommend"), learner=learner)
    controller.run(1)
    assert controller.boards[-1].sentence
    assert controller.job.learnt == Learnt(
        "predicted from the profile; nothing learned from the running job yet"
    )
    controller.run(PASSES, until=lambda: learner.learning_stats(world.job).taken > 0)
    controller.run(1)
    text = controller.job.learnt.text
    assert text.startswith("predicted from the profile and ")
    assert "before learning" in text
