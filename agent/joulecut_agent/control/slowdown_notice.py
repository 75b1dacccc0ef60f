"""GPUs that are slow on purpose: why, until when, and by how much at most.

A health check that finds a GPU below its clocks would drain the node. It reads here that a lease
slows the GPU.
"""

import json
import math
import threading
import time
from dataclasses import asdict, dataclass

from joulecut_agent.atomic_file import AtomicFile
from joulecut_agent.keeper.requests import Apply
from joulecut_wire.messages import Lease

STEP_S = 10.0  # "until" is rounded up to it, so that a heartbeat does not write the file
REASON_BYTES_MAX = 160
REASONS_MAX = 4  # of one GPU: its lease's, and of commands under way


@dataclass(frozen=True, slots=True)
class SlowdownNotice:
    """One GPU under a lease.

    `max_slowdown_ratio` follows from the clocks: no kernel is slowed by more than its clock. None
    under a power limit, which bounds no time.
    """

    job: str
    reason: str
    until_unix_s: float
    clock_max_mhz: int
    power_limit_w: float | None
    max_slowdown_ratio: float | None


def notice_of(
    lease: Lease, reason: str, clock_default_mhz: int, now_unix_s: float
) -> SlowdownNotice:
    """`clock_default_mhz`: the clock that the GPU reaches without a lease."""
    ratio = None
    if lease.power_limit_w is None and lease.clock_max_mhz > 0 and clock_default_mhz:
        lowest_mhz = lease.clock_lowest_mhz or lease.clock_max_mhz
        ratio = round(max(0.0, clock_default_mhz / lowest_mhz - 1.0), 4)
    cut = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
    until_s = math.ceil((now_unix_s + lease.expires_in_s) / STEP_S) * STEP_S
    return SlowdownNotice(lease.job, cut, until_s, lease.clock_max_mhz, lease.power_limit_w, ratio)


class SlowdownNoticeFile(AtomicFile):
    """The notices as JSON; any process of the node may read it."""

    def write(self, notices: dict[str, SlowdownNotice]) -> None:
        """Writes if a notice has changed. Never raises."""
        gpus = {uuid: asdict(notice) for uuid, notice in notices.items()}
        self.replace(json.dumps({"gpus": gpus}, sort_keys=True) + "\n")


class Reasons:
    """The reason of each GPU's newest commands, and since when they show. Thread-safe.

    A command is known here before it is sent, and no reading is judged against it until it is
    answered.
    """

    def __init__(self) -> None:
        # Job, generation and reason of the newest commands, newest first.
        self._reasons: dict[str, tuple[tuple[str, int, str], ...]] = {}
        self._answered_s: dict[str, float] = {}  # infinite while a command is under way
        self._lock = threading.Lock()

    def sent(self, command: Apply, reason: str) -> None:
        """Before a command is sent; until `answered` no reading is judged.

        A command with the limits of the one before it shows in nothing else.
        """
        why = (command.job, command.generation, reason)
        with self._lock:
            for uuid in command.settings:
                self._reasons[uuid] = (why, *self._reasons.get(uuid, ()))[:REASONS_MAX]
                self._answered_s[uuid] = math.inf

    def answered(self, command: Apply) -> None:
        """Readings from now on show the command, accepted or not."""
        with self._lock:
            self._answered_s.update(dict.fromkeys(command.settings, time.monotonic()))

    def refused(self, command: Apply, reason: str) -> None:
        """Forgets the reason of a refused command."""
        why = (command.job, command.generation, reason)
        with self._lock:
            for uuid in command.settings:
                if (known := self._reasons.get(uuid, ())) and known[0] == why:
                    self._reasons[uuid] = known[1:]

    def answered_s(self, uuid: str) -> float:
        """When the newest command was answered (monotonic); infinite while under way."""
        return self._answered_s.get(uuid, 0.0)

    def of(self, uuid: str, lease: Lease) -> str:
        """The reason of a lease; "" if it was taken through an earlier agent."""
        why = {row[:2]: row[2] for row in reversed(self._reasons.get(uuid, ()))}
        return why.get((lease.job, lease.generation), "")
