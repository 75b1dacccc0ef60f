"""One line per event on standard error; writing it never blocks or fails the process.

A GPU must not stay capped because the reader of a pipe died: a line that would block or raise is
dropped. Unprintable characters are replaced or escaped, so that an event stays one line.
"""

import contextlib
import os
import select

from joulecut_wire import log_line
from joulecut_wire.log_line import Level

STDERR = 2


def log(component: str, message: str, level: Level = "info", job: str = "") -> None:
    line = log_line.rendered(component, message, level, job)
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, line)
