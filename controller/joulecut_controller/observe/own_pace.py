"""How fast each GPU is beside the slowest one of its stage, from busy times at default clocks.

The GPUs of a stage do the same work: those of one lock-step group together, those of another
replica beside them. A GPU that is faster than the slowest only waits for it. In a lock-step group
reports usually contain that waiting, so all members report the same time; a time of its own is
taken for proven only where members differ by more than noise. Pure.
"""

import statistics
from collections.abc import Mapping, Sequence

from joulecut_controller.view import Delay, GpuView, JobState, StageLoad

# Below it, differences within a lock-step group are the noise of its timers, and a clock step of
# an A100 is 1.1 %.
APART_RATIO = 0.01
DELAY_RATIO_MIN = 0.05  # GPUs of one model differ by some percent

Stages = tuple[tuple[str, ...], ...]
Groups = tuple[Stages, ...]  # by stage, then by replica


def delay_of(job: JobState, gpus: Mapping[str, GpuView]) -> Delay | None:
    """The GPUs that other replicas wait for most, if less than half of a stage is slow."""
    ratios, found = job.measured.time_ratios, list[Delay]()
    for stage, uuids in enumerate(job.placement.stages if ratios else ()):
        usual = statistics.median_low([ratios.get(uuid, 1.0) for uuid in uuids])
        slow = [u for u in uuids if usual < (1.0 - DELAY_RATIO_MIN) * ratios.get(u, 1.0)]
        if slow and 2 * len(slow) <= len(uuids):
            shown = [gpus[uuid] for uuid in slow if uuid in gpus]
            reasons = (gpu.snapshot.slow_reason for gpu in shown if gpu.snapshot)
            places = tuple(gpu.place for gpu in shown) or tuple(slow)
            factor = max(ratios.get(uuid, 1.0) for uuid in slow) / usual
            found.append(Delay(stage, places, factor, next(filter(None, reasons), "")))
    return max(found, key=lambda one: one.factor, default=None)


def time_ratios(loads: Sequence[StageLoad], stages: Stages, groups: Groups) -> dict[str, float]:
    """By GPU, its time over that of the slowest GPU of its stage (a ratio up to 1), the worst of
    its kinds of operation; empty unless every GPU of the job reported operations. Where the
    groups are unknown, any GPU may be the one that others wait for: all ratios are 1.
    """
    by_uuid = {load.uuid: load for load in loads if load.busy_s and load.clock_mhz}
    found: dict[str, float] = {}
    for stage, uuids in enumerate(stages):
        if not all(uuid in by_uuid for uuid in uuids):
            return {}
        ratios = _of_stage([by_uuid[uuid] for uuid in uuids])
        if not ratios:
            return {}
        for group in groups[stage] if groups else ():
            found |= _of_group({uuid: ratios[uuid] for uuid in group})
        found = found if groups else found | dict.fromkeys(uuids, 1.0)
    return found


def _of_stage(loads: Sequence[StageLoad]) -> dict[str, float]:
    """A GPU whose default clock is higher, as under a power cap, is not faster at equal clocks:
    both its seconds and its cycles have to be fewer.
    """
    kinds = set(loads[0].busy_s).intersection(*(load.busy_s for load in loads))
    ratios = dict.fromkeys((load.uuid for load in loads), 0.0)
    for kind in sorted(kinds):
        most_s = max(load.busy_s[kind] for load in loads)
        most_cycles = max(load.busy_s[kind] * load.clock_mhz for load in loads)
        if most_s <= 0.0:
            continue
        for load in loads:
            seconds = load.busy_s[kind] / most_s
            cycles = load.busy_s[kind] * load.clock_mhz / most_cycles
            ratios[load.uuid] = max(ratios[load.uuid], seconds, cycles)
    return ratios if min(ratios.values()) > 0.0 else {}


def _of_group(ratios: Mapping[str, float]) -> dict[str, float]:
    slowest = max(ratios.values())
    if slowest - min(ratios.values()) > APART_RATIO:
        return dict(ratios)
    return dict.fromkeys(ratios, slowest)
