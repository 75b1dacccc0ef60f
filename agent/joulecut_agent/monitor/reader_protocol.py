"""What agent and eye tell each other: an answer to each call, readings, a mark of progress.

Both ends are one version of one program, one interpreter and one user, so this checks little,
and packs by `marshal`, which is the cheapest there is: it runs at every tick.
"""

import marshal
import mmap
import struct
import time
from operator import attrgetter
from typing import Any

from joulecut_agent.ports import failure
from joulecut_agent.ports.failure import DeviceError
from joulecut_agent.ports.reader import Burst, Reading
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable
from joulecut_wire.messages import GpuDescription, GpuSnapshot

PACKET_BYTES_MAX = 200_000  # below the kernel's own bound; 16 GPUs take 50,000
DRIVER = -1  # in place of an index: the driver as a whole
IDLE = -2  # and nothing at all
_MARK = struct.Struct("<qqd")
MARK_BYTES = mmap.PAGESIZE
# Plain tuples, made and taken apart in C: what costs a tick most is Python that runs cold.
_description = attrgetter(*GpuDescription.__slots__)
_snapshot = attrgetter(*GpuSnapshot.__slots__)
_burst = attrgetter(*Burst.__slots__)


class Mark:
    """Which GPU is being touched since when (monotonic), in memory that both processes see: read
    while one hangs.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, MARK_BYTES)
        self._steps = 0

    def step(self, index: int) -> None:
        self._steps += 1
        _MARK.pack_into(self._memory, 0, self._steps, index, time.monotonic())

    def seen(self) -> tuple[int, int, float]:
        """How many steps were taken, the index of the last, and when that was."""
        steps, index, at_s = _MARK.unpack_from(self._memory)
        return int(steps), int(index), float(at_s)

    def close(self) -> None:
        self._memory.close()


def encode(value: Any) -> bytes:
    return marshal.dumps(value)


def decode(raw: bytes) -> Any:
    """Raises ValueError, EOFError or TypeError on what `encode` has not made."""
    return marshal.loads(raw)  # noqa: S302 -- from our own child


def pushed(number: int, rows: list[Any] | bytes | None) -> bytes:
    """What the eye read by itself, just now: its whole reading of that number, or a glance that
    goes with it; None where reading failed as a whole. A tuple, where an answer is a list.
    """
    return encode((time.monotonic(), number, rows))


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


def decode_described(rows: list[Any]) -> tuple[GpuDescription, ...]:
    return tuple(GpuDescription(*row) for row in rows)


def encode_readings(readings: tuple[Reading, ...]) -> list[Any]:
    return [
        (
            reading.uuid,
            reading.snapshot and _snapshot(reading.snapshot),
            reading.error and encode_error(reading.error),
            reading.call_seconds,
            reading.taken_at_s,
        )
        for reading in readings
    ]


def decode_readings(rows: list[Any]) -> tuple[Reading, ...]:
    return tuple(_reading(*row) for row in rows)


def _reading(uuid: str, values: Any, error: Any, costs: Any, at_s: float) -> Reading:
    failed = decode_error(error) if error else None
    assert failed is None or isinstance(failed, DeviceError)
    return Reading(uuid, GpuSnapshot(*values) if values else None, failed, costs, at_s)


def encode_burst(burst: Burst) -> Any:
    return _burst(burst)


def decode_burst(row: Any) -> Burst:
    return Burst(*row)
