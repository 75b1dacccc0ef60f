"""Reads every GPU once a tick and publishes one immutable picture.

It is the only reader of the device: a scrape or a watcher sees the last picture, with its
age, and can never hang in the driver.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from joulecut_agent.job_energy import JobEnergy
from joulecut_agent.log import say
from joulecut_agent.ports.reader import DeviceReader, Reading
from joulecut_agent.tally import Tally
from joulecut_wire.messages import GpuDescription, NodeSnapshot
from joulecut_wire.metrics import NVML_ERRORS

STALE_TICKS = 3  # a late tick is jitter, three are a reader that hangs


@dataclass(frozen=True, slots=True)
class Picture:
    """One tick: what was read, what was not, and when (monotonic and Unix time)."""

    snapshot: NodeSnapshot
    unix_s: float
    complete: bool  # every GPU was read
    job_j: Mapping[str, float] = field(default_factory=dict)


NOTHING = Picture(NodeSnapshot(0, float("-inf"), ()), 0.0, complete=False)


class Sampler:
    """A thread of its own, which alone touches the reader."""

    def __init__(
        self, reader: DeviceReader, gpus: tuple[GpuDescription, ...], interval_s: float,
        tally: Tally, jobs: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        """`jobs` tells the live job of each GPU that has one."""
        self.gpus = gpus
        self._reader = reader
        self._interval_s = interval_s
        self._tally = tally
        self._jobs = jobs
        self._energy = JobEnergy()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._picture = NOTHING

    def start(self) -> None:
        """Returns after the first tick, so that nobody sees an agent without numbers."""
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0)  # a reader that hangs must not keep the agent

    def latest(self) -> Picture | None:
        """The newest picture, or None where it is stale: old numbers are no numbers."""
        picture = self._picture
        age_s = time.monotonic() - picture.snapshot.taken_at_s
        return picture if age_s <= STALE_TICKS * self._interval_s else None

    @property
    def last_tick_unix_s(self) -> float:
        return self._picture.unix_s

    def _run(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            try:
                self._tick()
            except Exception as error:
                say("agent", f"sampling failed: {type(error).__name__}: {error}")
            due_s = max(due_s + self._interval_s, time.monotonic())
        self._reader.close()

    def _tick(self) -> None:
        before = self._picture.snapshot
        readings = self._reader.read()
        gpus = tuple(reading.snapshot for reading in readings if reading.snapshot is not None)
        self._count(readings)
        counters_j = {gpu.uuid: gpu.energy_j for gpu in gpus if gpu.energy_j is not None}
        self._energy.add(counters_j, self._jobs())
        self._picture = replace(
            self._picture,
            snapshot=NodeSnapshot(before.sequence + 1, time.monotonic(), gpus),
            unix_s=time.time(),
            complete=len(gpus) == len(self.gpus),
            job_j=self._energy.joules(),
        )

    def _count(self, readings: tuple[Reading, ...]) -> None:
        for reading in readings:
            if reading.error is not None:
                self._tally.count(NVML_ERRORS.name, reading.error.code)
            for call, seconds in reading.call_seconds:
                self._tally.time(call, seconds)
