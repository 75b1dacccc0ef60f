"""Small memory footprint: every byte is taken from jobs.

Without cached bytecode, compiling the NVML binding alone leaves 10 MiB of freed memory with the
allocator; nothing after the start needs as much again.
"""

import contextlib
import ctypes
import gc

ARENAS_MAX = 2  # glibc's default is eight a core
_M_ARENA_MAX = -8  # malloc.h


def limit_arenas() -> None:
    """Call before the second thread starts. Does nothing if the C library cannot."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS_MAX)


def give_back() -> None:
    """Call once everything is imported. Does nothing if the C library cannot."""
    gc.collect()
    gc.freeze()  # what exists now lives as long as the process
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
