"""Reading GPUs through NVML: what one tick knows of each, and what it cost to ask.

A field that a device cannot give is absent, never zero; a GPU that fell off the bus costs
its own data alone. Which number means what differs by architecture, and is settled here.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.nvml.bursts import Bursts
from joulecut_agent.nvml.glances import EVENT_CALLS, POWER_FIELDS, SCOPE_GPU, Glances
from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Transient, Unsupported
from joulecut_agent.ports.glance import event_words
from joulecut_agent.ports.reader import Burst, Reading, untold
from joulecut_wire.messages import GpuDescription, GpuSnapshot

# nvml.h, nvmlPowerProfileType_t: workload power profiles by number, as this binding knows them.
PROFILES = {
    number: name.removeprefix("NVML_POWER_PROFILE_").lower()
    for name, number in vars(pynvml).items()
    if name.startswith("NVML_POWER_PROFILE_") and not name.endswith("_PROFILE_MAX")
    if "_OPERATION_" not in name
}
MASK_BITS = 32  # of each word of a mask

RATES_S = 0.15  # nvml.h: the driver renews utilisation each sixth of a second at the soonest
SLOW_S = 0.5  # half of what drift waits before it believes a limit; each call costs every tick
USES_S = 0.9  # listing processes is the dearest reading; and who reads each second gets all anew
PROCESSES_MAX = 64  # told of one GPU
AMPERE = (8, 0)  # compute capability of GA100; every later one is above it
# Names that are no text, lengths that no memory holds: on these the binding fails in its own ways.
NONSENSE = (ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)
# A driver that is older than the binding lacks the newest form of a call; no NVMLError tells that.
MISMATCH: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
_CALLS: dict[str, Any] = vars(pynvml)


@dataclass(frozen=True, slots=True)
class _Device:
    index: int
    uuid: str
    handle: Any
    usage_is_instant: bool  # what nvmlDeviceGetPowerUsage shows on this architecture
    has_profiles: bool  # workload power profiles: Blackwell and later


@dataclass(frozen=True, slots=True)
class _Slow:
    """What changes seldom, and is asked for no more often than is of use."""

    due_s: float
    power_limit_enforced_w: float | None
    uses: "_Uses"


@dataclass(frozen=True, slots=True)
class _Uses:
    """What nobody needs more often than each second."""

    due_s: float
    clock_memory_mhz: int | None
    temperature_celsius: float | None
    memory_used_bytes: int | None
    persistence: bool | None
    process_ids: tuple[int, ...]
    mig_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rates:
    due_s: float
    gpu_ratio: float | None
    memory_ratio: float | None


class _Tick:
    """The calls about one GPU at one tick: how long each took, and which failed.

    Where ticks are quick not each of them is timed: the distribution is the same, and taking
    the time of a call costs a quarter of it.
    """

    def __init__(self, device: _Device, *, timed: bool) -> None:
        self.device = device
        self._timed = timed
        self.seconds: list[tuple[str, float]] = []
        self.error: DeviceError | None = None

    def ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """The answer, or None where there is none. Raises Gone."""
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
        except NONSENSE as error:
            self.error = self.error or _nonsense(call, error)
            return None
        finally:
            if self._timed:
                self.seconds.append((call, time.perf_counter() - began_s))

    def absent(self, code: int, call: str) -> None:
        """Notes why an answer is missing; what a device cannot do is no failure of the tick."""
        device = self.device
        failed = driver.failure(code, call, f"GPU {device.index} ({device.uuid})")
        if isinstance(failed, Gone):
            raise failed from None
        if not isinstance(failed, Unsupported | NotPermitted):
            self.error = self.error or failed


class NvmlReader:
    """Reads the GPUs of this node. Raises DeviceError where there is no driver.

    A handle lives until its GPU is gone; one that came back is looked up again.
    """

    def __init__(self) -> None:
        driver.open_driver()
        self._open = True
        self._devices: dict[int, _Device] = {}
        self._slow: dict[int, _Slow] = {}
        self._rates: dict[int, _Rates] = {}
        self._uuids: dict[int, str] = {}  # what each index was last known as
        self._described: dict[str, GpuDescription] = {}
        self._bursts: dict[str, Bursts] = {}
        self._glances: Glances | None = None
        self._glanced: tuple[Any, ...] = ()  # what they were prepared for
        self._whole_s = 0.0  # when a whole reading is due

    def describe(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = untold
    ) -> tuple[GpuDescription, ...]:
        found = []
        for index in range(_count()):
            if index not in leave_out:
                step(index)
                found.append(self._describe(index))
            elif index in self._uuids:
                found.append(self._described.get(self._uuids[index]))
        return tuple(description for description in found if description is not None)

    def read(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = untold
    ) -> tuple[Reading, ...]:
        if not self._uuids:
            with contextlib.suppress(DeviceError):
                for index in set(range(_count())).difference(leave_out):
                    step(index)
                    with contextlib.suppress(DeviceError):
                        self._device(index)
        readings = []
        for index in sorted(self._uuids):
            if index not in leave_out:
                step(index)
                readings.append(self._read(index))
        self._prepare(readings, time.monotonic())
        return tuple(readings)

    def glance(self, step: Callable[[int], None] = untold) -> bytes | None:
        """What has changed since the last `read`, see `ports.glance`; None where a whole reading
        is due.
        """
        if self._glances is None or time.monotonic() >= self._whole_s:
            return None
        return self._glances.take(step)

    def _prepare(self, readings: list[Reading], now_s: float) -> None:
        """What the next ticks are to ask, where there is nothing to be found out."""
        self._whole_s = now_s + USES_S
        devices = {device.uuid: device for device in self._devices.values()}
        gpus = []
        for reading in readings:
            device = devices.get(reading.uuid)
            if device is None or reading.error is not None or reading.snapshot is None:
                self._glances, self._glanced = None, ()
                return
            gpus.append((device.index, device.handle, reading.snapshot, device.has_profiles))
        for_whom = tuple((devices[gpu.uuid], _silent(gpu)) for _, _, gpu, _ in gpus)
        profiles = tuple(gpu.power_profiles for _, _, gpu, _ in gpus)
        if (for_whom, profiles) != self._glanced:
            self._glanced = (for_whom, profiles)
            try:
                self._glances = Glances(gpus)
            except (AttributeError, TypeError):  # an older driver, or another binding
                self._glances = None

    def burst(self, index: int) -> Burst:
        """Raises DeviceError."""
        device = self._device(index)
        return self._bursts.setdefault(device.uuid, Bursts()).take(device.handle, index)

    def close(self) -> None:
        if self._open:
            self._open = False
            driver.close_driver()

    def _device(self, index: int) -> _Device:
        """Raises DeviceError."""
        if index not in self._devices:
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                instant, profiles = _usage_is_instant(handle), _profiles(handle) is not None
                self._devices[index] = _Device(index, uuid, handle, instant, profiles)
            except pynvml.NVMLError as error:
                raise driver.failure(error.value, "lookup", f"GPU {index}") from None
            except NONSENSE as error:
                raise _nonsense(f"GPU {index}: lookup", error) from None
            self._uuids[index] = uuid
        return self._devices[index]

    def _read(self, index: int) -> Reading:
        taken_at_s = time.monotonic()
        try:
            device = self._device(index)
        except DeviceError as error:
            return Reading(self._uuids[index], None, error, (), taken_at_s)
        slow, rates = self._slow.get(index), self._rates.get(index)
        due = slow is None or taken_at_s >= slow.due_s
        tick, snapshot = _Tick(device, timed=due), None
        try:
            if slow is None or due:
                slow = self._slow[index] = _slow(tick, slow)
            if rates is None or taken_at_s >= rates.due_s:
                rates = self._rates[index] = _rates(tick, taken_at_s)
            snapshot = _snapshot(tick, device, slow, rates)
        except Gone as gone:
            tick.error = gone
            self._drop(index)
        return Reading(device.uuid, snapshot, tick.error, tuple(tick.seconds), taken_at_s)

    def _drop(self, index: int) -> None:
        self._devices.pop(index, None)
        self._slow.pop(index, None)
        self._rates.pop(index, None)

    def _describe(self, index: int) -> GpuDescription | None:
        """None for a GPU that has never answered; what it said last where it is silent now."""
        try:
            device = self._device(index)
            described = _describe(device)
        except pynvml.NVMLError as error:
            failed = driver.failure(error.value, "describe", f"GPU {index}")
        except NONSENSE as error:
            failed = _nonsense(f"GPU {index}: describe", error)
        except DeviceError as error:
            failed = error
        else:
            self._described[device.uuid] = described
            return described
        if isinstance(failed, Gone):
            self._drop(index)
        known = self._described.get(self._uuids.get(index, ""))
        return known and replace(known, controllable=False, reason=str(failed))


def _silent(gpu: GpuSnapshot) -> tuple[bool, ...]:
    """Which of the numbers of a glance this device does not tell."""
    told = (gpu.power_average_w, gpu.power_instant_w, gpu.energy_j, gpu.clock_sm_mhz)
    return tuple(
        one is None for one in (*told, gpu.utilization_gpu_ratio, gpu.power_limit_enforced_w)
    )


def _count() -> int:
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise driver.failure(error.value, "nvmlDeviceGetCount") from None


def _describe(device: _Device) -> GpuDescription:
    handle, ask = device.handle, driver.optional
    reason = driver.uncontrollable(handle)
    limits_mw = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle, (0, 0))
    return GpuDescription(
        uuid=device.uuid,
        index=device.index,
        model=_model(handle),
        clocks_mhz=driver.supported_clocks_mhz(handle),
        power_limit_default_w=ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle, 0) / 1e3,
        power_limit_min_w=limits_mw[0] / 1e3,
        power_limit_max_w=limits_mw[1] / 1e3,
        controllable=not reason,
        reason=reason,
    )


def _model(handle: Any) -> str:
    """A name is no reason to leave a GPU out."""
    try:
        return str(pynvml.nvmlDeviceGetName(handle))
    except NONSENSE:
        return "unreadable"


def _nonsense(call: str, error: Exception) -> DeviceError:
    return Transient("bad_answer", f"{call}: an answer that makes no sense: {error}")


def _usage_is_instant(handle: Any) -> bool:
    """nvml.h: PowerUsage is a 1 s average on Ampere and newer, except on GA100."""
    capability = driver.optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return capability is not None and capability <= AMPERE


def _rates(tick: _Tick, now_s: float) -> _Rates:
    rates = tick.ask("nvmlDeviceGetUtilizationRates")
    if rates is None:
        return _Rates(now_s + RATES_S, None, None)
    return _Rates(now_s + RATES_S, rates.gpu / 100, rates.memory / 100)


def _snapshot(tick: _Tick, device: _Device, slow: _Slow, rates: _Rates) -> GpuSnapshot:
    average_w, instant_w = _power_w(tick, device)
    energy_mj = tick.ask("nvmlDeviceGetTotalEnergyConsumption")
    return GpuSnapshot(
        uuid=device.uuid,
        power_average_w=average_w,
        power_instant_w=instant_w,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        clock_sm_mhz=tick.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        clock_memory_mhz=slow.uses.clock_memory_mhz,
        temperature_celsius=slow.uses.temperature_celsius,
        utilization_gpu_ratio=rates.gpu_ratio,
        utilization_memory_ratio=rates.memory_ratio,
        memory_used_bytes=slow.uses.memory_used_bytes,
        power_limit_enforced_w=slow.power_limit_enforced_w,
        event_reasons=_event_reasons(tick),
        persistence=slow.uses.persistence,
        process_ids=slow.uses.process_ids,
        mig_uuids=slow.uses.mig_uuids,
        power_profiles=_power_profiles(tick) if device.has_profiles else (),
    )


def _slow(tick: _Tick, before: _Slow | None) -> _Slow:
    now_s = time.monotonic()
    known = before.uses if before is not None else None
    uses = known if known is not None and now_s < known.due_s else _uses(tick, now_s)
    limit_mw = tick.ask("nvmlDeviceGetEnforcedPowerLimit")
    return _Slow(now_s + SLOW_S, None if limit_mw is None else limit_mw / 1000, uses)


def _uses(tick: _Tick, now_s: float) -> _Uses:
    # The second form leaves out what the driver keeps for itself; older drivers have one form.
    memory = tick.ask("nvmlDeviceGetMemoryInfo", version=pynvml.nvmlMemory_v2)
    memory = memory or tick.ask("nvmlDeviceGetMemoryInfo")
    persistence = tick.ask("nvmlDeviceGetPersistenceMode")
    return _Uses(
        now_s + USES_S,
        clock_memory_mhz=tick.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        temperature_celsius=_temperature_celsius(tick),
        memory_used_bytes=None if memory is None else memory.used,
        persistence=None if persistence is None else bool(persistence),
        process_ids=_process_ids(tick),
        mig_uuids=_mig_uuids(tick),
    )


def _process_ids(tick: _Tick) -> tuple[int, ...]:
    listed = tick.ask("nvmlDeviceGetComputeRunningProcesses")
    if listed is None:  # drivers before 510 have an older form, which has to be named
        listed = tick.ask("nvmlDeviceGetComputeRunningProcesses_v2") or ()
    return tuple(sorted({int(one.pid) for one in listed}))[:PROCESSES_MAX]


def _mig_uuids(tick: _Tick) -> tuple[str, ...]:
    """Of each instance of this board; an index without one is skipped."""
    mode = tick.ask("nvmlDeviceGetMigMode")
    if not mode or not mode[0]:  # or each second seven places would be found empty
        return ()
    found = []
    for place in range(tick.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        with contextlib.suppress(pynvml.NVMLError):
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(tick.device.handle, place)
            found.append(pynvml.nvmlDeviceGetUUID(instance))
    return tuple(found)


def _power_w(tick: _Tick, device: _Device) -> tuple[float | None, float | None]:
    """(1 s average, instantaneous) power: by name where the driver has both names."""
    call = "nvmlDeviceGetFieldValues"
    wanted = [(field, SCOPE_GPU) for field in POWER_FIELDS]
    powers_w: list[float | None] = [None, None]
    for place, value in enumerate(tick.ask(call, wanted) or ()):
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            powers_w[place] = value.value.uiVal / 1000
        elif value.nvmlReturn != pynvml.NVML_ERROR_NOT_SUPPORTED:  # which many say each time
            tick.absent(value.nvmlReturn, f"{call}({value.fieldId})")
    shown = 1 if device.usage_is_instant else 0
    if powers_w[shown] is None:
        usage_mw = tick.ask("nvmlDeviceGetPowerUsage")
        powers_w[shown] = None if usage_mw is None else usage_mw / 1000
    return powers_w[0], powers_w[1]


def _temperature_celsius(tick: _Tick) -> float | None:
    celsius = tick.ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    if celsius is None:
        celsius = tick.ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
    return None if celsius is None else float(celsius)


def _event_reasons(tick: _Tick) -> tuple[str, ...]:
    bits = tick.ask(EVENT_CALLS[0])
    if bits is None:
        bits = tick.ask(EVENT_CALLS[1])
    return event_words(bits or 0)


def _profiles(handle: Any) -> Any:
    """The workload power profiles of a GPU, None where it has none."""
    try:
        told = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        # By reference: the binding hands its argument on as it is.
        pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, ctypes.byref(told))
    except (AttributeError, pynvml.NVMLError):  # the binding, or the card, is older
        return None
    return told


def _power_profiles(tick: _Tick) -> tuple[str, ...]:
    """What is enforced, and not what was asked for: that may be overruled."""
    told = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    call = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    if tick.ask(call, ctypes.byref(told)) is None:
        return ()
    words = enumerate(told.enforcedProfilesMask.mask)
    numbers = [
        MASK_BITS * n + bit for n, word in words for bit in range(MASK_BITS) if word >> bit & 1
    ]
    return tuple(PROFILES.get(number, f"profile_{number}") for number in numbers)
