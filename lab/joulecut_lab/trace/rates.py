"""What a trace says of its card: shares that follow the clock, and efficiencies.

A kernel's time at clock f is t (m + (1 - m) f0 / f): the share m waits for memory or network. It
is measured where the same work was recorded at two clocks, else assumed per class. Efficiencies
turn one trace into a system that predicts other shapes, clocks and numbers of ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression, median
from typing import Any

from joulecut_lab.model.system import System
from joulecut_lab.trace.kernels import (
    CLASSES,
    COMPUTE,
    NETWORK,
    Kernel,
    KernelClass,
    Recording,
    matmul_flops,
)

# Fits of t = a + b / f to A100 sweeps of GPT-3 stages (Perseus artifact) give a / t = 0.10 for
# forwards and 0.16 for backwards: mostly matrix products, which therefore have a little less.
COMPUTE_SHARE = 0.1
# Pointwise kernels wait for memory; below about two thirds of the clock they issue too few
# requests to keep it busy.
MEMORY_SHARE = 0.8
GAP_S_MIN = 1e-7  # stamps of a GPU step by 32 ns or more, and no kernel starts so soon
OVERHEAD_S_MAX = 20e-6  # a longer gap has another cause than a kernel's start and end
LARGE_FLOPS = 1e10  # products that fill a GPU; smaller ones say nothing of its peak
FEW = 3  # kernels of a class that a median needs
EFFICIENCY_MAX = 1.0

Shares = Mapping[KernelClass, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """Efficiencies from a trace: keys of `System`, and how many kernels each rests on."""

    values: dict[str, float]
    kernels: dict[str, int]


def assumed_shares() -> dict[KernelClass, float]:
    """Share of each class that does not follow the SM clock."""
    return {
        kind: 1.0 if kind in (*NETWORK, "copy") else COMPUTE_SHARE if kind in COMPUTE
        else MEMORY_SHARE
        for kind in CLASSES
    }  # fmt: skip


def measured_shares(
    totals: Mapping[float, Mapping[KernelClass, float]],
) -> dict[KernelClass, float]:
    """From seconds per class at two clocks or more (MHz): least squares of t = a + b / f."""
    found: dict[KernelClass, float] = {}
    for kind in CLASSES:
        points = [(1.0 / f, seconds[kind]) for f, seconds in totals.items() if seconds.get(kind)]
        if len(points) < 2 or kind in NETWORK:
            continue
        (first_x, first_y), (xs, ys) = points[0], zip(*points, strict=True)
        slope = linear_regression(xs, ys).slope
        found[kind] = min(1.0, max(0.0, 1.0 - slope * first_x / first_y))
    return found


def unknown(recordings: Sequence[Recording]) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Share of the kernels' time that no rule knows, and its names with their shares, largest
    first.
    """
    total_s, names = 0.0, dict[str, float]()
    for recording in recordings:
        for kernel in recording.kernels:
            total_s += kernel.duration_s
            if kernel.kind == "other":
                names[kernel.name] = names.get(kernel.name, 0.0) + kernel.duration_s
    if not total_s:
        return 0.0, ()
    ordered = sorted(names.items(), key=lambda pair: (-pair[1], pair[0]))
    return sum(names.values()) / total_s, tuple((name, s / total_s) for name, s in ordered)


def factor(share: float, recorded_mhz: float, clock_mhz: float) -> float:
    return share + (1.0 - share) * recorded_mhz / clock_mhz


def class_seconds(recordings: Iterable[Recording]) -> dict[KernelClass, float]:
    """Time of each class per step and rank."""
    found: dict[KernelClass, float] = {}
    count = 0
    for recording in recordings:
        count += 1
        for kernel in recording.kernels:
            each_s = kernel.duration_s / recording.steps
            found[kernel.kind] = found.get(kernel.kind, 0.0) + each_s
    return {kind: seconds / count for kind, seconds in found.items()}


def efficiencies(recordings: Sequence[Recording], system: System, clock_mhz: float) -> Measured:
    """What the recorded shapes and sizes allow; the rest keeps the system's numbers.

    Products need their operators' shapes (`record_shapes=True`), collectives their sizes.
    """
    kernels = [k for recording in recordings for k in recording.kernels if k.duration_s > 0.0]
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    peak = system.bf16_tflops * 1e12 * clock_mhz / system.peak_clock_mhz
    products = [(matmul_flops(k.dims), k.duration_s) for k in kernels if k.kind == "matmul"]
    products = [(flops, seconds) for flops, seconds in products if flops >= LARGE_FLOPS]
    if len(products) >= FEW:
        rate = sum(flops for flops, _ in products) / sum(seconds for _, seconds in products)
        values["matrix_efficiency"] = min(EFFICIENCY_MAX, rate / peak)
        counts["matrix_efficiency"] = len(products)
    for key, link, inside in (
        ("scale_up_efficiency", system.scale_up_gb_s, True),
        ("scale_out_efficiency", system.scale_out_gb_s, False),
    ):
        shares = [
            rate / (link * 1e9)
            for rate, ranks in map(bus_rate, kernels)
            if rate and (ranks <= system.domain) == inside
        ]
        if len(shares) >= FEW:
            values[key] = min(EFFICIENCY_MAX, median(shares))
            counts[key] = len(shares)
    gaps = [gap for recording in recordings for gap in _gaps_s(recording)]
    finest_s = max([GAP_S_MIN, *(2.0 * recording.resolution_s for recording in recordings)])
    if len(gaps) >= FEW and median(gaps) >= finest_s:  # less is rounding
        values["kernel_s"], counts["kernel_s"] = median(gaps), len(gaps)
    return Measured(values, counts)


def calibrated(system: System, measured: Measured) -> System:
    values: dict[str, Any] = dict(measured.values)
    return replace(system, name=f"{system.name}, from a trace", **values)


def bus_rate(kernel: Kernel) -> tuple[float, int]:
    """Bytes per second that a ring moves over each link, and the ranks; 0 where unknown."""
    found = kernel.collective
    if kernel.kind not in NETWORK or found is None or found.ranks < 2 or not found.size_bytes:
        return 0.0, 0
    rounds = {"all-reduce": 2.0}.get(kernel.kind, 1.0) * (found.ranks - 1) / found.ranks
    if kernel.kind == "send-recv":
        rounds = 1.0
    return found.size_bytes * rounds / kernel.duration_s, found.ranks


def _gaps_s(recording: Recording) -> list[float]:
    """Times between kernels that followed each other at once on a stream."""
    last: dict[tuple[int, int], Kernel] = {}
    gaps = []
    for kernel in recording.kernels:
        before = last.get((kernel.device, kernel.stream))
        if before is not None:
            gap_s = kernel.start_s - before.end_s
            queued = kernel.launch_s is not None and kernel.launch_s < before.end_s
            if queued and 0.0 <= gap_s <= OVERHEAD_S_MAX:
                gaps.append(gap_s)
        last[kernel.device, kernel.stream] = kernel
    return gaps
