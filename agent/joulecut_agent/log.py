"""One line per event on standard error; writing it never blocks or fails the process.

A GPU must not stay capped because the reader of a pipe died: a line that would block or raise is
dropped. Unprintable characters are replaced, so that an event stays one line.
"""

import contextlib
import os
import select

LINE_BYTES_MAX = 4000  # below PIPE_BUF: a pipe that polls writable takes it whole
STDERR = 2


def log(component: str, line: str) -> None:
    text = "".join(c if c.isprintable() else "?" for c in f"{component}: {line}")
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, text.encode(errors="replace")[:LINE_BYTES_MAX] + b"\n")
