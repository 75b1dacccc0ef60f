"""Fast samples for whoever looks closely, from buffers that the driver fills anyway.

Only while somebody reads: then a process of its own takes the buffers, so that nothing here
can delay a tick, and it ends with the last reader. A reader that sleeps loses the oldest
samples and is told how many.
"""

import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from joulecut_agent.log import say
from joulecut_agent.monitor.driver_reader import Eye
from joulecut_agent.ports.reader import Burst, Series
from joulecut_wire.errors import JoulecutError

TAKE_S = 0.1  # a tenth of what the shortest buffer holds; links are counted as often
RING_MAX = 512  # ten seconds at 50 Hz
PAUSE_WAIT_S = 3.0  # a take lasts milliseconds
SERIES = ("power_w", "utilization_ratio", "clock_sm_mhz")
LINKS = ("nvlink_bytes", "pcie_bytes")  # totals; told as rates


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new of one GPU. Times are Unix times of the node that the driver runs on."""

    uuid: str
    power_w: Series = ()
    utilization_ratio: Series = ()
    clock_sm_mhz: Series = ()
    nvlink_bytes_per_s: Series = ()
    pcie_bytes_per_s: Series = ()
    dropped: int = 0


@dataclass(slots=True)
class _Ring:
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RING_MAX))
    total: int = 0  # ever put in

    def put(self, series: Series) -> None:
        self.points.extend(series)
        self.total += len(series)

    def after(self, place: int) -> tuple[Series, int]:
        """What came in since `total` was `place`, and how many of it are lost."""
        new = self.total - place
        kept = min(new, len(self.points))
        return tuple(self.points)[len(self.points) - kept :], new - kept


class _Gpu:
    """The rings of one GPU, and its link counters as last seen."""

    def __init__(self) -> None:
        self.rings = {name: _Ring() for name in (*SERIES, *LINKS)}
        self._counted: dict[str, tuple[float, float]] = {}

    def put(self, burst: Burst) -> None:
        for name in SERIES:
            self.rings[name].put(getattr(burst, name))
        for name in LINKS:
            for at_s, total_bytes in getattr(burst, name):
                before_s, before_bytes = self._counted.get(name, (at_s, 0.0))
                if at_s > before_s and total_bytes >= before_bytes:  # it falls with its driver
                    rate = (total_bytes - before_bytes) / (at_s - before_s)
                    self.rings[name].put(((at_s, rate),))
                self._counted[name] = (at_s, total_bytes)


class Stream:
    """One reader's place in the rings of the GPUs that it asked for."""

    def __init__(self, samples: "Samples", uuids: Collection[str], since_s: float) -> None:
        self._samples = samples
        self.uuids = frozenset(uuids)
        self._since_s = since_s
        self._places: dict[tuple[str, str], int] = {}

    def take(self) -> tuple[Batch, ...]:
        """What is new since the last time; GPUs with nothing new are left out."""
        found = self._samples.after(self.uuids, self._places)
        batches = []
        for uuid, (series, dropped) in found.items():
            fresh = [tuple(p for p in one if p[0] > self._since_s) for one in series]
            if dropped or any(fresh):
                power, utilization, clock, nvlink, pcie = fresh
                batches.append(Batch(uuid, power, utilization, clock, nvlink, pcie, dropped))
        return tuple(batches)


class Samples:
    """Safe to use from every thread."""

    def __init__(self, eye: Eye) -> None:
        """`eye` is for this alone; it is opened when somebody reads."""
        self._eye = eye
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._gpus: dict[str, _Gpu] = {}
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()  # the device is not open
        self._idle.set()
        self._paused = False
        self._said = ""

    def subscribe(self, uuids: Collection[str], since_s: float = 0.0) -> Stream:
        """Samples from after `since_s`; the first of them are those that the driver still has."""
        stream = Stream(self, uuids, since_s)
        with self._lock:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
                self._thread.start()
        return stream

    def unsubscribe(self, stream: Stream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def after(
        self, uuids: Collection[str], places: dict[tuple[str, str], int]
    ) -> dict[str, tuple[list[Series], int]]:
        """By GPU, what came in after `places`, which move on, and how much of it is lost."""
        found = {}
        with self._lock:
            for uuid in sorted(uuids & self._gpus.keys()):
                series, dropped = [], 0
                for name, ring in self._gpus[uuid].rings.items():
                    begin = ring.total - len(ring.points)
                    one, lost = ring.after(places.get((uuid, name), begin))
                    places[uuid, name] = ring.total
                    series.append(one)
                    dropped += lost
                found[uuid] = (series, dropped)
        return found

    def pause(self) -> bool:
        """Drops the device; whether that was done in time."""
        self._paused = True
        if self._idle.wait(PAUSE_WAIT_S):
            return True
        self._eye.cut()
        return self._idle.wait(PAUSE_WAIT_S)

    def resume(self) -> None:
        self._paused = False

    def _run(self) -> None:
        while (wanted := self._wanted()) is not None:
            due_s = time.monotonic() + TAKE_S
            if self._paused:
                self._eye.close()
                self._idle.set()
            else:
                self._idle.clear()
                self._take(wanted)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _wanted(self) -> frozenset[str] | None:
        """The GPUs that somebody reads; None, with everything let go, where nobody does."""
        with self._lock:
            if self._streams:
                return frozenset[str]().union(*(stream.uuids for stream in self._streams))
            self._eye.close()
            self._idle.set()
            self._gpus.clear()
            self._thread = None
            return None

    def _take(self, wanted: frozenset[str]) -> None:
        try:
            if not self._eye.gpus:
                self._eye.describe()
        except JoulecutError as error:
            if str(error) != self._said:
                say("agent", f"no samples: {error}")
            self._said = str(error)
            return
        for gpu in self._eye.gpus:
            if gpu.uuid in wanted:
                with suppress(JoulecutError):  # the sampler tells what is wrong with a GPU
                    burst = self._eye.burst(gpu.index)
                    with self._lock:
                        self._gpus.setdefault(gpu.uuid, _Gpu()).put(burst)
