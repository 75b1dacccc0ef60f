"""A term that one agent alone has seen is no term to lead with: all others would refuse it."""

import pytest
from keeper_requests import apply_of
from lease_machine import apply_event

from joulecut_agent.keeper.lease import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    State,
)
from joulecut_controller.reconcile.leases import impossible_epoch
from joulecut_controller.view import NodeView


def _nodes(*epochs: int) -> list[NodeView]:
    return [NodeView(f"n{n}:1", "", True, epoch_seen=epoch) for n, epoch in enumerate(epochs)]


@pytest.mark.parametrize(
    ("epochs", "strange"),
    [
        ((), ""),
        ((0, 0), ""),
        ((7, 0, 9), ""),
        ((7, 7 + EPOCH_STEP_MAX - 1), ""),
        ((7, 7 + EPOCH_STEP_MAX), "n1:1"),
        ((EPOCH_MAX, EPOCH_MAX - 1), ""),
        ((EPOCH_MAX + 1,), "n0:1"),
    ],
)
def test_what_is_absurd_is_named_and_all_else_is_taken_by_every_agent(
    epochs: tuple[int, ...], strange: str
) -> None:
    found = impossible_epoch(_nodes(*epochs))
    assert (strange in found) if strange else found == ""
    if not found:
        term = max(epochs, default=0) + 1
        for seen in epochs:
            command = apply_of(term, "blue", 1, 9.0, {"GPU-a": (0, 900)})
            reasons = apply_event(State(seen), command, 0.0, {}).reasons
            assert reasons == {"GPU-a": ""} or term > EPOCH_MAX
