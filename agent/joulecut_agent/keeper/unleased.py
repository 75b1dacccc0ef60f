"""GPUs whose clocks may still be ours: what the keeper's readings of them lead to.

A driver may carry out a lock long after its call, or answer "success" to a reset and do nothing.
So the keeper reads each GPU without a lease, and resets a lock of ours that shows, ever more
seldom. One that shows after RETAKES_END resets may be a person's: it stays, and the GPU is stuck.
Where a power limit or heat would hide a lock of ours, in the minute after the reset, the reset is
repeated RETAKES_MAX times without being seen; later it could be another writer's lock.
A GPU that reaches its default is free of the clocks that were seen in force before, once no write
can come late: one of them that shows after that is another writer's. A clock that no reading has
ever shown, under its lease or after it, may still come: it is ours for the rest of the boot.

Pure. Times in seconds of the monotonic clock.
"""

from dataclasses import replace
from math import inf

from joulecut_agent.keeper.evidence import Verdict
from joulecut_agent.keeper.lease import LATE_S, RETAKES_MAX, Gpu, ShownLock, State, end_leases

READ_S = 1.0  # between two readings; three prove a lock, and its reset takes effect in one more
RETAKES_END = 8  # resets in a quarter of an hour
RETAKE_S, RETAKE_S_MAX = 5.0, 300.0  # doubling between such resets


def due(state: State, now_s: float) -> tuple[str, ...]:
    """The GPUs to read now."""
    return tuple(uuid for uuid, gpu in state.gpus.items() if now_s >= gpu.reading_s)


def due_s(state: State) -> float:
    """Time of the next reading; infinite without any."""
    return min((gpu.reading_s for gpu in state.gpus.values()), default=inf)


def read(
    state: State, uuid: str, seen: Verdict, unshown_mhz: tuple[int, ...], now_s: float, *,
    apart_s: float = READ_S,
) -> State:  # fmt: skip
    """The state after one reading of a GPU that is due; the next one counts after `apart_s`.

    `unshown_mhz`: the clocks of the GPU's that no reading has shown, this one included. A reset
    that is to be made is a pending restore. A lease on power alone goes on: there the caller resets
    the clocks where `shown` has changed.
    """
    gpu = replace(state.gpu(uuid), unshown_mhz=unshown_mhz, look_s=now_s + READ_S)
    if not gpu.is_watched:
        return state.updated({uuid: gpu})
    gpu = replace(gpu, evidence=gpu.evidence.after(seen, now_s, apart_s))
    proven = gpu.evidence.proves
    if proven is Verdict.FREE and now_s >= gpu.written_s + LATE_S:
        gpu = replace(gpu, written_mhz=unshown_mhz, left=False, shown=None)
    state = state.updated({uuid: gpu})
    shown = gpu.shown or ShownLock(0, -inf)
    cause, resets_end = _cause(gpu, now_s)
    if now_s < shown.next_s or shown.resets >= resets_end:
        return state
    wait_s = min(RETAKE_S * 2.0 ** min(shown.resets, 16), RETAKE_S_MAX)
    again = replace(gpu, shown=ShownLock(shown.resets + 1, now_s + wait_s))
    state = state.updated({uuid: again})
    return state if gpu.lease else end_leases(state, [uuid], cause, now_s)


def _cause(gpu: Gpu, now_s: float) -> tuple[str, int]:
    """Why the GPU is to be reset once more, and how many such resets are allowed."""
    proven = gpu.evidence.proves
    if proven is Verdict.OURS:
        return "lock_shows", RETAKES_END
    ours = not (gpu.lease or gpu.left)
    hidden = proven is Verdict.HIDDEN and ours and now_s < gpu.reset_s + LATE_S
    return "lock_hidden", RETAKES_MAX if hidden else 0
