"""Reads the GPUs through a child process, so that a driver call that hangs can be abandoned.

A GPU whose call hangs is left out for a growing time, and a new process reads the others. A new
process is also the remedy for a driver that was reloaded, which an open process cannot follow.
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from joulecut_agent.driver_process import Backoffs, DriverProcess, Zombies
from joulecut_agent.log import log
from joulecut_agent.monitor import reader_protocol as wire
from joulecut_agent.monitor.reader_protocol import DRIVER, PACKET_BYTES_MAX, Progress
from joulecut_agent.ports.failure import DeviceError, Gone, Transient
from joulecut_agent.ports.reader import Burst, Reading
from joulecut_wire.errors import JoulecutError
from joulecut_wire.messages import GpuDescription

READ_WAIT_S = 1.0  # for one GPU, which takes milliseconds; a busy driver some hundreds
POLL_S = 0.1  # how often progress is checked while there is no answer
OPEN_WAIT_S = 10.0  # loading the driver takes a second or two if nothing keeps it loaded
CLOSE_WAIT_S = 1.0
# A driver that is not loaded answers at once, and limits are back two intervals and two seconds
# after it is. A try costs a process of some 0.1 s.
ABSENT_S_MAX = 2.0
DESCRIBE_S = 30.0  # how long MIG may be on before the description says so
RENEW_S = 60.0  # a lost GPU that was reset is found by a process that opens the driver again
TRIES = 2  # in one tick: the second reads what the first did not reach
VOID = frozenset(("uninitialized", "driver_not_loaded", "lib_rm_version_mismatch"))


class _Hung(Exception):
    """A call about this GPU (or DRIVER) did not return in time."""

    def __init__(self, index: int) -> None:
        self.index = index


class DriverReader:
    """For one thread, except `kill`, `unresponsive` and `gpus`."""

    def __init__(self, address: str, options: dict[str, Any], state_dir: str) -> None:
        """`address` is the back end's `module:name`; nothing is opened yet."""
        self._backend = json.dumps([address, options, state_dir])
        self._child: _Child | None = None
        self._zombies = Zombies[int]()
        self._backoffs = Backoffs[int]()
        self._describe_due_s = 0.0
        self._not_described: frozenset[int] = frozenset()  # left out when this process described
        self._renew_due_s = 0.0
        self.gpus: tuple[GpuDescription, ...] = ()
        self.unread: dict[int, str] = {}  # GPUs that the driver counts and never opened, and why

    def describe(self) -> tuple[GpuDescription, ...]:
        """All GPUs that ever answered. Raises JoulecutError if the driver does not."""
        self._describe_due_s = 0.0
        for _ in range(TRIES):
            try:
                self._ready()
                break
            except _Hung as hung:
                self._abandon(hung.index)
        else:
            raise _unresponsive("the driver")
        return self.gpus

    def read(self) -> tuple[Reading, ...]:
        """Every GPU that ever answered, once. Never raises, and returns in bounded time."""
        failed: DeviceError = _unresponsive("the driver")
        for _ in range(TRIES):
            try:
                self._ready()
                left_out = self._left_out()
                readings = self._ask("read", left_out)
                self._answered(left_out)
                return self._check(readings, left_out)
            except _Hung as hung:
                self._abandon(hung.index)
            except DeviceError as error:
                failed = error
                self._close_after(error)
                if error.code != "reader_died":
                    break
        return tuple(Reading(gpu.uuid, None, failed) for gpu in self.gpus)

    def burst(self, index: int) -> Burst:
        """Raises DeviceError."""
        try:
            self._ready()
            if index in self._left_out():
                raise _unresponsive(f"GPU {index}")
            burst: Burst = self._ask("burst", index)
            return burst
        except _Hung as hung:
            self._abandon(hung.index)
            raise _unresponsive(f"GPU {index}") from None
        except DeviceError as error:
            if error.code in VOID:
                self.close()
            raise

    @property
    def unresponsive(self) -> frozenset[int]:
        """Indices of the GPUs whose calls did not return; DRIVER for the driver as a whole."""
        return self._backoffs.hung

    def kill(self) -> None:
        """Ends a wait for the driver, from any thread."""
        if child := self._child:
            child.process.kill()

    def close(self) -> None:
        """Drops every handle; the next call opens the driver again."""
        child, self._child = self._child, None
        if child is None:
            return
        if not child.close(CLOSE_WAIT_S):
            self._zombies.kill(child.process, DRIVER)
        child.progress.close()

    # -- one exchange --------------------------------------------------------------------

    def _ready(self) -> None:
        """Makes sure of a process that has the driver open and described its GPUs lately."""
        self._zombies.reap()
        now_s = time.monotonic()
        if backoff := self._backoffs.resting().get(DRIVER):
            raise _unresponsive("the driver") if backoff.hung else Gone("driver", "no driver")
        if self._child is None:
            self._spawn()
        assert self._child is not None
        if not self._child.open:
            self._open(self._child)
        left_out = self._left_out()
        if now_s >= self._describe_due_s or not self._not_described.issubset(left_out):
            described, unread = self._ask("describe", left_out)
            for index in unread.keys() - self.unread.keys():
                what = f"GPU {index} is counted and cannot be opened: {unread[index]}"
                log("agent", f"{what}: it is not read, and not shown", "error")
            self.unread = unread
            self.gpus = _merged(self.gpus, described, left_out)
            self._describe_due_s, self._not_described = now_s + DESCRIBE_S, frozenset(left_out)

    def _open(self, child: "_Child") -> None:
        try:
            self._ask("open", wait_s=OPEN_WAIT_S)
        except DeviceError as error:
            self.close()
            backoff = self._backoffs.failed(DRIVER, hung=False, wait_s_max=ABSENT_S_MAX)
            if backoff.failures == 1 and self.gpus:  # at the start the caller reports it
                log("agent", f"{error}; nothing is measured until it is back", "error")
            raise
        if self._backoffs.succeeded(DRIVER):
            log("agent", "the driver answers")
        child.open = True
        self._describe_due_s = 0.0

    def _ask(self, call: str, *arguments: Any, wait_s: float | None = None) -> Any:
        """The answer. Raises JoulecutError, and _Hung."""
        child = self._child
        assert child is not None
        try:
            child.line.send(wire.encode((call, *arguments)))
            self._wait(child, READ_WAIT_S if wait_s is None else wait_s)
            answer = wire.decode(child.line.recv(PACKET_BYTES_MAX))
        except (OSError, EOFError):  # it died, or was killed
            at = child.progress.seen()[1] if child.open else DRIVER
            self.close()
            if self._backoffs.failed(at, hung=False).failures == 2:  # once may be chance
                what = "opening the driver" if at == DRIVER else f"reading GPU {at}"
                log("agent", f"the reader process died twice {what}: backing off", "error")
            raise Transient("reader_died", f"{call}: the reader process died") from None
        if isinstance(answer, JoulecutError):
            raise answer
        return answer

    def _wait(self, child: "_Child", wait_s: float) -> None:
        """Waits for an answer; each GPU that the process gets to has `wait_s`."""
        poll = select.poll()
        poll.register(child.line, select.POLLIN)
        before, until_s = child.progress.seen(), time.monotonic() + wait_s
        while not poll.poll(POLL_S * 1000.0):
            now = child.progress.seen()
            if now != before:
                before, until_s = now, time.monotonic() + wait_s
            elif time.monotonic() >= until_s:
                raise _Hung(now[1] if child.open else DRIVER)

    # -- failures ------------------------------------------------------------------------

    def _left_out(self) -> tuple[int, ...]:
        resting = self._backoffs.resting().keys()
        return tuple(sorted((resting | self._zombies.targets) - {DRIVER}))

    def _answered(self, left_out: Iterable[int]) -> None:
        for index in [index for index in self._backoffs.targets if index not in left_out]:
            backoff = self._backoffs.succeeded(index)
            if backoff and backoff.hung:
                log("agent", f"GPU {index} answers")

    def _abandon(self, index: int) -> None:
        """Leaves a call that hangs, and the process that makes it."""
        child, self._child = self._child, None
        assert child is not None
        child.line.close()
        self._zombies.kill(child.process, index)
        child.progress.close()
        if self._backoffs.failed(index, hung=True).failures == 1:
            what = "the driver" if index == DRIVER else f"GPU {index}"
            log("agent", f"driver_unresponsive: {what} does not answer; backing off", "error")

    def _close_after(self, error: DeviceError) -> None:
        """Ends the process if a call found the driver gone, or failed for an unknown reason."""
        now_s = time.monotonic()
        unknown = error.code == "reader_failed" and now_s >= self._renew_due_s
        if error.code in VOID or unknown:
            self._renew_due_s = now_s + RENEW_S
            self.close()

    def _check(
        self, readings: tuple[Reading, ...], left_out: tuple[int, ...]
    ) -> tuple[Reading, ...]:
        """Adds missing GPUs; ends the process if a new one may see more than it does."""
        codes = {reading.error.code for reading in readings if reading.error}
        now_s = time.monotonic()
        missing = _missing(self.gpus, readings, left_out)
        lost = [reading for reading in readings if isinstance(reading.error, Gone)]
        if codes & VOID:
            self.close()
        elif not lost and len(missing) <= len(left_out):
            self._renew_due_s = now_s + RENEW_S
        elif now_s >= self._renew_due_s:
            self._renew_due_s = now_s + RENEW_S
            self.close()
        if not {reading.uuid for reading in readings} <= {gpu.uuid for gpu in self.gpus}:
            self._describe_due_s = 0.0  # another GPU is in its place
        return readings + missing

    def _spawn(self) -> None:
        if self._zombies.are_many:
            raise _unresponsive("the driver")
        try:
            self._child = _Child(self._backend)
        except OSError as error:  # no memory or descriptors; the device is not the cause
            what = f"the reader process cannot be started: {error.strerror or error}"
            raise Transient("no_process", what) from None


