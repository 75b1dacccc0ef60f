"""Keeps the output of libraries out of standard output.

HiGHS 1.12 prints a line when it repairs a solution, whatever its options say (ERGO-Code/HiGHS
issue 2783); before `--json` it would break the JSON.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDOUT = 1  # the descriptor: libraries know nothing of `sys.stdout`


@contextmanager
def no_stray_output() -> Iterator[None]:
    """Discard everything written to the descriptor of standard output within the block."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        ours = os.dup(STDOUT)
    except OSError:  # closed by the parent: nothing to keep clean
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), STDOUT)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C buffers lines when the output is not a terminal
        os.dup2(ours, STDOUT)
        os.close(ours)
