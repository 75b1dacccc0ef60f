"""`DeviceReader` through NVML. A GPU that fell off the bus costs its own data only."""

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.nvml.bursts import Bursts
from joulecut_agent.nvml.hardware import HARDWARE_S, XidEvents, hardware_of
from joulecut_agent.nvml.tick import (
    Device,
    Slow,
    Tick,
    slow_of,
    snapshot_of,
    usage_is_instant,
)
from joulecut_agent.ports.failure import DeviceError, Gone
from joulecut_agent.ports.reader import Burst, HardwareCounters, Reading, ignore_step
from joulecut_wire.card_facts import scope_of
from joulecut_wire.messages import GpuDescription


class NvmlReader:
    """Reads the GPUs of this node. Raises DeviceError without a driver.

    A handle is kept until its GPU is gone; a GPU that came back is looked up again.
    """

    def __init__(self) -> None:
        driver.open_driver()
        self._open = True
        self._devices: dict[int, Device] = {}
        self._slow: dict[int, Slow] = {}
        self._uuids: dict[int, str] = {}  # last known UUID by index
        self.unread: dict[int, str] = {}  # counted GPUs that were never opened, and why
        self._described: dict[str, GpuDescription] = {}
        self._bursts: dict[str, Bursts] = {}
        self._opened_s = time.monotonic()
        self._xid_events = XidEvents()
        self._hardware: dict[str, HardwareCounters] = {}
        self._hardware_due_s = 0.0

    def describe(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = ignore_step
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
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = ignore_step
    ) -> tuple[Reading, ...]:
        if not self._uuids:
            with contextlib.suppress(DeviceError):
                for index in set(range(_count())).difference(leave_out):
                    step(index)
                    with contextlib.suppress(DeviceError):
                        self._device(index)
        readings, now_s = [], time.monotonic()
        due = now_s >= self._hardware_due_s
        for index in sorted(self._uuids):
            if index not in leave_out:
                step(index)
                reading = self._read(index)
                readings.append(self._add_hardware(index, reading) if due else reading)
        if due:
            self._hardware_due_s = now_s + HARDWARE_S
        if due or any(isinstance(reading.error, Gone) for reading in readings):
            readings = self._add_xids(readings)
        return tuple(readings)

    def burst(self, index: int) -> Burst:
        """Raises DeviceError."""
        device = self._device(index)
        return self._bursts.setdefault(device.uuid, Bursts()).take(device.handle, index)

    def close(self) -> None:
        if self._open:
            self._open = False
            driver.close_driver()

    def _device(self, index: int) -> Device:
        """Raises DeviceError."""
        if index not in self._devices:
            with driver.asking("lookup", f"GPU {index}"):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
                instant, profiles = usage_is_instant(handle), driver.profiles_of(handle) is not None
            self._devices[index] = Device(index, uuid, handle, instant, profiles)
            self._uuids[index] = uuid
        return self._devices[index]

    def _read(self, index: int) -> Reading:
        taken_at_s = time.monotonic()
        try:
            device = self._device(index)
        except DeviceError as error:
            return Reading(self._uuids[index], None, error, (), taken_at_s)
        slow = self._slow.get(index)
        due = slow is None or taken_at_s >= slow.due_s
        tick, snapshot = Tick(device, timed=due), None
        try:
            if slow is None or due:
                slow = self._slow[index] = slow_of(tick)
            snapshot = snapshot_of(tick, device, slow)
        except Gone as gone:
            tick.error = gone
            self._drop(index)
        return Reading(device.uuid, snapshot, tick.error, tuple(tick.seconds), taken_at_s)

    def _add_hardware(self, index: int, reading: Reading) -> Reading:
        device = self._devices.get(index)
        self._hardware.pop(reading.uuid, None)
        if device is None or reading.snapshot is None:
            return reading
        try:
            self._xid_events.watch(device)
            counters, seconds = hardware_of(device)
        except Gone:  # the next reading finds it gone
            return reading
        costs = (*reading.call_seconds, *seconds)
        self._hardware[device.uuid] = counters
        return replace(reading, call_seconds=costs)

    def _add_xids(self, readings: list[Reading]) -> list[Reading]:
        """XID errors, those of a lost GPU too, whose last one says why it is."""
        self._xid_events.collect()
        found = []
        for reading in readings:
            counters = HardwareCounters()
            if reading.snapshot is not None:
                counters = self._hardware.get(reading.uuid, counters)
            xids = self._xid_events.counts(reading.uuid)
            counters = replace(counters, xid_errors=xids, since_s=self._opened_s)
            found.append(replace(reading, hardware=counters))
        return found

    def _drop(self, index: int) -> None:
        if device := self._devices.pop(index, None):
            self._xid_events.forget(device)
        self._slow.pop(index, None)

    def _describe(self, index: int) -> GpuDescription | None:
        """The last description of a GPU that fails now; None if it has never answered."""
        try:
            device = self._device(index)
            with driver.asking("describe", f"GPU {index}"):
                described = self._described[device.uuid] = _describe(device)
        except DeviceError as error:
            if isinstance(error, Gone):
                self._drop(index)
            if index not in self._uuids:
                self.unread[index] = str(error)
            known = self._described.get(self._uuids.get(index, ""))
            return known and replace(known, controllable=False, reason=str(error))
        self.unread.pop(index, None)
        return described


def _count() -> int:
    with driver.asking("nvmlDeviceGetCount"):
        return int(pynvml.nvmlDeviceGetCount())


def _describe(device: Device) -> GpuDescription:
    handle, ask = device.handle, driver.optional
    reason = driver.uncontrollable(handle)
    limits_mw = ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle, (0, 0))
    model = _model(handle)
    return GpuDescription(
        uuid=device.uuid,
        index=device.index,
        model=model,
        clocks_mhz=driver.supported_clocks_mhz(handle),
        power_limit_default_w=ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle, 0) / 1e3,
        power_limit_min_w=limits_mw[0] / 1e3,
        power_limit_max_w=limits_mw[1] / 1e3,
        controllable=not reason,
        reason=reason,
        energy_scope=scope_of(model),
        driver=str(pynvml.nvmlSystemGetDriverVersion()),
        vbios=str(ask(pynvml.nvmlDeviceGetVbiosVersion, handle, "")),
    )


def _model(handle: Any) -> str:
    """A GPU with a broken name is still measured."""
    try:
        return str(pynvml.nvmlDeviceGetName(handle))
    except driver.NONSENSE:
        return "unreadable"
