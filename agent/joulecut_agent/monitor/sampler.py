"""Reads every GPU once a tick and publishes one immutable picture.

It is the only reader of the device: a scrape or a watcher sees the last picture, with its
age, and can never hang in the driver. Where ticks are quick the reading process makes them by
itself, and what it read is taken up together, each second or when somebody looks: to wake this
process for each of them would cost several times what the reading does.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from joulecut_agent.counters import Tally
from joulecut_agent.log import say
from joulecut_agent.monitor.energy_account import EnergyAccount, driver_load
from joulecut_agent.monitor.energy_file import EnergyFile
from joulecut_agent.monitor.job_energy import Books
from joulecut_agent.monitor.reader_protocol import DRIVER as WHOLE_DRIVER
from joulecut_agent.monitor.samples import Samples
from joulecut_agent.ports.reader import Reading
from joulecut_wire.messages import GpuDescription, NodeSnapshot
from joulecut_wire.metrics import NVML_ERRORS

HURRY_S = 0.02  # the step of the driver's own samples
HURRY_TURN_S = 0.2  # and how often they are looked at
TAKE_S = 1.0  # how long readings may lie where nobody looks; marks and leases do not wait for them
PAUSE_WAIT_S = 3.0  # a tick takes milliseconds; a driver that does not answer takes for ever
STALE_TICKS = 3  # a late tick is jitter, three are a reader that hangs
STALE_S_MIN = 3.0  # and one GPU that hangs must not cost the data of the others
RECENT_MAX = 16  # what comes within TAKE_S and a little more


class Source(Protocol):
    """What reads the GPUs, in bounded time; see `eye.Eye`."""

    gpus: tuple[GpuDescription, ...]

    def read(self, each_s: float = 0.0) -> tuple[Reading, ...]: ...

    def arrived(self) -> list[tuple[float, tuple[Reading, ...]]]: ...

    def is_reading(self, each_s: float) -> bool: ...

    def cut(self) -> None: ...

    def close(self) -> None: ...

    @property
    def unresponsive(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True)
class Picture:
    """One tick: what was read, what was not, and when (monotonic and Unix time)."""

    snapshot: NodeSnapshot
    unix_s: float
    complete: bool  # every GPU was read


NOTHING = Picture(NodeSnapshot(0, float("-inf"), ()), 0.0, complete=False)


class Sampler:
    """A thread of its own, which alone waits for the reader."""

    def __init__(
        self, source: Source, interval_s: float, tally: Tally, *,
        jobs: Callable[[], Mapping[str, tuple[str, ...]]], file: EnergyFile,
    ) -> None:  # fmt: skip
        """`jobs` tells the live jobs of each GPU that has some; `file` keeps their energy."""
        self._source = source
        self._interval_s = interval_s
        self._tally = tally
        self._account = EnergyAccount(file, jobs)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._hurry_until_s = 0.0
        self._asked = True  # for a reading at once
        self._reading = threading.Lock()  # over the source and the picture
        self._said = ""
        self.gpus = source.gpus
        # Sees each tick, briefly; whether it needs the next one soon.
        self.watcher: Callable[[NodeSnapshot], bool] = lambda _: False
        self.samples: Samples | None = None  # which has the device open too
        self._released = threading.Event()  # asked for
        self._dropped = threading.Event()  # done
        self.turned_s = time.monotonic()  # when the loop last began anew
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._picture = NOTHING
        self._recent: deque[Picture] = deque(maxlen=RECENT_MAX)

    def start(self) -> None:
        """Returns after the first tick, so that nobody sees an agent without numbers."""
        with self._reading:
            if self._ready():
                self._turn()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2.0)
        if self._thread.is_alive():  # in a driver that hangs, which must not keep the agent
            self._source.cut()
            self._thread.join(timeout=1.0)
        self._account.save()

    def hurry(self, duration_s: float) -> None:
        """Ticks each HURRY_S for a while, so that a change of clocks is seen when it happens."""
        self._hurry_until_s = time.monotonic() + duration_s
        self._asked = True
        self._wake.set()

    def held(self, uuid: str, jobs: Iterable[str], since_s: float) -> None:
        """A GPU works for these jobs; from any thread. Counters are read at such a change."""
        if self._account.hold(uuid, jobs, since_s):
            self.hurry(0.0)

    def begin_paused(self) -> None:
        """Before `start`: the device stays closed until `resume`."""
        self._released.set()
        if self.samples is not None:
            self.samples.pause()

    def pause(self) -> bool:
        """Drops the device, and every number read from it; whether that was done in time."""
        self._released.set()
        self._wake.set()
        if self.samples is not None and not self.samples.pause():
            return False
        if self._dropped.wait(PAUSE_WAIT_S):
            return True
        self._source.cut()
        return self._dropped.wait(PAUSE_WAIT_S)

    def resume(self) -> None:
        """Opens the device again as soon as it can be."""
        if self.samples is not None:
            self.samples.resume()
        self._released.clear()
        self._wake.set()

    @property
    def paused(self) -> bool:
        return self._released.is_set()

    def latest(self) -> Picture | None:
        """The newest picture, or None where it is stale: old numbers are no numbers.

        Never waits: while the reader itself is waited for there is nothing newer.
        """
        if self._reading.acquire(blocking=False):
            try:
                self._take_up(self._source.arrived())
            finally:
                self._reading.release()
        return self.known()

    def known(self) -> Picture | None:
        """As `latest`, for who asks often: at most TAKE_S older."""
        picture = self._picture
        age_s = time.monotonic() - picture.snapshot.taken_at_s
        fresh_s = max(STALE_TICKS * self._interval_s, STALE_S_MIN)
        return picture if age_s <= fresh_s else None

    def recent(self) -> tuple[Picture, ...]:
        """The last pictures, oldest first."""
        return tuple(self._recent)

    @property
    def last_tick_unix_s(self) -> float:
        return self._picture.unix_s

    @property
    def books(self) -> Books:
        """Whose energy it was; what is known of it does not go stale."""
        return self._account.books

    @property
    def unresponsive(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose calls hang; "" where the driver does as a whole."""
        silent = self._source.unresponsive
        uuids = [gpu.uuid for gpu in self.gpus if gpu.index in silent]
        return (*([""] if WHOLE_DRIVER in silent else []), *uuids)

    def _run(self) -> None:
        due_s = time.monotonic() + self._period_s()
        while not self._stop.is_set():
            self._wake.wait(max(0.0, due_s - time.monotonic()))
            self._wake.clear()
            self.turned_s = time.monotonic()
            try:
                with self._reading:
                    if self._ready():
                        self._turn()
            except Exception as error:
                self._complain(f"sampling failed: {type(error).__name__}: {error}")
            now_s = time.monotonic()
            if now_s < self._hurry_until_s:
                due_s = min(now_s + HURRY_TURN_S, due_s) if now_s < due_s else now_s + HURRY_TURN_S
            elif now_s >= due_s:
                due_s = max(due_s + self._period_s(), now_s)
        if not self._dropped.is_set():
            self._source.close()

    def _period_s(self) -> float:
        """How often this thread turns where nothing is in a hurry."""
        return self._interval_s if 2.0 * self._interval_s > TAKE_S else TAKE_S

    def _each_s(self) -> float:
        """How often the source is to read by itself; 0 where it is asked for each reading."""
        if time.monotonic() < self._hurry_until_s:
            return min(HURRY_S, self._interval_s)
        return self._interval_s if 2.0 * self._interval_s <= TAKE_S else 0.0

    def _ready(self) -> bool:
        """Whether the device is there to be read: dropped where asked, opened again after."""
        if self._released.is_set():
            if not self._dropped.is_set():
                self._source.close()
                sequence = self._picture.snapshot.sequence
                self._picture = replace(
                    NOTHING, snapshot=replace(NOTHING.snapshot, sequence=sequence)
                )
                self._recent.clear()
                self._dropped.set()
            return False
        self._dropped.clear()
        return not self._stop.is_set()

    def _turn(self) -> None:
        self._take_up(self._source.arrived())
        each_s = self._each_s()
        if self._asked or not each_s or not self._source.is_reading(each_s):
            self._asked = False
            self._tick(each_s)

    def _tick(self, each_s: float = 0.0) -> None:
        load = driver_load()
        readings = self._source.read(each_s)
        self._account.load = load  # an open process does not follow to another one
        self._take_up([(time.monotonic(), readings)])

    def _take_up(self, ticks: list[tuple[float, tuple[Reading, ...]]]) -> None:
        if not ticks or self._released.is_set():
            return
        self.gpus = self._source.gpus
        known = {gpu.uuid for gpu in self.gpus}
        waited_for, read = False, []
        for at_s, readings in ticks:
            mine = [r for r in readings if r.snapshot is not None and r.uuid in known]
            gpus = tuple(reading.snapshot for reading in mine if reading.snapshot is not None)
            snapshot = NodeSnapshot(self._picture.snapshot.sequence + 1, at_s, gpus)
            self._count(readings)
            read.append(mine)
            unix_s = time.time() - (time.monotonic() - at_s)
            self._picture = Picture(snapshot, unix_s, complete=len(gpus) == len(self.gpus))
            self._recent.append(self._picture)
            waited_for = self.watcher(snapshot)
        self._account.add([gpu.uuid for gpu in self.gpus], read)
        if not waited_for:
            self._hurry_until_s = 0.0

    def _complain(self, line: str) -> None:
        """Once, however often it happens in a row."""
        if line != self._said:
            say("agent", line)
        self._said = line

    def _count(self, readings: tuple[Reading, ...]) -> None:
        for reading in readings:
            if reading.error is not None:
                self._tally.count(NVML_ERRORS.name, reading.error.code)
            self._tally.time(reading.call_seconds)
