"""When a keeper lets go for others: release windows, the stop file, knobs of somebody else."""

import math
import time
from pathlib import Path

import pytest
from held_clock import HeldClock
from keeper_board import (
    FREE,
    UUIDS,
    Board,
    apply,
    held,
    on_disk,
    open_keeper,
    opened,
    set_both,
    turn,
    verdicts,
)
from keeper_requests import apply_of

from joulecut_agent.keeper import keeper as module
from joulecut_agent.keeper.evidence import READINGS, SETTLE_S
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.lease import LATE_S, RETAKES_MAX, STUCK
from joulecut_agent.keeper.requests import (
    Clear,
    Release,
    Renew,
    Resume,
    Status,
    Yield,
)
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.keeper.unleased import RETAKES_END
from joulecut_agent.ports.failure import Transient, Unanswered


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    made = HeldClock()
    made.sleep = made.pass_s  # a keeper that leaves waits for readings
    monkeypatch.setattr(module, "time", made)
    return made


def test_a_reset_that_would_be_repeated_opens_no_driver_inside_a_window(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, keeper = opened(tmp_path)
    board.fail = lambda call, _: Unanswered("t", "no answer") if call == "lock" else None
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {False}
    assert keeper.state.due_s() < math.inf, "the lock may come late"
    assert keeper.handle(3, Release(600.0)).slots[0].accepted
    board.calls.clear()
    assert keeper.state.due_s() == math.inf, "and nothing spins"
    assert set(on_disk(tmp_path, clock.now_s)) == {"GPU-a"}, "the next keeper resets it"
    clock.pass_s(60.0)
    keeper.tick()
    assert not board.calls


def test_a_release_is_refused_where_a_gpu_cannot_be_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVE_WAIT_S", 0.1)  # a constant, so that the test is quick
    board, keeper = opened(tmp_path)
    apply(keeper, {"GPU-a": (0, 900)})
    board.fail = lambda call, uuid: Transient("t", "busy")
    answer = keeper.handle(2, Release(60.0)).slots[0]
    assert (answer.accepted, board.closed) == (False, 0)
    assert "nothing was released" in answer.reason
    assert keeper.state.gpus["GPU-a"].pending_restore, "and it is tried again"


def test_a_file_on_the_node_stops_all_control(tmp_path: Path) -> None:
    board, stop = Board(), tmp_path / "stop"
    keeper = open_keeper(tmp_path, board, stop_file=str(stop))
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
    assert keeper.due_s() <= time.monotonic() + module.STOP_FILE_POLL_S, "it looks by itself"
    stop.symlink_to(tmp_path / "nowhere")  # whatever it is, it is there
    keeper.tick()
    assert not board.locked
    refused = apply(keeper, {"GPU-a": (0, 600)}, 2)
    assert f"the file {stop} stops all control" in refused.slots[0].reason
    stop.unlink()
    assert verdicts(apply(keeper, {"GPU-a": (0, 600)}, 3)) == {True}


def _yield(keeper: Keeper, uuid: str, clock: HeldClock, generation: int = 1) -> bool:
    """Asks as often as it takes for readings to prove anything."""
    for _ in range(2 * READINGS):
        clock.pass_s(SETTLE_S)
        if keeper.handle(9, Yield(uuid, 1, generation)).slots[0].accepted:
            return True
    return False


@pytest.mark.parametrize(
    ("shown_mhz", "limit_w", "calls"),
    [
        (900, 300, None),  # as the lease says
        (900, 350, ["reset GPU-a"]),  # another writer's limit
        (1200, 300, ["limit GPU-a 400"]),  # another writer's clocks
        (600, 300, ["limit GPU-a 400"]),
        (1410, 300, ["limit GPU-a 400"]),  # reset by another writer
        (1200, 350, []),
    ],
)
def test_what_is_another_writers_stays_and_the_rest_is_restored(
    tmp_path: Path, clock: HeldClock, shown_mhz: int, limit_w: int, calls: list[str] | None
) -> None:
    board, keeper = opened(tmp_path)
    order = apply_of(1, "blue", 1, 30.0, {"GPU-a": (0, 900)}, {"GPU-a": 300_000})
    assert verdicts(keeper.handle(1, order)) == {True}
    board.calls.clear()
    board.shown_mhz["GPU-a"], board.limits_mw["GPU-a"] = shown_mhz, limit_w * 1000
    assert _yield(keeper, "GPU-a", clock) == (calls is not None)
    assert board.calls == (calls or [])
    if calls is not None:
        assert not on_disk(tmp_path)
        assert keeper.state.gpu("GPU-a").lease is None
        assert keeper.restore_all("shutdown")
        assert board.calls == calls, "nothing is left to do"


def test_a_kept_limit_that_another_writer_has_replaced_is_not_kept(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, keeper = opened(tmp_path)
    order = apply_of(1, "blue", 1, 30.0, {"GPU-a": (0, 0)}, {"GPU-a": 300_000}, keep=True)
    assert verdicts(keeper.handle(1, order)) == {True}
    board.limits_mw["GPU-a"] = 350_000
    assert _yield(keeper, "GPU-a", clock)
    (slot,) = keeper.handle(2, Status(("GPU-a",))).slots
    assert (slot.kept_power_mw, board.limits_mw["GPU-a"]) == (0, 350_000)


def test_a_lease_ends_with_a_write_where_an_earlier_clock_of_ours_shows(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, keeper = opened(tmp_path)
    assert verdicts(apply(keeper, {"GPU-a": (0, 1200)})) == {True}
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 2)) == {True}
    board.shown_mhz["GPU-a"] = 1200
    board.calls.clear()
    clock.pass_s(SETTLE_S)
    for _ in range(READINGS):
        clock.pass_s(SETTLE_S)
        keeper.handle(9, Yield("GPU-a"))
    assert board.calls == ["reset GPU-a"]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_left_to_another_writer_is_reset_where_our_clock_shows(
    tmp_path: Path, clock: HeldClock, restarted: bool
) -> None:
    """The journal remembers it for this boot; whatever is asked meanwhile changes nothing."""
    board, keeper = held(tmp_path)
    board.shown_mhz["GPU-a"] = 1200
    assert _yield(keeper, "GPU-a", clock)
    board.calls.clear()
    if restarted:
        assert keeper.restore_all("shutdown")
        keeper = open_keeper(tmp_path, board)
    keeper.handle(9, Clear())
    keeper.handle(9, Clear(uuids=UUIDS))
    turn(keeper, clock, 10)
    assert not board.calls, "what stands there is somebody else's"
    board.shown_mhz["GPU-a"] = 900
    turn(keeper, clock, 2 * READINGS)
    assert board.calls[:1] == ["reset GPU-a"]
    assert set(board.calls) == {"reset GPU-a"}


def test_a_command_that_fails_after_another_writer_was_seen_is_reset(
    tmp_path: Path, clock: HeldClock
) -> None:
    """Its write may have replaced what the other writer had set."""
    board, keeper = held(tmp_path)
    board.shown_mhz["GPU-a"] = 1200
    assert _yield(keeper, "GPU-a", clock)
    board.fail = lambda call, _: Transient("unknown", "busy") if call == "lock" else None
    board.calls.clear()
    assert verdicts(apply(keeper, {"GPU-a": (0, 600)}, 2)) == {False}
    assert board.calls == ["lock GPU-a 0-600", "reset GPU-a"]


def test_a_limit_of_a_command_that_fails_while_a_restore_is_repeated_is_undone(
    tmp_path: Path, clock: HeldClock
) -> None:
    """Found by a random walk: the repetition undid only limits that come late."""
    board, keeper = opened(tmp_path)
    board.fail = lambda call, _: Unanswered("timeout", "slow") if call == "lock" else None
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {False}  # it is reset again for a minute
    failures = {"lock GPU-b": 1, "limit GPU-a": 2}  # the second: the way back

    def fail(call: str, uuid: str) -> Transient | None:
        name = f"{call} {uuid}"
        failures[name] = failures.get(name, 0) - 1
        return Transient("unknown", "busy") if failures[name] == 0 else None

    board.fail = fail
    both = {"GPU-a": (0, 600), "GPU-b": (0, 600)}
    command = apply_of(1, "blue", 2, 30.0, both, {"GPU-a": 300_000})
    assert verdicts(keeper.handle(2, command)) == {False}
    clock.pass_s(5.0)
    keeper.tick()
    assert (board.limits_mw["GPU-a"], board.locked) == (400_000, {})


@pytest.mark.parametrize("late_s", [65.0, 75.0, 7200.0])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("idle", [False, True])
def test_a_lock_that_never_showed_is_reset_however_late_it_comes(
    tmp_path: Path, clock: HeldClock, late_s: float, restarts: bool, idle: bool
) -> None:
    """Of the clocks of two leases one showed: the other one alone may still come."""
    board, keeper = opened(tmp_path)
    for generation, mhz in enumerate((1200, 900), start=1):
        assert verdicts(apply(keeper, {"GPU-a": (0, mhz)}, generation)) == {True}
        board.locked["GPU-a"] = (0, 1200)  # the driver says "done" of the second, and has not
        clock.pass_s(SETTLE_S)
        keeper.tick()
    keeper.handle(2, Clear())
    board.calls.clear()
    if restarts:
        clock.pass_s(61.0)
        keeper = open_keeper(tmp_path, board)
    for _ in range(round(late_s / 5.0)):  # it is idle, or reaches its default clock
        board.busy = not idle
        clock.pass_s(5.0)
        keeper.tick()
    assert not board.calls
    board.busy, board.locked["GPU-a"] = True, (0, 900)
    turn(keeper, clock, READINGS + 1)
    assert (board.calls, board.locked) == (["reset GPU-a"], {})
    if not (restarts or idle):
        board.locked["GPU-a"] = (0, 1200)
        turn(keeper, clock, 60)
        assert board.locked == {"GPU-a": (0, 1200)}, "another writer's: ours came and went"


def test_a_gpu_that_was_read_free_is_nobodys_concern_after_a_restart(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, keeper = held(tmp_path)
    clock.pass_s(SETTLE_S)
    keeper.tick()  # it shows
    keeper.handle(2, Clear())
    for restarts in range(2):
        assert keeper.state.gpu("GPU-a").may_be_ours == (not restarts)
        turn(keeper, clock, round(LATE_S) + 2 * READINGS)
        keeper = open_keeper(tmp_path, board)
    board.shown_mhz["GPU-a"] = 900
    board.calls.clear()
    turn(keeper, clock, 2 * READINGS)
    assert not board.calls, "it is a person's lock"


def test_a_clock_of_ours_that_a_person_has_locked_is_reset_until_he_says_so(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, file = Board(), tmp_path / module.BY_HAND
    keeper = open_keeper(tmp_path, board)

    def pass_s(seconds: int) -> None:
        turn(keeper, clock, seconds)

    assert verdicts(apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900)})) == {True}
    keeper.handle(2, Clear(uuids=("GPU-a",)))
    file.write_text("GPU-a")
    board.shown_mhz["GPU-a"] = 900
    board.calls.clear()
    pass_s(20)
    assert not board.calls
    file.unlink()
    pass_s(3600)
    assert sorted(board.calls) == ["reset GPU-a"] * RETAKES_END + ["reset GPU-b"]
    (slot,) = keeper.handle(3, Status(("GPU-a",))).slots
    assert slot.reason.startswith(STUCK)
    assert module.BY_HAND in slot.reason
    file.write_text("GPU-a\nGPU-b\n")
    board.calls.clear()
    pass_s(60)
    keeper.handle(4, Clear(uuids=("GPU-a",)))
    (slot,) = keeper.handle(5, Status(("GPU-a",))).slots
    assert slot.reason == f"the file {module.BY_HAND} names it"
    assert verdicts(apply(keeper, {"GPU-b": (0, 900)}, 2)) == {False}
    assert not board.calls
    file.unlink()
    assert verdicts(apply(keeper, {"GPU-b": (0, 900)}, 3)) == {True}
    file.write_text("GPU-b")
    keeper.tick()
    assert board.calls[-1] == "reset GPU-b", "its lease ends"


