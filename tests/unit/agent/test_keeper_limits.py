"""Clocks and power limits of one GPU: each knob is owned alone, and goes back alone."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from held_clock import HeldClock
from keeper_board import Board, apply, on_disk, open_keeper, opened, set_both
from keeper_requests import apply_of
from msgspec.structs import replace

from joulecut_agent.keeper import keeper as keeper_module
from joulecut_agent.keeper.lease import LATE_AGAIN_S, LATE_S
from joulecut_agent.keeper.requests import Clear, Status
from joulecut_agent.ports.failure import DeviceError, NotPermitted, Transient, Unanswered


@dataclass
class LateBoard(Board):
    """Its first power limit has no effect yet; the call is answered, or not."""

    answered: bool = True
    waited: bool = False

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        if self.waited:
            super().limit_power(uuid, limit_mw)
            return
        self.waited = True
        if not self.answered:
            raise Unanswered("driver_unresponsive", "no answer")


def test_a_limit_that_a_reverted_command_would_have_restored_is_not_forgotten(
    tmp_path: Path,
) -> None:
    board, keeper = opened(tmp_path)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    board.fail = lambda call, uuid: Transient("t", "busy") if board.limits_mw[uuid] else None
    assert not set_both(keeper, "GPU-a", 2, (0, 0), 200).accepted
    board.fail = lambda call, uuid: None
    assert keeper.restore_all("shutdown")
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)


@pytest.mark.parametrize("then", [((0, 0), 200), ((0, 600), 0)])
def test_a_keeper_that_dies_in_a_write_leaves_both_limits_to_the_next(
    tmp_path: Path, then: tuple[tuple[int, int], int]
) -> None:
    class Died(Exception):
        """In the place of a signal."""

    board, keeper = opened(tmp_path)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted

    def die(call: str, uuid: str) -> DeviceError | None:
        raise Died

    board.fail = die
    with pytest.raises(Died):
        set_both(keeper, "GPU-a", 2, *then)
    board.fail = lambda call, uuid: None
    keeper = open_keeper(tmp_path, board)
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)


def test_of_two_limits_the_one_that_was_permitted_is_restored(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    board.fail = lambda call, _: NotPermitted("no", "no right") if call == "limit" else None
    assert not set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    assert not board.locked


def test_each_limit_is_owned_alone_and_goes_back_alone(tmp_path: Path) -> None:
    board = Board()
    board.limits_mw["GPU-a"] = 350_000  # the site's
    keeper = open_keeper(tmp_path, board)
    assert set_both(keeper, "GPU-a", 1, (0, 0), 300).accepted
    assert board.calls == ["limit GPU-a 300"], "no clock was asked for"
    assert set_both(keeper, "GPU-a", 2, (0, 900), 250).accepted
    assert apply(keeper, {"GPU-a": (0, 900)}, 3).slots[0].accepted
    assert board.limits_mw["GPU-a"] == 350_000, "no longer asked for: as it was before us"
    assert set_both(keeper, "GPU-a", 4, (0, 0), 200).accepted
    assert not board.locked
    board.calls.clear()
    keeper.handle(2, Clear())
    assert board.calls == ["limit GPU-a 350"]
    assert not on_disk(tmp_path)


@pytest.mark.parametrize(
    ("safe", "expired_w", "cleared_w"),
    [("recorded", 350, 350), ("keep", 200, 350), (180_000, 180, 350)],
)
def test_a_power_limit_falls_to_its_safe_value_and_a_person_gets_the_old_one_back(
    tmp_path: Path, safe: str | int, expired_w: int, cleared_w: int
) -> None:
    board = Board()
    board.limits_mw["GPU-a"] = 350_000
    keeper = open_keeper(tmp_path, board, power_safe=safe)
    command = apply_of(1, "blue", 1, 0.05, {"GPU-a": (0, 0)}, power_mw={"GPU-a": 200_000})
    assert keeper.handle(1, command).slots[0].accepted
    time.sleep(0.06)
    keeper.tick()
    assert board.limits_mw["GPU-a"] == expired_w * 1000
    assert not on_disk(tmp_path)
    keeper = open_keeper(
        tmp_path, board, power_safe=safe
    )  # and the journal still knows the old one
    assert keeper.handle(1, replace(command, generation=2, ttl_s=30.0)).slots[0].accepted
    keeper.handle(2, Clear())
    assert board.limits_mw["GPU-a"] == cleared_w * 1000


def test_a_limit_that_was_put_back_is_recorded_again_the_next_time(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    for generation, site_mw in enumerate((350_000, 380_000), start=1):
        board.limits_mw["GPU-a"] = site_mw
        assert set_both(keeper, "GPU-a", generation, (0, 0), 200).accepted
        keeper.handle(2, Clear())
        assert board.limits_mw["GPU-a"] == site_mw


def test_a_denied_command_does_not_forget_what_stood_there_before_the_safe_value(
    tmp_path: Path,
) -> None:
    board, keeper = opened(tmp_path, power_safe=180_000)
    assert set_both(keeper, "GPU-a", 1, (0, 0), 200).accepted
    keeper.handle(2, Clear(cause="job_ended"))
    assert board.limits_mw["GPU-a"] == 180_000
    board.fail = lambda call, uuid: NotPermitted("no", "no right")
    assert not set_both(keeper, "GPU-a", 2, (0, 0), 200).accepted
    board.fail = lambda call, uuid: None
    keeper = open_keeper(tmp_path, board, power_safe=180_000)
    assert set_both(keeper, "GPU-a", 3, (0, 0), 200).accepted
    keeper.handle(2, Clear())
    assert board.limits_mw["GPU-a"] == 400_000


def test_a_limit_that_fails_takes_the_clock_of_its_group_back(tmp_path: Path) -> None:
    board = Board(fail=lambda call, uuid: Transient("t", "busy") if call == "limit" else None)
    keeper = open_keeper(tmp_path, board)
    slot = set_both(keeper, "GPU-a", 1, (0, 900), 200)
    assert "the group was reverted" in slot.reason
    assert not board.locked
    board.fail = lambda call, uuid: None
    assert keeper.restore_all("shutdown")
    assert board.limits_mw["GPU-a"] == 400_000
    assert not on_disk(tmp_path)


def test_two_limits_denied_at_the_first_leave_nothing_pending(tmp_path: Path) -> None:
    """Nothing was written, so nothing is to be undone: neither for ever nor at the end."""
    board = Board(fail=lambda call, uuid: NotPermitted("no_permission", "no right"))
    keeper = open_keeper(tmp_path, board)
    assert not set_both(keeper, "GPU-a", 1, (0, 900), 200).accepted
    assert board.calls == ["lock GPU-a 0-900", "reset GPU-a"]
    assert keeper.state.due_s() == float("inf")
    assert keeper.restore_all("shutdown")
    assert not on_disk(tmp_path)


@pytest.mark.parametrize("ended", ["cleared", "job_ended", "keeper_start", "no longer asked"])
def test_a_limit_that_a_person_has_lowered_is_never_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    clock, board = HeldClock(), Board()
    monkeypatch.setattr(keeper_module, "time", clock)
    board.limits_mw["GPU-a"] = 400_000
    keeper = open_keeper(tmp_path, board)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    board.limits_mw["GPU-a"] = 250_000
    refused = set_both(keeper, "GPU-a", 2, (0, 900), 350)
    assert "another writer has set 250 W" in refused.reason
    assert set_both(keeper, "GPU-a", 3, (0, 900), 200).accepted, "lower still is allowed"
    board.limits_mw["GPU-a"] = 150_000
    board.calls.clear()
    if ended == "keeper_start":
        keeper = open_keeper(tmp_path, board)
    elif ended == "no longer asked":
        assert apply(keeper, {"GPU-a": (0, 900)}, 4).slots[0].accepted
    else:
        keeper.handle(2, Clear(cause=ended))
    assert board.limits_mw["GPU-a"] == 150_000
    assert not [call for call in board.calls if call.startswith("limit")]
    keeper.handle(2, Clear())
    assert not board.locked
    slot = keeper.handle(3, Status(("GPU-a",))).slots[0]
    assert slot.restores["limit_left"] == 1
    clock.pass_s(LATE_S)
    keeper.tick()
    assert not on_disk(tmp_path)
    assert not keeper._journal.recorded_mw, "the next lease records what it finds"


@pytest.mark.parametrize(("safe", "left_w"), [("recorded", 400), (180_000, 180)])
def test_a_limit_found_before_a_driver_reload_is_not_set_after_it(
    tmp_path: Path, safe: str | int, left_w: int
) -> None:
    board = Board()
    board.limits_mw["GPU-a"] = 250_000  # a person's
    keeper = open_keeper(tmp_path, board, power_safe=safe)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 200).accepted
    board.limits_mw["GPU-a"] = 400_000  # the driver's default
    keeper.handle(2, Clear(cause="job_ended"))
    assert board.limits_mw["GPU-a"] == left_w * 1000


def test_a_limit_of_an_earlier_command_is_not_another_writers(tmp_path: Path) -> None:
    """It stands there when the keeper dies in the next command, or after failed ones."""
    board, keeper = opened(tmp_path)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 200).accepted
    board.fail = lambda call, uuid: Transient("t", "busy") if call == "limit" else None
    for generation, power_w in ((2, 350), (3, 300)):
        assert not set_both(keeper, "GPU-a", generation, (0, 900), power_w).accepted
    board.limits_mw["GPU-a"] = 200_000
    board.fail = lambda call, uuid: None
    keeper = open_keeper(tmp_path, board)
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)


def test_where_no_limit_can_be_read_it_is_restored(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted

    def fail(uuid: str) -> None:
        raise Transient("t", "busy")

    board.before_limits = fail
    keeper.handle(2, Clear())
    assert board.limits_mw["GPU-a"] == 400_000
    assert not keeper.state.gpu("GPU-a").is_restored, "nothing has read it back"
    board.before_limits = lambda uuid: None
    keeper.handle(3, Clear(uuids=("GPU-a",)))
    assert keeper.state.gpu("GPU-a").is_restored


def test_the_limit_found_first_is_the_highest_of_all_later_ones(tmp_path: Path) -> None:
    """A person's 170 W, a lower limit of ours, and then a higher one."""
    board = Board()
    board.limits_mw["GPU-a"] = 170_000
    keeper = open_keeper(tmp_path, board)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 160).accepted
    assert "another writer has set 170 W" in set_both(keeper, "GPU-a", 2, (0, 900), 380).reason
    assert board.limits_mw["GPU-a"] == 160_000
    keeper = open_keeper(tmp_path, board)
    assert board.limits_mw["GPU-a"] == 170_000


