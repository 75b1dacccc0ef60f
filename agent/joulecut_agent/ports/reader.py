"""Reading GPUs: needs no privilege, and never touches a clock."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from joulecut_agent.ports.failure import DeviceError
from joulecut_wire.messages import GpuDescription, GpuSnapshot

Series = tuple[tuple[float, float], ...]  # (Unix time in seconds, value), oldest first


def untold(index: int) -> None:
    """The `step` of who does not care which GPU is being touched."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one tick: a snapshot, or why there is none, and what the calls cost.

    Both where one call of several failed: the snapshot then lacks what it would have told.
    `taken_at_s` is monotonic, the same in every process; 0 where it was not noted.
    """

    uuid: str
    snapshot: GpuSnapshot | None
    error: DeviceError | None
    call_seconds: tuple[tuple[str, float], ...] = ()
    taken_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Burst:
    """What the driver's own buffers hold of one GPU since the burst before.

    The link counters are totals since driver load, in both directions together.
    """

    power_w: Series = ()
    utilization_ratio: Series = ()
    clock_sm_mhz: Series = ()
    nvlink_bytes: Series = ()
    pcie_bytes: Series = ()


class DeviceReader(Protocol):
    """Reads GPUs; needs no privilege. Not thread-safe: one thread owns it.

    Opening it touches no single GPU. `leave_out` are indices not to be touched at all, and
    `step` is told each index just before it is: so that who waits knows which one hangs.
    """

    def describe(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = untold
    ) -> tuple[GpuDescription, ...]:
        """All GPUs in index order, `controllable` judged by device alone (MIG, shared).

        Raises DeviceError where the driver does not answer at all.
        """
        ...

    def read(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = untold
    ) -> tuple[Reading, ...]:
        """Every described GPU once; never raises: one lost GPU costs that GPU's data."""
        ...

    def close(self) -> None: ...


class GlancingReader(DeviceReader, Protocol):
    """A reader that can tell what has changed from tick to tick in a few numbers."""

    def glance(self, step: Callable[[int], None] = untold) -> bytes | None:
        """Of the GPUs of the last `read`, see `glance`; None where another `read` is due."""
        ...


class BurstReader(DeviceReader, Protocol):
    """A reader whose device keeps samples of its own, faster than anybody asks."""

    def burst(self, index: int) -> Burst:
        """What is new since the burst before. Raises DeviceError."""
        ...
