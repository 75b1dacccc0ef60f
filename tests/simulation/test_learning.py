"""What the estimator learns of a running job, as the board says it."""

from worlds import Controller, World

from joulecut_controller.board import Learnt
from joulecut_controller.store.database import DatabaseStore
from joulecut_engine.estimate.online import OnlineEstimator

PASSES = 400  # more than enough


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
