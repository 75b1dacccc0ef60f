"""A card kept busy by a worker in the background, in real time, as a Bench.

The queue never runs empty while something is measured: a card that waits for us would be
measured waiting.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from joulecut_agent.ports.failure import DeviceError
from joulecut_lab.study.bench import Done, Machine, Reading, Split
from joulecut_lab.study.cell import Cell
from joulecut_sim.layer import Dtype
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuSnapshot

POLL_S = 0.002  # how often finished work is looked for while waiting
QUEUED = 3  # batches of passes in the card's queue: it never waits for us
BATCH_S = 0.02  # how long one is meant to take: a fifth of a counter step
BATCH_PASSES_MAX = 1024
SETUP_PASSES = 3  # let libraries choose their kernels before anything counts
STUCK_S = 120.0  # a pass of the largest layer takes seconds even on a slow card
LIMITS = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")


class Worker(Protocol):
    """What runs passes, one after another, in the background."""

    dtypes: tuple[Dtype, ...]

    def prepare(self, cell: Cell) -> str:
        """Builds the layer; why it cannot run here, or empty."""
        ...

    def start(self, passes: int) -> Callable[[], bool]:
        """Queues so many passes; the answer says whether they are done."""
        ...

    def close(self) -> None: ...


Sensors = Callable[[], GpuSnapshot]  # one reading of the card; raises DeviceError


class WorkedBench:
    """A Bench from a worker and a card's sensors, in real time."""

    def __init__(
        self,
        machine: Machine,
        worker: Worker,
        sensors: Sensors,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.machine = machine
        self._worker = worker
        self._sensors = sensors
        self._now_s = now_s
        self._sleep = sleep
        self._queue: deque[tuple[Callable[[], bool], int, float]] = deque()
        self._batch = 1
        self._done = Done(0, 0.0)

    def prepare(self, cell: Cell) -> str:
        self._drain()
        if reason := self._worker.prepare(cell):
            return reason
        self._await(self._worker.start(SETUP_PASSES))
        self._batch = self._size_batches()
        self._done = Done(0, self._now_s())
        return ""

    def work(self, seconds: float) -> Done:
        until_s = self._now_s() + seconds
        while True:
            while len(self._queue) < QUEUED:
                self._queue.append((self._worker.start(self._batch), self._batch, self._now_s()))
            while self._queue and self._queue[0][0]():
                _, passes, _ = self._queue.popleft()
                self._done = Done(self._done.passes + passes, self._now_s())
            if self._now_s() >= until_s:
                return self._done
            if self._queue and self._now_s() - self._queue[0][2] > STUCK_S:
                raise Unavailable(f"the card has not finished a pass within {STUCK_S:g} s")
            self._sleep(POLL_S)

    def now_s(self) -> float:
        return self._now_s()

    def read(self) -> Reading:
        try:
            seen = self._sensors()
        except DeviceError as error:
            raise Unavailable(f"the card cannot be read: {error}") from None
        if seen.energy_j is None or seen.clock_sm_mhz is None:
            raise Unavailable("this card has no energy counter or shows no clock (before Volta?)")
        return Reading(
            energy_j=seen.energy_j,
            clock_mhz=float(seen.clock_sm_mhz),
            temperature_celsius=seen.temperature_celsius,
            capped=any(reason in LIMITS for reason in seen.event_reasons),
        )

    def split(self) -> Split | None:
        return None

    def close(self) -> None:
        self._drain()
        self._worker.close()

    def _drain(self) -> None:
        while self._queue:
            self._await(self._queue.popleft()[0])

    def _await(self, finished: Callable[[], bool]) -> None:
        since_s = self._now_s()
        while not finished():
            if self._now_s() - since_s > STUCK_S:
                raise Unavailable(f"the card has not finished a pass within {STUCK_S:g} s")
            self._sleep(POLL_S)

    def _size_batches(self) -> int:
        """Passes that take about `BATCH_S`: doubled until they do."""
        passes = 1
        while passes < BATCH_PASSES_MAX:
            began_s = self._now_s()
            self._await(self._worker.start(passes))
            took_s = self._now_s() - began_s
            if took_s >= BATCH_S:
                return max(1, int(passes * BATCH_S / took_s))
            passes *= 2
        return BATCH_PASSES_MAX