@pytest.mark.parametrize("ends", ["expired", "cleared", "killed", "stopped"])
@pytest.mark.parametrize("cap_mhz", [0, 600], ids=["shown", "hidden"])
@pytest.mark.parametrize("lies", [("reset",), ("limit",), ("reset", "limit")], ids="+".join)
def test_a_call_that_is_answered_and_not_done_is_found_out_and_made_again(
    tmp_path: Path, clock: HeldClock, lies: tuple[str, ...], cap_mhz: int, ends: str
) -> None:
    """However the lease ends, and whether or not a power limit hides the lock."""
    for count in (1, 2):
        board, folder = Board(cap_mhz=cap_mhz), tmp_path / str(count)
        free = ({}, 400_000 if ends == "cleared" else 180_000)
        folder.mkdir()
        keeper = open_keeper(folder, board, power_safe=180_000)
        assert set_both(keeper, "GPU-a", 1, (0, 900), 300).accepted
        board.lies = dict.fromkeys(lies, count)
        if ends == "expired":
            clock.pass_s(30.0)
            keeper.tick()
        elif ends == "cleared":
            keeper.handle(2, Clear())
        elif ends == "killed":
            keeper = open_keeper(folder, board, power_safe=180_000)
        elif count == 1:
            assert keeper.leave("shutdown")
            assert (board.locked, board.limits_mw["GPU-a"]) == free
            continue
        else:  # nothing but the next keeper finds out of the second lie
            keeper.leave("shutdown")
            keeper = open_keeper(folder, board, power_safe=180_000)
        turn(keeper, clock, 17)
        assert (board.locked, board.limits_mw["GPU-a"]) == free
        board.locked["GPU-a"], board.cap_mhz = (0, 1200), 0  # another writer's
        turn(keeper, clock, round(LATE_S))
        assert board.locked == ({} if ends == "killed" else {"GPU-a": (0, 1200)})


