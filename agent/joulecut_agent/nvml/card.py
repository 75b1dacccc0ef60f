"""One GPU as its driver identifies it, and second readings of what the agent reads once.

A self-test compares them with the agent's own readings; the agent has no use for them.
"""

from dataclasses import dataclass
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.nvml.bursts import value_of
from joulecut_agent.ports.failure import DeviceError

SCOPE_MODULE = 1  # of a field value: GPU, CPU and memory of a superchip
MHZ_UNKNOWN = 0
# SM clocks by other calls than the agent's: the current clock by its id, and the graphics clock,
# which is the same domain on data-centre cards.
_AGAIN = (
    lambda handle: pynvml.nvmlDeviceGetClock(
        handle, pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_ID_CURRENT
    ),
    lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_GRAPHICS),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a card is, by every name that its driver has for it; "" where it has none."""

    index: int
    uuid: str
    uuid_index: int  # the index that the UUID leads to
    bus: str
    serial: str
    driver: str
    vbios: str
    clock_max_mhz: int
    ecc: tuple[int, ...]  # (now, from the next reset)
    throttle_reasons: int  # bits of the reasons that this card can give


def identify() -> tuple[tuple[Identity, ...], dict[int, str]]:
    """Every card, in a session of its own, and why a counted one cannot be opened, by its index.
    Raises DeviceError.
    """
    driver.open_driver()
    found, unread = list[Identity](), dict[int, str]()
    try:
        with driver.asking("identify"):
            count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                with driver.asking("open", f"GPU {index}"):
                    found.append(_identity(index))
            except DeviceError as error:
                unread[index] = str(error)
    finally:
        driver.close_driver()
    return tuple(found), unread


class Card:
    """Second readings of one card. A method raises DeviceError where the card does not answer."""

    def __init__(self, uuid: str) -> None:
        driver.open_driver()
        self._uuid = uuid
        try:
            self._handle = self._asked(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        except DeviceError:
            driver.close_driver()
            raise

    def clock_mhz(self) -> int:
        return int(self._asked(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM))

    def clocks_again_mhz(self) -> tuple[int, ...]:
        """The SM clock by other calls; one that the card lacks is left out."""
        found = [self._asked(driver.optional, call, self._handle) for call in _AGAIN]
        return tuple(int(mhz) for mhz in found if mhz is not None)

    def module_power_w(self) -> float | None:
        """Power of the whole superchip; None on other cards."""
        wanted = [(pynvml.NVML_FI_DEV_POWER_INSTANT, SCOPE_MODULE)]
        (value,) = self._asked(pynvml.nvmlDeviceGetFieldValues, self._handle, wanted)
        return value_of(value) / 1000 if value.nvmlReturn == pynvml.NVML_SUCCESS else None

    def close(self) -> None:
        driver.close_driver()

    def _asked(self, call: Any, *arguments: Any) -> Any:
        with driver.asking("selftest", self._uuid):
            return call(*arguments)


def _identity(index: int) -> Identity:
    handle, ask = pynvml.nvmlDeviceGetHandleByIndex(index), driver.optional
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def highest(of: Any) -> int:
        return int(pynvml.nvmlDeviceGetMaxClockInfo(of, pynvml.NVML_CLOCK_SM))

    return Identity(
        index=index,
        uuid=uuid,
        uuid_index=int(ask(pynvml.nvmlDeviceGetIndex, again, index)),
        bus=str(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        serial=str(ask(pynvml.nvmlDeviceGetSerial, handle, "")),
        driver=str(pynvml.nvmlSystemGetDriverVersion()),
        vbios=str(ask(pynvml.nvmlDeviceGetVbiosVersion, handle, "")),
        clock_max_mhz=ask(highest, handle, MHZ_UNKNOWN),
        ecc=tuple(int(mode) for mode in ask(pynvml.nvmlDeviceGetEccMode, handle, ())),
        throttle_reasons=int(ask(pynvml.nvmlDeviceGetSupportedClocksThrottleReasons, handle, 0)),
    )
