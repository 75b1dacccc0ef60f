"""The keeper's `DeviceWriter`: every driver call is made in a child process, with a deadline.

One child serves all GPUs while the driver answers. A call that is overdue keeps its child to
itself, and the next call starts another one: each hung GPU blocks its own child and nothing else.
A child whose call is answered late serves again; one that is not answered within CALL_WAIT_S is
killed. A GPU takes no other call meanwhile, nor while a killed child of its has not ended. So there
is at most one child for each GPU, and one more.
"""

import contextlib
import marshal
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joulecut_agent.driver_process import Backoffs, DriverProcess, ForkedProcess, Zombies
from joulecut_agent.log import log
from joulecut_agent.ports import failure
from joulecut_agent.ports.failure import UPGRADED, DeviceError, Transient, Unanswered
from joulecut_agent.ports.writer import DeviceWriter

# A call takes 10-20 ms. Leases of other GPUs may end meanwhile: seven that hang together must cost
# less than 2 s, so the first is waited for longer than those after it.
OVERDUE_S, OVERDUE_AGAIN_S = 0.5, 0.1
CALL_WAIT_S = 2.0  # a busy driver takes some hundreds of milliseconds
LATE_ANSWER_S = 5.0  # a late answer is used for the same call again, if that comes so soon
OPEN_WAIT_S = 10.0  # loading the driver takes a second or two if nothing keeps it loaded
CLOSE_WAIT_S = 2.0
CONTROLLABLE_S = 2.0  # how long `uncontrollable` is remembered; `lock` checks again itself
CONTROLLABLE_MAX = 64  # GPUs
_BYTES_MAX = 65_536  # a clock table of 300 entries takes 2,000
REPLACE = "library_outdated"  # a code: only another child can call the driver
DRIVER = ""  # in place of a GPU: a call to the driver as a whole
Call = tuple[str, tuple[Any, ...]]  # a method of DeviceWriter, and its arguments


@dataclass(slots=True)
class OverdueCall:
    """A call that was not answered in time, and the child that makes it."""

    call: Call
    child: DriverProcess
    until_s: float  # then the child is killed


@dataclass(slots=True)
class LateAnswer:
    """The answer to an overdue call."""

    call: Call
    answer: bytes
    at_s: float


