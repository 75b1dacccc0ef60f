"""The keeper's writer at its edges: deadlines, what a child inherits, how much may hang at once."""

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from held_clock import HeldClock

from joulecut_agent import driver_process
from joulecut_agent.keeper import writer_process as module
from joulecut_agent.keeper.writer_process import WriterProcess
from joulecut_agent.ports.failure import DeviceError, Transient, Unanswered

pytestmark = pytest.mark.alone

PATIENCE_S = 90.0  # for a machine that stands still now and then; met early on every other
ENDLESS_S = 600.0


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

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        return 210, 0.0, ("idle",)

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        """Nothing to limit."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    made = HeldClock()
    for patched in (module, driver_process):
        monkeypatch.setattr(patched, "time", made)
    return made


@pytest.fixture
def writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
) -> Iterator[WriterProcess]:
    for name in ("OVERDUE_S", "OVERDUE_AGAIN_S", "CALL_WAIT_S", "OPEN_WAIT_S"):
        monkeypatch.setattr(module, name, PATIENCE_S)  # who answers at all is waited for
    ours = WriterProcess(lambda: Board(tmp_path))
    yield ours
    ours.close()


@contextlib.contextmanager
def _hanging() -> Iterator[None]:
    """Around a call that hangs: its deadline is short."""
    with pytest.MonkeyPatch.context() as short:
        for name in ("OVERDUE_S", "OVERDUE_AGAIN_S", "CALL_WAIT_S"):
            short.setattr(module, name, 0.3)
        yield


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


def _buries(writer: WriterProcess) -> None:
    """Raises Transient while somebody that was killed lives on."""
    writer.reset("b")
    if writer._zombies.targets:
        raise Transient("stuck", "not dead yet")


def test_a_call_is_waited_for_no_longer_than_its_deadline(
    writer: WriterProcess, tmp_path: Path
) -> None:
    _slow(tmp_path, "a", ENDLESS_S)
    began_s = time.monotonic()
    with _hanging(), pytest.raises(Transient, match="lock does not answer"):
        writer.lock("a", 0, 210)
    assert time.monotonic() - began_s < ENDLESS_S / 2


def test_opening_has_a_deadline_of_its_own(writer: WriterProcess, tmp_path: Path) -> None:
    """A driver that nothing keeps loaded takes longer to open than any call does."""
    _slow(tmp_path, "open", 1.0)
    _slow(tmp_path, "a", ENDLESS_S)
    with _hanging(), pytest.raises(Transient, match="lock does not answer"):
        writer.lock("a", 0, 210)
    assert len(_pids(tmp_path)) == 1, "it was the call that was too late"


def test_who_answers_again_is_forgiven(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        _slow(tmp_path, "a", ENDLESS_S)
        with _hanging(), pytest.raises(Transient, match="does not answer"):
            writer.reset("a")
        (tmp_path / "slow-a").unlink()
        clock.pass_s(driver_process.BACKOFF_S)
        assert _until(lambda: writer.reset("a"))
    assert capfd.readouterr().err.count("reset a: no answer; backing off for 2 s") == 2


def test_who_does_not_is_left_alone_for_longer_each_time(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock, capfd: pytest.CaptureFixture[str]
) -> None:
    _slow(tmp_path, "a", ENDLESS_S)
    for wait_s in (2.0, 4.0):
        assert _until(lambda: _buries(writer))
        with _hanging(), pytest.raises(Transient, match="does not answer"):
            writer.reset("a")
        clock.pass_s(wait_s - 0.1)
        with pytest.raises(Transient, match="no answer"):
            writer.reset("a")
        clock.pass_s(0.1)
    wanted = [f"reset a: no answer; backing off for {wait_s:g} s" for wait_s in (2.0, 4.0)]
    said = capfd.readouterr().err
    assert [said.count(line) for line in wanted] == [1, 1]


def test_each_gpu_that_hangs_costs_one_process_and_no_more(
    writer: WriterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
) -> None:
    """Processes that do not even die are the driver's own trouble; other GPUs are served."""
    killed: list[int] = []
    gpus = [f"gpu-{n}" for n in range(7)]
    with monkeypatch.context() as machine:
        machine.setattr(
            driver_process.os, "kill", lambda pid, _: killed.append(pid)
        )  # as in state D
        for gpu in gpus:
            _slow(tmp_path, gpu, ENDLESS_S)
            with _hanging(), pytest.raises(Transient, match="does not answer"):
                writer.reset(gpu)
        for _ in range(3):
            clock.pass_s(driver_process.BACKOFF_S_MAX)
            writer.reset("the last")
            for gpu in gpus:
                with pytest.raises(Transient, match=f"{gpu}: no answer to a call"):
                    writer.reset(gpu)
    assert len(killed) == len(gpus)
    assert len(_pids(tmp_path)) == len(gpus) + 1
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert _until(lambda: writer.reset("another"))


def test_what_is_overdue_blocks_its_own_gpu_and_its_late_answer_counts(
    writer: WriterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slow(tmp_path, "a", 1.0)
    with monkeypatch.context() as short:
        short.setattr(module, "OVERDUE_S", 0.1)
        with pytest.raises(Unanswered, match="does not answer"):
            writer.reset("a")
    with pytest.raises(Transient, match="a: no answer to a call"):
        writer.lock("a", 0, 210)
    writer.lock("b", 0, 210)
    _slow(tmp_path, "a", ENDLESS_S)  # a second reset would hang
    assert _until(lambda: writer.reset("a"))
    assert len(_pids(tmp_path)) == 2, "nothing was killed"


@pytest.mark.parametrize("what", ["descriptors", "processes"])
def test_where_the_machine_has_no_process_left_it_says_so_and_tries_again(
    writer: WriterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    writer.lock("a", 0, 210)
    os.kill(_pids(tmp_path)[0], signal.SIGKILL)
    with pytest.raises(Transient, match="a: lock"):
        writer.lock("a", 0, 210)

    def refuse(*_: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as machine:
        machine.setattr(
            *((driver_process.socket, "socketpair") if what == "descriptors" else (os, "fork")),
            refuse,
        )
        for _ in range(3):
            with pytest.raises(Transient, match="temporarily unavailable"):
                writer.lock("a", 0, 210)
        assert writer.clocks_mhz("a") == ()
    writer.lock("a", 0, 210)
    assert len(_pids(tmp_path)) == 2


def test_a_child_holds_nothing_of_its_keeper(writer: WriterProcess, tmp_path: Path) -> None:
    """A child that cannot die must not keep the lock by which the next keeper starts."""
    lock = tmp_path / "lock"
    ours = os.open(lock, os.O_CREAT | os.O_RDWR)
    fcntl.flock(ours, fcntl.LOCK_EX)
    writer.reset("a")
    os.close(ours)
    theirs = os.open(lock, os.O_RDWR)
    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody holds it
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_of_them_does_not_cost_the_child(
    writer: WriterProcess, tmp_path: Path, number: signal.Signals
) -> None:
    writer.reset("a")
    (pid,) = _pids(tmp_path)
    os.kill(pid, number)
    writer.reset("a")
    assert _pids(tmp_path) == [pid], "its keeper ends it, once it has restored"
