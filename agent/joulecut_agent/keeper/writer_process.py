"""The process that touches the driver for the keeper, so that a call that hangs can be left.

A thread that hangs in a driver cannot be ended, and takes every later call with it; a
process can be killed, or at least be waited for while another one serves the other GPUs.
Each call has a deadline. One that misses it costs its own GPU: that is left alone for a
growing while, and for as long as the old process has not died, because what it was told to
write may still happen.
"""

import contextlib
import marshal
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from joulecut_agent.log import say
from joulecut_agent.ports import failure
from joulecut_agent.ports.failure import DeviceError, Transient
from joulecut_agent.ports.writer import DeviceWriter

CALL_WAIT_S = 2.0  # a write takes 10-20 ms; a busy driver some hundreds
OPEN_WAIT_S = 10.0  # loading the driver takes a second or two where nothing keeps it loaded
BACK_OFF_S, BACK_OFF_S_MAX = 2.0, 60.0  # doubling: a hung GPU must not stop the others often
CLOSE_WAIT_S, CLOSE_TRY_S = 2.0, 0.01
JUDGED_S = 2.0  # the agent asks every second, so that no order waits; `lock` judges for itself
STUCK_MAX = 4  # processes that do not even die; more of them would help nobody
JUDGED_MAX = 64  # GPUs; strangers are asked for each time
_BYTES_MAX = 65_536  # a clock table of 300 entries takes 2,000
DRIVER = ""  # in place of a GPU: the call that opens the driver


class Hand:
    """A `DeviceWriter` that does everything in a child process of its own."""

    def __init__(self, open_writer: Callable[[], DeviceWriter]) -> None:
        self._open_writer = open_writer
        self._pid = 0
        self._line: socket.socket | None = None
        self._stuck: dict[int, str] = {}  # killed children that live on, and what they were at
        self._hung: dict[str, tuple[int, float]] = {}  # how often in a row, and left alone until
        self._judged: dict[str, tuple[str, float]] = {}  # the device's word, and until when

    def permission(self) -> str:
        return str(self._ask("permission"))

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        with contextlib.suppress(DeviceError):
            return tuple(self._ask("clocks_mhz", uuid))
        return ()

    def uncontrollable(self, uuid: str) -> str:
        reason, until_s = self._judged.get(uuid, ("", 0.0))
        if time.monotonic() < until_s and self._line is not None:
            return reason
        self._judged.pop(uuid, None)
        try:
            reason = str(self._ask("uncontrollable", uuid))
        except DeviceError as error:
            return str(error)
        if len(self._judged) < JUDGED_MAX:
            self._judged[uuid] = (reason, time.monotonic() + JUDGED_S)
        return reason

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self._ask("lock", uuid, clock_min_mhz, clock_max_mhz)

    def reset(self, uuid: str) -> None:
        self._ask("reset", uuid)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        low, high, now = self._ask("power_limits_mw", uuid)
        return low, high, now

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        self._ask("limit_power", uuid, limit_mw)

    def close(self) -> None:
        """Drops every handle; the next call opens the driver again."""
        if self._line is None:
            return
        self._line.close()
        self._line = None
        until_s = time.monotonic() + CLOSE_WAIT_S
        while not _reaped(self._pid):
            if time.monotonic() >= until_s:
                self._abandon(DRIVER)
                return
            time.sleep(CLOSE_TRY_S)

    def _ask(self, call: str, uuid: str = DRIVER, *rest: int) -> Any:
        """The child's answer. Raises DeviceError."""
        self._stuck = {pid: at for pid, at in self._stuck.items() if not _reaped(pid)}
        for at in (DRIVER, uuid):
            if at in self._stuck.values() or time.monotonic() < self._hung.get(at, (0, 0.0))[1]:
                raise Transient("driver_unresponsive", f"{at or 'driver'}: no answer to a call")
        if self._line is None:
            self._exchange("permission", DRIVER, (), OPEN_WAIT_S)
        return self._exchange(call, uuid, (uuid, *rest) if uuid else (), CALL_WAIT_S)

    def _exchange(self, call: str, uuid: str, arguments: tuple[Any, ...], wait_s: float) -> Any:
        try:
            line = self._line or self._start()
            line.settimeout(wait_s)
            line.send(marshal.dumps((call, arguments)))  # the least there is to run cold
            kind, code, value = marshal.loads(line.recv(_BYTES_MAX))  # noqa: S302 -- our child
        except TimeoutError:
            self._give_up(call, uuid)
            what = f"{uuid or 'driver'}: {call} does not answer"
            raise Transient("driver_unresponsive", what) from None
        except (OSError, ValueError, EOFError, TypeError) as error:  # it died, or was never made
            self.close()
            raise Transient("writer_died", f"{uuid or 'driver'}: {call}: {error}") from None
        self._hung.pop(uuid, None)
        if kind:
            raise getattr(failure, kind, DeviceError)(code, value)
        return value

    def _give_up(self, call: str, uuid: str) -> None:
        assert self._line is not None
        self._line.close()
        self._line = None
        times = self._hung.get(uuid, (0, 0.0))[0]
        wait_s = min(BACK_OFF_S * 2.0 ** min(times, 16), BACK_OFF_S_MAX)
        self._hung[uuid] = (times + 1, time.monotonic() + wait_s)
        say("keeper", f"{call} {uuid or 'driver'}: no answer; left alone for {wait_s:g} s")
        self._abandon(uuid)

    def _abandon(self, uuid: str) -> None:
        os.kill(self._pid, signal.SIGKILL)
        if not _reaped(self._pid):
            self._stuck[self._pid] = uuid

    def _start(self) -> socket.socket:
        """Raises Transient, and OSError where the machine has no process or descriptor left."""
        if len(self._stuck) >= STUCK_MAX:
            raise Transient("driver_unresponsive", f"{STUCK_MAX} calls to the driver hang")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            pid = os.fork()  # the keeper has one thread, and has never opened the driver itself
            if pid == 0:
                _serve(theirs, self._open_writer)
            undo.pop_all()
        self._pid, self._line = pid, ours
        self._judged = {}
        return ours


def _reaped(pid: int) -> bool:
    """Whether a child is gone; it may take a moment, or for ever where the driver hangs."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _serve(line: socket.socket, open_writer: Callable[[], DeviceWriter]) -> None:
    """The child: answers calls until the keeper is gone; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it leaves with its keeper, which restores first
        # The keeper's lock and sockets must not live on in a child that cannot die.
        os.closerange(3, line.fileno())
        os.closerange(line.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        writer: DeviceWriter | None = None
        while raw := line.recv(_BYTES_MAX):
            call, arguments = marshal.loads(raw)  # noqa: S302 -- of the keeper that made us
            try:
                writer = writer or open_writer()
                answer = ("", "", getattr(writer, call)(*arguments))
            except DeviceError as error:
                answer = (type(error).__name__, error.code, str(error))
            line.send(marshal.dumps(answer))
    finally:
        os._exit(0)
