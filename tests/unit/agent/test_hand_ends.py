"""The keeper's hand at its edges: deadlines, what a child inherits, how much may hang at once."""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from joulecut_agent import hand as module
from joulecut_agent.hand import Hand
from joulecut_agent.ports.failure import DeviceError, Transient

pytestmark = pytest.mark.alone

PATIENCE_S = 15.0  # far below what a mutant of a deadline waits, far above a busy machine


class Board:
    """A `DeviceWriter` that is slow where a file says so; its pid is in `opened`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sleep("open")
        with (folder / "opened").open("a") as log:
            log.write(f"{os.getpid()}\n")

    def _sleep(self, what: str) -> None:
        path = self._folder / f"slow-{what}"
        if path.exists():
            time.sleep(float(path.read_text()))

    def permission(self) -> str:
        return ""

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        return (210, 1410)

    def uncontrollable(self, uuid: str) -> str:
        return ""

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self._sleep(uuid)

    def reset(self, uuid: str) -> None:
        self._sleep(uuid)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        return 0, 0, 0

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        """Nothing to limit."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hand]:
    monkeypatch.setattr(module, "CALL_WAIT_S", 1.0)  # constants, so that hangs are short here
    monkeypatch.setattr(module, "BACK_OFF_S", 0.5)
    ours = Hand(lambda: Board(tmp_path))
    yield ours
    ours.close()


def _slow(folder: Path, what: str, seconds: float) -> None:
    (folder / f"slow-{what}").write_text(str(seconds))


def _pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "opened").read_text().split()]


def _until(act: Callable[[], object]) -> bool:
    """Tries until it is done without a DeviceError."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        try:
            act()
        except DeviceError:
            time.sleep(0.02)
        else:
            return True
    return False


def _said(capfd: pytest.CaptureFixture[str], *wanted: str) -> str:
    """Standard error once `wanted` is in it: lines are written by a thread of their own."""
    said, end_s = "", time.monotonic() + PATIENCE_S
    while not all(word in said for word in wanted) and time.monotonic() < end_s:
        said += capfd.readouterr().err
        time.sleep(0.02)
    return said


def test_a_call_is_waited_for_no_longer_than_its_deadline(hand: Hand, tmp_path: Path) -> None:
    _slow(tmp_path, "a", 60.0)
    began_s = time.monotonic()
    with pytest.raises(Transient, match="lock does not answer"):
        hand.lock("a", 0, 210)
    assert time.monotonic() - began_s < PATIENCE_S


def test_opening_has_a_deadline_of_its_own(hand: Hand, tmp_path: Path) -> None:
    """A driver that nothing keeps loaded takes longer to open than any call does."""
    _slow(tmp_path, "open", 2.0 * module.CALL_WAIT_S)
    hand.lock("a", 0, 210)
    assert len(_pids(tmp_path)) == 1


def test_who_answers_again_is_forgiven(
    hand: Hand, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for gpu in ("a", "a", "end"):  # the last one's line comes after the others'
        _slow(tmp_path, gpu, 60.0)
        with pytest.raises(Transient, match="does not answer"):
            hand.reset(gpu)
        (tmp_path / f"slow-{gpu}").unlink()
        assert _until(lambda gpu=gpu: hand.reset(gpu))
    said = _said(capfd, "reset end: no answer")
    assert said.count("reset a: no answer; left alone for 0.5 s") == 2


def test_who_does_not_is_left_alone_for_longer_each_time(
    hand: Hand, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _slow(tmp_path, "a", 60.0)
    for _ in range(2):
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            with pytest.raises(Transient) as caught:
                hand.reset("a")
            if "does not answer" in str(caught.value):
                break
    wanted = [f"reset a: no answer; left alone for {wait_s:g} s" for wait_s in (0.5, 1.0)]
    said = _said(capfd, *wanted)
    assert [said.count(line) for line in wanted] == [1, 1]


def test_so_many_may_hang_and_no_more(
    hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that do not even die are the driver's own trouble: more of them help nobody."""
    monkeypatch.setattr(module, "STUCK_MAX", 2)
    killed: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, _: killed.append(pid))  # as in state D
    for gpu in ("a", "b"):
        _slow(tmp_path, gpu, 60.0)
        with pytest.raises(Transient, match="does not answer"):
            hand.reset(gpu)
    with pytest.raises(Transient, match="2 calls to the driver hang"):
        hand.reset("c")
    monkeypatch.undo()
    assert len(killed) == 2
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert _until(lambda: hand.reset("c"))


@pytest.mark.parametrize("what", ["descriptors", "processes"])
def test_where_the_machine_has_no_process_left_it_says_so_and_tries_again(
    hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    hand.lock("a", 0, 210)
    os.kill(_pids(tmp_path)[0], signal.SIGKILL)
    with pytest.raises(Transient, match="a: lock"):
        hand.lock("a", 0, 210)

    def refuse(*_: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as machine:
        machine.setattr(
            *((module.socket, "socketpair") if what == "descriptors" else (os, "fork")), refuse
        )
        for _ in range(3):
            with pytest.raises(Transient, match="temporarily unavailable"):
                hand.lock("a", 0, 210)
        assert hand.clocks_mhz("a") == ()
    hand.lock("a", 0, 210)
    assert len(_pids(tmp_path)) == 2


def test_a_child_holds_nothing_of_its_keeper(hand: Hand, tmp_path: Path) -> None:
    """A child that cannot die must not keep the lock by which the next keeper starts."""
    lock = tmp_path / "lock"
    ours = os.open(lock, os.O_CREAT | os.O_RDWR)
    fcntl.flock(ours, fcntl.LOCK_EX)
    hand.reset("a")
    os.close(ours)
    theirs = os.open(lock, os.O_RDWR)
    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody holds it
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_of_them_does_not_cost_the_child(
    hand: Hand, tmp_path: Path, number: signal.Signals
) -> None:
    hand.reset("a")
    (pid,) = _pids(tmp_path)
    os.kill(pid, number)
    hand.reset("a")
    assert _pids(tmp_path) == [pid], "its keeper ends it, once it has restored"
