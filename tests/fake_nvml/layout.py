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
from typing import Any

from joulecut_engine.datasheets import SHEETS

MAGIC = 0x4D564E4C554F4A
VERSION = 5
GPUS_MAX = 16
HOOKS_MAX = 32
WRITES_MAX = CALLS_MAX = 1024
EVENTS_MAX = 64
CLIENTS_MAX = 256
PROCESSES_MAX = 16
LATE_MAX = 4
COMMAND_BYTES = 160
SAMPLES_MAX = 128
REASONS = 9


class ClockLock(c.Structure):
    _fields_ = [("min_mhz", c.c_uint32), ("max_mhz", c.c_uint32)]


class Sample(c.Structure):
    _fields_ = [
        ("at_ns", c.c_uint64),
        ("power_mw", c.c_uint32),
        ("clock_mhz", c.c_uint32),
        ("busy_percent", c.c_uint32),
        ("memory_mhz", c.c_uint32),
    ]


class Motion(c.Structure):
    _fields_ = [
        ("updated_ns", c.c_uint64),
        ("energy_mj", c.c_double),
        ("energy_visible_mj", c.c_double),
        ("power_average_w", c.c_double),
        ("temperature_celsius", c.c_double),
        ("too_warm", c.c_uint32),
        ("too_hot", c.c_uint32),
        ("reason_ns", c.c_uint64 * REASONS),
        ("nvlink_tx_bytes", c.c_double),
        ("nvlink_rx_bytes", c.c_double),
        ("pcie_tx_bytes", c.c_double),
        ("pcie_rx_bytes", c.c_double),
        ("samples_total", c.c_uint64),
    ]


class GpuProcess(c.Structure):
    _fields_ = [("pid", c.c_uint32), ("reserved", c.c_uint32), ("used_bytes", c.c_uint64)]


class ForeignWriter(c.Structure):
    _fields_ = [
        ("every_ns", c.c_uint64),
        ("next_ns", c.c_uint64),
        ("times", c.c_int64),
        ("clock_mhz", c.c_uint32),
        ("limit_mw", c.c_uint32),
    ]


class LateWrite(c.Structure):
    _fields_ = [
        ("due_ns", c.c_uint64),
        ("pid", c.c_uint32),
        ("kind", c.c_uint32),
        ("arguments", c.c_uint32 * 2),
    ]


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
        ("celsius_per_w", c.c_double),
        ("set_latency_ns", c.c_uint64),
        ("counter_step_ns", c.c_uint64),
        ("module_w", c.c_double),
        ("has_module", c.c_uint32),
        ("counts_module", c.c_uint32),
        ("nvlink_count", c.c_uint32),
        ("profiles_supported", c.c_uint32),
        ("load", c.c_double),
        ("ecc_errors", (c.c_uint64 * 2) * 2),
        ("nvlink_errors", c.c_uint64 * 4),
        ("memory_used_bytes", c.c_uint64),
        ("mig_enabled", c.c_uint32),
        ("mig_pending", c.c_uint32),
        ("persistence", c.c_uint32),
        ("limit_mw", c.c_uint32),
        ("limit_out_of_band_mw", c.c_uint32),
        ("clock_ceiling_mhz", c.c_uint32),
        ("application_mhz", c.c_uint32),
        ("power_brake", c.c_uint32),
        ("unreached", c.c_uint32 * 8),
        ("ecc_changes", c.c_uint32),
        ("lock", ClockLock),
        ("lock_before", ClockLock),
        ("lock_at_ns", c.c_uint64),
        ("memory_lock", ClockLock),
        ("ambient_celsius", c.c_double),
        ("nvlink_tx_bytes_per_s", c.c_double),
        ("nvlink_rx_bytes_per_s", c.c_double),
        ("pcie_tx_bytes_per_s", c.c_double),
        ("pcie_rx_bytes_per_s", c.c_double),
        ("profiles_requested", c.c_uint32),
        ("profiles_enforced", c.c_uint32),
        ("lost", c.c_uint32),
        ("attached", c.c_uint32),
        ("foreign", ForeignWriter),
        ("late", LateWrite * LATE_MAX),
        ("processes", GpuProcess * PROCESSES_MAX),
        ("motion_now", c.c_uint32),
        ("reserved", c.c_uint32),
        ("motion", Motion * 2),
        ("samples", Sample * SAMPLES_MAX),
    ]


class Hook(c.Structure):
    _fields_ = [
        ("function", c.c_char * 96),
        ("gpu", c.c_int32),
        ("code", c.c_int32),
        ("skip", c.c_int64),
        ("count", c.c_int64),
        ("delay_ms", c.c_int64),
        ("late_ms", c.c_int64),
        ("lies", c.c_uint32),
        ("reserved", c.c_uint32),
        ("probability", c.c_double),
        ("random", c.c_uint64),
        ("hits", c.c_uint64),
        ("id", c.c_uint64),
    ]


