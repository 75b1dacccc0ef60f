"""Every GPU that ever answered an eye: one that is missing has to be missed.

A reader that tells of those alone that it finds would make a lost GPU one that never was.
"""

from collections.abc import Iterable
from dataclasses import replace

from joulecut_agent.ports.failure import Gone, Transient
from joulecut_agent.ports.reader import Reading
from joulecut_wire.messages import GpuDescription


def merged(
    before: tuple[GpuDescription, ...], told: tuple[GpuDescription, ...], left_out: Iterable[int]
) -> tuple[GpuDescription, ...]:
    """The GPUs of before as the newest descriptions have them; `left_out` was not asked for."""
    silent = set(left_out)
    known = {gpu.uuid for gpu in told}
    kept = (
        gpu
        if gpu.index in silent and not gpu.controllable
        else replace(gpu, controllable=False, reason="it does not answer")
        for gpu in before
        if gpu.uuid not in known
    )
    return tuple(sorted((*told, *kept), key=lambda gpu: (gpu.index, gpu.uuid)))


def absent(
    gpus: tuple[GpuDescription, ...], readings: tuple[Reading, ...], left_out: tuple[int, ...]
) -> tuple[Reading, ...]:
    """A reading without numbers for each GPU that was not told of."""
    told = {reading.uuid for reading in readings}
    return tuple(
        Reading(gpu.uuid, None, unresponsive(f"GPU {gpu.index}"))
        if gpu.index in left_out
        else Reading(gpu.uuid, None, Gone("gpu_not_found", f"GPU {gpu.index} is not there"))
        for gpu in gpus
        if gpu.uuid not in told
    )


def unresponsive(whom: str) -> Transient:
    """What is wrong with one whose calls do not return."""
    return Transient("driver_unresponsive", f"{whom}: no answer to a call")
