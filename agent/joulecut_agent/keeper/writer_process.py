"""The keeper's `DeviceWriter`: every driver call is made in a child process, with a deadline."""

import contextlib
import marshal
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from joulecut_agent.driver_process import (
    ZOMBIES_MAX,
    Backoffs,
    DriverProcess,
    ForkedProcess,
    Zombies,
)
from joulecut_agent.log import log
from joulecut_agent.ports import failure
from joulecut_agent.ports.failure import DeviceError, Transient, Unanswered
from joulecut_agent.ports.writer import DeviceWriter

CALL_WAIT_S = 2.0  # a write takes 10-20 ms; a busy driver some hundreds
OPEN_WAIT_S = 10.0  # loading the driver takes a second or two if nothing keeps it loaded
CLOSE_WAIT_S = 2.0
CONTROLLABLE_S = 2.0  # how long `uncontrollable` is remembered; `lock` checks again itself
CONTROLLABLE_MAX = 64  # GPUs
_BYTES_MAX = 65_536  # a clock table of 300 entries takes 2,000
DRIVER = ""  # in place of a GPU: the call that opens the driver


class WriterProcess:
    """A `DeviceWriter` that makes each call in its child. Methods raise DeviceError."""

    def __init__(self, open_writer: Callable[[], DeviceWriter]) -> None:
        self._open_writer = open_writer
        self._child: DriverProcess | None = None
        self._zombies = Zombies[str]()
        self._backoffs = Backoffs[str]()
        self._uncontrollable: dict[str, tuple[str, float]] = {}  # reason, and until when it holds

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

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        self._ask("limit_power", uuid, limit_mw)

    def close(self) -> None:
        """Drops every handle; the next call opens the driver again."""
        child, self._child = self._child, None
        if child is not None and not child.close(CLOSE_WAIT_S):
            self._zombies.kill(child.process, DRIVER)

    def _ask(self, call: str, uuid: str = DRIVER, *rest: int) -> Any:
        self._zombies.reap()
        for target in (DRIVER, uuid):
            if target in self._zombies.targets or target in self._backoffs.resting():
                what = f"{target or 'driver'}: no answer to a call"
                raise Transient("driver_unresponsive", what)
        if self._child is None:
            self._exchange("permission", DRIVER, (), OPEN_WAIT_S)
        return self._exchange(call, uuid, (uuid, *rest) if uuid else (), CALL_WAIT_S)

    def _exchange(self, call: str, uuid: str, arguments: tuple[Any, ...], wait_s: float) -> Any:
        try:
            child = self._child = self._child or self._start()
            child.line.settimeout(wait_s)
            child.line.send(marshal.dumps((call, arguments)))
            kind, code, value = marshal.loads(child.line.recv(_BYTES_MAX))  # noqa: S302 -- our child
        except TimeoutError:
            self._abandon(call, uuid)
            what = f"{uuid or 'driver'}: {call} does not answer"
            raise Unanswered("driver_unresponsive", what) from None
        except (OSError, ValueError, EOFError, TypeError) as error:  # it died, or never started
            self.close()
            raise Unanswered("writer_died", f"{uuid or 'driver'}: {call}: {error}") from None
        self._backoffs.succeeded(uuid)
        if kind:
            raise getattr(failure, kind, DeviceError)(code, value)
        return value

    def _abandon(self, call: str, uuid: str) -> None:
        """Leaves a call that hangs, and the child that makes it."""
        child, self._child = self._child, None
        assert child is not None
        child.line.close()
        wait_s = self._backoffs.failed(uuid, hung=True).wait_s
        log("keeper", f"{call} {uuid or 'driver'}: no answer; backing off for {wait_s:g} s")
        self._zombies.kill(child.process, uuid)

    def _start(self) -> DriverProcess:
        """Raises Transient, and OSError."""
        if self._zombies.are_many:
            raise Transient("driver_unresponsive", f"{ZOMBIES_MAX} calls to the driver hang")
        self._uncontrollable = {}
        return DriverProcess(self._fork)

    def _fork(self, line: socket.socket) -> ForkedProcess:
        pid = os.fork()  # the keeper has one thread, and never opens the driver itself
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
                answer = (type(error).__name__, error.code, str(error))
            line.send(marshal.dumps(answer))
    finally:
        os._exit(0)
