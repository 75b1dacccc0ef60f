"""One line per event on standard error; writing it never blocks or fails the process.

A GPU must not stay capped because the reader of a pipe died: a line that would block or raise is
dropped. Unprintable characters are replaced or escaped, so that an event stays one line.
"""

import contextlib
import os
import select
from collections.abc import Callable

from joulecut_wire import log_line
from joulecut_wire.log_line import Level

STDERR = 2


def log(component: str, message: str, level: Level = "info", job: str = "") -> None:
    line = log_line.rendered(component, message, level, job)
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, line)


class Warnings:
    """Warnings of the agent that repeat themselves in each turn: each is logged once.

    `last` is "" where nothing is wrong.
    """

    def __init__(self) -> None:
        self.last = ""

    def say(self, line: str, level: Level = "warning") -> None:
        if line and line != self.last:
            log("agent", line, level)
        self.last = line

    def attempt(self, turn: Callable[[], object], failed: str) -> None:
        """Takes a turn; a failure is logged, since the other sources go on."""
        try:
            turn()
        except Exception as error:
            self.say(f"{failed}: {type(error).__name__}: {error}")
