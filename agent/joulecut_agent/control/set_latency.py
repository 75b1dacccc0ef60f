"""How long after an order the clock is seen to follow, learnt from orders that come anyway.

A planner that switches clocks inside an iteration must know it, and it differs by card. No
clock is ever changed only to measure: without work on the GPU nothing can be seen, and
nothing is said.
"""

import math
import threading
from collections import deque
from dataclasses import dataclass, field

from joulecut_agent.control.drift import BUSY_RATIO, CLOCK_SLACK_MHZ
from joulecut_wire.messages import GpuSnapshot, NodeSnapshot

SAMPLES_MAX = 64  # the newest; a driver upgrade changes the answer
GAP_S_MAX = 0.2  # between two readings; a longer one tells nothing of when it happened
WAIT_S_MAX = 2.0  # ten times the slowest that is known; later it is something else
REFRESH_S = 600.0  # with enough samples one more each ten minutes is enough


@dataclass(slots=True)
class _Gpu:
    clock_mhz: int | None = None  # seen last, while busy
    read_s: float = -math.inf
    target_mhz: int = 0  # 0: no order is waited for
    ordered_s: float = 0.0
    samples_s: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    measured_s: float = -math.inf


class SetLatency:
    """From any thread: `ordered` by who sends orders, `seen` by who reads the device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: dict[str, _Gpu] = {}

    def ordered(self, clocks_mhz: dict[str, int], now_s: float) -> bool:
        """Notes accepted orders; whether any of them is worth a closer look."""
        with self._lock:
            wanted = [self._order(uuid, mhz, now_s) for uuid, mhz in clocks_mhz.items()]
        return any(wanted)

    def seen(self, snapshot: NodeSnapshot) -> bool:
        """Whether an order is still waited for."""
        with self._lock:
            for gpu in snapshot.gpus:
                self._look(gpu, snapshot.taken_at_s)
            return any(gpu.target_mhz for gpu in self._gpus.values())

    def p95_s(self, uuid: str) -> float:
        """0 where nothing was measured yet."""
        with self._lock:
            samples_s = sorted(self._gpus[uuid].samples_s) if uuid in self._gpus else []
        return samples_s[math.ceil(0.95 * len(samples_s)) - 1] if samples_s else 0.0

    def _order(self, uuid: str, clock_mhz: int, now_s: float) -> bool:
        known = self._gpus.setdefault(uuid, _Gpu())
        known.target_mhz = 0
        before_mhz = known.clock_mhz
        if not clock_mhz or before_mhz is None or abs(before_mhz - clock_mhz) <= CLOCK_SLACK_MHZ:
            return False  # idle, or there already: nothing would be seen to change
        known.target_mhz, known.ordered_s = clock_mhz, now_s
        full = len(known.samples_s) >= SAMPLES_MAX
        return not full or now_s - known.measured_s > REFRESH_S

    def _look(self, gpu: GpuSnapshot, now_s: float) -> None:
        known = self._gpus.setdefault(gpu.uuid, _Gpu())
        busy = (gpu.utilization_gpu_ratio or 0.0) >= BUSY_RATIO
        known.clock_mhz = gpu.clock_sm_mhz if busy else None
        # The order itself bounds the gap: before it there was nothing to see.
        gap_s = now_s - max(known.read_s, known.ordered_s)
        known.read_s = now_s
        waited_s = now_s - known.ordered_s
        if not known.target_mhz or waited_s <= 0.0:
            return
        if known.clock_mhz is None or waited_s > WAIT_S_MAX:
            known.target_mhz = 0
        elif abs(known.clock_mhz - known.target_mhz) <= CLOCK_SLACK_MHZ:
            known.target_mhz = 0
            if gap_s <= GAP_S_MAX:
                known.samples_s.append(waited_s)
                known.measured_s = now_s