def test_a_reset_that_cannot_be_seen_is_repeated_a_few_times_and_no_more(
    tmp_path: Path, clock: HeldClock
) -> None:
    """Later it could be another writer's lock that is hidden."""
    board = Board(cap_mhz=600)
    keeper = open_keeper(tmp_path, board)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
    keeper.handle(2, Clear())
    board.calls.clear()
    turn(keeper, clock, 3600)
    assert board.calls == ["reset GPU-a"] * RETAKES_MAX
    (slot,) = keeper.handle(3, Status(("GPU-a",))).slots
    assert slot.accepted, "nothing shows that it is stuck"
    board.locked["GPU-a"], board.cap_mhz = (0, 900), 0
    turn(keeper, clock, READINGS + 1)
    assert board.locked == {}, "what shows is reset at once"


def test_a_keeper_that_leaves_resets_an_idle_gpu_twice_and_says_what_it_has_read(
    tmp_path: Path, clock: HeldClock
) -> None:
    for lies, busy, locked in ((1, False, {}), (9, True, {"GPU-a": (0, 900)})):
        board, folder = Board(busy=busy), tmp_path / str(lies)
        folder.mkdir()
        keeper = open_keeper(folder, board)
        assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
        board.lies = {"reset": lies}
        assert keeper.leave("shutdown") == (not locked)
        assert board.locked == locked


