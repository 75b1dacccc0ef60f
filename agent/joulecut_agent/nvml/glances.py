"""Glances: the NVML calls of every tick, prepared once.

They are the library's own functions, with arguments made beforehand, and answers written straight
into the row that is sent. The binding looks up the function, makes the arguments and checks the
answer at each call, which costs more than the driver. Any irregular answer makes a whole reading
due, which reports it.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from joulecut_agent.nvml.driver import EVENT_CALLS
from joulecut_agent.ports.glance import ROW
from joulecut_wire.messages import GpuSnapshot

SCOPE_GPU = 0  # of a field value: the GPU, without its module (Grace) or memory
POWER_FIELDS = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)
_Call = tuple[Callable[..., int], tuple[Any, ...]]


class _Row(ctypes.Structure):
    """`ports.glance.ROW` as a ctypes structure."""

    _fields_ = (
        ("powers", pynvml.c_nvmlFieldValue_t * len(POWER_FIELDS)),
        ("energy_mj", ctypes.c_ulonglong),
        ("events", ctypes.c_ulonglong),
        ("clock_mhz", ctypes.c_uint),
        ("limit_mw", ctypes.c_uint),
        ("usage_mw", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("busy", pynvml.c_nvmlUtilization_t),
    )


class Glances:
    """GPUs in the order of the whole reading before."""

    def __init__(self, gpus: Sequence[tuple[int, Any, GpuSnapshot, bool]]) -> None:
        """Index, handle, last snapshot and whether it has power profiles, of each GPU.

        Raises AttributeError or TypeError if driver or binding are too old.
        """
        assert ctypes.sizeof(_Row) == ROW.size
        self._rows = (_Row * len(gpus))()
        kind = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t
        self._profiles = (kind * len(gpus))(*(kind() for _ in gpus))  # each with its version
        self._calls: list[tuple[int, list[_Call], list[_Call]]] = []
        self._odd = False
        for place, (index, handle, was, has_profiles) in enumerate(gpus):
            each, seldom = _prepared(handle, self._rows[place], was)
            if has_profiles:
                call = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
                each.append(_call(call, handle, ctypes.byref(self._profiles[place])))
            self._calls.append((index, each, seldom))
        for _, each, seldom in self._calls:
            for function, arguments in each + seldom:
                function(*arguments)
        self._profiled = bytes(self._profiles)

    def take(self, step: Callable[[int], None]) -> bytes | None:
        """The rows; None if a whole reading is due."""
        self._odd = not self._odd
        for index, each, seldom in self._calls:
            step(index)
            for function, arguments in each:
                if function(*arguments):
                    return None
            if self._odd:
                for function, arguments in seldom:
                    if function(*arguments):
                        return None
        return bytes(self._rows) if bytes(self._profiles) == self._profiled else None


def _call(name: str, *arguments: Any) -> _Call:
    # By index: a function object of our own, without the binding's type declarations.
    return pynvml.nvmlLib[name], arguments


def _prepared(handle: Any, row: Any, was: GpuSnapshot) -> tuple[list[_Call], list[_Call]]:
    """Calls of each tick, and of every second tick; without fields that the device lacks."""

    def into(name: str) -> Any:
        return ctypes.byref(row, getattr(_Row, name).offset)

    for power, field in zip(row.powers, POWER_FIELDS, strict=True):
        power.fieldId, power.scopeId = field, SCOPE_GPU
    count = ctypes.c_int(len(POWER_FIELDS))
    sm, events = ctypes.c_uint(pynvml.NVML_CLOCK_SM), EVENT_CALLS[0]
    if not hasattr(pynvml.nvmlLib, events):
        events = EVENT_CALLS[1]
    powers_w = (was.power_average_w, was.power_instant_w)
    each = [_call(events, handle, into("events"))]
    if any(power_w is not None for power_w in powers_w):
        each.append(_call("nvmlDeviceGetFieldValues", handle, count, into("powers")))
        function, arguments = each[-1]
        if function(*arguments) or _uses_power_usage(row, powers_w):
            each.append(_call("nvmlDeviceGetPowerUsage", handle, into("usage_mw")))
    if was.energy_j is not None:
        each.append(_call("nvmlDeviceGetTotalEnergyConsumption", handle, into("energy_mj")))
    if was.clock_sm_mhz is not None:
        each.append(_call("nvmlDeviceGetClockInfo", handle, sm, into("clock_mhz")))
    seldom = []
    if was.utilization_gpu_ratio is not None:
        seldom.append(_call("nvmlDeviceGetUtilizationRates", handle, into("busy")))
    if was.power_limit_enforced_w is not None:
        seldom.append(_call("nvmlDeviceGetEnforcedPowerLimit", handle, into("limit_mw")))
    return each, seldom


def _uses_power_usage(row: Any, powers_w: tuple[float | None, float | None]) -> bool:
    """Whether a known power came from PowerUsage instead of a field."""
    return any(
        power_w is not None and power.nvmlReturn
        for power, power_w in zip(row.powers, powers_w, strict=True)
    )