def test_the_safe_limit_is_not_above_the_one_found(tmp_path: Path) -> None:
    board = Board()
    board.limits_mw["GPU-a"] = 170_000
    keeper = open_keeper(tmp_path, board, power_safe=180_000)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 160).accepted
    keeper = open_keeper(tmp_path, board, power_safe=180_000)
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 170_000)


@pytest.mark.parametrize("theirs_w", [200, 250])
def test_a_limit_of_a_person_above_the_safe_one_is_the_one_to_restore(
    tmp_path: Path, theirs_w: int
) -> None:
    board, keeper = opened(tmp_path, power_safe=180_000)
    assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    board.limits_mw["GPU-a"] = theirs_w * 1000
    for generation in (2, 4):  # a later keeper knows it too
        keeper = open_keeper(tmp_path, board, power_safe=180_000)
        assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 180_000)
        refused = set_both(keeper, "GPU-a", generation, (0, 900), 300)
        assert f"another writer has set {theirs_w} W" in refused.reason
        assert set_both(keeper, "GPU-a", generation + 1, (0, 900), 160).accepted
    keeper.handle(2, Clear())
    assert board.limits_mw["GPU-a"] == theirs_w * 1000


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize(("late_w", "then_w"), [(300, 400), (250, 250), (450, 450)])
def test_a_limit_that_comes_after_its_restore_is_undone_and_another_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool, late_w: int, then_w: int
) -> None:
    clock, board = HeldClock(), LateBoard(answered=answered)
    monkeypatch.setattr(keeper_module, "time", clock)
    keeper = open_keeper(tmp_path, board)
    assert not set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    clock.pass_s(10.0)
    keeper.tick()
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)
    board.limits_mw["GPU-a"] = late_w * 1000  # carried out now; or another writer's
    for _ in range(2):
        clock.pass_s(LATE_AGAIN_S)
        keeper.tick()
        assert board.limits_mw["GPU-a"] == then_w * 1000
    clock.pass_s(LATE_S)
    keeper.tick()
    assert not on_disk(tmp_path)
    assert not keeper._journal.recorded_mw, "the next lease records what it finds"
    board.limits_mw["GPU-a"] = 300_000
    clock.pass_s(LATE_S)
    keeper.tick()
    assert board.limits_mw["GPU-a"] == 300_000, "nothing of ours can come so late"


