"""One line per event on standard error, which must never stop or fail who writes it.

A reader that died or fell asleep is no reason to leave a GPU capped: a line that would
raise or block is dropped. Whatever a stranger put into it, it stays one line.
"""

import contextlib
import os
import select

LINE_BYTES_MAX = 4000  # below PIPE_BUF: a pipe that polls writable takes it whole
STDERR = 2


def say(who: str, line: str) -> None:
    text = "".join(c if c.isprintable() else "?" for c in f"{who}: {line}")
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, text.encode(errors="replace")[:LINE_BYTES_MAX] + b"\n")
