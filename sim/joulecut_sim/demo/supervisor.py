"""Supervises the demo's processes: start, restart after a death, stop.

Stands in for systemd or a kubelet. Children live in sessions of their own, so that Ctrl-C
reaches only the demo and it can end them in order; should the demo itself be killed, the
kernel sends them SIGTERM, and each restores what it holds.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from joulecut_wire.errors import Unavailable

READY_S_MAX = 60.0  # importing a controller takes 3 s alone, 20 s where everything is busy
LAST_WORDS_S = 2.0  # its pipe closes as it ends; a child of its own may hold it open
BACK_S = 3.0  # a service manager's usual pause before it starts something again
LINES_KEPT = 50  # of what a child printed: enough to say why it died
# Asks the kernel for a SIGTERM when the supervisor dies (PR_SET_PDEATHSIG is 1 in
# linux/prctl.h), then becomes the command. A process of its own, since code between fork
# and exec is not safe beside threads.
_BOUND = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a child. `ready` is matched against its lines."""

    name: str
    argv: Sequence[str]
    ready: re.Pattern[str]
    back_s: float = BACK_S


@dataclass(slots=True)
class Running:
    """One life of a child: its process, and what it printed last."""

    process: subprocess.Popen[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    ready: re.Match[str] | None = None
    heard: threading.Event = field(default_factory=threading.Event)  # its output has ended


class Child:
    """A process that is meant to run, through all its lives."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._life: Running | None = None
        self._died_s: float | None = None
        self._wanted = False

    @property
    def pid(self) -> int:
        return self._life.process.pid if self._life else 0

    @property
    def ready(self) -> re.Match[str] | None:
        return self._life.ready if self._life else None

    @property
    def alive(self) -> bool:
        return self._life is not None and self._life.process.poll() is None

    def start(self) -> None:
        """Starts it; does not wait. Raises Unavailable where it cannot be run at all."""
        command = shutil.which(self.recipe.argv[0])
        if command is None:
            raise Unavailable(
                f"{self.recipe.name} cannot be started: no command {self.recipe.argv[0]}"
            )
        process = subprocess.Popen(  # noqa: S603 -- our own commands
            [sys.executable, "-I", "-S", "-c", _BOUND, command, *self.recipe.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._life = Running(process)
        self._died_s = None
        self._wanted = True
        threading.Thread(target=self._listen, args=(self._life,), daemon=True).start()

    def wait_ready(self, pause: Callable[[float], None]) -> re.Match[str]:
        """Its ready line. Raises Unavailable where it dies first or prints none."""
        limit_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < limit_s:
            if self.ready is not None:
                return self.ready
            if not self.alive:
                if self._life is not None:
                    self._life.heard.wait(LAST_WORDS_S)
                if self.ready is not None:  # it was ready and has died since: `died` reports that
                    return self.ready
                raise Unavailable(f"{self.recipe.name} did not start: {self.last_words()}")
            pause(0.05)
        raise Unavailable(f"{self.recipe.name} is not ready after {READY_S_MAX:g} s")

    def last_words(self) -> str:
        lines = [line for line in self._life.lines if line.strip()] if self._life else []
        return lines[-1].strip() if lines else "no output"

    def died(self) -> str:
        """How it died, once per death; empty while it runs or where it should not."""
        if not self._wanted or self._life is None or self._died_s is not None or self.alive:
            return ""
        self._died_s = time.monotonic()
        code = self._life.process.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code} ({self.last_words()})"

    def due(self) -> bool:
        """Whether it died long enough ago to be started again."""
        died_s = self._died_s
        return (
            self._wanted and died_s is not None and time.monotonic() >= died_s + self.recipe.back_s
        )

    def stop(self, patience_s: float) -> bool:
        """SIGTERM, then patience, then SIGKILL; whether it went by itself."""
        self._wanted = False
        if self._life is None:
            return True
        process = self._life.process
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        return True

    def _listen(self, life: Running) -> None:
        """Reads until the end, so that a child never blocks on its output; keeps the last lines."""
        stream = life.process.stdout
        assert stream is not None
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                life.lines.append(line)
                if life.ready is None:
                    life.ready = self.recipe.ready.search(line)
        life.heard.set()


@dataclass(frozen=True, slots=True)
class Witness:
    """A process that is not a child of ours (a keeper), identified beyond its reusable pid."""

    pid: int
    born: str

    @classmethod
    def of(cls, pid: int) -> "Witness":
        return cls(pid, _born(pid))

    @property
    def alive(self) -> bool:
        return bool(self.born) and _born(self.pid) == self.born

    def stop(self, patience_s: float) -> None:
        """SIGTERM, then patience, then SIGKILL."""
        limit_s = time.monotonic() + patience_s
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self.alive:
                os.kill(self.pid, sign)
            while self.alive and time.monotonic() < limit_s:
                time.sleep(0.05)


def children(pid: int) -> tuple[int, ...]:
    """The living children of a process, oldest number first."""
    numbers = sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return tuple(number for number in numbers if pid and _stat(number)[1:2] == [str(pid)])


def _born(pid: int) -> str:
    """The start time of a process as the kernel counts it; empty where there is none."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in {"Z", "X"} else fields
