"""Messages between agent and reader process: answers, and progress.

Both ends are one version of one program, one interpreter and one user, so Python's own objects go
from one to the other.
"""

import mmap
import pickle
import struct

PACKET_BYTES_MAX = 200_000  # below the kernel's own bound; 16 GPUs take 50,000
DRIVER = -1  # in place of an index: the driver as a whole
_PROGRESS = struct.Struct("<qq")
PROGRESS_BYTES = mmap.PAGESIZE
encode = pickle.dumps
decode = pickle.loads


class Progress:
    """The GPU being read, in memory that both processes share. The agent reads it while a call
    hangs.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, PROGRESS_BYTES)
        self._steps = 0

    def step(self, index: int) -> None:
        self._steps += 1
        _PROGRESS.pack_into(self._memory, 0, self._steps, index)

    def seen(self) -> tuple[int, int]:
        """Number of steps, and index of the last."""
        steps, index = _PROGRESS.unpack_from(self._memory)
        return int(steps), int(index)

    def close(self) -> None:
        self._memory.close()
