"""A term that one agent alone has seen is no term to lead with: all others would refuse it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keeper_requests import apply_of
from lease_machine import apply_event

from joulecut_agent.keeper.lease import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    State,
)
from joulecut_controller.reconcile.leases import confirmed_epoch
from joulecut_controller.view import NodeView


def _nodes(*epochs: int) -> list[NodeView]:
    return [NodeView(f"n{n}:1", "", True, epoch_seen=epoch) for n, epoch in enumerate(epochs)]


@pytest.mark.parametrize(
    ("epochs", "stored", "confirmed"),
    [
        ((), 0, 0),
        ((), 5, 5),
        ((0, 0), 0, 0),
        ((7, 0), 0, 7),  # a store that was lost
        ((7, 9), 0, 9),
        ((9,), 4, 9),  # a store that is older
        ((9, 9), 4, 9),
        ((7, 7, 12), 0, 7),  # one alone is not believed
        ((7, 12), 7, 7),
        ((7, 7, 7 + EPOCH_STEP_MAX), 0, 7),
        ((7, 7 + EPOCH_STEP_MAX), 0, 7),
        ((EPOCH_MAX, EPOCH_MAX - 1), 0, EPOCH_MAX),
        ((EPOCH_MAX + 1,), 0, 0),
        ((2**64 - 1, 3), 3, 3),
    ],
)
def test_one_agent_alone_does_not_set_the_term(
    epochs: tuple[int, ...], stored: int, confirmed: int
) -> None:
    assert confirmed_epoch(_nodes(*epochs), stored) == confirmed


@given(st.integers(1, EPOCH_MAX - 1), st.integers(0, 2**64 - 1), st.integers(2, 9))
def test_whatever_one_agent_says_the_others_take_the_next_term(
    seen: int, lie: int, honest: int
) -> None:
    for stored in (0, seen):
        term = max(stored, confirmed_epoch(_nodes(lie, *[seen] * honest), stored)) + 1
        assert term == seen + 1
        command = apply_of(term, "blue", 1, 9.0, {"GPU-a": (0, 900)})
        assert apply_event(State(seen), command, 0.0, {}).reasons == {"GPU-a": ""}
