"""The fake's shared state as Python sees it, so that tests need no library to steer it.

The structures mirror `state.h`; a file of any other size or version is refused. Whoever
changes the state holds the same flock as the library, so no change is torn.
"""

import contextlib
import ctypes as c
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x4D564E4C554F4A
VERSION = 1
GPUS_MAX = 16
HOOKS_MAX = 32
WRITES_MAX = 1024


class ClockLock(c.Structure):
    _fields_ = [("min_mhz", c.c_uint32), ("max_mhz", c.c_uint32)]


class Gpu(c.Structure):
    _fields_ = [
        ("name", c.c_char * 96),
        ("uuid", c.c_char * 96),
        ("serial", c.c_char * 32),
        ("architecture", c.c_uint32),
        ("compute_major", c.c_uint32),
        ("compute_minor", c.c_uint32),
        ("clock_count", c.c_uint32),
        ("clocks_mhz", c.c_uint32 * 256),
        ("memory_clock_count", c.c_uint32),
        ("memory_clocks_mhz", c.c_uint32 * 4),
        ("idle_clock_mhz", c.c_uint32),
        ("limit_min_mw", c.c_uint32),
        ("limit_max_mw", c.c_uint32),
        ("limit_default_mw", c.c_uint32),
        ("memory_total_bytes", c.c_uint64),
        ("idle_w", c.c_double),
        ("static_w", c.c_double),
        ("dynamic_w_per_ghz", c.c_double),
        ("knee_ghz", c.c_double),
        ("volts_per_ghz", c.c_double),
        ("set_latency_ns", c.c_uint64),
        ("load", c.c_double),
        ("memory_used_bytes", c.c_uint64),
        ("mig_enabled", c.c_uint32),
        ("persistence", c.c_uint32),
        ("limit_mw", c.c_uint32),
        ("limit_out_of_band_mw", c.c_uint32),
        ("lock", ClockLock),
        ("lock_before", ClockLock),
        ("lock_at_ns", c.c_uint64),
        ("memory_lock", ClockLock),
        ("updated_ns", c.c_uint64),
        ("energy_mj", c.c_double),
        ("energy_visible_mj", c.c_double),
        ("power_average_w", c.c_double),
        ("temperature_celsius", c.c_double),
    ]


class Hook(c.Structure):
    _fields_ = [
        ("function", c.c_char * 96),
        ("gpu", c.c_int32),
        ("code", c.c_int32),
        ("skip", c.c_int64),
        ("count", c.c_int64),
        ("delay_ms", c.c_int64),
    ]


