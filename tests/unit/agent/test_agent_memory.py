"""What a tick leaves behind is nothing: the agent's own containers stay as small as they were."""

import gc
import time
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from quiet_source import QuietSource

from joulecut_agent.control.drift_watch import DriftWatch
from joulecut_agent.control.set_latency import SetLatency
from joulecut_agent.counters import Counters
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.client import KeeperClient, Status
from joulecut_agent.keeper.protocol import Slot
from joulecut_agent.monitor.energy_account import EnergyFile
from joulecut_agent.monitor.job_energy import JOBS_MAX
from joulecut_agent.monitor.sampler import Sampler
from joulecut_agent.ports.failure import Transient
from joulecut_agent.ports.reader import Reading
from joulecut_wire.messages import GpuDescription, GpuSnapshot

UUIDS = tuple(f"GPU-{n}" for n in range(8))
TICKS = 2 * JOBS_MAX  # a job for each: the bound on jobs is reached, and then kept
BUSY = 1.0


class Fountain(QuietSource):
    """A source whose GPUs work, change hands, get slow, and fail now and then."""

    gpus = tuple(GpuDescription(u, n, "H", (345, 1980)) for n, u in enumerate(UUIDS))

    def __init__(self) -> None:
        self.tick = 0

    def read(self) -> tuple[Reading, ...]:
        self.tick += 1
        return tuple(map(self._reading, UUIDS))

    def _reading(self, uuid: str) -> Reading:
        if self.tick % 7 == 0 and uuid == UUIDS[0]:
            return Reading(uuid, None, Transient("timeout", "busy"))
        clock_mhz = 1980 - 15 * (self.tick % 4)
        snapshot = GpuSnapshot(
            uuid, 300.0, 300.0, 30.0 * self.tick, clock_mhz, utilization_gpu_ratio=BUSY
        )
        return Reading(uuid, snapshot, None, (("nvmlDeviceGetPowerUsage", 1e-5 * self.tick),))


def reachable(*roots: object) -> int:
    """How many objects hang on these, modules, classes and functions left out."""
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        one = pending.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen.add(id(one))
            pending.extend(gc.get_referents(one))
    return len(seen)


class Parts:
    """Everything that sees each tick."""

    def __init__(self, folder: Path) -> None:
        self.source, self.counters, self.latency = Fountain(), Counters(), SetLatency()
        self.sampler = Sampler(
            self.source, 1.0, self.counters, jobs=self.jobs, file=EnergyFile(folder / "energy", "b")
        )
        self.sampler.watcher = self.latency.seen
        keeper = KeeperClient("")
        slots = {uuid: Slot(uuid, True) for uuid in UUIDS}
        keeper.status = Status(time.monotonic(), 1, Bounds(), slots)
        self.drift_watch = DriftWatch(lambda: self.source.gpus, keeper, self.counters, None)

    def jobs(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(UUIDS, (f"job-{self.source.tick}",))

    def run(self, ticks: int) -> int:
        for _ in range(ticks):
            self.sampler._turn()
            self.latency.started({UUIDS[1]: 1980 - 15 * (self.source.tick % 3)}, 0.0)
            reading = self.sampler.latest()
            self.drift_watch.check(reading.snapshot)
        return reachable(self)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_ticks_leave_nothing_behind(parts: Parts) -> None:
    first = parts.run(TICKS)
    assert parts.run(3 * TICKS) <= first + len(UUIDS), "something keeps a piece of every tick"
