"""Fast samples on request, from buffers that the driver fills anyway.

Each stream has a reader process of its own, which ends with it, so that ticks are not delayed. The
driver keeps some seconds of samples: a stream that is read less often misses what came between.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields

from joulecut_agent.log import Warnings
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.ports.reader import Burst, Series
from joulecut_wire.errors import JoulecutError
from joulecut_wire.messages import GpuDescription

PAUSE_WAIT_S = 3.0  # a read takes milliseconds
LINKS = ("nvlink_bytes", "pcie_bytes")  # totals, converted to rates


class Stream:
    """The samples of some GPUs after `since_s`, each once. For one thread, except `drop`."""

    def __init__(
        self, reader: DriverReader, uuids: Collection[str], since_s: float,
        paused: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._reader, self._uuids, self._since_s, self._paused = reader, uuids, since_s, paused
        self._turn = threading.Lock()  # while the device is read
        self._returned_s: dict[tuple[str, str], float] = {}  # the newest, by GPU and quantity
        self._counted: dict[tuple[str, str], tuple[float, float]] = {}
        self._warnings = Warnings()

    def take(self) -> list[tuple[str, Burst]]:
        """New samples since the last call, by GPU, of those that have any; links in bytes a second.
        Times are Unix times of this node.
        """
        found = list[tuple[str, Burst]]()
        with self._turn:
            for gpu in () if self._paused() else self._described():
                with suppress(JoulecutError):  # the sampler reports errors of a GPU
                    samples = self._new(gpu.uuid, self._reader.burst(gpu.index))
                    if samples != Burst():
                        found.append((gpu.uuid, samples))
        return found

    def drop(self) -> bool:
        """Drops the device until the next `take`; whether in time."""
        if not self._turn.acquire(timeout=PAUSE_WAIT_S):
            self._reader.kill()
            if not self._turn.acquire(timeout=PAUSE_WAIT_S):
                return False
        self._reader.close()
        self._turn.release()
        return True

    def _described(self) -> list[GpuDescription]:
        try:
            gpus = self._reader.gpus or self._reader.describe()
        except JoulecutError as error:
            self._warnings.say(f"no samples: {error}")
            return []
        return [gpu for gpu in gpus if gpu.uuid in self._uuids]

    def _new(self, uuid: str, burst: Burst) -> Burst:
        """Samples that no call has returned yet: a new reader returns all that the driver has."""
        new = {}
        for one in fields(Burst):
            name, series = one.name, getattr(burst, one.name)
            if name in LINKS:
                series = self._rates((uuid, name), series)
            returned_s = self._returned_s.get((uuid, name), self._since_s)
            new[name] = tuple([point for point in series if point[0] > returned_s])
            if new[name]:
                self._returned_s[uuid, name] = new[name][-1][0]
        return Burst(**new)

    def _rates(self, link: tuple[str, str], totals: Series) -> Series:
        rates = []
        for at_s, total in totals:
            before_s, before = self._counted.get(link, (at_s, 0.0))
            if at_s > before_s and total >= before:  # it restarts with the driver
                rates.append((at_s, (total - before) / (at_s - before_s)))
            self._counted[link] = (at_s, total)
        return tuple(rates)


class Samples:
    """The open streams of this node. Thread-safe."""

    def __init__(self, open_reader: Callable[[], DriverReader]) -> None:
        self._open_reader = open_reader
        self._changing = threading.Lock()
        self._streams: tuple[Stream, ...] = ()
        self._paused = False

    @contextmanager
    def stream(self, uuids: Collection[str], since_s: float = 0.0) -> Iterator[Stream]:
        """Samples after `since_s`, beginning with those that the driver still has."""
        stream = Stream(self._open_reader(), uuids, since_s, lambda: self._paused)
        with self._changing:
            self._streams = (*self._streams, stream)
        try:
            yield stream
        finally:
            with self._changing:
                self._streams = tuple([one for one in self._streams if one is not stream])
            stream.drop()

    def pause(self) -> bool:
        """Drops the device; whether in time."""
        self._paused = True
        done = [stream.drop() for stream in self._streams]
        return all(done)

    def resume(self) -> None:
        self._paused = False
