"""GPUs whose clocks may still be ours: what the keeper's readings of them lead to.

A driver may carry out a lock long after its call, or answer "success" to a reset and do nothing.
So the keeper reads each GPU without a lease, and resets a lock of ours that shows, ever more
seldom. One that shows after RETAKES_END resets may be a person's: it stays, and the GPU is stuck.
A GPU that reaches its default is free of the clocks that were seen in force before, once no write
can come late: one of them that shows after that is another writer's. A clock that no reading has
ever shown, under its lease or after it, may still come: it is ours for the rest of the boot.

Pure. Times in seconds of the monotonic clock.
"""

from dataclasses import replace
from math import inf

from joulecut_agent.keeper.evidence import Verdict
from joulecut_agent.keeper.lease import LATE_S, ShownLock, State, end_leases

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
    state: State, uuid: str, seen: Verdict, unshown_mhz: tuple[int, ...], now_s: float
) -> State:
    """The state after one reading of a GPU that is due.

    `unshown_mhz`: the clocks of the GPU's that no reading has shown, this one included.
    """
    gpu = replace(state.gpu(uuid), unshown_mhz=unshown_mhz, look_s=now_s + READ_S)
    if gpu.lease:
        return state.updated({uuid: gpu})
    gpu = replace(gpu, evidence=gpu.evidence.after(seen, now_s, READ_S))
    state = state.updated({uuid: gpu})
    proven = gpu.evidence.proves
    if proven is Verdict.FREE and now_s >= gpu.written_s + LATE_S:
        free = replace(gpu, written_mhz=unshown_mhz, left=False, shown=None)
        return state.updated({uuid: free})
    shown = gpu.shown or ShownLock(0, -inf)
    if proven is not Verdict.OURS or now_s < shown.next_s or shown.resets >= RETAKES_END:
        return state
    wait_s = min(RETAKE_S * 2.0 ** min(shown.resets, 16), RETAKE_S_MAX)
    again = replace(gpu, shown=ShownLock(shown.resets + 1, now_s + wait_s))
    return end_leases(state.updated({uuid: again}), [uuid], "lock_shows", now_s)
