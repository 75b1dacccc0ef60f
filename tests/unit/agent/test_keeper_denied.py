"""A driver that says no, or says no and does it: nothing of ours is left, nobody is fought."""

from pathlib import Path

import pytest
from keeper_board import Board, apply, on_disk, open_keeper, verdicts
from keeper_requests import apply_of

from joulecut_agent.keeper.requests import Status
from joulecut_agent.ports.failure import DeviceError, NotPermitted


def test_no_permission_on_the_first_write_is_the_end_of_control_not_of_the_keeper(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board = Board(fail=lambda call, uuid: NotPermitted("no_permission", "no right to set clocks"))
    keeper = open_keeper(tmp_path, board)
    for generation in (1, 2, 3):
        reply = apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900)}, generation)
        assert verdicts(reply) == {False}
        assert "no right to set clocks" in reply.slots[0].reason
    tried = ["lock GPU-a 0-900", "reset GPU-a"]
    assert board.calls == tried, "tried once, taken back in case it was done all the same"
    assert not on_disk(tmp_path)
    assert keeper.state.due_s() == float("inf")
    assert capfd.readouterr().err.count("no right") == 1
    status = keeper.handle(9, Status(("GPU-c",)))
    assert (status.slots[0].accepted, status.slots[0].reason) == (False, "no right to set clocks")


def test_a_driver_that_does_what_it_denies_leaves_no_lock(tmp_path: Path) -> None:
    board = Board()

    def fail(call: str, uuid: str) -> DeviceError | None:
        if call == "lock":
            board.locked[uuid] = (0, 900)
            return NotPermitted("no_permission", "no right")
        return None

    board.fail = fail
    keeper = open_keeper(tmp_path, board)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {False}
    assert not board.locked
    assert not on_disk(tmp_path)
    assert keeper.state.due_s() == float("inf")


def test_a_driver_that_sets_a_limit_and_denies_it_is_left_as_it_was(tmp_path: Path) -> None:
    board = Board()
    before = board.limits_mw["GPU-a"]

    def fail(call: str, uuid: str) -> DeviceError | None:
        if call == "limit" and board.limits_mw[uuid] == before:
            board.limits_mw[uuid] = 250_000
            return NotPermitted("no_permission", "no right")
        board.limits_mw[uuid] = before
        return None

    board.fail = fail
    keeper = open_keeper(tmp_path, board)
    alone = apply_of(1, "blue", 1, 30.0, {"GPU-a": (0, 0)}, power_mw={"GPU-a": 250_000})
    assert verdicts(keeper.handle(1, alone)) == {False}
    assert board.limits_mw["GPU-a"] == before
    assert not on_disk(tmp_path)
    assert keeper.state.due_s() == float("inf")


def test_a_lock_that_was_denied_and_cannot_be_reset_is_pending(tmp_path: Path) -> None:
    tries = []

    def fail(call: str, uuid: str) -> DeviceError | None:
        if call == "lock":
            return NotPermitted("no_permission", "no right")
        tries.append(uuid)
        return DeviceError("unknown", "an unknown error") if len(tries) < 3 else None

    board = Board(fail=fail)
    keeper = open_keeper(tmp_path, board)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {False}
    assert keeper.state.gpu("GPU-a").pending_restore
    assert keeper.state.due_s() < float("inf")
    assert keeper.restore_all("shutdown")


def test_it_restores_at_start_whatever_permission_says(tmp_path: Path) -> None:
    board = Board()
    assert verdicts(apply(open_keeper(tmp_path, board), {"GPU-a": (0, 900)})) == {True}
    denied = Board(locked=dict(board.locked), denied="no CAP_SYS_ADMIN")
    open_keeper(tmp_path, denied)
    assert denied.calls == ["reset GPU-a"]
    assert not denied.locked
    assert not on_disk(tmp_path)


def test_mig_and_strangers_are_refused_by_name(tmp_path: Path) -> None:
    board = Board(mig=frozenset({"GPU-b"}))
    keeper = open_keeper(tmp_path, board)
    reply = apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900), "GPU-x": (0, 900)})
    reasons = {slot.uuid: slot.reason for slot in reply.slots}
    assert reasons["GPU-b"] == "MIG is on"
    assert reasons["GPU-x"] == "no GPU GPU-x"
    assert "nothing was changed" in reasons["GPU-a"]
    assert not board.calls