class WriteRecord(c.Structure):
    _fields_ = [
        ("at_ns", c.c_uint64),
        ("pid", c.c_uint32),
        ("gpu", c.c_int32),
        ("function", c.c_char * 96),
        ("arguments", c.c_uint32 * 2),
        ("code", c.c_int32),
        ("begun_ns", c.c_uint64),
        ("done", c.c_uint32),
        ("reserved", c.c_uint32),
        ("command", c.c_char * COMMAND_BYTES),
    ]


class CallRecord(c.Structure):
    _fields_ = [
        ("at_ns", c.c_uint64),
        ("pid", c.c_uint32),
        ("gpu", c.c_int32),
        ("function", c.c_char * 96),
        ("code", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class Event(c.Structure):
    _fields_ = [
        ("type", c.c_uint64),
        ("data", c.c_uint64),
        ("gpu", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class Client(c.Structure):
    _fields_ = [("pid", c.c_uint32), ("reserved", c.c_uint32), ("started_ticks", c.c_uint64)]


class State(c.Structure):
    _fields_ = [
        ("magic", c.c_uint64),
        ("version", c.c_uint32),
        ("bytes", c.c_uint32),
        ("gpu_count", c.c_uint32),
        ("permission", c.c_uint32),
        ("clock_skew_ns", c.c_int64),
        ("epoch_offset_ns", c.c_int64),
        ("driver_loaded", c.c_uint32),
        ("driver_loads", c.c_uint32),
        ("driver_version", c.c_uint32),
        ("renumbers", c.c_uint32),
        ("sessions", c.c_uint32),
        ("writes_total", c.c_uint64),
        ("calls_total", c.c_uint64),
        ("events_total", c.c_uint64),
        ("hooks_total", c.c_uint64),
        ("hooks", Hook * HOOKS_MAX),
        ("clients", Client * CLIENTS_MAX),
        ("events", Event * EVENTS_MAX),
        ("gpus", Gpu * GPUS_MAX),
        ("writes", WriteRecord * WRITES_MAX),
        ("calls", CallRecord * CALLS_MAX),
    ]


@dataclass(frozen=True)
class Model:
    """A card to imitate. Dynamic power and knee are fits to public sweeps of LLM stages
    (A100, A40) and FP64 DGEMM (H100, H200); what they do not show is assumed, for V100 and
    B200 everything but the clocks and limits of the V100.
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
    nvlinks: int = 0
    profiles: int = 0  # bit per workload power profile
    module_w: float = 0.0  # beside the GPU; then the energy counter is the module's

    def capped_mhz(self, limit_w: float) -> int:
        """The clock of a fully busy board under a power limit, as in `physics.c`."""
        below = [mhz for mhz in self.clocks_mhz if self._busy_power_w(mhz) <= limit_w]
        return max(below, default=self.clocks_mhz[0])

    def _busy_power_w(self, clock_mhz: int) -> float:
        ghz = clock_mhz / 1000.0
        volts = 1.0 + self.volts_per_ghz * max(0.0, ghz - self.knee_ghz)
        return self.static_w + self.dynamic_w_per_ghz * ghz * volts * volts


def _model(sheet: str, *, memory_mhz: tuple[int, ...] = (), **physics: Any) -> Model:
    """The card of a data sheet; `memory_mhz` beside its highest memory clock."""
    facts = SHEETS[sheet]
    clocks = facts.clocks_mhz
    return Model(
        facts.model, clocks_mhz=clocks, memory_mhz=(*memory_mhz, facts.memory_mhz),
        idle_clock_mhz=clocks[0], limit_w=facts.limits_w, memory_gib=int(facts.memory_gb),
        **physics,
    )  # fmt: skip


_HOPPER = {"architecture": 9, "compute": (9, 0), "static_w": 58, "nvlinks": 18, "knee_ghz": 1.0}
_HOPPER |= {"memory_mhz": (1593,)}
_BLACKWELL = {"architecture": 10, "compute": (10, 0), "nvlinks": 18, "profiles": 0b111111111}
_BLACKWELL |= {"knee_ghz": 1.0}
MODELS = {
    "v100": Model(
        "Tesla V100-SXM2-32GB", 5, (7, 0), tuple(int(7.5 * n) for n in range(18, 205)),
        (877,), 135, (150, 300, 300), 32, 40, 45, 110, 1.1, 0.7, nvlinks=6,
    ),
    "a100": _model(
        "a100-sxm", architecture=7, compute=(8, 0), idle_w=50, static_w=52, dynamic_w_per_ghz=150,
        knee_ghz=1.107, volts_per_ghz=0.76, nvlinks=12,
    ),
    "a40": _model(
        "a40", architecture=7, compute=(8, 6), memory_mhz=(405,), idle_w=25, static_w=95,
        dynamic_w_per_ghz=107, knee_ghz=1.131, volts_per_ghz=0.45,
    ),
    "h100": _model("h100-sxm", idle_w=70, dynamic_w_per_ghz=228, volts_per_ghz=0.54, **_HOPPER),
    "h200": _model(
        "h200", idle_w=75, dynamic_w_per_ghz=270, volts_per_ghz=0.41, **(_HOPPER | {"static_w": 56})
    ),
    "b200": _model(
        "b200", idle_w=140, static_w=120, dynamic_w_per_ghz=300, volts_per_ghz=0.45, **_BLACKWELL
    ),
    # A public B300 (driver 610): training at its limit is held at 1,422 to 1,724 MHz by
    # sw_power_cap. Idle power is assumed.
    "b300": _model(
        "b300", idle_w=150, static_w=130, dynamic_w_per_ghz=360, volts_per_ghz=0.6,
        **(_BLACKWELL | {"compute": (10, 3)}),
    ),
    # zeus issue 172: the energy counter is the whole module's, its CPU included, while power of
    # scope 0 is the GPU's. Dynamic power as H100; the CPU's idle draw is assumed.
    "gh200": _model(
        "gh200", idle_w=75, dynamic_w_per_ghz=228, volts_per_ghz=0.54, module_w=60.0, **_HOPPER
    ),
}  # fmt: skip

AMBIENT_CELSIUS = 28.0  # assumed
RISE_CELSIUS = 40.0  # assumed: how far above it a board settles at its default limit
DRIVER_VERSION = 580
# 18,950 public transitions of one card (V100 by its clocks): p50 20 ms, at most 54.7 ms with the
# call. Later cards are assumed to be alike.
SET_LATENCY_S = 0.02
COUNTER_STEP_S = 0.1  # Zeus; other drivers show about 10 ms


def uuid_of(index: int) -> str:
    return f"GPU-fa4e0000-0000-4000-8000-{index:012d}"


def create(path: Path, gpus: int, model: Model) -> None:
    """Writes a fresh state: a node whose driver has just been loaded."""
    if not 0 <= gpus <= GPUS_MAX:
        raise ValueError(f"{gpus} GPUs: a fake node has 0 to {GPUS_MAX}")
    state = State(magic=MAGIC, version=VERSION, bytes=c.sizeof(State), gpu_count=gpus)
    state.epoch_offset_ns = time.time_ns() - time.monotonic_ns()
    state.driver_loaded, state.driver_version = 1, DRIVER_VERSION
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
        gpu.counter_step_ns, gpu.module_w = int(COUNTER_STEP_S * 1e9), model.module_w
        gpu.has_module = gpu.counts_module = int(model.module_w > 0.0)
        gpu.nvlink_count, gpu.profiles_supported = model.nvlinks, model.profiles
        gpu.ambient_celsius = AMBIENT_CELSIUS
        gpu.celsius_per_w = RISE_CELSIUS / model.limit_w[1]
        load_driver(gpu, time.monotonic_ns())
    fresh = path.with_name(path.name + ".fresh")
    fresh.write_bytes(bytes(state))
    fresh.replace(path)


def load_driver(gpu: Gpu, now_ns: int) -> None:
    """What a driver load does to a GPU: locks and limits gone, counters at zero."""
    gpu.limit_mw = gpu.limit_default_mw
    gpu.lock = gpu.lock_before = gpu.memory_lock = ClockLock(0, 0)
    gpu.lock_at_ns = gpu.persistence = gpu.application_mhz = 0
    gpu.profiles_requested = gpu.profiles_enforced = 0
    gpu.mig_enabled = gpu.mig_pending
    gpu.late = (LateWrite * LATE_MAX)()
    gpu.ecc_errors[0][0] = gpu.ecc_errors[1][0] = 0
    gpu.nvlink_errors[:] = (0, 0, 0, 0)
    gpu.motion_now = 0
    gpu.motion[0] = Motion(
        updated_ns=now_ns,
        power_average_w=gpu.idle_w,
        temperature_celsius=gpu.ambient_celsius + gpu.celsius_per_w * gpu.idle_w,
    )


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

    def glance(self) -> State:
        """To look at a single number, which others may be changing."""
        return self._state

    @contextlib.contextmanager
    def turn(self) -> Iterator[State]:
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._state
