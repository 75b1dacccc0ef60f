"""Replay of a recorded rank while kernels take other times.

A kernel starts when its stream, the kernels it waits for and its launch allow, after the lag that
the recording shows. Launches stay where the host made them, and each rank is replayed alone: the
time of a collective is as recorded, its waiting for other ranks included. With every factor 1 the
replay is the recording.
"""

from collections.abc import Callable
from dataclasses import dataclass

from joulecut_lab.trace.kernels import NETWORK, Kernel, Recording


@dataclass(frozen=True, slots=True)
class Played:
    """Starts and durations of one rank's kernels, in the order of its recording."""

    start_s: tuple[float, ...]
    duration_s: tuple[float, ...]

    @property
    def span_s(self) -> float:
        ends = (s + d for s, d in zip(self.start_s, self.duration_s, strict=True))
        return max(ends) - min(self.start_s)


def replay(recording: Recording, factor: Callable[[Kernel], float]) -> Played:
    """`factor` multiplies a kernel's own time."""
    kernels = recording.kernels
    starts, durations = list[float](), list[float]()
    last: dict[tuple[int, int], int] = {}
    for i, kernel in enumerate(kernels):
        lane = (kernel.device, kernel.stream)
        before = [*kernel.waits_for, *([last[lane]] if lane in last else [])]
        last[lane] = i
        recorded = [kernels[k].end_s for k in before]
        now = [starts[k] + durations[k] for k in before]
        if kernel.launch_s is not None:
            recorded.append(kernel.launch_s)
            now.append(kernel.launch_s)
        lag_s = max(0.0, kernel.start_s - max(recorded)) if recorded else 0.0
        starts.append(max(now) + lag_s if now else kernel.start_s)
        durations.append(kernel.duration_s * factor(kernel))
    return Played(tuple(starts), tuple(durations))


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How a rank's span is used. `exposed_s` is communication with no computation beside it."""

    span_s: float
    busy_s: float
    exposed_s: float


def occupancy(recording: Recording, played: Played) -> Occupancy:
    every, computing = [], []
    for kernel, start_s, duration_s in zip(
        recording.kernels, played.start_s, played.duration_s, strict=True
    ):
        every.append((start_s, start_s + duration_s))
        if kernel.kind not in NETWORK:
            computing.append(every[-1])
    busy_s = _union_s(every)
    return Occupancy(played.span_s, busy_s, busy_s - _union_s(computing))


def _union_s(intervals: list[tuple[float, float]]) -> float:
    total_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(intervals):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s
