"""Power limits that outlive their lease: whatever ends it, the limit stays until it is lifted."""

from dataclasses import replace
from pathlib import Path

import pytest
from held_clock import HeldClock
from keeper_board import FREE, Board, on_disk, open_keeper, opened
from keeper_requests import apply_of

from joulecut_agent.keeper import keeper as module
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.requests import Clear, Release, Status
from joulecut_agent.ports.failure import Transient

GPU = "GPU-a"


def _cap(
    keeper: Keeper, generation: int, power_w: int, *, keep: bool = True, above: bool = False
) -> str:
    clocks, power_mw = {GPU: (0, 900)}, {GPU: power_w * 1000}
    command = apply_of(1, "blue", generation, 30.0, clocks, power_mw, keep=keep, above=above)
    return keeper.handle(1, command).slots[0].reason


def _kept_w(keeper: Keeper) -> int:
    return keeper.handle(2, Status((GPU,))).slots[0].kept_power_mw // 1000


@pytest.mark.parametrize("safe", ["recorded", "keep", 180_000])
@pytest.mark.parametrize("ended", ["cleared", "job_ended", "shutdown", "keeper_start", "stopped"])
@pytest.mark.parametrize("above", [False, True])
def test_it_stays_whatever_ends_the_lease(
    tmp_path: Path, ended: str, safe: str | int, *, above: bool
) -> None:
    """It, and not one of the lease that stands above it."""
    board, stop = Board(), tmp_path / "stop"
    keeper = open_keeper(tmp_path, board, power_safe=safe, stop_file=str(stop))
    assert _cap(keeper, 1, 300) == ""
    if above:
        assert _cap(keeper, 2, 380, keep=False, above=True) == ""
        assert (board.limits_mw[GPU], _kept_w(keeper)) == (380_000, 300)
    if ended in {"cleared", "job_ended"}:
        keeper.handle(2, Clear(cause=ended))
    elif ended == "shutdown":
        assert keeper.restore_all("shutdown")
    elif ended == "stopped":
        stop.touch()
        keeper.tick()
    for _ in range(2):  # and at each start after that
        keeper = open_keeper(tmp_path, board, power_safe=safe)
        assert (board.locked, board.limits_mw[GPU]) == ({}, 300_000)
        assert _kept_w(keeper) == 300
    assert not on_disk(tmp_path)
    keeper.handle(2, Clear(lift_power_limit=True))
    assert (board.limits_mw[GPU], _kept_w(keeper)) == (400_000, 0)
    assert _kept_w(open_keeper(tmp_path, board)) == 0


def test_a_keeper_without_a_budget_of_its_site_refuses_it(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path, bounds=replace(FREE, keep_power_s=0.0))
    assert "power.keep_hours is not set" in _cap(keeper, 1, 300)
    assert (board.limits_mw[GPU], board.calls) == (400_000, [])
    assert _cap(keeper, 2, 300, keep=False) == ""


@pytest.mark.parametrize("restarts", [0, 9])
def test_it_ends_after_the_sites_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """Counted from the end of its lease, also by keepers that start again and again."""
    monkeypatch.setattr(module, "time", clock := HeldClock())
    board, keeper = opened(tmp_path)
    assert _cap(keeper, 1, 300) == ""
    for generation in (2, 3):
        keeper.handle(2, Clear())
        clock.pass_s(3000.0)
        assert _cap(keeper, generation, 300) == "", "a new lease of the same limit has no end"
    clock.pass_s(31.0)
    keeper.tick()
    board.locked[GPU] = (0, 1200)  # another writer's, after ours was reset
    for _ in range(restarts):
        clock.pass_s(3500.0 / restarts)
        keeper = open_keeper(tmp_path, board)
    clock.pass_s(3500.0 * (not restarts) + 90.0)
    keeper.tick()
    slot = keeper.handle(2, Status((GPU,))).slots[0]
    assert (board.limits_mw[GPU], slot.kept_power_mw) == (300_000, 300_000)
    assert 0.0 < slot.kept_left_s <= 10.0 + 1.0
    assert keeper.due_s() <= clock.now_s + slot.kept_left_s
    clock.pass_s(11.0)
    keeper.tick()
    assert (board.limits_mw[GPU], _kept_w(keeper)) == (400_000, 0)
    assert board.locked[GPU] == (0, 1200)
    assert _kept_w(open_keeper(tmp_path, board)) == 0


