"""The process that reads for an eye, as its owner sees it: what it was told, what it has told.

Always a fresh program, never a fork: by the time one is needed the agent has gRPC's threads.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from joulecut_agent.monitor import reader_protocol as words
from joulecut_agent.monitor.reader_protocol import MARK_BYTES, Mark
from joulecut_agent.ports.glance import snapshots
from joulecut_agent.ports.reader import Reading
from joulecut_wire.messages import GpuSnapshot

CLOSE_TRY_S = 0.01
UNDEAD_MAX = 4  # processes that do not even die; more of them would help nobody


@dataclass(slots=True)
class Worker:
    """One process, and what is known of it."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    mark: Mark
    open: bool = False
    each_s: float = 0.0  # how often it reads by itself; 0: never
    left_out: tuple[int, ...] = ()
    heard_s: float = 0.0
    sound: bool = True  # nothing was wrong with what it read by itself
    number: int = 0  # of its last whole reading that was seen
    whole: tuple[GpuSnapshot, ...] = ()

    def know(self, number: int, readings: tuple[Reading, ...]) -> None:
        """Remembers a whole reading, for the glances that follow it."""
        shown = (reading.snapshot for reading in readings)
        self.number, self.whole = number, tuple(gpu for gpu in shown if gpu is not None)

    def seen(self, at_s: float, number: int, rows: Any) -> tuple[Reading, ...] | None:
        """What it has read by itself, None where that is to be asked for."""
        if isinstance(rows, bytes) and number == self.number:
            with contextlib.suppress(ValueError):
                gpus = snapshots(self.whole, rows)
                return tuple([Reading(gpu.uuid, gpu, None, (), at_s) for gpu in gpus])
        elif isinstance(rows, list):
            readings = words.decode_readings(rows)
            self.sound = self.sound and not any(reading.error for reading in readings)
            self.know(number, readings)
            return readings
        self.sound = False
        return None


class Undead:
    """Processes that hang in the driver too deep to be ended, by the index they were at."""

    def __init__(self) -> None:
        self._left: list[tuple[subprocess.Popen[bytes], int]] = []

    def kill(self, process: subprocess.Popen[bytes], at: int) -> None:
        process.kill()
        if not ended(process, CLOSE_TRY_S):
            self._left.append((process, at))

    def bury(self) -> None:
        """Forgets those that have ended since."""
        self._left = [(process, at) for process, at in self._left if process.poll() is None]

    @property
    def at(self) -> frozenset[int]:
        return frozenset(at for _, at in self._left)

    @property
    def are_many(self) -> bool:
        """Whether another one is not to be risked."""
        return len(self._left) >= UNDEAD_MAX


def started(given: str) -> Worker:
    """Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = -1
    try:
        memory = os.memfd_create("joulecut-eye")
        os.ftruncate(memory, MARK_BYTES)
        fds = (theirs.fileno(), memory)
        argv = [
            sys.executable,
            "-P",
            "-m",
            "joulecut_agent.monitor.reader_process",
            *map(str, fds),
            given,
        ]
        process = subprocess.Popen(  # noqa: S603 -- our own module
            argv,
            pass_fds=fds,
            start_new_session=True,  # Ctrl-C at a terminal ends it through the agent alone
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        return Worker(process, ours, Mark(memory))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if memory >= 0:
            os.close(memory)


def ended(process: subprocess.Popen[bytes], wait_s: float) -> bool:
    """Whether a process is gone within `wait_s`."""
    until_s = time.monotonic() + wait_s
    while process.poll() is None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(CLOSE_TRY_S)
    return True
