"""How long a leader may act on one proof that it still leads, and what must hold for that.

The database takes the seat away from a leader that it has not heard for `hold_s`. Counted
from the moment the leader *asked*, which is earlier than the database answered, the leader
itself stops `COMMAND_S` sooner: its last command is over before anybody else can lead.
"""

import math
from dataclasses import dataclass

from joulecut_wire.errors import BadInput

COMMAND_S = 3.0  # what a command under way may still take: the fleet's deadline
CHECK_S_DEFAULT = 1.0
HOLD_S_DEFAULT = 8.0  # a frozen leader is replaced within nine seconds: half of what is promised
TIMEOUT_S_DEFAULT = 2.0
CHECK_S_MIN, CHECK_S_MAX = 0.1, 30.0
HOLD_S_MIN, HOLD_S_MAX = 3.5, 300.0
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 30.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: between proofs, of the seat without one, and of one call to the store.

    `hold_s` infinite: nobody takes the seat from a living process (a lock on a file).
    """

    check_s: float = CHECK_S_DEFAULT
    hold_s: float = HOLD_S_DEFAULT
    timeout_s: float = TIMEOUT_S_DEFAULT

    @property
    def lead_s(self) -> float:
        """How long after the question commands may be sent."""
        return self.hold_s - COMMAND_S


def timing(
    check_s: float | None, hold_s: float | None, timeout_s: float | None, *, renewal_s: float
) -> Timing:
    """What was given, and defaults that fit the rest; `renewal_s` lies between heartbeats.
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
        # One proof may be lost, the next one slow, and the last command still under way.
        raise BadInput(
            "leader.hold_s",
            f"{chosen.hold_s:g} s is too short to prove anything twice",
            f"at least 2 x leader.check_s + store.timeout_s + {COMMAND_S:g} s: {need_s:.3g} s",
        )
    return chosen


def on_a_file(check_s: float | None) -> Timing:
    """Of a lock that the kernel keeps for as long as the process lives."""
    return Timing(CHECK_S_DEFAULT if check_s is None else check_s, hold_s=math.inf)
