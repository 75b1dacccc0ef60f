"""Reads one card again and again, with the agent's own reader."""

import time
from collections.abc import Callable

from joulecut_agent.devices import load
from joulecut_agent.nvml.card import Card, Identity, identify
from joulecut_agent.ports.failure import DeviceError
from joulecut_agent.selftest.evidence import Evidence, Range, Sample
from joulecut_wire.errors import Unavailable

EVERY_S = 0.02  # five readings within a step of the energy counter


class Watcher:
    """One card. Raises Unavailable where it does not answer."""

    def __init__(self, identity: Identity) -> None:
        self.evidence = Evidence(identity)
        self.uuid = identity.uuid
        self.phase = "idle"
        self._lock: Range | None = None
        self._lock_s = 0.0
        try:
            self._reader = load("nvml").open_reader({}, "")
            self._card = Card(identity.uuid)
            described = self._reader.describe()
        except DeviceError as error:
            raise Unavailable(f"GPU {identity.index}: {error}") from None
        mine = next((one for one in described if one.index == identity.index), None)
        if mine is None:
            raise Unavailable(f"GPU {identity.index} is not described by its driver")
        # Of another UUID, where the driver renumbers: the index is what was asked for.
        self._read_uuid = mine.uuid
        self._others = {one.index for one in described if one.index != identity.index}
        self.evidence.model, self.evidence.clocks_mhz = mine.model, mine.clocks_mhz
        self.evidence.uncontrollable = mine.reason
        self.evidence.mig = "MIG" in mine.reason
        self.process_ids: tuple[int, ...] = ()

    def locked(self, lock: Range | None) -> None:
        self._lock, self._lock_s = lock, time.monotonic()

    @property
    def is_locked(self) -> bool:
        return self._lock is not None

    def look(self) -> Sample:
        """One reading, kept. Raises Unavailable."""
        at_s = time.monotonic()
        readings = self._reader.read(self._others)
        reading = next((one for one in readings if one.uuid == self._read_uuid), None)
        if reading is None or reading.snapshot is None:
            raise Unavailable(f"the card does not answer: {reading and reading.error}")
        seen = reading.snapshot
        self.process_ids = seen.process_ids
        power_w = seen.power_average_w if seen.power_instant_w is None else seen.power_instant_w
        sample = Sample(
            at_s, self.phase, self.clock_mhz(), power_w, self._module_w(), seen.energy_j,
            seen.utilization_gpu_ratio, seen.event_reasons, seen.power_limit_enforced_w,
            self._lock, self._lock_s,
        )  # fmt: skip
        self.evidence.samples.append(sample)
        return sample

    def watch(self, seconds: float) -> None:
        """Looks every EVERY_S, for so long."""
        self.until(lambda _: False, seconds)

    def until(self, found: Callable[[Sample], bool], seconds: float) -> bool:
        """Looks until a sample is found, for so long at most."""
        end_s = time.monotonic() + seconds
        while True:
            began_s = time.monotonic()
            if found(self.look()):
                return True
            if began_s >= end_s:
                return False
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began_s)))

    def clock_mhz(self) -> int:
        """The clock alone, fast. Raises Unavailable."""
        try:
            return self._card.clock_mhz()
        except DeviceError as error:
            raise Unavailable(f"the card does not answer: {error}") from None

    def identify_again(self) -> None:
        """The same card by its bus address, in a later session of the driver."""
        try:
            found, _ = identify()
        except DeviceError as error:
            raise Unavailable(str(error)) from None
        bus = self.evidence.first.bus
        self.evidence.last = next((one for one in found if one.bus == bus), None)

    def close(self) -> None:
        self._card.close()
        self._reader.close()

    def _module_w(self) -> float | None:
        try:
            return self._card.module_power_w()
        except DeviceError:
            return None
