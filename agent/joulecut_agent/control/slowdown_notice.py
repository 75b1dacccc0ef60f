"""Which GPUs are slow on purpose, said where health checks look.

A check that finds a GPU below its clocks would drain the node as sick. It can read here that
somebody meant it, until when, and by how much at most.
"""

import json
import math
from dataclasses import asdict, dataclass

from joulecut_agent.atomic_file import Notice
from joulecut_wire.messages import Lease

HOUR_S = 3600.0
STEP_S = 10.0  # "until" is rounded up to it: a file is not written for every heartbeat
REASON_BYTES_MAX = 160


@dataclass(frozen=True, slots=True)
class Intent:
    """One GPU under a lease. `max_slowdown_ratio` follows from the clocks alone: no kernel is
    slowed by more than the clock; None under a power limit, which bounds no time.
    """

    job: str
    reason: str
    until_unix_s: float
    clock_max_mhz: int
    power_limit_w: float | None
    max_slowdown_ratio: float | None


def intent_of(lease: Lease, reason: str, clock_default_mhz: int, now_unix_s: float) -> Intent:
    """`clock_default_mhz` is what the GPU may reach without us."""
    ratio = None
    if lease.power_limit_w is None and lease.clock_max_mhz > 0 and clock_default_mhz:
        lowest_mhz = lease.clock_lowest_mhz or lease.clock_max_mhz
        ratio = round(max(0.0, clock_default_mhz / lowest_mhz - 1.0), 4)
    cut = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
    until_s = math.ceil((now_unix_s + lease.expires_in_s) / STEP_S) * STEP_S
    return Intent(lease.job, cut, until_s, lease.clock_max_mhz, lease.power_limit_w, ratio)


def until_label(until_unix_s: float) -> str:
    """The next full hour in Unix seconds: a heartbeat must not make a new series."""
    return str(int(-(-until_unix_s // HOUR_S) * HOUR_S))


class IntentFile(Notice):
    """A small JSON file that every process of the node may read; replaced whole."""

    def write(self, intents: dict[str, Intent]) -> None:
        """Only where something changed. Never raises: it says so once."""
        told = {uuid: asdict(one) for uuid, one in intents.items()}
        self.put(json.dumps({"gpus": told}, sort_keys=True) + "\n")
