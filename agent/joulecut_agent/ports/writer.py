"""Port for writing clocks and power limits."""

from typing import Protocol


class DeviceWriter(Protocol):
    """Writes SM clock locks and power limits; only the keeper has one.

    There is no getter for locked clocks: only the journal knows what was written.
    """

    def permission(self) -> str:
        """Reason why this process may not write, or ""."""
        ...

    def uuids(self) -> tuple[str, ...]:
        """Every GPU of this node. Raises DeviceError."""
        ...

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        """Supported SM clocks, ascending; empty for an unknown GPU."""
        ...

    def uncontrollable(self, uuid: str) -> str:
        """Reason why this GPU must not be controlled (MIG, unknown), or ""."""
        ...

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        """Locks the SM clock range. Raises DeviceError; success only means accepted."""
        ...

    def reset(self, uuid: str) -> None:
        """Resets to the driver's default clocks. Idempotent. Raises DeviceError."""
        ...

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        """(lowest, highest, now set) in milliwatts; zeros if it cannot be set."""
        ...

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        """SM clock in MHz, busy share, and why it is not faster (`event_reasons.event_words`).

        Raises DeviceError.
        """
        ...

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        """Sets the power limit. Raises DeviceError."""
        ...

    def close(self) -> None: ...
