"""Reads every GPU once a tick and publishes one immutable reading.

The only reader of the device: scrapes and watchers see the last reading, with its age, and never
hang in the driver.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulecut_agent.counters import Counters
from joulecut_agent.log import Warnings
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.monitor.energy_account import EnergyAccount, EnergyFile, driver_load
from joulecut_agent.monitor.hardware_state import HardwareState
from joulecut_agent.monitor.power_integral import PowerIntegral
from joulecut_agent.monitor.reader_protocol import DRIVER as WHOLE_DRIVER
from joulecut_agent.monitor.samples import Samples
from joulecut_agent.ports.reader import Reading
from joulecut_wire import card_facts
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.messages import GpuDescription, GpuSnapshot, NodeSnapshot
from joulecut_wire.metrics import NVML_ERRORS

HURRY_S = 0.02  # the step of the driver's own samples
PAUSE_WAIT_S = 3.0  # a tick takes milliseconds unless the driver hangs
STALE_TICKS = 3  # a late tick is jitter, three are a reader that hangs
STALE_S_MIN = 3.0  # one GPU that hangs must not cost the data of the others
RECENT_MAX = 16  # readings; more than come between two checks of what is set


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One tick, with its monotonic and Unix time."""

    snapshot: NodeSnapshot
    unix_s: float
    complete: bool  # every GPU was read
    by_uuid: Mapping[str, GpuSnapshot]


NOTHING = NodeReading(NodeSnapshot(0, float("-inf"), ()), 0.0, False, {})


