"""Has the kernel run us as soon as there is something to do, because a clock may hang on it.

On a busy machine whoever is woken waits until the slice of whoever runs is over, some
milliseconds: as long as all the rest of an order takes. A task that asks for shorter slices gets
its turn earlier and its share stays what it was; this needs no privilege.
"""

import ctypes
import os
import platform
import struct

# sched_setattr(2), by number: most C libraries have no name for it.
_CALLS = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000  # the shortest that there is, and as long as a step takes us
# struct sched_attr: size, policy (0: the ordinary one), flags, nice, priority, and the slice in
# `sched_runtime`, which Linux takes since 6.12 and overlooks before; deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def be_prompt() -> bool:
    """For the calling thread and what it starts; whether the kernel took it. Never raises."""
    call = _CALLS.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # a site's own choice stands
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asked = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    try:
        done: int = ctypes.CDLL(None).syscall(call, 0, asked, 0)
    except (AttributeError, OSError):
        return False
    return done == 0