def test_a_repeated_restore_leaves_a_power_limit_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer has lowered it since."""
    clock, board = HeldClock(), Board()
    monkeypatch.setattr(keeper_module, "time", clock)
    assert set_both(open_keeper(tmp_path, board), "GPU-a", 1, (0, 900), 300).accepted
    keeper = open_keeper(tmp_path, board)  # the first was killed
    assert board.limits_mw["GPU-a"] == 400_000
    board.limits_mw["GPU-a"] = 170_000

    def unreadable(uuid: str) -> None:
        raise Transient("gpu_is_lost", uuid)

    board.before_limits = unreadable
    clock.pass_s(LATE_AGAIN_S)
    keeper.tick()
    assert open_keeper(tmp_path, board).restore_all("shutdown")
    assert board.limits_mw["GPU-a"] == 170_000


def test_a_late_limit_under_a_lease_without_one_goes_with_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, board = HeldClock(), LateBoard()
    monkeypatch.setattr(keeper_module, "time", clock)
    keeper = open_keeper(tmp_path, board)
    assert not set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    assert set_both(keeper, "GPU-a", 2, (0, 900), 200).accepted
    assert apply(keeper, {"GPU-a": (0, 900)}, 3, ttl_s=60.0).slots[0].accepted
    board.limits_mw["GPU-a"] = 300_000
    clock.pass_s(60.0)
    keeper.tick()
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)
    assert not on_disk(tmp_path)
