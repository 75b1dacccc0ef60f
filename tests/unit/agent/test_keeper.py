"""The keeper over a device that fails on demand: what is written, journaled and reverted."""

import time
from pathlib import Path

import pytest
from held_clock import HeldClock
from keeper_board import UUIDS, Board, apply, on_disk, open_keeper, opened, set_both, verdicts
from keeper_requests import apply_of

from joulecut_agent.keeper import keeper as keeper_module
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.lease import LATE_S
from joulecut_agent.keeper.protocol import Slot
from joulecut_agent.keeper.requests import Apply, Clear, ClockLimits, Renew, Request, Status
from joulecut_agent.ports.failure import DeviceError, Gone, Transient

GPU = "GPU-a"
PATIENCE_S = 90.0


def test_the_lease_is_on_disk_before_each_write(tmp_path: Path) -> None:
    board = Board()
    seen: list[dict[str, ClockLimits]] = []
    board.before_write = lambda uuid: seen.append(on_disk(tmp_path))
    wanted = {"GPU-a": (0, 900), "GPU-b": (210, 600)}
    assert verdicts(apply(open_keeper(tmp_path, board), wanted)) == {True}
    intended = {uuid: (*mhz, 0) for uuid, mhz in wanted.items()}
    assert seen == [intended, intended]
    assert board.locked == {"GPU-a": (0, 900), "GPU-b": (210, 600)}


def test_without_a_journal_nothing_is_written_but_resets_go_ahead(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, ttl_s=0.2)) == {True}
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").mkdir()  # renaming over it fails, as does opening it
    keeper._journal._file.close()
    reply = apply(keeper, {"GPU-b": (0, 900)}, generation=2)
    assert verdicts(reply) == {False}
    assert "the journal cannot be written" in reply.slots[0].reason
    assert "GPU-b" not in board.locked
    time.sleep(0.21)
    keeper.tick()
    assert not board.locked


def test_a_failed_write_puts_the_group_back_to_what_it_held(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    first = {"GPU-a": (0, 1200), "GPU-b": (0, 900)}
    assert verdicts(apply(keeper, first)) == {True}
    before, leases_before = dict(board.locked), keeper.state.gpus["GPU-a"].lease
    board.fail = lambda call, uuid: Transient("t", "busy") if uuid == "GPU-d" else None
    board.calls.clear()
    group = dict.fromkeys(UUIDS, (0, 600))
    reply = apply(keeper, group, generation=2)
    assert verdicts(reply) == {False}
    assert all("GPU-d was not set" in slot.reason for slot in reply.slots)
    assert board.locked == before
    assert keeper.state.gpus["GPU-a"].lease == leases_before
    assert "reset GPU-c" in board.calls, "it held nothing before"
    board.fail = lambda call, uuid: None
    keeper.handle(2, Clear())
    assert not board.locked
    assert "GPU-d" not in on_disk(tmp_path) or keeper.state.gpus["GPU-d"].pending_restore


def test_where_even_the_way_back_fails_the_gpu_has_a_pending_restore(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    assert verdicts(apply(keeper, {"GPU-a": (0, 1200)})) == {True}
    writes = 0

    def fail(call: str, uuid: str) -> DeviceError | None:
        nonlocal writes
        writes += 1
        return Transient("t", "busy") if writes > 1 else None

    board.fail = fail
    reply = apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900)}, generation=2)
    assert verdicts(reply) == {False}
    assert keeper.state.gpus["GPU-a"].lease is None
    owed = keeper.state.gpus["GPU-a"].pending_restore
    assert owed.cause == "reverted"
    assert "GPU-a" in on_disk(tmp_path), "still to be restored, whoever starts next"
    board.fail = lambda call, uuid: None
    assert keeper.restore_all("shutdown")
    assert not board.locked
    assert not on_disk(tmp_path)


def test_a_site_lock_that_this_gpu_cannot_do_falls_back_to_the_drivers_default(
    tmp_path: Path,
) -> None:
    board, keeper = opened(tmp_path, site_default=(0, 1300))
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
    keeper.handle(2, Clear())
    assert board.calls[-1] == "reset GPU-a"


