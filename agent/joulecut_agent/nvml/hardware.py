"""Hardware counters of a GPU: ECC errors, NVLink, and XID errors.

Their calls are slow, so they are made each HARDWARE_S. A call that fails costs its own counter:
power and clocks of the GPU are read all the same.
"""

import contextlib
import ctypes
from collections import Counter
from typing import Any

import pynvml

from joulecut_agent.nvml.bursts import ALL_LINKS, value_of
from joulecut_agent.nvml.driver import NONSENSE
from joulecut_agent.nvml.tick import Device, Tick
from joulecut_agent.ports.reader import HardwareCounters

HARDWARE_S = 10.0  # below a usual scrape interval of 15 s
EVENTS_MAX = 256  # taken at once; the others follow
XIDS_MAX = 64  # different numbers of one GPU; NVIDIA lists about 170, of which few occur
KIB = 1024  # nvml.h: throughput counters are in KiB
_ECC = tuple(
    (error, scope, getattr(pynvml, f"NVML_MEMORY_ERROR_TYPE_{error.upper()}"),
     getattr(pynvml, f"NVML_{scope.upper()}_ECC"))
    for error in ("corrected", "uncorrected")
    for scope in ("volatile", "aggregate")
)  # fmt: skip
_NVLINK_BYTES = (
    ("tx", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    ("rx", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
)
_NVLINK_ERRORS = (
    ("crc_flit", pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0),
    ("crc_data", pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0),
    ("replay", pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0),
    ("recovery", pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0),
)


def hardware_of(device: Device) -> tuple[HardwareCounters, list[tuple[str, float]]]:
    """ECC and NVLink counters, and the durations of their calls. Raises Gone."""
    tick = Tick(device, timed=True)
    ecc = []
    for error, scope, error_type, counter_type in _ECC:
        count = tick.ask("nvmlDeviceGetTotalEccErrors", error_type, counter_type)
        if count is not None:
            ecc.append((error, scope, count))
    asked = (*_NVLINK_BYTES, *_NVLINK_ERRORS)
    values = tick.ask("nvmlDeviceGetFieldValues", [(field, scope) for _, field, scope in asked])
    found = {}
    for (name, _, _), value in zip(asked, values or (), strict=False):
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            found[name] = int(value_of(value))
    sent = [(name, found[name] * KIB) for name, _, _ in _NVLINK_BYTES if name in found]
    errors = [(name, found[name]) for name, _, _ in _NVLINK_ERRORS if name in found]
    return HardwareCounters(tuple(ecc), tuple(sent), tuple(errors)), tick.seconds


class XidEvents:
    """XID errors by GPU, counted since this object was made. Never raises: some cards send none."""

    def __init__(self) -> None:
        self._events: Any = None
        self._watched: set[int] = set()
        self._uuids: dict[int, str] = {}  # by address of a handle; kept for late events
        self._counts: dict[str, Counter[int]] = {}

    def watch(self, device: Device) -> None:
        """Registers a GPU, once."""
        address = _address(device.handle)
        if address in self._watched:
            return
        self._watched.add(address)
        self._uuids[address] = device.uuid
        with contextlib.suppress(pynvml.NVMLError):
            if self._events is None:
                self._events = pynvml.nvmlEventSetCreate()
            xid = pynvml.nvmlEventTypeXidCriticalError
            pynvml.nvmlDeviceRegisterEvents(device.handle, xid, self._events)

    def forget(self, device: Device) -> None:
        """The handle of a lost GPU; if it comes back it is registered again."""
        self._watched.discard(_address(device.handle))

    def collect(self) -> None:
        """Counts the events that have come. Never waits."""
        if self._events is None:
            return
        try:
            for _ in range(EVENTS_MAX):
                self._count(pynvml.nvmlEventSetWait_v2(self._events, 0))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:  # a lost GPU spoils the set of all
                self._close()

    def counts(self, uuid: str) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(self._counts.get(uuid, Counter()).items()))

    def _count(self, event: Any) -> None:
        uuid = self._uuids.get(_address(event.device))
        if uuid is None:
            with contextlib.suppress(pynvml.NVMLError, *NONSENSE):
                uuid = pynvml.nvmlDeviceGetUUID(event.device)
        if uuid is None or not event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            return
        counts = self._counts.setdefault(uuid, Counter())
        if event.eventData in counts or len(counts) < XIDS_MAX:
            counts[event.eventData] += 1

    def _close(self) -> None:
        events, self._events = self._events, None
        self._watched.clear()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