def test_what_is_hidden_long_after_its_reset_is_left_alone(
    tmp_path: Path, clock: HeldClock
) -> None:
    """Another job may have locked it since, on an idle GPU that showed nothing."""
    board = Board(cap_mhz=600, busy=False)
    keeper = open_keeper(tmp_path, board)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {True}
    keeper.handle(2, Clear())
    board.calls.clear()
    for second in range(600):
        board.busy = second > LATE_S
        clock.pass_s(1.0)
        keeper.tick()
    assert not board.calls


def test_what_was_left_to_another_writer_is_not_reset_where_it_is_hidden(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, keeper = held(tmp_path)
    board.locked["GPU-a"] = (0, 600)
    assert _yield(keeper, "GPU-a", clock)
    board.cap_mhz = 210
    board.calls.clear()
    turn(keeper, clock, round(LATE_S))
    assert (board.calls, board.locked) == ([], {"GPU-a": (0, 600)})


def test_under_a_lease_on_power_alone_a_lock_of_ours_is_reset_and_the_limit_stays(
    tmp_path: Path, clock: HeldClock
) -> None:
    board, keeper = held(tmp_path)
    board.lies = {"reset": 1}
    keeper.handle(2, Clear())
    assert set_both(keeper, "GPU-a", 2, (0, 0), 300).accepted
    turn(keeper, clock, READINGS + 1)
    assert (board.locked, board.limits_mw["GPU-a"]) == ({}, 300_000)
    assert keeper.state.gpu("GPU-a").lease
    assert not _yield(keeper, "GPU-a", clock, generation=2), "it asks for no clocks"
    board.locked["GPU-a"] = (0, 1200)
    for _ in range(3600):
        clock.pass_s(1.0)
        keeper.handle(3, Renew(1, "blue", 2, 30.0))
    assert board.locked == {"GPU-a": (0, 1200)}, "another writer's"


def test_a_clear_by_name_resets_again_what_may_be_ours(tmp_path: Path, clock: HeldClock) -> None:
    """A reset that had no effect, or a lock that came late: nothing else shows it to a keeper."""
    board, keeper = opened(tmp_path)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900), "GPU-b": (0, 900)})) == {True}
    board.shown_mhz["GPU-b"] = 1200
    assert _yield(keeper, "GPU-b", clock)
    keeper.handle(2, Clear())
    assert on_disk(tmp_path) == {}
    for again in (keeper, open_keeper(tmp_path, board), open_keeper(tmp_path, board)):
        board.locked = dict.fromkeys(UUIDS, (0, 900))
        assert again.restore_all("shutdown")
        again.handle(3, Clear())
        again.handle(3, Clear(job="red", uuids=("GPU-a",)))
        assert "GPU-a" in board.locked, "without a name, or for a job, only leases end"
        again.handle(4, Clear(uuids=tuple(UUIDS)))
        assert board.locked == dict.fromkeys(UUIDS[1:], (0, 900)), "others' locks stay"


