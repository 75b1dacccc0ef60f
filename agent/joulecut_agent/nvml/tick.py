"""The NVML calls of one tick for one GPU, and their durations.

A field that the device lacks is absent, never zero. Differences between architectures in the
meaning of a number are resolved here.
"""

import contextlib
import ctypes
import time
from dataclasses import dataclass
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.nvml.driver import EVENT_CALLS
from joulecut_agent.ports.event_reasons import event_words
from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Unsupported
from joulecut_wire.messages import GpuSnapshot

# nvml.h, nvmlPowerProfileType_t: workload power profiles by number, as this binding knows them.
PROFILES = {
    number: name.removeprefix("NVML_POWER_PROFILE_").lower()
    for name, number in vars(pynvml).items()
    if name.startswith("NVML_POWER_PROFILE_") and not name.endswith("_PROFILE_MAX")
    if "_OPERATION_" not in name
}
MASK_BITS = 32  # of each word of a mask
SCOPE_GPU = 0  # of a field value: the GPU, without its module (Grace) or memory
POWER_FIELDS = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)

SLOW_S = 0.5  # half of the time after which drift reports a limit
PROCESSES_MAX = 64  # of one GPU
AMPERE = (8, 0)  # compute capability of GA100; every later one is above it
# A driver older than the binding lacks the newest form of a call; not an NVMLError.
MISMATCH: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
_CALLS: dict[str, Any] = vars(pynvml)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU handle, with constant properties."""

    index: int
    uuid: str
    handle: Any
    usage_is_instant: bool  # what nvmlDeviceGetPowerUsage shows on this architecture
    has_profiles: bool  # workload power profiles: Blackwell and later


@dataclass(frozen=True, slots=True)
class Slow:
    """Values that change slowly, valid until `due_s`."""

    due_s: float
    power_limit_enforced_w: float | None
    utilization_gpu_ratio: float | None
    utilization_memory_ratio: float | None
    clock_memory_mhz: int | None
    temperature_celsius: float | None
    memory_used_bytes: int | None
    persistence: bool | None
    process_ids: tuple[int, ...]
    mig_uuids: tuple[str, ...]


class Tick:
    """The calls for one GPU at one tick: their durations, and the first failure.

    At short intervals not every tick is timed: the distribution is the same, and timing a call adds
    a quarter to its cost.
    """

    def __init__(self, device: Device, *, timed: bool) -> None:
        self.device = device
        self._timed = timed
        self.seconds: list[tuple[str, float]] = []
        self.error: DeviceError | None = None

    def ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """The answer, or None without one. Raises Gone."""
        function = _CALLS.get(call)
        if function is None:  # the binding is older than the call
            return None
        began_s = time.perf_counter() if self._timed else 0.0
        try:
            return function(self.device.handle, *arguments, **options)
        except pynvml.NVMLError as error:
            self.absent(error.value, call)
            return None
        except MISMATCH:
            return None
        except driver.NONSENSE as error:
            self.error = self.error or driver.nonsense(call, error)
            return None
        finally:
            if self._timed:
                self.seconds.append((call, time.perf_counter() - began_s))

    def absent(self, code: int, call: str) -> None:
        """Records a failure; a call that the device does not support is none."""
        device = self.device
        failed = driver.failure(code, call, f"GPU {device.index} ({device.uuid})")
        if isinstance(failed, Gone):
            raise failed from None
        if not isinstance(failed, Unsupported | NotPermitted):
            self.error = self.error or failed


def snapshot_of(tick: Tick, device: Device, slow: Slow) -> GpuSnapshot:
    """The snapshot of a GPU at one tick. Raises Gone."""
    average_w, instant_w = _power_w(tick, device)
    energy_mj = tick.ask("nvmlDeviceGetTotalEnergyConsumption")
    return GpuSnapshot(
        uuid=device.uuid,
        power_average_w=average_w,
        power_instant_w=instant_w,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        clock_sm_mhz=tick.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        clock_memory_mhz=slow.clock_memory_mhz,
        temperature_celsius=slow.temperature_celsius,
        utilization_gpu_ratio=slow.utilization_gpu_ratio,
        utilization_memory_ratio=slow.utilization_memory_ratio,
        memory_used_bytes=slow.memory_used_bytes,
        power_limit_enforced_w=slow.power_limit_enforced_w,
        event_reasons=_event_reasons(tick),
        persistence=slow.persistence,
        process_ids=slow.process_ids,
        mig_uuids=slow.mig_uuids,
        power_profiles=_power_profiles(tick) if device.has_profiles else (),
    )


def slow_of(tick: Tick) -> Slow:
    """Raises Gone."""
    # The second form excludes memory reserved by the driver; older drivers have the first only.
    memory = tick.ask("nvmlDeviceGetMemoryInfo", version=pynvml.nvmlMemory_v2)
    memory = memory or tick.ask("nvmlDeviceGetMemoryInfo")
    persistence = tick.ask("nvmlDeviceGetPersistenceMode")
    limit_mw = tick.ask("nvmlDeviceGetEnforcedPowerLimit")
    rates = tick.ask("nvmlDeviceGetUtilizationRates")
    return Slow(
        time.monotonic() + SLOW_S,
        power_limit_enforced_w=None if limit_mw is None else limit_mw / 1000,
        utilization_gpu_ratio=None if rates is None else rates.gpu / 100,
        utilization_memory_ratio=None if rates is None else rates.memory / 100,
        clock_memory_mhz=tick.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        temperature_celsius=_temperature_celsius(tick),
        memory_used_bytes=None if memory is None else memory.used,
        persistence=None if persistence is None else bool(persistence),
        process_ids=_process_ids(tick),
        mig_uuids=_mig_uuids(tick),
    )


def _process_ids(tick: Tick) -> tuple[int, ...]:
    listed = tick.ask("nvmlDeviceGetComputeRunningProcesses")
    if listed is None:  # drivers before 510 have an older form with its own name
        listed = tick.ask("nvmlDeviceGetComputeRunningProcesses_v2") or ()
    return tuple(sorted({int(one.pid) for one in listed}))[:PROCESSES_MAX]


def _mig_uuids(tick: Tick) -> tuple[str, ...]:
    """UUIDs of the instances of this board."""
    mode = tick.ask("nvmlDeviceGetMigMode")
    if not mode or not mode[0]:  # MIG is off: saves a call for each possible instance
        return ()
    found = []
    for place in range(tick.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        with contextlib.suppress(pynvml.NVMLError):
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(tick.device.handle, place)
            found.append(pynvml.nvmlDeviceGetUUID(instance))
    return tuple(found)


def _power_w(tick: Tick, device: Device) -> tuple[float | None, float | None]:
    """(1 s average, instantaneous) power, from the two fields if the driver has them."""
    call = "nvmlDeviceGetFieldValues"
    wanted = [(field, SCOPE_GPU) for field in POWER_FIELDS]
    powers_w: list[float | None] = [None, None]
    for place, value in enumerate(tick.ask(call, wanted) or ()):
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            powers_w[place] = value.value.uiVal / 1000
        elif value.nvmlReturn != pynvml.NVML_ERROR_NOT_SUPPORTED:  # common, and not a failure
            tick.absent(value.nvmlReturn, f"{call}({value.fieldId})")
    shown = 1 if device.usage_is_instant else 0
    if powers_w[shown] is None:
        usage_mw = tick.ask("nvmlDeviceGetPowerUsage")
        powers_w[shown] = None if usage_mw is None else usage_mw / 1000
    return powers_w[0], powers_w[1]


def _temperature_celsius(tick: Tick) -> float | None:
    celsius = tick.ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    if celsius is None:
        celsius = tick.ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
    return None if celsius is None else float(celsius)


def _event_reasons(tick: Tick) -> tuple[str, ...]:
    bits = tick.ask(EVENT_CALLS[0])
    if bits is None:
        bits = tick.ask(EVENT_CALLS[1])
    return event_words(bits or 0)


def _power_profiles(tick: Tick) -> tuple[str, ...]:
    """The enforced profiles; requested ones may be overruled."""
    found = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    call = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    if tick.ask(call, ctypes.byref(found)) is None:
        return ()
    words = enumerate(found.enforcedProfilesMask.mask)
    numbers = [
        MASK_BITS * n + bit for n, word in words for bit in range(MASK_BITS) if word >> bit & 1
    ]
    return tuple(PROFILES.get(number, f"profile_{number}") for number in numbers)


def usage_is_instant(handle: Any) -> bool:
    """nvml.h: PowerUsage is a 1 s average on Ampere and newer, except on GA100."""
    capability = driver.optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return capability is not None and capability <= AMPERE
