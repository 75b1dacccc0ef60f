"""Intervals of one controller: passes, heartbeats, leases, staleness limits.

Their relations make a dead controller harmless, so they stand in one place and are asserted.
"""

from dataclasses import dataclass

TTL_INTERVALS = 3.0  # a lease outlives two lost passes, and no more
RENEWALS_PER_TTL = 3.0  # one heartbeat in three may be lost on the way, and a second late
# A dead pass must not be kept alive by its heartbeat; a long solve is not a death.
DEAD_INTERVALS = 3.0
DEAD_S_MIN = 5.0
STALE_INTERVALS = 3.0
STALE_S_MIN = 3.0  # agents sample once a second; below three samples nothing is lost yet
NODE_CHATTER_S = 0.3  # an agent's datagram queue and two event loops


@dataclass(frozen=True, slots=True)
class Pacing:
    """Intervals of one controller, in seconds. `ttl_s` None: three intervals, within what
    the agents allow.
    """

    interval_s: float
    watch_s: float
    ttl_s: float | None = None

    @property
    def stale_s(self) -> float:
        return max(STALE_INTERVALS * self.interval_s, STALE_S_MIN)

    @property
    def dead_s(self) -> float:
        return max(DEAD_INTERVALS * self.interval_s, DEAD_S_MIN)

    def ttl_within_s(self, ttl_max_s: float) -> float:
        if self.ttl_s is not None:
            return self.ttl_s  # the operator's setting; an agent refuses it where it is too long
        wanted_s = TTL_INTERVALS * self.interval_s
        return min(wanted_s, ttl_max_s) if ttl_max_s > 0 else wanted_s

    @property
    def lag_s(self) -> float:
        """The longest delay from the end of an iteration to its report in `IterationStats`."""
        return self.watch_s + NODE_CHATTER_S


def renewal_s(ttl_s: float) -> float:
    """Time between heartbeats of leases that last `ttl_s`."""
    return ttl_s / RENEWALS_PER_TTL


assert RENEWALS_PER_TTL >= 3.0, "one heartbeat lost, and one late, must not end a lease"