class WriteRecord(c.Structure):
    _fields_ = [
        ("at_ns", c.c_uint64),
        ("pid", c.c_uint32),
        ("gpu", c.c_int32),
        ("function", c.c_char * 96),
        ("arguments", c.c_uint32 * 2),
        ("code", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class State(c.Structure):
    _fields_ = [
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("bytes", c.c_uint32),
        ("gpu_count", c.c_uint32),
        ("permission", c.c_uint32),
        ("clock_skew_ns", c.c_int64),
        ("writes_total", c.c_uint64),
        ("hooks", Hook * HOOKS_MAX),
        ("gpus", Gpu * GPUS_MAX),
        ("writes", WriteRecord * WRITES_MAX),
    ]


@dataclass(frozen=True)
class Model:
    """A card to imitate. Dynamic power and knee are fits to public sweeps of LLM stages
    (A100, A40) and FP64 DGEMM (H100, H200); what they do not show is assumed.
    """

    name: str
    architecture: int
    compute: tuple[int, int]
    clocks_mhz: tuple[int, ...]
    memory_mhz: tuple[int, ...]
    idle_clock_mhz: int
    limit_w: tuple[float, float, float]  # lowest, default, highest
    memory_gib: int
    idle_w: float
    static_w: float
    dynamic_w_per_ghz: float
    knee_ghz: float
    volts_per_ghz: float


MODELS = {
    "a100": Model(
        "NVIDIA A100-SXM4-80GB", 7, (8, 0), tuple(range(210, 1411, 15)), (1593,), 210,
        (100, 400, 400), 80, 50, 52, 150, 1.107, 0.76,
    ),
    "a40": Model(
        "NVIDIA A40", 7, (8, 6), tuple(range(210, 1741, 15)), (405, 7251), 210,
        (100, 300, 300), 48, 25, 95, 107, 1.131, 0.45,
    ),
    "h100": Model(
        "NVIDIA H100 80GB HBM3", 9, (9, 0), tuple(range(345, 1981, 15)), (1593, 2619), 345,
        (200, 700, 700), 80, 70, 58, 228, 1.0, 0.54,
    ),
    "h200": Model(
        "NVIDIA H200", 9, (9, 0), tuple(range(345, 1981, 15)), (1593, 3201), 345,
        (200, 700, 700), 141, 75, 56, 270, 1.0, 0.41,
    ),
}  # fmt: skip

SET_LATENCY_S = 0.02  # assumed: public measurements span 10 to 500 ms


def uuid_of(index: int) -> str:
    return f"GPU-fa4e0000-0000-4000-8000-{index:012d}"


def create(path: Path, gpus: int, model: Model) -> None:
    """Writes a fresh state: a node whose driver has just been loaded."""
    if not 0 <= gpus <= GPUS_MAX:
        raise ValueError(f"{gpus} GPUs: a fake node has 0 to {GPUS_MAX}")
    state = State(magic=MAGIC, version=VERSION, bytes=c.sizeof(State), gpu_count=gpus)
    for index in range(gpus):
        gpu = state.gpus[index]
        gpu.name, gpu.uuid = model.name.encode(), uuid_of(index).encode()
        gpu.serial = f"FAKE{index:04d}".encode()
        gpu.architecture = model.architecture
        gpu.compute_major, gpu.compute_minor = model.compute
        gpu.clock_count = len(model.clocks_mhz)
        gpu.clocks_mhz[: gpu.clock_count] = model.clocks_mhz
        gpu.memory_clock_count = len(model.memory_mhz)
        gpu.memory_clocks_mhz[: gpu.memory_clock_count] = model.memory_mhz
        gpu.idle_clock_mhz = model.idle_clock_mhz
        low, default, high = (int(watts * 1000) for watts in model.limit_w)
        gpu.limit_min_mw, gpu.limit_default_mw, gpu.limit_max_mw = low, default, high
        gpu.memory_total_bytes = model.memory_gib << 30
        gpu.idle_w, gpu.static_w = model.idle_w, model.static_w
        gpu.dynamic_w_per_ghz = model.dynamic_w_per_ghz
        gpu.knee_ghz, gpu.volts_per_ghz = model.knee_ghz, model.volts_per_ghz
        gpu.set_latency_ns = int(SET_LATENCY_S * 1e9)
        load_driver(gpu, time.monotonic_ns())
    fresh = path.with_name(path.name + ".fresh")
    fresh.write_bytes(bytes(state))
    fresh.replace(path)


def load_driver(gpu: Gpu, now_ns: int) -> None:
    """What a driver load does to a GPU: locks and limits gone, counters at zero."""
    gpu.limit_mw = gpu.limit_default_mw
    gpu.lock = gpu.lock_before = gpu.memory_lock = ClockLock(0, 0)
    gpu.lock_at_ns, gpu.updated_ns, gpu.persistence = 0, now_ns, 0
    gpu.energy_mj = gpu.energy_visible_mj = 0.0
    gpu.power_average_w, gpu.temperature_celsius = gpu.idle_w, 33.0


class Shared:
    """A state file, mapped. `with shared.turn() as state:` reads and changes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size != c.sizeof(State):
                raise ValueError(f"{path}: {size} bytes is no fake NVML state")
            self._map = mmap.mmap(file.fileno(), size)
        self._state = State.from_buffer(self._map)
        if (self._state.magic, self._state.version) != (MAGIC, VERSION):
            raise ValueError(f"{path}: not a fake NVML state of version {VERSION}")

    @contextlib.contextmanager
    def turn(self) -> Iterator[State]:
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._state
