"""The keeper over a device that fails on demand: what is written, journaled and reverted."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from joulecut_agent import keeper as module
from joulecut_agent import keeper_protocol as wire
from joulecut_agent import state as leases
from joulecut_agent.journal import Journal
from joulecut_agent.keeper import Keeper, Settings
from joulecut_agent.keeper_protocol import Reply
from joulecut_agent.limits import Bounds
from joulecut_agent.ports.failure import DeviceError, NotPermitted, Transient
from joulecut_agent.state import Command, Knobs

CLOCKS = (210, 600, 900, 1200, 1410)
UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
FREE = Bounds(min_dwell_s=0.0, writes_per_minute=600)
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Board:
    """A `DeviceWriter` that remembers its calls, and fails where a test says so."""

    locked: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fail: Callable[[str, str], DeviceError | None] = lambda call, uuid: None
    denied: str = ""
    mig: frozenset[str] = frozenset()
    before_write: Callable[[str], None] = lambda uuid: None
    before_read: Callable[[str], None] = lambda uuid: None
    before_limits: Callable[[str], None] = lambda uuid: None
    limits_mw: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UUIDS, 400_000))
    closed: int = 0

    def permission(self) -> str:
        return self.denied

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        self.before_read(uuid)
        return CLOCKS if uuid in UUIDS else ()

    def uncontrollable(self, uuid: str) -> str:
        return "MIG is on" if uuid in self.mig else "" if uuid in UUIDS else f"no GPU {uuid}"

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self.before_write(uuid)
        self.calls.append(f"lock {uuid} {clock_min_mhz}-{clock_max_mhz}")
        if error := self.fail("lock", uuid):
            raise error
        self.locked[uuid] = (clock_min_mhz, clock_max_mhz)

    def reset(self, uuid: str) -> None:
        self.calls.append(f"reset {uuid}")
        if error := self.fail("reset", uuid):
            raise error
        self.locked.pop(uuid, None)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        self.before_limits(uuid)
        return 100_000, 400_000, self.limits_mw[uuid]

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        self.before_write(uuid)
        self.calls.append(f"limit {uuid} {limit_mw // 1000}")
        if error := self.fail("limit", uuid):
            raise error
        self.limits_mw[uuid] = limit_mw

    def close(self) -> None:
        self.closed += 1


def _keeper(folder: Path, board: Board, **settings: object) -> Keeper:
    bounds = settings.pop("bounds", FREE)
    keeper = Keeper(Settings(str(folder), bounds, **settings), board)  # type: ignore[arg-type]
    question = Command(leases.STATUS, clocks_mhz=dict.fromkeys(UUIDS, (0, 0)))
    keeper.handle(0, question)
    return keeper


def _apply(
    keeper: Keeper, clocks: dict[str, tuple[int, int]], generation: int = 1, ttl_s: float = 30.0
) -> Reply:
    return keeper.handle(1, Command(leases.APPLY, 1, "blue", generation, ttl_s, clocks))


def _verdicts(reply: Reply) -> set[bool]:
    return {slot.accepted for slot in reply.slots}


def _on_disk(folder: Path) -> dict[str, Knobs]:
    return Journal(folder / "journal", BOOT.read_text().strip()).held


def test_the_intent_is_on_disk_before_each_write(tmp_path: Path) -> None:
    board = Board()
    seen: list[dict[str, Knobs]] = []
    board.before_write = lambda uuid: seen.append(_on_disk(tmp_path))
    wanted = {"GPU-a": (0, 900), "GPU-b": (210, 600)}
    assert _verdicts(_apply(_keeper(tmp_path, board), wanted)) == {True}
    on_disk = {uuid: (*mhz, 0) for uuid, mhz in wanted.items()}
    assert seen == [on_disk, on_disk]
    assert board.locked == {"GPU-a": (0, 900), "GPU-b": (210, 600)}


def test_without_a_journal_nothing_is_written_but_resets_go_ahead(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)}, ttl_s=0.2)) == {True}
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").mkdir()  # renaming over it fails, as does opening it
    keeper._journal._file.close()
    reply = _apply(keeper, {"GPU-b": (0, 900)}, generation=2)
    assert _verdicts(reply) == {False}
    assert "the journal cannot be written" in reply.slots[0].reason
    assert "GPU-b" not in board.locked
    time.sleep(0.21)
    keeper.tick()
    assert not board.locked


def test_a_failed_write_puts_the_group_back_to_what_it_held(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    first = {"GPU-a": (0, 1200), "GPU-b": (0, 900)}
    assert _verdicts(_apply(keeper, first)) == {True}
    before, leases_before = dict(board.locked), keeper.state.gpus["GPU-a"].lease
    board.fail = lambda call, uuid: Transient("t", "busy") if uuid == "GPU-d" else None
    board.calls.clear()
    group = dict.fromkeys(UUIDS, (0, 600))
    reply = _apply(keeper, group, generation=2)
    assert _verdicts(reply) == {False}
    assert all("GPU-d was not set" in slot.reason for slot in reply.slots)
    assert board.locked == before
    assert keeper.state.gpus["GPU-a"].lease == leases_before
    assert "reset GPU-c" in board.calls, "it held nothing before"
    board.fail = lambda call, uuid: None
    keeper.handle(2, Command(leases.CLEAR))
    assert not board.locked
    assert "GPU-d" not in _on_disk(tmp_path) or keeper.state.gpus["GPU-d"].owed


def test_where_even_the_way_back_fails_the_gpu_is_owed_a_restore(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 1200)})) == {True}
    writes = 0

    def fail(call: str, uuid: str) -> DeviceError | None:
        nonlocal writes
        writes += 1
        return Transient("t", "busy") if writes > 1 else None

    board.fail = fail
    reply = _apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900)}, generation=2)
    assert _verdicts(reply) == {False}
    assert keeper.state.gpus["GPU-a"].lease is None
    owed = keeper.state.gpus["GPU-a"].owed
    assert owed is not None
    assert owed.cause == "reverted"
    assert "GPU-a" in _on_disk(tmp_path), "still to be restored, whoever starts next"
    board.fail = lambda call, uuid: None
    assert keeper.give_back("shutdown")
    assert not board.locked
    assert not _on_disk(tmp_path)


def test_no_permission_on_the_first_write_is_the_end_of_control_not_of_the_keeper(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board = Board(fail=lambda call, uuid: NotPermitted("no_permission", "no right to set clocks"))
    keeper = _keeper(tmp_path, board)
    for generation in (1, 2, 3):
        reply = _apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900)}, generation)
        assert _verdicts(reply) == {False}
        assert "no right to set clocks" in reply.slots[0].reason
    tried = ["lock GPU-a 0-900", "reset GPU-a"]
    assert board.calls == tried, "tried once, taken back in case it was done all the same"
    assert not _on_disk(tmp_path)
    assert keeper.state.due_s() == float("inf")
    assert capfd.readouterr().err.count("no right") == 1
    status = keeper.handle(9, Command(leases.STATUS, clocks_mhz={"GPU-c": (0, 0)}))
    assert (status.slots[0].accepted, status.slots[0].reason) == (False, "no right to set clocks")


def test_a_driver_that_does_what_it_denies_leaves_no_lock(tmp_path: Path) -> None:
    board = Board()

    def fail(call: str, uuid: str) -> DeviceError | None:
        if call == "lock":
            board.locked[uuid] = (0, 900)
            return NotPermitted("no_permission", "no right")
        return None

    board.fail = fail
    keeper = _keeper(tmp_path, board)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {False}
    assert not board.locked
    assert not _on_disk(tmp_path)
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
    keeper = _keeper(tmp_path, board)
    alone = Command(
        leases.APPLY, 1, "blue", 1, 30.0, {"GPU-a": (0, 0)}, power_mw={"GPU-a": 250_000}
    )
    assert _verdicts(keeper.handle(1, alone)) == {False}
    assert board.limits_mw["GPU-a"] == before
    assert not _on_disk(tmp_path)
    assert keeper.state.due_s() == float("inf")


def test_a_lock_that_was_denied_and_cannot_be_taken_back_is_owed(tmp_path: Path) -> None:
    tries = []

    def fail(call: str, uuid: str) -> DeviceError | None:
        if call == "lock":
            return NotPermitted("no_permission", "no right")
        tries.append(uuid)
        return DeviceError("unknown", "an unknown error") if len(tries) < 3 else None

    board = Board(fail=fail)
    keeper = _keeper(tmp_path, board)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {False}
    assert keeper.state.gpu("GPU-a").owed
    assert keeper.state.due_s() < float("inf")
    assert keeper.give_back("shutdown")


def test_it_restores_at_start_whatever_permission_says(tmp_path: Path) -> None:
    board = Board()
    assert _verdicts(_apply(_keeper(tmp_path, board), {"GPU-a": (0, 900)})) == {True}
    denied = Board(locked=dict(board.locked), denied="no CAP_SYS_ADMIN")
    _keeper(tmp_path, denied)
    assert denied.calls == ["reset GPU-a"]
    assert not denied.locked
    assert not _on_disk(tmp_path)


def test_mig_and_strangers_are_refused_by_name(tmp_path: Path) -> None:
    board = Board(mig=frozenset({"GPU-b"}))
    keeper = _keeper(tmp_path, board)
    reply = _apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900), "GPU-x": (0, 900)})
    reasons = {slot.uuid: slot.reason for slot in reply.slots}
    assert reasons["GPU-b"] == "MIG is on"
    assert reasons["GPU-x"] == "no GPU GPU-x"
    assert "nothing was changed" in reasons["GPU-a"]
    assert not board.calls


def test_a_site_lock_that_this_gpu_cannot_do_falls_back_to_the_drivers_default(
    tmp_path: Path,
) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board, site_default=(0, 1300))
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {True}
    keeper.handle(2, Command(leases.CLEAR))
    assert board.calls[-1] == "reset GPU-a"


def test_who_leaves_waits_for_no_spread_and_tries_again(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board, restore_spread_s=60.0)
    assert _verdicts(_apply(keeper, dict.fromkeys(UUIDS, (0, 900)), ttl_s=0.05)) == {True}
    time.sleep(0.06)
    keeper.tick()
    assert board.locked, "spread out"
    failures = iter([True])
    board.fail = lambda call, _: Transient("t", "busy") if next(failures, False) else None
    assert keeper.give_back("shutdown")
    assert not board.locked
    assert not _on_disk(tmp_path)


def test_restores_are_counted_by_cause(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path, Board())
    for generation, cause in enumerate(("cleared", "job_ended", "cleared"), start=1):
        _apply(keeper, {"GPU-a": (0, 900)}, generation)
        keeper.handle(2, Command(leases.CLEAR, cause=cause))
    slot = keeper.handle(3, Command(leases.STATUS, clocks_mhz={"GPU-a": (0, 0)})).slots[0]
    counts = dict(zip(leases.CAUSES, slot.restores, strict=True))
    assert {cause: n for cause, n in counts.items() if n} == {"cleared": 2, "job_ended": 1}


def test_an_epoch_is_kept_before_it_is_answered(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    keeper.handle(1, Command(leases.APPLY, 5, "blue", 1, 9.0, {"GPU-a": (0, 900)}))
    keeper.handle(2, Command(leases.RENEW, 6, "blue", 1, 9.0))
    keeper = _keeper(tmp_path, board)
    assert keeper.state.epoch_seen == 6
    keeper.handle(3, Command(leases.CLEAR, 8))
    assert _keeper(tmp_path, board).state.epoch_seen == 8


def test_an_older_generation_is_refused_by_the_next_keeper_too(tmp_path: Path) -> None:
    board = Board()
    assert _verdicts(_apply(_keeper(tmp_path, board), {"GPU-a": (0, 900)}, 5)) == {True}
    keeper = _keeper(tmp_path, board)
    assert not board.locked
    older = _apply(keeper, {"GPU-a": (0, 1200)}, 4).slots[0]
    assert (older.accepted, older.reason) == (False, "generation 4 is older than 5")
    assert "other content" in _apply(keeper, {"GPU-a": (0, 1200)}, 5).slots[0].reason
    assert not board.locked
    assert _verdicts(_apply(keeper, {"GPU-b": (0, 1200)}, 4)) == {True}, "numbers are per GPU"
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}, "the same again"
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 1200)}, 6)) == {True}
    same = {"GPU-a": (0, 1200)}  # nothing to write, and still a newer number
    assert _verdicts(_apply(keeper, same, 9)) == {True}
    assert "older than 9" in _apply(_keeper(tmp_path, board), same, 8).slots[0].reason


def test_the_next_keeper_knows_the_term_of_a_renewal(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    both = {"GPU-a": (0, 900), "GPU-b": (0, 600)}
    assert _verdicts(_apply(keeper, both, 5)) == {True}
    assert _verdicts(keeper.handle(2, Command(leases.RENEW, 2, "blue", 5, 30.0))) == {True}
    for _ in range(2):
        keeper = _keeper(tmp_path, board)
        for uuid in both:
            older = Command(leases.APPLY, 2, "blue", 4, 30.0, {uuid: (0, 1200)})
            slot = keeper.handle(3, older).slots[0]
            assert (slot.accepted, slot.reason) == (False, "generation 4 is older than 5")
        twin = Command(leases.APPLY, 2, "blue", 5, 30.0, {"GPU-a": (0, 1200)})
        assert "other content" in keeper.handle(4, twin).slots[0].reason
    assert not board.locked


def test_a_new_term_that_cannot_be_kept_renews_nothing(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path, Board())
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").mkdir()  # renaming over it fails
    before = keeper.state
    slot = keeper.handle(2, Command(leases.RENEW, 2, "blue", 5, 30.0)).slots[0]
    assert "the journal cannot be written" in slot.reason
    assert keeper.state == before
    heartbeat = keeper.handle(3, Command(leases.RENEW, 1, "blue", 5, 30.0)).slots[0]
    assert heartbeat.accepted, "which has nothing to write"


def test_what_the_journal_says_already_is_not_said_again(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path, Board())
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    size = (tmp_path / "journal").stat().st_size
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    assert _verdicts(keeper.handle(2, Command(leases.RENEW, 1, "blue", 5, 30.0))) == {True}
    assert (tmp_path / "journal").stat().st_size == size
    assert _verdicts(keeper.handle(2, Command(leases.RENEW, 2, "blue", 5, 30.0))) == {True}
    assert (tmp_path / "journal").stat().st_size > size


def test_failing_writes_are_paced_like_good_ones(tmp_path: Path) -> None:
    board = Board(fail=lambda call, uuid: Transient("t", "busy") if call == "lock" else None)
    keeper = _keeper(tmp_path, board, bounds=Bounds(min_dwell_s=60.0))
    assert "busy" in _apply(keeper, {"GPU-a": (0, 900)}).slots[0].reason
    assert "dwell" in _apply(keeper, {"GPU-a": (0, 900)}, 2).slots[0].reason


def _both(
    keeper: Keeper, uuid: str, generation: int, mhz: tuple[int, int], power_w: int
) -> wire.Slot:
    command = Command(leases.APPLY, 1, "blue", generation, 30.0, {uuid: mhz})
    return keeper.handle(1, replace(command, power_mw={uuid: power_w * 1000})).slots[0]


def test_a_knob_that_a_reverted_command_would_have_given_back_is_not_forgotten(
    tmp_path: Path,
) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    board.fail = lambda call, uuid: Transient("t", "busy") if board.limits_mw[uuid] else None
    assert not _both(keeper, "GPU-a", 2, (0, 0), 200).accepted
    board.fail = lambda call, uuid: None
    assert keeper.give_back("shutdown")
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)


@pytest.mark.parametrize("then", [((0, 0), 200), ((0, 600), 0)])
def test_a_keeper_that_dies_in_a_write_leaves_both_knobs_to_the_next(
    tmp_path: Path, then: tuple[tuple[int, int], int]
) -> None:
    class Died(Exception):
        """In the place of a signal."""

    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _both(keeper, "GPU-a", 1, (0, 900), 300).accepted

    def die(call: str, uuid: str) -> DeviceError | None:
        raise Died

    board.fail = die
    with pytest.raises(Died):
        _both(keeper, "GPU-a", 2, *then)
    board.fail = lambda call, uuid: None
    keeper = _keeper(tmp_path, board)
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 400_000)


def test_of_two_knobs_the_one_that_was_permitted_is_given_back(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    board.fail = lambda call, _: NotPermitted("no", "no right") if call == "limit" else None
    assert not _both(keeper, "GPU-a", 1, (0, 900), 300).accepted
    assert not board.locked


def test_each_knob_is_owned_alone_and_goes_back_alone(tmp_path: Path) -> None:
    board = Board()
    board.limits_mw["GPU-a"] = 350_000  # the site's
    keeper = _keeper(tmp_path, board)
    assert _both(keeper, "GPU-a", 1, (0, 0), 300).accepted
    assert board.calls == ["limit GPU-a 300"], "no clock was asked for"
    assert _both(keeper, "GPU-a", 2, (0, 900), 250).accepted
    assert _apply(keeper, {"GPU-a": (0, 900)}, 3).slots[0].accepted
    assert board.limits_mw["GPU-a"] == 350_000, "no longer asked for: as it was before us"
    assert _both(keeper, "GPU-a", 4, (0, 0), 200).accepted
    assert not board.locked
    board.calls.clear()
    keeper.handle(2, Command(leases.CLEAR))
    assert board.calls == ["limit GPU-a 350"]
    assert not _on_disk(tmp_path)


@pytest.mark.parametrize(
    ("safe", "expired_w", "cleared_w"),
    [("recorded", 350, 350), ("keep", 200, 350), (180_000, 180, 350)],
)
def test_a_power_limit_falls_to_its_safe_value_and_a_person_gets_the_old_one_back(
    tmp_path: Path, safe: str | int, expired_w: int, cleared_w: int
) -> None:
    board = Board()
    board.limits_mw["GPU-a"] = 350_000
    keeper = _keeper(tmp_path, board, power_safe=safe)
    command = Command(
        leases.APPLY, 1, "blue", 1, 0.05, {"GPU-a": (0, 0)}, power_mw={"GPU-a": 200_000}
    )
    assert keeper.handle(1, command).slots[0].accepted
    time.sleep(0.06)
    keeper.tick()
    assert board.limits_mw["GPU-a"] == expired_w * 1000
    assert not _on_disk(tmp_path)
    keeper = _keeper(tmp_path, board, power_safe=safe)  # and the journal still knows the old one
    assert keeper.handle(1, replace(command, generation=2, ttl_s=30.0)).slots[0].accepted
    keeper.handle(2, Command(leases.CLEAR))
    assert board.limits_mw["GPU-a"] == cleared_w * 1000


def test_a_limit_that_was_put_back_is_recorded_anew_the_next_time(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    for generation, site_mw in enumerate((350_000, 380_000), start=1):
        board.limits_mw["GPU-a"] = site_mw
        assert _both(keeper, "GPU-a", generation, (0, 0), 200).accepted
        keeper.handle(2, Command(leases.CLEAR))
        assert board.limits_mw["GPU-a"] == site_mw


def test_a_denied_command_does_not_forget_what_stood_there_before_the_safe_value(
    tmp_path: Path,
) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board, power_safe=180_000)
    assert _both(keeper, "GPU-a", 1, (0, 0), 200).accepted
    keeper.handle(2, Command(leases.CLEAR, cause="job_ended"))
    assert board.limits_mw["GPU-a"] == 180_000
    board.fail = lambda call, uuid: NotPermitted("no", "no right")
    assert not _both(keeper, "GPU-a", 2, (0, 0), 200).accepted
    board.fail = lambda call, uuid: None
    keeper = _keeper(tmp_path, board, power_safe=180_000)
    assert _both(keeper, "GPU-a", 3, (0, 0), 200).accepted
    keeper.handle(2, Command(leases.CLEAR))
    assert board.limits_mw["GPU-a"] == 400_000


def test_lowerings_are_counted_where_they_are_written(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path, Board(), bounds=Bounds(min_dwell_s=0.0, writes_per_minute=2))
    for generation, mhz in ((1, 1200), (2, 900)):
        assert _verdicts(_apply(keeper, {"GPU-a": (0, mhz)}, generation)) == {True}
    refused = _apply(keeper, {"GPU-a": (0, 600)}, 3).slots[0]
    assert (refused.accepted, refused.reason) == (False, "lowered 2 times within a minute")


def test_a_limit_that_fails_takes_the_clock_of_its_group_back(tmp_path: Path) -> None:
    board = Board(fail=lambda call, uuid: Transient("t", "busy") if call == "limit" else None)
    keeper = _keeper(tmp_path, board)
    slot = _both(keeper, "GPU-a", 1, (0, 900), 200)
    assert "the group was reverted" in slot.reason
    assert not board.locked
    board.fail = lambda call, uuid: None
    assert keeper.give_back("shutdown")
    assert board.limits_mw["GPU-a"] == 400_000
    assert not _on_disk(tmp_path)


def test_a_release_gives_back_drops_the_handles_and_ends_by_itself(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {True}
    for ttl_s in (-1.0, 3600.1, math.nan, math.inf):
        refused = keeper.handle(2, Command(leases.RELEASE, ttl_s=ttl_s)).slots[0]
        assert (refused.accepted, board.closed) == (False, 0)
    reply = keeper.handle(3, Command(leases.RELEASE, ttl_s=0.2))
    assert reply.slots[0].accepted
    assert (board.locked, board.closed) == ({}, 1)
    board.calls.clear()
    refused = _apply(keeper, {"GPU-a": (0, 600)}, 2)
    assert "released for 1 s more" in refused.slots[0].reason
    assert refused.stopped == refused.slots[0].reason
    assert not board.calls, "nothing touches the driver"
    time.sleep(0.21)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 600)}, 3)) == {True}
    keeper.handle(4, Command(leases.RELEASE, ttl_s=60.0))
    keeper.handle(5, Command(leases.RESUME))
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 600)}, 4)) == {True}


def test_a_release_is_refused_where_a_gpu_cannot_be_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_WAIT_S", 0.1)  # a constant, so that the test is quick
    board = Board()
    keeper = _keeper(tmp_path, board)
    _apply(keeper, {"GPU-a": (0, 900)})
    board.fail = lambda call, uuid: Transient("t", "busy")
    answer = keeper.handle(2, Command(leases.RELEASE, ttl_s=60.0)).slots[0]
    assert (answer.accepted, board.closed) == (False, 0)
    assert "nothing was released" in answer.reason
    assert keeper.state.gpus["GPU-a"].owed, "and it is tried again"


def test_a_file_on_the_node_stops_all_control(tmp_path: Path) -> None:
    board, stop = Board(), tmp_path / "stop"
    keeper = _keeper(tmp_path, board, stop_file=str(stop))
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {True}
    assert keeper.due_s() <= time.monotonic() + module.STOP_LOOK_S, "it looks by itself"
    stop.symlink_to(tmp_path / "nowhere")  # whatever it is, it is there
    keeper.tick()
    assert not board.locked
    refused = _apply(keeper, {"GPU-a": (0, 600)}, 2)
    assert f"the file {stop} stops all control" in refused.slots[0].reason
    stop.unlink()
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 600)}, 3)) == {True}


def _yield(keeper: Keeper, **named: object) -> bool:
    command = Command(leases.YIELD, 1, "blue", 1, **named)  # type: ignore[arg-type]
    (verdict,) = _verdicts(keeper.handle(9, command))
    return verdict


def test_a_knob_that_somebody_else_has_set_is_his_and_the_other_is_given_back(
    tmp_path: Path,
) -> None:
    both = {"clocks_mhz": {"GPU-a": (0, 900)}, "power_mw": {"GPU-a": 300_000}}
    for kept, calls in (
        ({"clocks_mhz": {"GPU-a": (0, 900)}}, ["reset GPU-a"]),
        ({"clocks_mhz": {"GPU-a": (0, 0)}, "power_mw": {"GPU-a": 300_000}}, ["limit GPU-a 400"]),
        ({"clocks_mhz": {"GPU-a": (0, 0)}}, []),
    ):
        folder, board = tmp_path / str(len(calls[:1]) + len(str(kept))), Board()
        folder.mkdir()
        keeper = _keeper(folder, board)
        order = Command(leases.APPLY, 1, "blue", 1, 30.0, **both)  # type: ignore[arg-type]
        assert _verdicts(keeper.handle(1, order)) == {True}
        board.calls.clear()
        assert _yield(keeper, **kept)
        assert board.calls == calls
        assert not _on_disk(folder)
        assert keeper.state.gpu("GPU-a").lease is None
        assert not keeper.give_back("shutdown") or board.calls == calls, "nothing is left to do"


def test_a_lock_that_was_yielded_and_shows_again_is_taken_back_by_name(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {True}
    assert _yield(keeper, clocks_mhz={"GPU-a": (0, 0)})
    board.calls.clear()
    keeper.handle(9, Command(leases.CLEAR))
    keeper.handle(9, Command(leases.CLEAR, clocks_mhz={"GPU-a": (0, 0)}))
    assert keeper.give_back("shutdown")
    assert not board.calls, "what stands there is somebody else's"
    named = dict.fromkeys(("GPU-a", "GPU-b"), (0, 0))
    keeper.handle(9, Command(leases.CLEAR, ttl_s=1.0, clocks_mhz=named))
    assert board.calls == ["reset GPU-a"], "and never what was never ours"


def test_a_newer_order_is_not_yielded_with_an_older_one(tmp_path: Path) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    _apply(keeper, {"GPU-a": (0, 900)}, generation=2)
    assert not _yield(keeper, clocks_mhz={"GPU-a": (0, 0)})
    assert keeper.state.gpu("GPU-a").lease is not None
    assert _on_disk(tmp_path) == {"GPU-a": (0, 900, 0)}


def test_a_reply_tells_what_is_left_of_a_window(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path, Board())
    assert keeper.handle(1, Command(leases.STATUS)).released_s == 0.0
    keeper.handle(2, Command(leases.RELEASE, ttl_s=600.0))
    assert 599.0 < keeper.handle(3, Command(leases.STATUS)).released_s <= 600.0
    keeper.handle(4, Command(leases.RESUME))
    assert keeper.handle(5, Command(leases.STATUS)).released_s == 0.0


def test_two_knobs_denied_at_the_first_owe_nothing(tmp_path: Path) -> None:
    """Nothing was written, so nothing is to be undone: neither for ever nor at the end."""
    board = Board(fail=lambda call, uuid: NotPermitted("no_permission", "no right"))
    keeper = _keeper(tmp_path, board)
    assert not _both(keeper, "GPU-a", 1, (0, 900), 200).accepted
    assert board.calls == ["lock GPU-a 0-900", "reset GPU-a"]
    assert keeper.state.due_s() == float("inf")
    assert keeper.give_back("shutdown")
    assert not _on_disk(tmp_path)


def test_two_knobs_denied_at_the_second_take_the_first_back(tmp_path: Path) -> None:
    def fail(call: str, uuid: str) -> DeviceError | None:
        return NotPermitted("no_permission", "no right") if call == "limit" else None

    board = Board(fail=fail)
    keeper = _keeper(tmp_path, board)
    assert not _both(keeper, "GPU-a", 1, (0, 900), 200).accepted
    assert not board.locked


def test_nothing_asks_the_driver_in_a_release_window(tmp_path: Path) -> None:
    board = Board()
    keeper = Keeper(Settings(str(tmp_path), FREE), board)
    assert keeper.handle(1, Command(leases.RELEASE, ttl_s=60.0)).slots[0].accepted
    asked: list[str] = []
    board.before_read = asked.append
    board.before_limits = asked.append
    assert _verdicts(_apply(keeper, {"GPU-a": (0, 900)})) == {False}
    limited = Command(leases.APPLY, 1, "blue", 2, 30.0, {"GPU-a": (0, 0)}, power_mw={"GPU-a": 1})
    assert _verdicts(keeper.handle(2, limited)) == {False}
    keeper.handle(3, Command(leases.STATUS, clocks_mhz=dict.fromkeys(UUIDS, (0, 0))))
    assert not asked, "a call would open the driver again"
