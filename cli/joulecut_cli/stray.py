"""What libraries write to standard output of their own accord, kept out of ours.

HiGHS prints a line of its own when it mends a plan, whatever it is told (1.12, issue 2783 of
ERGO-Code/HiGHS): in front of `--json` that is no JSON any more.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDOUT = 1  # the descriptor: libraries know nothing of `sys.stdout`


@contextmanager
def no_stray_output() -> Iterator[None]:
    """Until the end of the block nothing written to standard output arrives anywhere."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        ours = os.dup(STDOUT)
    except OSError:  # closed by our starter: nothing to keep clean
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), STDOUT)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C keeps lines back when nobody looks on
        os.dup2(ours, STDOUT)
        os.close(ours)
