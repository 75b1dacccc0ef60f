"""Fast samples on request, from buffers that the driver fills anyway.

While there is a stream, a process of its own reads the buffers, so that ticks are not delayed; it
ends with the last stream. A slow stream loses the oldest samples, and gets their number.
"""

import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from joulecut_agent.log import Warnings
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.ports.reader import Burst, Series
from joulecut_wire.errors import JoulecutError

READ_S = 0.1  # a tenth of the shortest buffer
RING_MAX = 512  # ten seconds at 50 Hz
PAUSE_WAIT_S = 3.0  # a read takes milliseconds
SERIES = ("power_w", "utilization_ratio", "clock_sm_mhz")
LINKS = ("nvlink_bytes", "pcie_bytes")  # totals, converted to rates


@dataclass(frozen=True, slots=True)
class Batch:
    """New samples of one GPU, of SERIES and LINKS. Times are Unix times of this node."""

    uuid: str
    dropped: int
    power_w: Series
    utilization_ratio: Series
    clock_sm_mhz: Series
    nvlink_bytes_per_s: Series
    pcie_bytes_per_s: Series


@dataclass(slots=True)
class _Ring:
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RING_MAX))
    total: int = 0  # points ever added

    def put(self, series: Series) -> None:
        self.points.extend(series)
        self.total += len(series)

    def after(self, place: int) -> tuple[Series, int]:
        """Points since `total` was `place`, and how many are lost."""
        new = self.total - place
        kept = min(new, len(self.points))
        return tuple(self.points)[len(self.points) - kept :], new - kept


class _Gpu:
    """The rings of one GPU, and its last link counters."""

    def __init__(self) -> None:
        self.rings = {name: _Ring() for name in (*SERIES, *LINKS)}
        self._counted: dict[str, tuple[float, float]] = {}

    def put(self, burst: Burst) -> None:
        for name in SERIES:
            self.rings[name].put(getattr(burst, name))
        for name in LINKS:
            for at_s, total_bytes in getattr(burst, name):
                before_s, before_bytes = self._counted.get(name, (at_s, 0.0))
                if at_s > before_s and total_bytes >= before_bytes:  # it restarts with the driver
                    rate = (total_bytes - before_bytes) / (at_s - before_s)
                    self.rings[name].put(((at_s, rate),))
                self._counted[name] = (at_s, total_bytes)


class Stream:
    """One reader's place in the rings of its GPUs."""

    def __init__(self, samples: "Samples", uuids: Collection[str], since_s: float) -> None:
        self._samples = samples
        self.uuids = frozenset(uuids)
        self._since_s = since_s
        self._places: dict[tuple[str, str], int] = {}

    def take(self) -> tuple[Batch, ...]:
        """New samples since the last call, of GPUs that have any."""
        found = self._samples.after(self.uuids, self._places)
        batches = []
        for uuid, (series, dropped) in found.items():
            fresh = [tuple(p for p in one if p[0] > self._since_s) for one in series]
            if dropped or any(fresh):
                batches.append(Batch(uuid, dropped, *fresh))
        return tuple(batches)


class Samples:
    """Thread-safe."""

    def __init__(self, reader: DriverReader) -> None:
        """`reader` is used here alone; it is opened with the first stream."""
        self._reader = reader
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._gpus: dict[str, _Gpu] = {}
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()  # the device is not open
        self._idle.set()
        self._paused = False
        self._warnings = Warnings()

    def subscribe(self, uuids: Collection[str], since_s: float = 0.0) -> Stream:
        """Samples after `since_s`, beginning with those that the driver still has."""
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
        """By GPU, samples after `places`, which advance, and how many are lost."""
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
        """Drops the device; whether in time."""
        self._paused = True
        if self._idle.wait(PAUSE_WAIT_S):
            return True
        self._reader.kill()
        return self._idle.wait(PAUSE_WAIT_S)

    def resume(self) -> None:
        self._paused = False

    def _run(self) -> None:
        while (wanted := self._wanted()) is not None:
            due_s = time.monotonic() + READ_S
            if self._paused:
                self._reader.close()
                self._idle.set()
            else:
                self._idle.clear()
                self._read(wanted)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _wanted(self) -> frozenset[str] | None:
        """The GPUs of all streams; None without a stream: then everything is dropped."""
        with self._lock:
            if self._streams:
                return frozenset[str]().union(*(stream.uuids for stream in self._streams))
            self._reader.close()
            self._idle.set()
            self._gpus.clear()
            self._thread = None
            return None

    def _read(self, wanted: frozenset[str]) -> None:
        try:
            if not self._reader.gpus:
                self._reader.describe()
        except JoulecutError as error:
            self._warnings.say(f"no samples: {error}")
            return
        for gpu in self._reader.gpus:
            if gpu.uuid in wanted:
                with suppress(JoulecutError):  # the sampler reports errors of a GPU
                    burst = self._reader.burst(gpu.index)
                    with self._lock:
                        self._gpus.setdefault(gpu.uuid, _Gpu()).put(burst)