class WriterProcess:
    """A `DeviceWriter` that makes each call in a child. Methods raise DeviceError."""

    def __init__(self, open_writer: Callable[[], DeviceWriter]) -> None:
        self._open_writer = open_writer
        self._child: DriverProcess | None = None  # serves every GPU without an overdue call
        self._overdue: dict[str, OverdueCall] = {}  # by GPU
        self._late: dict[str, LateAnswer] = {}  # by GPU
        self._zombies = Zombies[str]()
        self._backoffs = Backoffs[str]()
        self._uncontrollable: dict[str, tuple[str, float]] = {}  # reason, and until when it holds

    # -- DeviceWriter --------------------------------------------------------------------

    def permission(self) -> str:
        return str(self._ask("permission"))

    def uuids(self) -> tuple[str, ...]:
        return tuple(self._ask("uuids"))

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        with contextlib.suppress(DeviceError):
            return tuple(self._ask("clocks_mhz", uuid))
        return ()

    def uncontrollable(self, uuid: str) -> str:
        reason, until_s = self._uncontrollable.get(uuid, ("", 0.0))
        if time.monotonic() < until_s and self._child is not None:
            return reason
        self._uncontrollable.pop(uuid, None)
        try:
            reason = str(self._ask("uncontrollable", uuid))
        except DeviceError as error:
            return str(error)
        if len(self._uncontrollable) < CONTROLLABLE_MAX:
            self._uncontrollable[uuid] = (reason, time.monotonic() + CONTROLLABLE_S)
        return reason

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self._ask("lock", uuid, clock_min_mhz, clock_max_mhz)

    def reset(self, uuid: str) -> None:
        self._ask("reset", uuid)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        low, high, now = self._ask("power_limits_mw", uuid)
        return low, high, now

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        clock_mhz, busy_ratio, reasons = self._ask("reading", uuid)
        return clock_mhz, busy_ratio, tuple(reasons)

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        self._ask("limit_power", uuid, limit_mw)

    def close(self) -> None:
        """Drops every handle; the next call opens the driver again."""
        for uuid, one in self._overdue.items():
            one.child.line.close()
            self._zombies.kill(one.child.process, uuid)
        self._overdue = {}
        self._drop_child()

    # -- calls ---------------------------------------------------------------------------

    def _ask(self, name: str, uuid: str = DRIVER, *rest: int) -> Any:
        """The answer to one call. Raises DeviceError; Unanswered if it may still take effect."""
        call = (name, (uuid, *rest) if uuid else ())
        self._collect()
        late = self._late.pop(uuid, None)
        if late and late.call == call and time.monotonic() - late.at_s < LATE_ANSWER_S:
            return self._value(late.answer)
        self._refuse_unresponsive(uuid)
        if self._child is None:
            self._value(self._send(("permission", ()), DRIVER, OPEN_WAIT_S))
        return self._value(self._send(call, uuid, self._patience_s(uuid)))

    def _patience_s(self, uuid: str) -> float:
        if not uuid:
            return CALL_WAIT_S
        return OVERDUE_AGAIN_S if self._overdue or self._backoffs.hung else OVERDUE_S

    def _refuse_unresponsive(self, uuid: str) -> None:
        """Raises Transient if the driver or this GPU must not be called now."""
        for target in (DRIVER, uuid):
            hangs = target in self._overdue or target in self._zombies.targets
            if hangs or target in self._backoffs.resting():
                what = f"{target or 'driver'}: no answer to a call"
                raise Transient("driver_unresponsive", what)

    def _send(self, call: Call, uuid: str, wait_s: float) -> bytes:
        """Makes a call in the common child. Raises Unanswered, or Transient without a GPU."""
        what = f"{uuid or 'driver'}: {call[0]}"
        failed = Unanswered if uuid else Transient
        try:
            child = self._child = self._child or self._start()
        except OSError as error:  # the machine has no process or descriptor left
            raise Transient("writer_died", f"{what}: {error}") from None
        try:
            child.line.settimeout(wait_s)
            child.line.send(marshal.dumps(call))
            answer = child.line.recv(_BYTES_MAX)
            if not answer:
                raise EOFError("its process has ended")
        except TimeoutError:
            self._child = None
            until_s = time.monotonic() + max(0.0, CALL_WAIT_S - wait_s)
            self._overdue[uuid] = OverdueCall(call, child, until_s)
            self._collect()
            raise failed("driver_unresponsive", f"{what} does not answer") from None
        except (OSError, EOFError) as error:  # it died
            self._drop_child()
            raise failed("writer_died", f"{what}: {error}") from None
        self._backoffs.succeeded(uuid)
        return answer

    def _collect(self) -> None:
        """Takes late answers, and kills children whose call has no answer for too long."""
        self._zombies.reap()
        now_s = time.monotonic()
        for uuid, one in list(self._overdue.items()):
            one.child.line.settimeout(0.0)
            try:
                answer = one.child.line.recv(_BYTES_MAX)
            except BlockingIOError:
                if now_s >= one.until_s:
                    self._abandon(uuid, one)
                continue
            except OSError:
                answer = b""
            del self._overdue[uuid]
            if answer:
                self._late[uuid] = LateAnswer(one.call, answer, now_s)
                self._backoffs.succeeded(uuid)
            self._retire(one.child, uuid)

    def _abandon(self, uuid: str, one: OverdueCall) -> None:
        """Leaves a call that hangs, and the child that makes it."""
        del self._overdue[uuid]
        one.child.line.close()
        wait_s = self._backoffs.failed(uuid, hung=True).wait_s
        what = f"{one.call[0]} {uuid or 'driver'}"
        log("keeper", f"{what}: no answer; backing off for {wait_s:g} s", "error")
        self._zombies.kill(one.child.process, uuid)

    def _retire(self, child: DriverProcess, uuid: str) -> None:
        """A child that answers again serves all, or leaves."""
        if self._child is None:
            self._child = child
            return
        child.line.close()  # on which it leaves
        self._zombies.kill(child.process, uuid)

    def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and not child.close(CLOSE_WAIT_S):
            self._zombies.kill(child.process, DRIVER)

    def _value(self, answer: bytes) -> Any:
        """The value of an answer. Raises the DeviceError that the call has raised."""
        try:
            kind, code, value = marshal.loads(answer)  # noqa: S302 -- our child
        except (ValueError, EOFError, TypeError) as error:
            raise Unanswered("writer_died", f"no answer: {error}") from None
        if code == REPLACE:
            self._drop_child()
        if kind:
            raise getattr(failure, kind, DeviceError)(code, value)
        return value

    # -- the child -----------------------------------------------------------------------

    def _start(self) -> DriverProcess:
        """Raises OSError."""
        self._uncontrollable = {}
        return DriverProcess(self._fork)

    def _fork(self, line: socket.socket) -> ForkedProcess:
        pid = os.fork()  # the keeper's other thread only feeds a watchdog
        if pid == 0:
            _serve(line, self._open_writer)
        return ForkedProcess(pid)


def _serve(line: socket.socket, open_writer: Callable[[], DeviceWriter]) -> None:
    """The child: answers calls until the keeper is gone; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it leaves with its keeper, which restores first
        # The keeper's lock and sockets must not stay open in a child that cannot end.
        os.closerange(3, line.fileno())
        os.closerange(line.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        writer: DeviceWriter | None = None
        while raw := line.recv(_BYTES_MAX):
            call, arguments = marshal.loads(raw)  # noqa: S302 -- from our parent
            try:
                writer = writer or open_writer()
                answer = ("", "", getattr(writer, call)(*arguments))
            except DeviceError as error:
                # The library that this process has loaded is of the driver before.
                outdated = writer is not None and error.code == UPGRADED
                answer = (type(error).__name__, REPLACE if outdated else error.code, str(error))
            line.send(marshal.dumps(answer))
    finally:
        os._exit(0)