class _Child(DriverProcess):
    """The reader process as its owner sees it.

    A new program and not a fork: by now the agent has gRPC's threads.
    """

    def __init__(self, backend: str) -> None:
        """Raises OSError."""
        memory = os.memfd_create("joulecut-reader")
        try:
            os.ftruncate(memory, wire.PROGRESS_BYTES)
            super().__init__(lambda theirs: _spawn(theirs, memory, backend))
            self.progress = Progress(memory)
        finally:
            os.close(memory)
        self.open = False


def _spawn(line: socket.socket, memory: int, backend: str) -> "subprocess.Popen[bytes]":
    fds = (line.fileno(), memory)
    module = "joulecut_agent.monitor.reader_process"
    return subprocess.Popen(  # noqa: S603 -- our own module
        [sys.executable, "-P", "-m", module, *map(str, fds), backend],
        pass_fds=fds,
        start_new_session=True,  # Ctrl-C at a terminal ends it through the agent alone
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _merged(
    before: tuple[GpuDescription, ...],
    described: tuple[GpuDescription, ...],
    left_out: Iterable[int],
) -> tuple[GpuDescription, ...]:
    """The GPUs known before, as newly described; a lost GPU stays known."""
    silent = set(left_out)
    known = {gpu.uuid for gpu in described}
    kept = (
        gpu
        if gpu.index in silent and not gpu.controllable
        else replace(gpu, controllable=False, reason="it does not answer")
        for gpu in before
        if gpu.uuid not in known
    )
    return tuple(sorted((*described, *kept), key=lambda gpu: (gpu.index, gpu.uuid)))


def _missing(
    gpus: tuple[GpuDescription, ...], readings: tuple[Reading, ...], left_out: tuple[int, ...]
) -> tuple[Reading, ...]:
    """A failed reading of each GPU that was not read."""
    read = {reading.uuid for reading in readings}
    return tuple(
        Reading(gpu.uuid, None, _unresponsive(f"GPU {gpu.index}"))
        if gpu.index in left_out
        else Reading(gpu.uuid, None, Gone("gpu_not_found", f"GPU {gpu.index} is not there"))
        for gpu in gpus
        if gpu.uuid not in read
    )


def _unresponsive(what: str) -> Transient:
    return Transient("driver_unresponsive", f"{what}: no answer to a call")