def test_it_does_not_end_inside_a_release_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", clock := HeldClock())
    board, keeper = opened(tmp_path)
    assert _cap(keeper, 1, 300) == ""
    keeper.handle(2, Clear())
    clock.pass_s(3000.0)
    assert keeper.handle(3, Release(3600.0)).slots[0].accepted
    board.calls.clear()
    clock.pass_s(3000.0)
    keeper.tick()
    assert not board.calls, "nothing touches the driver"
    assert keeper.due_s() >= clock.now_s + 600.0
    clock.pass_s(601.0)
    keeper.tick()
    assert (board.limits_mw[GPU], _kept_w(keeper)) == (400_000, 0)


def test_a_new_command_moves_it_and_one_that_does_not_keep_ends_it(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    assert _cap(keeper, 1, 300) == ""
    keeper.handle(2, Clear())
    assert _cap(keeper, 2, 350) == "", "raised by a command"
    keeper.handle(2, Clear())
    assert (board.limits_mw[GPU], _kept_w(keeper)) == (350_000, 350)
    assert _cap(keeper, 3, 250, keep=False) == ""
    keeper.handle(2, Clear())
    assert (board.limits_mw[GPU], _kept_w(keeper)) == (400_000, 0)


def test_one_that_another_writer_has_lowered_is_not_raised(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    assert _cap(keeper, 1, 300) == ""
    keeper.handle(2, Clear())
    board.limits_mw[GPU] = 250_000
    assert "another writer has set 250 W" in _cap(keeper, 2, 350)
    keeper.handle(2, Clear(lift_power_limit=True))
    assert board.limits_mw[GPU] == 250_000


def test_one_that_a_driver_reload_has_taken_is_written_again(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    assert _cap(keeper, 1, 300) == ""
    keeper.handle(2, Clear())
    board.limits_mw[GPU] = 400_000
    assert _cap(keeper, 2, 300) == ""
    assert board.limits_mw[GPU] == 300_000


@pytest.mark.parametrize("restart", [False, True])
def test_a_command_that_fails_does_not_change_what_is_kept(tmp_path: Path, restart: bool) -> None:
    board, keeper = opened(tmp_path)
    assert _cap(keeper, 1, 300) == ""
    keeper.handle(2, Clear())
    failures = iter([True])
    board.fail = lambda call, _: (
        Transient("t", "busy") if call == "limit" and next(failures, False) else None
    )
    assert "was not set" in _cap(keeper, 2, 350, keep=False)
    if restart:
        keeper = open_keeper(tmp_path, board)
    assert (board.locked, board.limits_mw[GPU], _kept_w(keeper)) == ({}, 300_000, 300)
    assert _cap(keeper, 3, 350) == ""
    assert board.limits_mw[GPU] == 350_000


def test_a_flipped_bit_in_the_journal_does_not_lift_it(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path, board := Board())
    assert _cap(keeper, 1, 300) == ""
    raw = (tmp_path / "journal").read_bytes()
    for n in range(0, len(raw), 3):
        (tmp_path / "journal").write_bytes(raw[:n] + bytes([raw[n] ^ 1 << n % 8]) + raw[n + 1 :])
        board = Board({GPU: (0, 900)})
        board.limits_mw[GPU] = 300_000
        keeper = open_keeper(tmp_path, board)
        assert (board.locked, board.limits_mw[GPU]) == ({}, 300_000), raw[:n][-60:]
