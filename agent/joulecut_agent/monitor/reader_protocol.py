"""Messages between agent and reader process: answers, and progress.

Both ends are one version of one program, one interpreter and one user. So the checks are few, and
`marshal` packs the messages: it runs at every tick, and is the cheapest there is.
"""

import marshal
import mmap
import struct
from operator import attrgetter
from typing import Any

from joulecut_agent.ports import failure
from joulecut_agent.ports.failure import DeviceError
from joulecut_agent.ports.reader import Burst, HardwareCounters, Reading
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable
from joulecut_wire.messages import GpuDescription, GpuSnapshot

PACKET_BYTES_MAX = 200_000  # below the kernel's own bound; 16 GPUs take 50,000
DRIVER = -1  # in place of an index: the driver as a whole
_PROGRESS = struct.Struct("<qq")
PROGRESS_BYTES = mmap.PAGESIZE
# Plain tuples, packed and unpacked in C: Python that runs cold is the main cost of a tick.
_description = attrgetter(*GpuDescription.__slots__)
_snapshot = attrgetter(*GpuSnapshot.__slots__)
encode_burst = attrgetter(*Burst.__slots__)
_hardware = attrgetter(*HardwareCounters.__slots__)


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


encode = marshal.dumps
decode = marshal.loads  # raises ValueError, EOFError or TypeError on other bytes


def encode_error(error: JoulecutError) -> list[str]:
    if isinstance(error, BadInput):
        return ["BadInput", error.where, error.what, error.allowed]
    if isinstance(error, DeviceError):
        return [type(error).__name__, error.code, str(error)]
    return ["Unavailable", str(error)]


def decode_error(words: list[str]) -> JoulecutError:
    kind, *rest = words
    if kind == "BadInput":
        return BadInput(*rest)
    if kind == "Unavailable":
        return Unavailable(*rest)
    made: DeviceError = getattr(failure, kind, DeviceError)(*rest)
    return made


def encode_described(gpus: tuple[GpuDescription, ...]) -> list[Any]:
    return [_description(gpu) for gpu in gpus]


def encode_readings(readings: tuple[Reading, ...]) -> list[Any]:
    return [
        (
            reading.uuid,
            reading.snapshot and _snapshot(reading.snapshot),
            reading.error and encode_error(reading.error),
            (reading.call_seconds, reading.taken_at_s),
            reading.hardware and _hardware(reading.hardware),
        )
        for reading in readings
    ]


def decode_readings(rows: list[Any]) -> tuple[Reading, ...]:
    return tuple(_reading(*row) for row in rows)


def _reading(uuid: str, values: Any, error: Any, calls: Any, hardware: Any) -> Reading:
    failed = decode_error(error) if error else None
    assert failed is None or isinstance(failed, DeviceError)
    snapshot = GpuSnapshot(*values) if values else None
    counters = HardwareCounters(*hardware) if hardware else None
    call_seconds, taken_at_s = calls
    return Reading(uuid, snapshot, failed, call_seconds, taken_at_s, counters)
