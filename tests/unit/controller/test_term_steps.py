"""A term that one agent alone has seen is no term to lead with: all others would refuse it."""

import pytest
from draws import SAFE
from hypothesis import given
from hypothesis import strategies as st
from keeper_requests import apply_of
from lease_machine import apply_event

from joulecut_agent.keeper.lease import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    State,
)
from joulecut_controller.election.epoch import QUIET_S, Comeback, confirmed_epoch
from joulecut_controller.election.fenced_fleet import FencedFleet
from joulecut_controller.ports import FleetState
from joulecut_controller.reconcile.cluster_board import other_controller
from joulecut_controller.view import GpuView, NodeView
from joulecut_wire.messages import GpuDescription, GpuSnapshot, Lease


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


@SAFE
@given(st.integers(1, EPOCH_MAX - 1), st.integers(0, 2**64 - 1), st.integers(2, 9))
def test_whatever_one_agent_says_the_others_take_the_next_term(
    seen: int, lie: int, honest: int
) -> None:
    for stored in (0, seen):
        term = max(stored, confirmed_epoch(_nodes(lie, *[seen] * honest), stored)) + 1
        assert term == seen + 1
        command = apply_of(term, "blue", 1, 9.0, {"GPU-a": (0, 900)})
        assert apply_event(State(seen), command, 0.0, {}).reasons == {"GPU-a": ""}


def _state(epochs: tuple[int, ...], lease: int = 0) -> FleetState:
    """Nodes that have followed these terms; a GPU under a lease of one, where it is not 0."""
    held = GpuSnapshot("g", lease=Lease("job", lease, 1, 0, 1980, 5.0))
    gpu = GpuView(GpuDescription("g", 0, "", (1980,)), "n0:1", "n0", held, 0.5)
    return FleetState(tuple(_nodes(*epochs)), (gpu,) if lease else ())


def _due_s(comeback: Comeback, state: FleetState, begun_s: float) -> float:
    return next(t for t in range(10_000) if comeback.due(state, 5, begun_s + t))


def test_a_controller_comes_back_by_itself_once_no_lease_of_the_other_is_left() -> None:
    comeback, alive, gone = Comeback(), _state((8, 8, 8), lease=8), _state((8, 8, 8))
    assert not any(comeback.due(alive, 5, 10.0 * n) for n in range(1000))
    assert _due_s(comeback, gone, 10_000.0) == QUIET_S
    # Twice as long after each time: two that enforce do not take turns.
    assert _due_s(comeback, gone, 20_000.0) == 2.0 * QUIET_S
    assert not any(comeback.due(_state((5, 5, 8)), 5, 30_000.0 + 10 * n) for n in range(1000))


@pytest.mark.parametrize("enforces", [True, False])
def test_agents_of_another_controller_are_named_and_cost_a_dry_run_nothing(
    *, enforces: bool
) -> None:
    class Inner:
        def observe(self, *_: object) -> FleetState:
            return _state((9, 7, 5, 2))

    fleet = FencedFleet(Inner(), lambda: True, 8, earlier=5, enforces=lambda: enforces)
    nodes = fleet.observe(0.0).nodes
    assert [node.other_term for node in nodes] == [9, 7, 0, 0]
    assert [bool(node.quarantine) for node in nodes] == [enforces, False, False, False]
    said = other_controller(nodes)
    assert "2 of the agents" in said
    assert "epoch 9" in said
    assert not other_controller(nodes[2:])
