"""What a self-test has seen of one card: values that `judge` reads and a report keeps.

Clocks in MHz, power in watts, times in seconds of the monotonic clock.
"""

from dataclasses import dataclass, field

from joulecut_agent.nvml.card import Identity

Range = tuple[int, int]  # lowest and highest clock of a lock


@dataclass(frozen=True, slots=True)
class Sample:
    """The agent's reading of the card. `lock` is our own, since `lock_s`."""

    at_s: float
    phase: str
    clock_mhz: int | None
    power_w: float | None
    module_w: float | None
    energy_j: float | None
    busy_ratio: float | None
    reasons: tuple[str, ...]
    limit_w: float | None = None
    lock: Range | None = None
    lock_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A clock that was asked for. `seen_s` is None where it was not seen in time.

    `to_mhz` 0 is a reset: it is seen once the clock leaves `from_mhz`.
    """

    from_mhz: int
    to_mhz: int
    loaded: bool
    seen_s: float | None
    clock_mhz: int  # the last one seen
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class Evidence:
    """One card. What was not tried is empty or None."""

    first: Identity
    last: Identity | None = None  # in a later session of the driver
    model: str = ""
    clocks_mhz: tuple[int, ...] = ()
    mig: bool = False
    uncontrollable: str = ""
    samples: list[Sample] = field(default_factory=list)
    # with --write
    write_tried: bool = False
    refused: str = ""  # why the first write was refused
    loaded: bool = False  # a load of our own kept the card busy
    changes: list[Change] = field(default_factory=list)
    grid: dict[int, Change] = field(default_factory=dict)
    lost: str = ""  # why the lease was lost while it was renewed
    drift: str = ""  # what the agent says of other writers
    expired_s: float | None = None  # from the last renewal until the clock was free
    ttl_s: float = 0.0
    restored: bool | None = None
