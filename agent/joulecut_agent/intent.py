"""Which GPUs are slow on purpose, said where health checks look.

A check that finds a GPU below its clocks would drain the node as sick. It can read here that
somebody meant it, until when, and by how much at most.
"""

import contextlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from joulecut_agent.log import say
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


class IntentFile:
    """A small JSON file that every process of the node may read; replaced whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, Intent] | None = None
        self._said = ""

    def write(self, intents: dict[str, Intent]) -> None:
        """Only where something changed. Never raises: it says so once."""
        if intents == self._written:
            return
        raw = json.dumps({"gpus": {u: asdict(one) for u, one in intents.items()}}, sort_keys=True)
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(raw + "\n")
            fresh.chmod(0o644)
            os.replace(fresh, self._path)
            self._written, self._said = dict(intents), ""
        except OSError as error:
            if str(error) != self._said:
                say("agent", f"intent file {self._path}: {error.strerror}")
            self._said = str(error)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
