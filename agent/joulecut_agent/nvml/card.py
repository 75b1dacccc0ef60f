"""One GPU as its driver identifies it, and readings that a self-test takes beside the agent's."""

from dataclasses import dataclass
from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.nvml.bursts import value_of
from joulecut_agent.ports.failure import DeviceError

SCOPE_MODULE = 1  # of a field value: GPU, CPU and memory of a superchip


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a card is, by every name that its driver has for it; "" where it has none."""

    index: int
    uuid: str
    uuid_index: int  # the index that the UUID leads to
    bus: str
    driver: str
    vbios: str
    ecc: tuple[int, ...]  # (now, from the next reset)


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
    """Readings of one card. A method raises DeviceError where the card does not answer."""

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
    return Identity(
        index=index,
        uuid=uuid,
        uuid_index=int(ask(pynvml.nvmlDeviceGetIndex, again, index)),
        bus=str(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        driver=str(pynvml.nvmlSystemGetDriverVersion()),
        vbios=str(ask(pynvml.nvmlDeviceGetVbiosVersion, handle, "")),
        ecc=tuple(int(mode) for mode in ask(pynvml.nvmlDeviceGetEccMode, handle, ())),
    )
