"""Writing clocks and power limits: the smallest port, since the keeper must stay small."""

from typing import Protocol


class DeviceWriter(Protocol):
    """Writes SM clock locks and power limits; the keeper alone holds one.

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

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        """(lowest, highest, set now) in milliwatts; zeros where it cannot be set."""
        ...

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        """Sets the power limit. Raises DeviceError."""
        ...

    def close(self) -> None: ...