def test_a_lock_call_that_timed_out_and_comes_late_is_reset_by_a_clear(tmp_path: Path) -> None:
    hangs = Transient("driver_unresponsive", "no answer")
    board = Board(fail=lambda call, uuid: hangs if call == "lock" else None)
    keeper = open_keeper(tmp_path, board)
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)})) == {False}
    for again in (keeper, open_keeper(tmp_path, board)):
        board.locked = {"GPU-a": (0, 900)}  # the driver carries it out now
        again.handle(3, Clear(uuids=tuple(UUIDS)))
        assert not board.locked


@pytest.mark.parametrize("damaged", [False, True])
def test_keepers_that_follow_a_killed_one_reset_until_no_write_of_it_can_be_late(
    tmp_path: Path, clock: HeldClock, damaged: bool
) -> None:
    """The killed keeper's write hangs in the driver, and the next keepers end before it is done."""
    board, keeper = held(tmp_path)
    assert verdicts(apply(keeper, {"GPU-b": (0, 900)}, 2)) == {True}
    assert keeper.handle(3, Clear(uuids=("GPU-b",))).slots[0].accepted
    if damaged:
        (tmp_path / "journal").write_bytes(b"\0" * 40 + b"\n")
    for _ in range(3):
        keeper = open_keeper(tmp_path, board)
        assert "GPU-a" not in board.locked
        assert keeper.restore_all("shutdown")
        counts = keeper.handle(4, Status(("GPU-a",))).slots[0].restores
        assert "shutdown" not in counts, "it was restored already"
        read = module.journal(Settings(str(tmp_path), FREE))
        assert (read.is_clean, read.is_restored) == (False, True)
        board.locked["GPU-a"] = (0, 900)  # the driver carries it out now
        clock.pass_s(5.0)
    calls_before = len(board.calls)
    clock.pass_s(LATE_S + 1.0)
    open_keeper(tmp_path, board)
    assert len(board.calls) == calls_before, "a lock that is set now is another writer's"


def test_a_command_repeated_after_a_restart_is_journaled_again(
    tmp_path: Path, clock: HeldClock
) -> None:
    board = Board()
    assert verdicts(apply(open_keeper(tmp_path, board), {"GPU-a": (0, 900)})) == {True}
    assert verdicts(apply(open_keeper(tmp_path, board), {"GPU-a": (0, 900)})) == {True}
    assert on_disk(tmp_path) == {"GPU-a": (0, 900, 0)}, "it was restored in between"
    clock.pass_s(LATE_S)
    open_keeper(tmp_path, board)
    assert not board.locked


def test_a_newer_order_is_not_yielded_with_an_older_one(tmp_path: Path, clock: HeldClock) -> None:
    board = Board(shown_mhz={"GPU-a": 1200})
    keeper = open_keeper(tmp_path, board)
    apply(keeper, {"GPU-a": (0, 900)}, generation=2)
    assert not _yield(keeper, "GPU-a", clock)
    assert keeper.state.gpu("GPU-a").lease is not None
    assert on_disk(tmp_path) == {"GPU-a": (0, 900, 0)}


def test_a_reply_has_the_time_left_of_a_window(tmp_path: Path, clock: HeldClock) -> None:
    keeper = open_keeper(tmp_path, Board())
    assert keeper.handle(1, Status()).released_s == 0.0
    keeper.handle(2, Release(600.0))
    clock.pass_s(1.0)
    assert keeper.handle(3, Status()).released_s == pytest.approx(599.0)
    keeper.handle(4, Resume())
    assert keeper.handle(5, Status()).released_s == 0.0
