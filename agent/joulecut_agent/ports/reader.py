"""Reading GPUs: needs no privilege, and never touches a clock."""

from dataclasses import dataclass
from typing import Protocol

from joulecut_agent.ports.failure import DeviceError
from joulecut_wire.messages import GpuDescription, GpuSnapshot


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one tick: a snapshot, or why there is none, and what the calls cost.

    Both where one call of several failed: the snapshot then lacks what it would have told.
    """

    uuid: str
    snapshot: GpuSnapshot | None
    error: DeviceError | None
    call_seconds: tuple[tuple[str, float], ...] = ()


class DeviceReader(Protocol):
    """Reads GPUs; needs no privilege. Not thread-safe: one thread owns it."""

    def describe(self) -> tuple[GpuDescription, ...]:
        """All GPUs in index order, `controllable` judged by device alone (MIG, shared).

        Raises DeviceError where the driver does not answer at all.
        """
        ...

    def read(self) -> tuple[Reading, ...]:
        """Every described GPU once; never raises: one lost GPU costs that GPU's data."""
        ...

    def close(self) -> None: ...
