"""Port for reading GPUs; needs no privilege, and never changes a clock."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from joulecut_agent.ports.failure import DeviceError
from joulecut_wire.messages import GpuDescription, GpuSnapshot

Series = tuple[tuple[float, float], ...]  # (Unix time in seconds, value), oldest first


def ignore_step(index: int) -> None:
    """The default of `step`."""


@dataclass(frozen=True, slots=True)
class HardwareCounters:
    """Counters of a GPU's hardware; one that the device lacks is absent.

    ECC and NVLink are the device's own totals. XID errors are counted since `since_s` (monotonic):
    with another `since_s` they start from zero.
    """

    ecc_errors: tuple[tuple[str, str, int], ...] = ()  # (un)corrected, volatile or aggregate, count
    nvlink_bytes: tuple[tuple[str, int], ...] = ()  # (tx or rx, bytes)
    nvlink_errors: tuple[tuple[str, int], ...] = ()  # (kind, count)
    xid_errors: tuple[tuple[int, int], ...] = ()  # (XID, count)
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one tick: a snapshot, an error, or both, and the durations of the calls.

    Both if one call of several failed: the snapshot then lacks its field.
    `taken_at_s` is monotonic, the same in every process; 0 if unknown. `hardware` is read seldom;
    None in between.
    """

    uuid: str
    snapshot: GpuSnapshot | None
    error: DeviceError | None
    call_seconds: tuple[tuple[str, float], ...] = ()
    taken_at_s: float = 0.0
    hardware: HardwareCounters | None = None


@dataclass(frozen=True, slots=True)
class Burst:
    """Samples from the driver's own buffers since the last burst, of one GPU.

    The link counters are totals since driver load, both directions together.
    """

    power_w: Series = ()
    utilization_ratio: Series = ()
    clock_sm_mhz: Series = ()
    nvlink_bytes: Series = ()
    pcie_bytes: Series = ()


class DeviceReader(Protocol):
    """Reads GPUs; needs no privilege. Not thread-safe: one thread owns it.

    Opening it calls no single GPU. `leave_out` are indices that must not be called. `step` is
    called with each index before its GPU is, so that a waiting owner knows which one hangs.
    """

    def describe(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = ignore_step
    ) -> tuple[GpuDescription, ...]:
        """All GPUs in index order, with `controllable` by device only (MIG, shared).

        Raises DeviceError if the driver does not answer at all.
        """
        ...

    def read(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = ignore_step
    ) -> tuple[Reading, ...]:
        """Every described GPU once. Never raises: a lost GPU costs its own data."""
        ...

    def burst(self, index: int) -> Burst:
        """Samples since the last burst. Raises DeviceError."""
        ...

    def close(self) -> None: ...
