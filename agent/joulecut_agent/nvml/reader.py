"""Reading GPUs through NVML: what one tick knows of each, and what it cost to ask.

A field that a device cannot give is absent, never zero; a GPU that fell off the bus costs
its own data alone. Which number means what differs by architecture, and is settled here.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Unsupported
from joulecut_agent.ports.reader import Reading
from joulecut_wire.messages import GpuDescription, GpuSnapshot

# nvml.h, nvmlClocksEventReason*: bits of one word.
EVENT_REASONS = (
    (0x001, "idle"),
    (0x002, "applications_clocks"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal"),
    (0x040, "hw_thermal"),
    (0x080, "hw_power_brake"),
    (0x100, "display"),
)

SCOPE_GPU = 0  # of a field value: the GPU alone, not the module it sits on (Grace) or its memory
AMPERE = (8, 0)  # compute capability of GA100; every later one is above it


@dataclass(frozen=True, slots=True)
class _Device:
    index: int
    uuid: str
    handle: Any
    usage_is_instant: bool  # what nvmlDeviceGetPowerUsage shows on this architecture


class _Tick:
    """The calls about one GPU at one tick: how long each took, and which failed."""

    def __init__(self, device: _Device) -> None:
        self._device = device
        self.seconds: list[tuple[str, float]] = []
        self.error: DeviceError | None = None

    def ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """The answer, or None where there is none. Raises Gone."""
        function = getattr(pynvml, call, None)
        if function is None:  # the binding is older than the call
            return None
        began_s = time.perf_counter()
        try:
            return function(self._device.handle, *arguments, **options)
        except pynvml.NVMLError as error:
            self.absent(error.value, call)
            return None
        finally:
            self.seconds.append((call, time.perf_counter() - began_s))

    def absent(self, code: int, call: str) -> None:
        """Notes why an answer is missing; what a device cannot do is no failure of the tick."""
        device = self._device
        failed = driver.failure(code, call, f"GPU {device.index} ({device.uuid})")
        if isinstance(failed, Gone):
            raise failed from None
        if not isinstance(failed, Unsupported | NotPermitted):
            self.error = self.error or failed


class NvmlReader:
    """Reads the GPUs of this node. Raises DeviceError where there is no driver."""

    def __init__(self) -> None:
        driver.open_driver()
        self._open = True
        self._devices: dict[int, _Device] = {}
        self._described: dict[str, GpuDescription] = {}
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def describe(self) -> tuple[GpuDescription, ...]:
        self._find()
        return tuple(
            description
            for _, device in sorted(self._devices.items())
            if (description := self._describe(device)) is not None
        )

    def read(self) -> tuple[Reading, ...]:
        return tuple(_read(device) for _, device in sorted(self._devices.items()))

    def close(self) -> None:
        if self._open:
            self._open = False
            driver.close_driver()

    def _find(self) -> None:
        """Handles by index. A GPU that does not answer keeps the one it had, if it had one."""
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise driver.failure(error.value, "nvmlDeviceGetCount") from None
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                self._devices[index] = _Device(index, uuid, handle, _usage_is_instant(handle))
            except pynvml.NVMLError:
                continue

    def _describe(self, device: _Device) -> GpuDescription | None:
        """None for a GPU that has never answered; what it said last where it is silent now."""
        try:
            described = _describe(device)
        except pynvml.NVMLError as error:
            known = self._described.get(device.uuid)
            reason = str(driver.failure(error.value, "describe", f"GPU {device.index}"))
            return known and replace(known, controllable=False, reason=reason)
        self._described[device.uuid] = described
        return described


def _describe(device: _Device) -> GpuDescription:
    handle, ask = device.handle, driver.optional
    reason = driver.uncontrollable(handle)
    limits_mw = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle, (0, 0))
    return GpuDescription(
        uuid=device.uuid,
        index=device.index,
        model=pynvml.nvmlDeviceGetName(handle),
        clocks_mhz=driver.supported_clocks_mhz(handle),
        power_limit_default_w=ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle, 0) / 1e3,
        power_limit_min_w=limits_mw[0] / 1e3,
        power_limit_max_w=limits_mw[1] / 1e3,
        controllable=not reason,
        reason=reason,
    )


def _usage_is_instant(handle: Any) -> bool:
    """nvml.h: PowerUsage is a 1 s average on Ampere and newer, except on GA100."""
    capability = driver.optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return capability is not None and capability <= AMPERE


def _read(device: _Device) -> Reading:
    tick = _Tick(device)
    try:
        snapshot = _snapshot(tick, device)
    except Gone as gone:
        return Reading(device.uuid, None, gone, tuple(tick.seconds))
    return Reading(device.uuid, snapshot, tick.error, tuple(tick.seconds))


def _snapshot(tick: _Tick, device: _Device) -> GpuSnapshot:
    average_w, instant_w = _power_w(tick, device)
    energy_mj = tick.ask("nvmlDeviceGetTotalEnergyConsumption")
    limit_mw = tick.ask("nvmlDeviceGetEnforcedPowerLimit")
    rates = tick.ask("nvmlDeviceGetUtilizationRates")
    # The second form leaves out what the driver keeps for itself; older drivers have one form.
    memory = tick.ask("nvmlDeviceGetMemoryInfo", version=pynvml.nvmlMemory_v2)
    memory = memory or tick.ask("nvmlDeviceGetMemoryInfo")
    return GpuSnapshot(
        uuid=device.uuid,
        power_average_w=average_w,
        power_instant_w=instant_w,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        clock_sm_mhz=tick.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        clock_memory_mhz=tick.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        temperature_celsius=_temperature_celsius(tick),
        utilization_gpu_ratio=None if rates is None else rates.gpu / 100,
        utilization_memory_ratio=None if rates is None else rates.memory / 100,
        memory_used_bytes=None if memory is None else memory.used,
        power_limit_enforced_w=None if limit_mw is None else limit_mw / 1000,
        event_reasons=_event_reasons(tick),
    )


def _power_w(tick: _Tick, device: _Device) -> tuple[float | None, float | None]:
    """(1 s average, instantaneous) power: by name where the driver has both names."""
    call = "nvmlDeviceGetFieldValues"
    wanted = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)
    powers_w: list[float | None] = [None, None]
    for place, value in enumerate(tick.ask(call, [(field, SCOPE_GPU) for field in wanted]) or ()):
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            powers_w[place] = value.value.uiVal / 1000
        else:
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
    bits = tick.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # drivers before 535 know the older name alone
        bits = tick.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return tuple(word for bit, word in EVENT_REASONS if (bits or 0) & bit)
