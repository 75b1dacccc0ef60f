"""Latency from a command to the clock change, measured on commands and steps that come anyway.

A planner that changes clocks inside an iteration needs it, and it differs by model. No clock is
changed just to measure. Without load on the GPU there is no measurement.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from joulecut_agent.control.iteration_clock import p95
from joulecut_agent.control.timed_schedule import SetLatencies
from joulecut_agent.keeper.evidence import BUSY_RATIO, CLOCK_SLACK_MHZ
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.messages import GpuSnapshot, NodeSnapshot

SAMPLES_MAX = 64  # the newest; a driver upgrade changes the answer
SAMPLES_MIN = 8  # fewer say nothing about the fastest change
GAP_S_MAX = 0.2  # between two readings; beyond, the time of the change is unknown
# Twice the usual gap. A busy machine reads later than that, and a change that two late readings
# enclose proves no spread of the driver's.
GAP_S_SHARP = 0.04
WAIT_S_MAX = 2.0  # ten times the slowest known change; later it has another cause
REFRESH_S = 600.0  # between samples once there are enough


@dataclass(slots=True)
class _Gpu:
    clock_mhz: int | None = None  # last seen, while busy
    read_s: float = -inf
    target_mhz: int = 0  # 0: no change is awaited
    sent_s: float = 0.0
    wanted_s: float | None = None  # when the change shall be seen
    # The earliest and the latest possible time of each change, from its command.
    samples_s: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    errors_s: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    measured_s: float = -inf


_NOTHING = _Gpu()


class SetLatency:
    """Thread-safe: `started` at a command, `seen` at a reading of the device.

    `facts` are those of a self-test: they count until there are enough changes of its own.
    """

    def __init__(self, facts: Callable[[str], CardFacts | None] = lambda _: None) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._gpus: dict[str, _Gpu] = {}

    def started(
        self, clocks_mhz: dict[str, int], now_s: float, wanted_s: float | None = None
    ) -> bool:
        """Accepted commands; whether fast readings are needed to measure one.

        `wanted_s`: when the change shall be seen, of a timed step.
        """
        with self._lock:
            awaited = [self._start(uuid, mhz, now_s) for uuid, mhz in clocks_mhz.items()]
            for uuid in clocks_mhz:
                self._gpus[uuid].wanted_s = wanted_s
        return any(awaited)

    def seen(self, snapshot: NodeSnapshot) -> bool:
        """Whether a change is still awaited."""
        with self._lock:
            for gpu in snapshot.gpus:
                self._observe(gpu, snapshot.taken_at_s)
            return any(gpu.target_mhz for gpu in self._gpus.values())

    def p95_s(self, uuid: str) -> float:
        """0 without a measurement."""
        return self.latencies(uuid).p95_s

    def latencies(self, uuid: str) -> SetLatencies:
        """The fastest and slowest changes; zeros without a measurement."""
        with self._lock:
            known = self._gpus.get(uuid, _NOTHING)
            slowest_s = p95(latest_s for _, latest_s in _sharp(known.samples_s))
            if len(known.samples_s) < SAMPLES_MIN:
                if facts := self._facts(uuid):
                    slowest_s = max(slowest_s, facts.set_latency_p95_s)
                    return SetLatencies(facts.set_latency_p5_s, slowest_s)
                return SetLatencies(0.0, slowest_s)
            fastest_s = -p95(-earliest_s for earliest_s, _ in _sharp(known.samples_s))
            return SetLatencies(max(0.0, fastest_s), slowest_s)

    def change_error_s(self, uuid: str) -> float:
        """P95 of the distance between the wanted and the seen time of a change; 0: unknown."""
        with self._lock:
            return p95(self._gpus.get(uuid, _NOTHING).errors_s)

    def _start(self, uuid: str, clock_mhz: int, now_s: float) -> bool:
        known = self._gpus.setdefault(uuid, _Gpu())
        known.target_mhz = 0
        before_mhz = known.clock_mhz
        if not clock_mhz or before_mhz is None or abs(before_mhz - clock_mhz) <= CLOCK_SLACK_MHZ:
            return False  # idle, or already there: no change would show
        known.target_mhz, known.sent_s = clock_mhz, now_s
        full = len(known.samples_s) >= SAMPLES_MAX
        return not full or now_s - known.measured_s > REFRESH_S

    def _observe(self, gpu: GpuSnapshot, now_s: float) -> None:
        known = self._gpus.setdefault(gpu.uuid, _Gpu())
        busy = (gpu.utilization_gpu_ratio or 0.0) >= BUSY_RATIO
        known.clock_mhz = gpu.clock_sm_mhz if busy else None
        # A change cannot be earlier than its command.
        gap_s = now_s - max(known.read_s, known.sent_s)
        known.read_s = now_s
        waited_s = now_s - known.sent_s
        if not known.target_mhz or waited_s <= 0.0:
            return
        if known.clock_mhz is None or waited_s > WAIT_S_MAX:
            known.target_mhz = 0
        elif abs(known.clock_mhz - known.target_mhz) <= CLOCK_SLACK_MHZ:
            known.target_mhz = 0
            if gap_s <= GAP_S_MAX:
                known.samples_s.append((waited_s - gap_s, waited_s))
                if known.wanted_s is not None:
                    # It was seen at `now_s`, and came after the reading before.
                    known.errors_s.append(abs(now_s - 0.5 * gap_s - known.wanted_s))
                known.measured_s = now_s


def _sharp(samples_s: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The samples that closely spaced readings enclose; at least the SAMPLES_MIN sharpest."""
    gaps_s = sorted(latest_s - earliest_s for earliest_s, latest_s in samples_s)
    enough_s = gaps_s[min(SAMPLES_MIN, len(gaps_s)) - 1] if gaps_s else 0.0
    gap_s_max = max(GAP_S_SHARP, enough_s)
    return [one for one in samples_s if one[1] - one[0] <= gap_s_max]
