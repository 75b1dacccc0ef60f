"""A controller that holds a plan for a world's job: where most stories begin."""

from worlds import Controller, World

from joulecut_controller.ports import Store

PASSES_TO_PLAN = 25  # a baseline of 30 iterations, confirmed by several looks


def enforcing(world: World, store: Store, **policy: object) -> Controller:
    """A controller that holds a plan, some time after the change."""
    controller = Controller(world, store, world.policy(**policy))
    controller.run(PASSES_TO_PLAN, until=lambda: not world.at_default())
    assert not world.at_default(), controller.boards[-1].sentence
    controller.run(15)
    return controller