def test_who_leaves_waits_for_no_spread_and_tries_again(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path, restore_jitter_s=60.0)
    assert verdicts(apply(keeper, dict.fromkeys(UUIDS, (0, 900)), ttl_s=0.05)) == {True}
    time.sleep(0.06)
    keeper.tick()
    assert board.locked, "spread out"
    failures = iter([True])
    board.fail = lambda call, _: Transient("t", "busy") if next(failures, False) else None
    assert keeper.restore_all("shutdown")
    assert not board.locked
    assert not on_disk(tmp_path)


def test_failing_writes_are_paced_like_good_ones(tmp_path: Path) -> None:
    board = Board(fail=lambda call, uuid: Transient("t", "busy") if call == "lock" else None)
    keeper = open_keeper(tmp_path, board, bounds=Bounds(min_dwell_s=60.0))
    assert "busy" in apply(keeper, {"GPU-a": (0, 900)}).slots[0].reason
    assert "dwell" in apply(keeper, {"GPU-a": (0, 900)}, 2).slots[0].reason


def test_lowerings_are_counted_where_they_are_written(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path, Board(), bounds=Bounds(min_dwell_s=0.0, writes_per_minute=2))
    for generation, mhz in ((1, 1200), (2, 900)):
        assert verdicts(apply(keeper, {"GPU-a": (0, mhz)}, generation)) == {True}
    refused = apply(keeper, {"GPU-a": (0, 600)}, 3).slots[0]
    assert (refused.accepted, refused.reason) == (False, "lowered 2 times within a minute")


def test_a_flipped_bit_in_the_journal_of_a_killed_keeper_leaves_no_gpu_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "time", clock := HeldClock())
    keeper = open_keeper(tmp_path, board := Board())
    assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    assert verdicts(apply(keeper, {"GPU-b": (0, 900)}, 2)) == {True}
    raw, locked = (tmp_path / "journal").read_bytes(), dict(board.locked)
    for n in range(len(raw)):
        (tmp_path / "journal").write_bytes(raw[:n] + bytes([raw[n] ^ 1 << n % 8]) + raw[n + 1 :])
        board = Board(dict(locked))
        board.limits_mw["GPU-a"] = 300_000
        keeper = open_keeper(tmp_path, board)
        assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000), raw[:n][-60:]
        board.calls.clear()
        clock.pass_s(LATE_S + 1.0)
        open_keeper(tmp_path, board)
        assert not board.calls, "no write can be late any more"
        assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 3)) == {True}


