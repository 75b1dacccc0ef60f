"""Takes little, and gives back what starting up has left behind: memory is taken from jobs.

Where bytecode is not cached, compiling the NVML binding alone leaves 10 MiB of freed
memory with the allocator; nothing after the start ever needs as much again.
"""

import contextlib
import ctypes
import gc

ARENAS_MAX = 2  # glibc: eight a core, and one for each thread that ever answered a scrape
_M_ARENA_MAX = -8  # malloc.h


def few_arenas() -> None:
    """Before there is a second thread. Does nothing where the C library cannot."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS_MAX)


def give_back() -> None:
    """Once, when everything is imported. Does nothing where the C library cannot."""
    gc.collect()
    gc.freeze()  # what lives now lives as long as the process: not worth looking at again
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
