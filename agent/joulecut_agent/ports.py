"""What the agent asks of a device, split by who may ask.

Reading and writing are two ports, because they run in two processes with two
privileges. A back end (entry-point group `joulecut.devices`) offers both; one
conformance suite holds every back end to the same behaviour.

    DeviceError
      Transient         try again later
      Unsupported       this device cannot do that, now or ever
      NotPermitted      no right to do it (CAP_SYS_ADMIN); reading may still work
      Gone              the GPU fell off the bus, or the driver was unloaded
"""

from dataclasses import dataclass
from typing import Any, Protocol

from joulecut_wire.errors import JoulecutError
from joulecut_wire.messages import GpuDescription, GpuSnapshot


class DeviceError(JoulecutError):
    """A device call failed. `code` is a short stable word for the error counter."""

    def __init__(self, code: str, what: str) -> None:
        self.code = code
        super().__init__(what)


class Transient(DeviceError):
    pass


class Unsupported(DeviceError):
    pass


class NotPermitted(DeviceError):
    pass


class Gone(DeviceError):
    pass


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one tick: a snapshot, or why there is none, and what the calls cost."""

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


class ClockWriter(Protocol):
    """Writes SM clock locks; the keeper alone holds one.

    There is no getter for locked clocks: what was written is known from the journal only.
    """

    def permission(self) -> str:
        """Why writing is not permitted to this process; empty where it is."""
        ...

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        """Supported SM clocks, ascending; empty for a GPU this device does not know."""
        ...

    def uncontrollable(self, uuid: str) -> str:
        """Why this GPU must not be controlled (MIG, unknown); empty where it may be."""
        ...

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        """Locks the SM clock range. Raises DeviceError; success means "accepted" only."""
        ...

    def reset(self, uuid: str) -> None:
        """Back to the driver's default clocks. Idempotent. Raises DeviceError."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """A device back end. `options` is the mapping under the device's name in the agent's
    configuration, `state_dir` the agent's own directory. Both raise DeviceError, and
    BadInput on unknown options.
    """

    def open_reader(self, options: dict[str, Any], state_dir: str) -> DeviceReader: ...

    def open_writer(self, options: dict[str, Any], state_dir: str) -> ClockWriter: ...
