"""The keeper's writer: a call that hangs costs its own GPU, for a while, and nobody else's."""

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
from keeper_board import FREE
from keeper_requests import apply_of

from joulecut_agent import driver_process
from joulecut_agent.keeper import keeper as keeper_module
from joulecut_agent.keeper import writer_process as module
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.keeper.writer_process import WriterProcess
from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Transient, Unanswered

pytestmark = pytest.mark.alone

PATIENCE_S = 90.0  # for a machine that stands still now and then; met early on every other
ENDLESS_S = 600.0
CLOCKS = (210, 900, 1410)


class Board:
    """A `DeviceWriter` in a child process: what it does shows in files; its pid is in `opened`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sleep("open")
        with (folder / "opened").open("a") as log:
            log.write(f"{os.getpid()}\n")

    def _sleep(self, what: str) -> None:
        if (path := self._folder / f"slow-{what}").exists():
            time.sleep(float(path.read_text()))

    def permission(self) -> str:
        return ""

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        return CLOCKS

    def uncontrollable(self, uuid: str) -> str:
        return "MIG is on" if (self._folder / "mig").exists() else ""

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self._sleep(uuid)
        if (self._folder / f"die-{uuid}").exists():
            os.kill(os.getpid(), 9)
        if (self._folder / f"gone-{uuid}").exists():
            raise Gone("gpu_is_lost", f"{uuid} fell off the bus")
        (self._folder / f"locked-{uuid}").write_text(f"{clock_min_mhz}-{clock_max_mhz}")

    def reset(self, uuid: str) -> None:
        self._sleep(uuid)
        (self._folder / f"locked-{uuid}").unlink(missing_ok=True)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        return 100_000, 400_000, 300_000

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        return 210, 0.0, ("idle",)

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        raise NotPermitted("no_permission", "no right")

    def close(self) -> None:
        """Nothing to close."""


class LimitedBoard(Board):
    """One that takes power limits."""

    def uuids(self) -> tuple[str, ...]:
        return ("a",)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        path = self._folder / f"limit-{uuid}"
        return 100_000, 400_000, int(path.read_text()) if path.exists() else 300_000

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        self._sleep(f"limit of {uuid}")
        (self._folder / f"limit-{uuid}").write_text(str(limit_mw))


def _slow(folder: Path, what: str, seconds: float = ENDLESS_S) -> None:
    """`what` is `open`, a GPU, or the `limit of` one."""
    (folder / f"slow-{what}").write_text(str(seconds))


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
def _hanging(*constants: str) -> Iterator[None]:
    """Around a call that hangs: its deadlines are short, and it is killed after the first."""
    with pytest.MonkeyPatch.context() as short:
        for constant in constants or ("OVERDUE_S", "OVERDUE_AGAIN_S", "CALL_WAIT_S"):
            short.setattr(module, constant, 0.3)
        yield


def _opened(folder: Path) -> list[int]:
    path = folder / "opened"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def _until(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)
    return condition()


def test_answers_and_failures_come_back_as_they_were(writer: WriterProcess, tmp_path: Path) -> None:
    assert writer.permission() == ""
    assert writer.clocks_mhz("a") == CLOCKS
    assert writer.power_limits_mw("a") == (100_000, 400_000, 300_000)
    writer.lock("a", 0, 900)
    assert (tmp_path / "locked-a").read_text() == "0-900"
    with pytest.raises(NotPermitted, match="no right") as denied:
        writer.limit_power("a", 200_000)
    assert denied.value.code == "no_permission"
    (tmp_path / "gone-a").touch()
    with pytest.raises(Gone, match="fell off the bus"):
        writer.lock("a", 0, 210)
    assert len(_opened(tmp_path)) == 1, "one process for all of it"
    assert _opened(tmp_path) != [os.getpid()]


def test_a_call_that_hangs_costs_its_own_gpu_only(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock
) -> None:
    _slow(tmp_path, "a")
    with _hanging(), pytest.raises(Transient, match="does not answer") as hung:
        writer.lock("a", 0, 900)
    assert hung.value.code == "driver_unresponsive"
    assert not writer.clocks_mhz("a")
    assert writer.uncontrollable("a"), "and it says why"
    writer.lock("b", 0, 900)
    assert (tmp_path / "locked-b").exists()
    first, second = _opened(tmp_path)
    assert _until(lambda: bool(writer.clocks_mhz("b")) and _gone(first)), "nothing is left behind"
    (tmp_path / "slow-a").unlink()

    def locks() -> bool:
        try:
            writer.lock("a", 0, 900)
        except DeviceError:
            return False
        return True

    assert not locks(), "backing off for a while"
    clock.pass_s(driver_process.BACKOFF_S)
    assert _until(locks)
    assert _opened(tmp_path) == [first, second]


def test_a_driver_that_does_not_open_blocks_no_caller(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock
) -> None:
    _slow(tmp_path, "open")
    with (
        _hanging("OPEN_WAIT_S", "CALL_WAIT_S"),
        pytest.raises(Transient, match="driver: permission does not answer"),
    ):
        writer.permission()
    for _ in range(50):  # and who waits says that it does not answer
        assert "no answer" in writer.uncontrollable("b"), "not fifty waits"
    assert not _opened(tmp_path)
    (tmp_path / "slow-open").unlink()
    clock.pass_s(driver_process.BACKOFF_S)
    assert _until(lambda: not writer.uncontrollable("b"))


def test_a_process_that_cannot_be_killed_bars_its_gpu_until_it_is_gone(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock
) -> None:
    """As one in state D: a signal is only seen when the driver lets go."""
    killed: list[int] = []
    _slow(tmp_path, "a")
    with pytest.MonkeyPatch.context() as deaf:
        deaf.setattr(driver_process.os, "kill", lambda pid, _: killed.append(pid))
        with _hanging(), pytest.raises(Transient):
            writer.lock("a", 0, 900)
    (tmp_path / "slow-a").unlink()
    clock.pass_s(driver_process.BACKOFF_S)
    with pytest.raises(Transient, match="a: no answer"):
        writer.reset("a")  # the old call may still happen after it
    writer.lock("b", 0, 900)
    assert (tmp_path / "locked-b").exists()
    os.kill(killed[0], 9)

    def resets() -> bool:
        try:
            writer.reset("a")
        except DeviceError:
            return False
        return True

    assert _until(resets)


def test_one_that_dies_is_replaced(writer: WriterProcess, tmp_path: Path) -> None:
    (tmp_path / "die-a").touch()
    with pytest.raises(Transient, match="lock"):
        writer.lock("a", 0, 900)
    (tmp_path / "die-a").unlink()
    writer.lock("a", 0, 900)
    assert len(_opened(tmp_path)) == 2


def test_closing_drops_the_handles_and_the_next_call_opens_again(
    writer: WriterProcess, tmp_path: Path
) -> None:
    writer.lock("a", 0, 900)
    writer.close()
    assert _gone(_opened(tmp_path)[0]), "when close returns, nobody holds the driver"
    writer.reset("a")
    assert len(_opened(tmp_path)) == 2


def test_a_writer_process_leaves_with_its_keeper(tmp_path: Path) -> None:
    keeper = os.fork()
    if keeper == 0:
        WriterProcess(lambda: Board(tmp_path)).permission()
        os._exit(0)
    os.waitpid(keeper, 0)
    assert _until(lambda: _gone(_opened(tmp_path)[0]))


def test_a_judgement_is_kept_for_a_moment_and_never_longer_than_its_process(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock
) -> None:
    assert not writer.uncontrollable("a")
    (tmp_path / "mig").touch()
    assert not writer.uncontrollable("a"), "it was asked a moment ago"
    clock.pass_s(module.CONTROLLABLE_S)
    assert writer.uncontrollable("a") == "MIG is on"
    (tmp_path / "mig").unlink()
    assert writer.uncontrollable("a") == "MIG is on", "not asked again yet"
    writer.close()
    assert not writer.uncontrollable("a")


def _done(act: Callable[[], object]) -> bool:
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
    """Raises Transient while a killed process has not ended."""
    writer.reset("b")
    if writer._zombies.targets:
        raise Transient("stuck", "not dead yet")


def test_opening_has_a_deadline_of_its_own(writer: WriterProcess, tmp_path: Path) -> None:
    """A driver that nothing keeps loaded takes longer to open than any call does."""
    _slow(tmp_path, "open", 1.0)
    _slow(tmp_path, "a")
    with _hanging(), pytest.raises(Transient, match="lock does not answer"):
        writer.lock("a", 0, 210)
    assert len(_opened(tmp_path)) == 1, "it was the call that was too late"


def test_who_answers_again_is_forgiven(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        _slow(tmp_path, "a")
        with _hanging(), pytest.raises(Transient, match="does not answer"):
            writer.reset("a")
        (tmp_path / "slow-a").unlink()
        clock.pass_s(driver_process.BACKOFF_S)
        assert _done(lambda: writer.reset("a"))
    assert capfd.readouterr().err.count("reset a: no answer; backing off for 2 s") == 2


def test_who_does_not_is_left_alone_for_longer_each_time(
    writer: WriterProcess, tmp_path: Path, clock: HeldClock, capfd: pytest.CaptureFixture[str]
) -> None:
    _slow(tmp_path, "a")
    for wait_s in (2.0, 4.0):
        assert _done(lambda: _buries(writer))
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
            _slow(tmp_path, gpu)
            with _hanging(), pytest.raises(Transient, match="does not answer"):
                writer.reset(gpu)
        for _ in range(3):
            clock.pass_s(driver_process.BACKOFF_S_MAX)
            writer.reset("the last")
            for gpu in gpus:
                with pytest.raises(Transient, match=f"{gpu}: no answer to a call"):
                    writer.reset(gpu)
    assert len(killed) == len(gpus)
    assert len(_opened(tmp_path)) == len(gpus) + 1
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert _done(lambda: writer.reset("another"))


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
    _slow(tmp_path, "a")  # a second reset would hang
    assert _done(lambda: writer.reset("a"))
    first, second = _opened(tmp_path)
    assert _done(lambda: _buries(writer))
    assert _gone(first), "it answered late, and one child is enough"
    assert not _gone(second)


def test_a_limit_call_that_hangs_does_not_keep_the_clocks_from_their_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: HeldClock
) -> None:
    """The lower limit goes first, so that the hung call holds up the reset; then the reset does."""
    monkeypatch.setattr(keeper_module, "time", clock)
    for name in ("OVERDUE_S", "OVERDUE_AGAIN_S", "OPEN_WAIT_S"):
        monkeypatch.setattr(module, name, PATIENCE_S)
    writer = WriterProcess(lambda: LimitedBoard(tmp_path))
    keeper, limit, locked = Keeper(Settings(str(tmp_path), FREE), writer), "limit-a", "locked-a"
    for generation, power_w, above in ((1, 200, False), (2, 280, True)):
        clocks, power_mw = {"a": (0, 900)}, {"a": 1000 * power_w}
        asked = apply_of(1, "j", generation, 10.0, clocks, power_mw, keep=not above, above=above)
        assert keeper.handle(generation, asked).slots[0].accepted
    assert (tmp_path / locked).exists()
    _slow(tmp_path, "limit of a")
    clock.pass_s(10.0)
    with _hanging("OVERDUE_S", "OVERDUE_AGAIN_S"):
        keeper.tick()
        assert (tmp_path / locked).exists()
        for _ in range(20):
            clock.pass_s(0.5)
            keeper.tick()
    assert not (tmp_path / locked).exists(), "ten seconds after its lease"
    assert (tmp_path / limit).read_text() == "280000"
    (tmp_path / "slow-limit of a").unlink()
    for _ in range(2):
        clock.pass_s(driver_process.BACKOFF_S_MAX)
        keeper.tick()
    assert _until(lambda: (tmp_path / limit).read_text() == "200000")
    writer.close()


@pytest.mark.parametrize("what", ["descriptors", "processes"])
def test_where_the_machine_has_no_process_left_it_says_so_and_tries_again(
    writer: WriterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    writer.lock("a", 0, 210)
    (pid,) = _opened(tmp_path)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
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
    assert len(_opened(tmp_path)) == 2


def test_a_child_holds_nothing_of_its_keeper(writer: WriterProcess, tmp_path: Path) -> None:
    """A child that cannot die must not keep the lock by which the next keeper starts."""
    lock = tmp_path / "lock"
    ours = os.open(lock, os.O_CREAT | os.O_RDWR)
    fcntl.flock(ours, fcntl.LOCK_EX)
    writer.reset("a")
    os.close(ours)
    theirs = os.open(lock, os.O_RDWR)
    fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where the lock is held
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_of_them_does_not_cost_the_child(
    writer: WriterProcess, tmp_path: Path, number: signal.Signals
) -> None:
    writer.reset("a")
    (pid,) = _opened(tmp_path)
    os.kill(pid, number)
    writer.reset("a")
    assert _opened(tmp_path) == [pid], "its keeper ends it, once it has restored"
