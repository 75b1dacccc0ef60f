"""Glances: the numbers of a GPU that change at each tick, as one row of raw memory.

A reader that fills such rows sends nothing else at a tick. The other fields are those of the last
whole reading, which has the same order of GPUs.
"""

import struct
from collections.abc import Iterable, Iterator

from joulecut_wire.messages import GpuSnapshot

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
# Two nvmlFieldValue_t, of which (NVML code, mW) is used, for average and instantaneous power;
# energy in mJ, event bits; SM clock in MHz, enforced limit and usage in mW, a gap; busy percent of
# GPU and memory.
ROW = struct.Struct("=28xII4x28xII4xQQIII4xII")
MILLI, PERCENT = 1000, 100
NOT_SUPPORTED = 3  # nvml.h; the answer of GPUs without a field
_WORDS: dict[int, tuple[str, ...]] = {}
_WORDS_MAX = 256  # few combinations occur


def event_words(bits: int) -> tuple[str, ...]:
    words = _WORDS.get(bits)
    if words is None:
        words = tuple(word for bit, word in EVENT_REASONS if bits & bit)
        if len(_WORDS) < _WORDS_MAX:
            _WORDS[bits] = words
    return words


def snapshots(whole: Iterable[GpuSnapshot], rows: bytes) -> Iterator[GpuSnapshot]:
    """The GPUs of the last whole reading, updated by `rows`. A number it lacks stays absent.

    Raises ValueError if the number of rows differs, or a row has a failure.
    """
    for was, row in zip(whole, ROW.iter_unpack(rows), strict=True):
        no_average, average, no_instant, instant, energy, bits, clock, limit, usage, *busy = row
        yield GpuSnapshot(
            was.uuid,
            None if was.power_average_w is None else _power_w(no_average, average, usage),
            None if was.power_instant_w is None else _power_w(no_instant, instant, usage),
            None if was.energy_j is None else energy / MILLI,
            None if was.clock_sm_mhz is None else clock,
            was.clock_memory_mhz,
            was.temperature_celsius,
            None if was.utilization_gpu_ratio is None else busy[0] / PERCENT,
            None if was.utilization_memory_ratio is None else busy[1] / PERCENT,
            was.memory_used_bytes,
            None if was.power_limit_enforced_w is None else limit / MILLI,
            event_words(bits),
            persistence=was.persistence,
            process_ids=was.process_ids,
            mig_uuids=was.mig_uuids,
            power_profiles=was.power_profiles,
        )


def _power_w(code: int, power_mw: int, usage_mw: int) -> float:
    """The field's power, or the device's PowerUsage, which is never zero."""
    if code and (code != NOT_SUPPORTED or not usage_mw):
        raise ValueError(f"NVML code {code}")
    return (usage_mw if code else power_mw) / MILLI
