"""The leader lock that the controllers of one store share, and for how long holding it counts.

Two kinds: a session lock of the PostgreSQL server that also holds the store, and a lock on a
file beside an SQLite store. The database takes the lock from a leader that was silent for
`hold_s`. Counted from the moment the leader *asked*, which is before the database answered, the
leader itself stops `COMMAND_S` sooner: its last command ends before another controller can lead.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from joulecut_wire.errors import BadInput

COMMAND_S = 3.0  # longest a command under way may still take: the fleet's deadline
CHECK_S_DEFAULT = 1.0
HOLD_S_DEFAULT = 8.0  # a frozen leader is replaced within nine seconds: half of what is promised
TIMEOUT_S_DEFAULT = 2.0
CHECK_S_MIN, CHECK_S_MAX = 0.1, 30.0
HOLD_S_MIN, HOLD_S_MAX = 3.5, 300.0
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 30.0


class LeaderLock(Protocol):
    """Calls block for up to the store's timeout: use threads. Raises Unavailable where the
    holder cannot be determined.
    """

    def acquire(self) -> bool:
        """Tries once; True if this controller holds the lock now."""
        ...

    @property
    def number(self) -> int:
        """Of this controller among those that share the jobs; 0 where one process has all."""
        ...

    def join(self) -> bool:
        """Without leading, from now on `check` says whether this controller still has its number.
        Returns that.
        """
        ...

    def check(self) -> bool:
        """Whether the lock is still held, without a break since `acquire` or `join`."""
        ...

    def release(self) -> None:
        """Never raises; harmless where the lock is not held."""
        ...

    @property
    def lost(self) -> bool:
        """True where the session behind the lock has ended: no check can succeed any more."""
        ...

    @property
    def holder(self) -> str:
        """Name of the holder at the last refused `acquire`; empty where unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: between checks, until a silent leader loses the lock, and of one call to the store.

    `hold_s` is infinite for a lock on a file: a living process never loses it.
    """

    check_s: float = CHECK_S_DEFAULT
    hold_s: float = HOLD_S_DEFAULT
    timeout_s: float = TIMEOUT_S_DEFAULT

    @property
    def lead_s(self) -> float:
        """How long after a successful check was asked commands may be sent."""
        return self.hold_s - COMMAND_S


def timing(
    check_s: float | None, hold_s: float | None, timeout_s: float | None, *, renewal_s: float
) -> Timing:
    """The given values, and defaults that fit them; `renewal_s` is the heartbeat's interval.
    Raises BadInput naming the keys.
    """
    chosen = Timing(
        check_s=CHECK_S_DEFAULT if check_s is None else check_s,
        hold_s=HOLD_S_DEFAULT if hold_s is None else hold_s,
        timeout_s=min(TIMEOUT_S_DEFAULT, renewal_s) if timeout_s is None else timeout_s,
    )
    if chosen.timeout_s > renewal_s:
        # Heartbeats wait for the store: one call that hangs may cost one of three, and no more.
        raise BadInput(
            "store.timeout_s",
            f"{chosen.timeout_s:g} s is longer than a heartbeat may be late",
            f"at most a third of lease.ttl_s: {renewal_s:.3g} s",
        )
    need_s = 2.0 * chosen.check_s + chosen.timeout_s + COMMAND_S
    if chosen.hold_s < need_s:
        # One check may be lost, the next one slow, and the last command still under way.
        raise BadInput(
            "leader.hold_s",
            f"{chosen.hold_s:g} s is too short for two checks of the leader lock",
            f"at least 2 x leader.check_s + store.timeout_s + {COMMAND_S:g} s: {need_s:.3g} s",
        )
    return chosen


def file_lock_timing(check_s: float | None) -> Timing:
    """For a lock that the kernel keeps for as long as the process lives."""
    return Timing(CHECK_S_DEFAULT if check_s is None else check_s, hold_s=math.inf)
