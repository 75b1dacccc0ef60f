"""Short scheduler slices for threads that react to marks of a job.

On a busy machine a woken task waits for the slice of the running one to end: some milliseconds, as
long as the rest of a clock step. A task that asks for shorter slices runs earlier, and its share of
the processor stays the same; this needs no privilege.
"""

import ctypes
import os
import platform
import struct

# sched_setattr(2), by number: most C libraries have no name for it.
_CALLS = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000  # the kernel's minimum, and about one clock step
# struct sched_attr: size, policy (0: the ordinary one), flags, nice, priority, and the slice in
# `sched_runtime`, which Linux takes since 6.12 and ignores before; deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def request_short_slices() -> bool:
    """For the calling thread and its children; whether the kernel accepted. Never raises."""
    call = _CALLS.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # the site's own policy stands
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    try:
        done: int = ctypes.CDLL(None).syscall(call, 0, wanted, 0)
    except (AttributeError, OSError):
        return False
    return done == 0
