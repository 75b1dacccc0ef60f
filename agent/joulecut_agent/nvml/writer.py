"""`DeviceWriter` through NVML: the only module that changes a GPU.

It sets SM clock locks and power limits, never memory or application clocks. NVML has no getter for
locked clocks, so success only means that the driver accepted the request.
"""

import contextlib
from pathlib import Path
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.ports.event_reasons import event_words
from joulecut_agent.ports.failure import UPGRADED, DeviceError, Unsupported

CAP_SYS_ADMIN = 21  # linux/capability.h; the driver requires it to set clocks


class NvmlWriter:
    """Writes to the GPUs of this node. Raises DeviceError without a driver."""

    def __init__(self, needs_capability: bool) -> None:
        self._needs_capability = needs_capability
        self._clocks_mhz: dict[str, tuple[int, ...]] = {}  # constant while a driver is loaded
        driver.open_driver()
        self._open = True

    def permission(self) -> str:
        if not self._needs_capability or _capabilities() >> CAP_SYS_ADMIN & 1:
            return ""
        return "setting clocks needs CAP_SYS_ADMIN, which this process does not have"

    def uuids(self) -> tuple[str, ...]:
        with driver.asking("nvmlDeviceGetCount"):
            count = pynvml.nvmlDeviceGetCount()
        found = []
        for index in range(count):
            with contextlib.suppress(pynvml.NVMLError):  # lost: it has no lock any more
                found.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
        return tuple(found)

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        try:
            return tuple(self._ask("clocks", driver.supported_clocks_mhz, uuid))
        except DeviceError:
            return ()

    def uncontrollable(self, uuid: str) -> str:
        try:
            return str(self._ask("modes", driver.uncontrollable, uuid))
        except DeviceError as error:
            if error.code == UPGRADED:
                raise
            return str(error)

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        def write(handle: Any) -> None:
            known = self._clocks_mhz
            known[uuid] = clocks_mhz = known.get(uuid) or driver.supported_clocks_mhz(handle)
            # Again: MIG may have been switched on since the caller's check.
            if reason := driver.uncontrollable(handle, clocks_mhz):
                raise Unsupported("not_supported", f"{uuid}: {reason}")
            low_mhz = clock_min_mhz or min(clocks_mhz, default=0)
            if low_mhz > clock_max_mhz or not {low_mhz, clock_max_mhz} <= set(clocks_mhz):
                asked = f"{clock_min_mhz} to {clock_max_mhz} MHz"
                raise Unsupported("invalid_argument", f"{uuid}: {asked}: not supported clocks")
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, low_mhz, clock_max_mhz)

        self._ask("lock", write, uuid)

    def reset(self, uuid: str) -> None:
        self._ask("reset", pynvml.nvmlDeviceResetGpuLockedClocks, uuid)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        def read(handle: Any) -> tuple[int, int, int]:
            low, high = driver.optional(
                pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle, (0, 0)
            )
            now = driver.optional(pynvml.nvmlDeviceGetPowerManagementLimit, handle, 0)
            return (low, high, now) if now else (0, 0, 0)

        low, high, now = self._ask("power_limits", read, uuid)
        return low, high, now

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        def read(handle: Any) -> tuple[int, float, tuple[str, ...]]:
            clock_mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            rates = driver.optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
            reasons = event_words(_event_bits(handle))
            # A power profile changes clocks without an event reason.
            found = driver.profiles_of(handle)
            enforced = found is not None and any(found.enforcedProfilesMask.mask)
            reasons = (*reasons, "power_profile") if enforced else reasons
            return clock_mhz, rates.gpu / 100 if rates else 0.0, reasons

        return self._ask("reading", read, uuid)  # type: ignore[no-any-return]

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        # The first form: the binding does not check the return code of the second.
        set_limit = pynvml.nvmlDeviceSetPowerManagementLimit
        self._ask("limit_power", lambda handle: set_limit(handle, limit_mw), uuid)

    def close(self) -> None:
        if self._open:
            self._open = False
            driver.close_driver()

    def _ask(self, call: str, what: Any, uuid: str, *, again: bool = True) -> Any:
        """Calls `what` with a new handle: a driver reload invalidates an old one."""
        try:
            return what(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError as error:
            failed = driver.failure(error.value, call, uuid)
        if failed.code != "uninitialized" or not again:
            raise failed
        # The driver was reloaded: this process must open it again, once.
        self._clocks_mhz.clear()
        driver.close_driver()
        driver.open_driver()
        return self._ask(call, what, uuid, again=False)


def _event_bits(handle: Any) -> int:
    calls = (vars(pynvml).get(name) for name in driver.EVENT_CALLS)
    known = (driver.optional(call, handle) for call in calls if call is not None)
    return next((int(bits) for bits in known if bits is not None), 0)


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