@dataclass(eq=False)
class Sampler:
    """Its thread is the only one that waits for the reader. `jobs` returns the live jobs by GPU;
    `file` keeps their energy; `measured` are facts of cards that replace what the reader assumes.
    """

    source: DriverReader
    interval_s: float
    counters: Counters
    jobs: Callable[[], Mapping[str, tuple[str, ...]]]
    file: EnergyFile
    measured: Sequence[CardFacts] = ()

    def __post_init__(self) -> None:
        self.account = EnergyAccount(self.file, self.jobs)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._hurry_until_s = 0.0
        self._warnings = Warnings()
        self._integral = PowerIntegral()
        self._described: tuple[GpuDescription, ...] = ()
        self._describe()
        self.hardware = HardwareState()
        # Called at each tick; returns whether it needs the next one soon.
        self.watcher: Callable[[NodeSnapshot], bool] = lambda _: False
        self.needed_s: Callable[[], float] = lambda: math.inf  # readings at least so often
        self.samples: Samples | None = None  # opens the device too
        self._released = threading.Event()  # requested
        self._dropped = threading.Event()  # done
        self.turned_s = time.monotonic()  # when the loop last ran
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._newest = NOTHING
        self._recent: deque[NodeReading] = deque(maxlen=RECENT_MAX)

    def start(self) -> None:
        """Returns after the first tick, so that there is a reading from the start."""
        self._turn()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2.0)
        if self._thread.is_alive():  # it hangs in a driver, which must not keep the agent
            self.source.kill()
            self._thread.join(timeout=1.0)
        self.account.save()

    def hurry(self, duration_s: float) -> None:
        """Ticks each HURRY_S for a while, to see a clock change when it happens."""
        self._hurry_until_s = time.monotonic() + duration_s
        self._wake.set()

    def held(self, uuid: str, jobs: Iterable[str], since_s: float) -> None:
        """A GPU works for these jobs; from any thread. A change makes a reading due."""
        if self.account.hold(uuid, jobs, since_s):
            self.hurry(0.0)

    def begin_paused(self) -> None:
        """Before `start`: the device stays closed until `resume`."""
        self._released.set()
        if self.samples is not None:
            self.samples.pause()

    def pause(self) -> bool:
        """Drops the device and every reading of it; whether that was done in time."""
        self._released.set()
        self._wake.set()
        if self.samples is not None and not self.samples.pause():
            return False
        if self._dropped.wait(PAUSE_WAIT_S):
            return True
        self.source.kill()
        return self._dropped.wait(PAUSE_WAIT_S)

    def resume(self) -> None:
        """Opens the device again."""
        if self.samples is not None:
            self.samples.resume()
        self._released.clear()
        self._wake.set()

    def latest(self) -> NodeReading | None:
        """The newest reading, or None if it is stale. Never waits."""
        reading = self._newest
        age_s = time.monotonic() - reading.snapshot.taken_at_s
        fresh_s = max(STALE_TICKS * min(self.interval_s, self.needed_s()), STALE_S_MIN)
        return reading if age_s <= fresh_s else None

    def recent(self) -> tuple[NodeReading, ...]:
        """The last readings, oldest first."""
        return tuple(self._recent)

    @property
    def last_tick_unix_s(self) -> float:
        return self._newest.unix_s

    @property
    def unresponsive(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose calls hang; "" for the driver as a whole."""
        silent = self.source.unresponsive
        uuids = [gpu.uuid for gpu in self.gpus if gpu.index in silent]
        return (*([""] if WHOLE_DRIVER in silent else []), *uuids)

    @property
    def unread(self) -> tuple[int, ...]:
        """Indices of the GPUs that the driver counts and cannot open."""
        return tuple(sorted(self.source.unread))

    def _run(self) -> None:
        due_s = time.monotonic() + self._period_s()
        while not self._stop.is_set():
            self._wake.wait(max(0.0, due_s - time.monotonic()))
            self._wake.clear()
            self.turned_s = time.monotonic()
            self._warnings.attempt(self._turn, "sampling failed")
            now_s, period_s = time.monotonic(), self._period_s()
            if now_s >= due_s:
                due_s = max(due_s + period_s, now_s)
            due_s = min(due_s, now_s + period_s)
        if not self._dropped.is_set():
            self.source.close()

    def _period_s(self) -> float:
        """Between two ticks."""
        hurries = time.monotonic() < self._hurry_until_s
        return min(self.interval_s, self.needed_s(), HURRY_S if hurries else math.inf)

    def _ready(self) -> bool:
        """Whether the device may be read; drops it if released."""
        if self._released.is_set():
            if not self._dropped.is_set():
                self.source.close()
                sequence = self._newest.snapshot.sequence
                self._newest = replace(
                    NOTHING, snapshot=replace(NOTHING.snapshot, sequence=sequence)
                )
                self._recent.clear()
                self._dropped.set()
            return False
        self._dropped.clear()
        return not self._stop.is_set()

    def _turn(self) -> None:
        if not self._ready():
            return
        load = driver_load()
        readings = self.source.read()
        self.account.load = load  # a running reader does not follow to a new load
        if not self._released.is_set():
            self._take(readings, time.monotonic())

    def _take(self, readings: tuple[Reading, ...], at_s: float) -> None:
        self._describe()
        known, integrated = {gpu.uuid for gpu in self.gpus}, self.account.integrated
        mine = [
            self._integral.counted(r, at_s) if r.uuid in integrated else r
            for r in readings
            if r.snapshot is not None and r.uuid in known
        ]
        gpus = tuple(reading.snapshot for reading in mine if reading.snapshot is not None)
        snapshot = NodeSnapshot(self._newest.snapshot.sequence + 1, at_s, gpus)
        self._count(readings)
        unix_s = time.time() - (time.monotonic() - at_s)
        self.hardware.add(readings, at_s, unix_s)
        complete = len(gpus) == len(self.gpus) and not self.source.unread
        self._newest = NodeReading(snapshot, unix_s, complete, {gpu.uuid: gpu for gpu in gpus})
        self._recent.append(self._newest)
        self.account.add([gpu.uuid for gpu in self.gpus], mine)
        if not self.watcher(snapshot):
            self._hurry_until_s = 0.0

    def _describe(self) -> None:
        """Takes over the GPUs of the source, with the scopes that were measured."""
        if self._described is self.source.gpus:
            return
        self._described = self.source.gpus
        found = []
        for gpu in self._described:
            facts = card_facts.valid_for(self.measured, gpu.uuid, gpu.driver, gpu.vbios)
            scope = facts.counter_scope if facts else ""
            found.append(replace(gpu, energy_scope=scope) if scope else gpu)
        self.gpus = tuple(found)
        self.account.integrated = frozenset(
            gpu.uuid for gpu in self.gpus if gpu.energy_scope in card_facts.MORE_THAN_THE_GPU
        )

    def _count(self, readings: tuple[Reading, ...]) -> None:
        for reading in readings:
            if reading.error is not None:
                self.counters.count(NVML_ERRORS.name, reading.error.code)
            self.counters.time(reading.call_seconds)