def test_an_unreadable_journal_resets_every_gpu_and_is_kept_aside(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal").mkdir()  # no file can be read there
    board = Board({"GPU-a": (0, 900), "GPU-c": (0, 600)})
    keeper = open_keeper(tmp_path, board, site_default=(0, 1200))
    assert board.locked == dict.fromkeys(UUIDS, (0, 1200)), "the site's default"
    assert capfd.readouterr().err.count("journal.unreadable") == 1
    assert (tmp_path / "journal.unreadable").is_dir()
    board.calls.clear()
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
    assert on_disk(tmp_path) == {"GPU-a": (0, 900, 0)}


def test_with_a_damaged_journal_no_command_is_accepted_until_the_gpus_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal").mkdir()
    board = Board({"GPU-a": (0, 900)})
    listed = board.uuids

    def fail() -> tuple[str, ...]:
        raise Transient("t", "busy")

    board.uuids = fail
    keeper = open_keeper(tmp_path, board)
    assert "the journal is damaged" in apply(keeper, {"GPU-b": (0, 900)}).slots[0].reason
    board.uuids = listed
    keeper._list_all_s = 0.0  # the next try is due
    keeper.tick()
    assert not board.locked
    assert verdicts(apply(keeper, {"GPU-b": (0, 900)}, 2)) == {True}


def _ask(keeper: Keeper, command: Request) -> Slot:
    (slot,) = keeper.handle(1, command).slots
    return slot


def _order(
    generation: int, clock_mhz: int, program: tuple[int, ...] = (), ttl_s: float = 30.0
) -> Apply:
    programs = {GPU: program} if program else {}
    return apply_of(1, "blue", generation, ttl_s, {GPU: (0, clock_mhz)}, schedules=programs)


def _gone(call: str, uuid: str) -> DeviceError | None:
    return Gone("gpu_is_lost", f"{uuid} fell off the bus") if call == "reset" else None


def test_below_the_sites_own_lock_is_what_counts_as_lower(tmp_path: Path) -> None:
    """A GPU under a site's lock never runs above it: a command for that clock lowers nothing."""
    bounds = Bounds(min_dwell_s=60.0)
    keeper = open_keeper(tmp_path, Board(), bounds=bounds, site_default=(0, 900))
    for generation in (1, 2):
        assert _ask(keeper, _order(generation, 900)).accepted
        assert _ask(keeper, Clear(1, uuids=(GPU,))).accepted
    assert "dwell" in _ask(keeper, _order(3, 600)).reason


def test_a_restore_that_is_only_delayed_by_jitter_is_not_stuck(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path, Board(), restore_jitter_s=3600.0)
    assert _ask(keeper, _order(1, 900, ttl_s=0.05)).accepted
    time.sleep(0.1)
    slot = _ask(keeper, Status((GPU,)))
    assert keeper.state.gpu(GPU).pending_restore
    assert (slot.accepted, slot.reason, slot.lease) == (True, "", None)


def test_an_epoch_is_kept_before_it_is_answered(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    keeper.handle(1, apply_of(5, "blue", 1, 9.0, {"GPU-a": (0, 900)}))
    keeper.handle(2, Renew(6, "blue", 1, 9.0))
    keeper = open_keeper(tmp_path, board)
    assert keeper.state.epoch_seen == 6
    keeper.handle(3, Clear(8))
    assert open_keeper(tmp_path, board).state.epoch_seen == 8


def test_an_older_generation_is_refused_by_the_next_keeper_too(tmp_path: Path) -> None:
    board = Board()
    assert verdicts(apply(open_keeper(tmp_path, board), {"GPU-a": (0, 900)}, 5)) == {True}
    keeper = open_keeper(tmp_path, board)
    assert not board.locked
    older = apply(keeper, {"GPU-a": (0, 1200)}, 4).slots[0]
    assert (older.accepted, older.reason) == (False, "generation 4 is older than 5")
    assert "other content" in apply(keeper, {"GPU-a": (0, 1200)}, 5).slots[0].reason
    assert not board.locked
    assert verdicts(apply(keeper, {"GPU-b": (0, 1200)}, 4)) == {True}, "numbers are per GPU"
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}, "the same again"
    assert verdicts(apply(keeper, {"GPU-a": (0, 1200)}, 6)) == {True}
    same = {"GPU-a": (0, 1200)}  # nothing to write, and still a newer number
    assert verdicts(apply(keeper, same, 9)) == {True}
    assert "older than 9" in apply(open_keeper(tmp_path, board), same, 8).slots[0].reason


def test_the_next_keeper_knows_the_term_of_a_renewal(tmp_path: Path) -> None:
    board, keeper = opened(tmp_path)
    both = {"GPU-a": (0, 900), "GPU-b": (0, 600)}
    assert verdicts(apply(keeper, both, 5)) == {True}
    assert verdicts(keeper.handle(2, Renew(2, "blue", 5, 30.0))) == {True}
    for _ in range(2):
        keeper = open_keeper(tmp_path, board)
        for uuid in both:
            older = apply_of(2, "blue", 4, 30.0, {uuid: (0, 1200)})
            slot = keeper.handle(3, older).slots[0]
            assert (slot.accepted, slot.reason) == (False, "generation 4 is older than 5")
        twin = apply_of(2, "blue", 5, 30.0, {"GPU-a": (0, 1200)})
        assert "other content" in keeper.handle(4, twin).slots[0].reason
    assert not board.locked


def test_a_new_term_that_cannot_be_kept_renews_nothing(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path, Board())
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").mkdir()  # renaming over it fails
    before = keeper.state
    slot = keeper.handle(2, Renew(2, "blue", 5, 30.0)).slots[0]
    assert "the journal cannot be written" in slot.reason
    assert keeper.state == before
    heartbeat = keeper.handle(3, Renew(1, "blue", 5, 30.0)).slots[0]
    assert heartbeat.accepted, "which has nothing to write"
