"""Child processes that call a device driver, so that a call that hangs can be abandoned.

A thread that hangs in a driver cannot be ended, and blocks every later call. A process can be
killed and replaced. A call that misses its deadline costs its own GPU: that one is left out for a
growing time, and for as long as its killed process has not ended, since its write may still happen.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

BACKOFF_S, BACKOFF_S_MAX = 2.0, 60.0  # doubling: a hung GPU must not delay the others often
ZOMBIES_MAX = 4  # killed processes that have not ended; more of them would not help
END_TRY_S = 0.01
Target = TypeVar("Target", str, int)  # a GPU, or the driver as a whole


class ForkedProcess:
    """A child made by `os.fork`, with what is needed of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid == self.pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[bytes]


class DriverProcess:
    """One child, and the packet socket to it."""

    def __init__(self, spawn: Callable[[socket.socket], Process]) -> None:
        """`spawn` makes the child, given its end of the socket.

        Raises OSError if the machine has no process or descriptor left.
        """
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(self.line)
            self.process = spawn(theirs)
            undo.pop_all()

    def close(self, wait_s: float) -> bool:
        """Closes the socket, on which the child leaves; whether it ended within `wait_s`."""
        self.line.close()
        return ended(self.process, wait_s)


class Zombies(Generic[Target]):
    """Killed processes that a driver call keeps from ending, and the target of that call."""

    def __init__(self) -> None:
        self._left: list[tuple[Process, Target]] = []

    def kill(self, process: Process, target: Target) -> None:
        process.kill()
        if not ended(process, END_TRY_S):
            self._left.append((process, target))

    def reap(self) -> None:
        """Forgets those that have ended."""
        self._left = [(process, at) for process, at in self._left if process.poll() is None]

    @property
    def targets(self) -> frozenset[Target]:
        return frozenset(target for _, target in self._left)

    @property
    def are_many(self) -> bool:
        """Whether another process is too great a risk."""
        return len(self._left) >= ZOMBIES_MAX


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures of one target in a row; it is not called for `wait_s`, until `until_s`.

    `hung`: its last call did not return.
    """

    failures: int
    wait_s: float
    until_s: float
    hung: bool


class Backoffs(Generic[Target]):
    """The targets that fail. For one thread, except `hung`."""

    def __init__(self) -> None:
        self._known: dict[Target, Backoff] = {}

    @property
    def hung(self) -> frozenset[Target]:
        known = dict(self._known)
        return frozenset(target for target, backoff in known.items() if backoff.hung)

    def resting(self) -> dict[Target, Backoff]:
        """Those that must not be called now."""
        now_s = time.monotonic()
        return {target: one for target, one in self._known.items() if now_s < one.until_s}

    def failed(self, target: Target, *, hung: bool, wait_s_max: float = BACKOFF_S_MAX) -> Backoff:
        """Records a failure. The first that did not hang is retried at once."""
        failures = self._known[target].failures + 1 if target in self._known else 1
        wait_s = min(BACKOFF_S * 2.0 ** min(failures - 1, 16), wait_s_max)
        if not hung and failures == 1:
            wait_s = 0.0
        backoff = Backoff(failures, wait_s, time.monotonic() + wait_s, hung)
        self._known[target] = backoff
        return backoff

    def succeeded(self, target: Target) -> Backoff | None:
        """Drops the failures of a target that answers, and returns them."""
        return self._known.pop(target, None)

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(self._known)


def ended(process: Process, wait_s: float) -> bool:
    """Whether a process ends within `wait_s`."""
    for _ in range(round(wait_s / END_TRY_S)):
        if process.poll() is not None:
            return True
        time.sleep(END_TRY_S)
    return process.poll() is not None
