"""Samples that the driver itself takes of a GPU, about every 20 ms.

Its buffers hold a few seconds: reading them more often loses nothing. Link counters have no buffer;
each burst has one reading of them.
"""

from typing import Any

import pynvml

from joulecut_agent.nvml import driver
from joulecut_agent.ports.reader import Burst, Series

_SAMPLED = {  # by field of Burst: NVML's kind, and its units per unit of ours
    "power_w": (pynvml.NVML_TOTAL_POWER_SAMPLES, 1000.0),
    "utilization_ratio": (pynvml.NVML_GPU_UTILIZATION_SAMPLES, 100.0),
    "clock_sm_mhz": (pynvml.NVML_PROCESSOR_CLK_SAMPLES, 1.0),
}
ALL_LINKS = 0xFFFFFFFF  # the sum over every NVLink of a GPU (nvml.h)
_COUNTED = {  # by field of Burst: NVML's fields, their scope, and bytes per count
    "nvlink_bytes": (
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS, 1024.0),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS, 1024.0),
    ),
    "pcie_bytes": (
        (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1.0),
        (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1.0),
    ),
}
_MEMBERS = {  # members of the value union, by type
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
US_PER_S = 1e6


class Bursts:
    """The last samples of one GPU, so that none is returned twice."""

    def __init__(self) -> None:
        self._seen_us = dict.fromkeys(_SAMPLED, 0)

    def take(self, handle: Any, index: int) -> Burst:
        """New samples; empty for a quantity the device does not sample. Raises DeviceError."""
        sampled = {name: self._sampled(handle, index, name) for name in _SAMPLED}
        return Burst(**sampled, **_counters(handle, index))

    def _sampled(self, handle: Any, index: int, name: str) -> Series:
        kind, unit = _SAMPLED[name]
        since_us = self._seen_us[name]
        with driver.asking("nvmlDeviceGetSamples", f"GPU {index}"):
            found = driver.optional(
                lambda h: pynvml.nvmlDeviceGetSamples(h, kind, since_us), handle
            )
        if found is None:
            return ()
        value_type, samples = found
        member = _MEMBERS[value_type]
        fresh = sorted(  # some drivers return a ring buffer as it is, holes included
            (sample.timeStamp, getattr(sample.sampleValue, member) / unit)
            for sample in samples
            if sample.timeStamp > since_us
        )
        if fresh:
            self._seen_us[name] = fresh[-1][0]
        return tuple((at_us / US_PER_S, value) for at_us, value in fresh)


def _counters(handle: Any, index: int) -> dict[str, Series]:
    """One reading of each link's total, if both directions are known."""
    wanted = [(field, scope) for parts in _COUNTED.values() for field, scope, _ in parts]
    with driver.asking("nvmlDeviceGetFieldValues", f"GPU {index}"):
        values = driver.optional(lambda h: pynvml.nvmlDeviceGetFieldValues(h, wanted), handle)
    if values is None:
        return {}
    counters: dict[str, Series] = {}
    answers = iter(values)
    for name, parts in _COUNTED.items():
        pairs = [(next(answers), unit) for _, _, unit in parts]
        if all(value.nvmlReturn == pynvml.NVML_SUCCESS for value, _ in pairs):
            parts_bytes = [value_of(value) * unit for value, unit in pairs]
            counters[name] = ((pairs[0][0].timestamp / US_PER_S, float(sum(parts_bytes))),)
    return counters


def value_of(field: Any) -> float:
    """The number in a field value."""
    number: float = getattr(field.value, _MEMBERS[field.valueType])
    return number
