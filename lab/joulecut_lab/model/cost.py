"""Time and traffic of a piece of work on one GPU: roofline, kernels, launches, exposed collectives.

A matrix product takes its padded FLOPs at the peak that large products reach, or its bytes at the
bandwidth of large copies, whichever is longer. Padding counts the tiles that fill the GPU's
processors in whole waves, which is why small and thin products are slow. Clocks scale the peak,
a kernel's start and end, and a share of memory-bound time; links and launches stay.

Products of experts follow each other with cold weights and short tails, so that neither hides the
other: their time is the root of the sum of squares (benchmarks/model_kernels.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_lab.model.links import BITS, Group
from joulecut_lab.model.power import Power, memory_slowdown, power_of
from joulecut_lab.model.runs import Floats, Runs
from joulecut_lab.model.system import System
from joulecut_lab.model.work import HALF, Products, Work, narrow

# Tiles that libraries choose from, a column each: rows, columns, share of the largest tile's rate
# (CUTLASS).
TILES = np.array([[256.0, 128.0, 128.0, 64.0], [128.0, 128.0, 64.0, 64.0], [1.0, 0.95, 0.8, 0.6]])
LONG = 8192.0  # inner dimension of the products that `matrix_efficiency` stands for
SPLIT_K = 1024.0  # numbers of the inner dimension that one part of a split product keeps
ALIGNED = 8.0  # numbers of 16 bits that a tensor core loads at once
# Rate of a product with an odd dimension: logits of 50,257 words reach 79 TFLOP/s on an A100 where
# padded ones reach 290 (vTrain's single-node set).
MISALIGNED = 0.27
SEARCH_STEPS = 24  # halvings of the clock range: below 0.001 MHz
SPARSE_BITS = 2.0  # of a kept weight: its place among four
FIGURES, SECONDS = 13, 7  # of a `Cost`; the first that many are seconds one after another

# Rates of fused attention on Hopper over FlashAttention-2's: 595 and 648 beside 370 TFLOP/s at
# 16,384 tokens (arXiv 2407.08608, figure 5). Blackwell is taken to be alike.
ATTENTION_RATES = {"flash2": 1.0, "flash3": 648.0 / 370.0, "cudnn": 595.0 / 370.0}


class _Row:
    """A row of a cost's figures, by name."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, cost: "Cost", _: object) -> Floats:
        return np.asarray(cost.figures[self._place])

    def __set__(self, cost: "Cost", value: Floats | float) -> None:
        cost.figures[self._place] = value


@dataclass(slots=True)
class Cost:
    """Seconds, by cause, and what they move. Every figure adds up over work done one after another.

    `launch` is kernels' starts and ends and the time the GPU waits for its host; `host` is the
    host's own time, which hides behind the GPU's. A figure is a view: it changes with its cost.
    """

    figures: Floats  # (FIGURES, runs): one array, so that a sum is one operation

    compute, memory, launch, tensor, expert, context = map(_Row, range(6))
    data = _Row(6)  # collectives among copies of the model; the last of SECONDS
    host = _Row(7)
    flops = _Row(8)  # 16-bit equivalents; see `cost_of`
    bytes, up_bits, out_bits = map(_Row, range(9, 12))
    hidden = _Row(12)  # seconds of collectives behind computation

    @staticmethod
    def none(count: int) -> "Cost":
        return Cost(np.zeros((FIGURES, count)))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.figures + other.figures)

    def __mul__(self, factor: Floats | float) -> "Cost":
        return Cost(self.figures * factor)

    @property
    def seconds(self) -> Floats:
        return np.asarray(self.figures[:SECONDS].sum(axis=0))

    def options(
        self, power: Power, clocks_mhz: Sequence[int], real_mhz: Floats
    ) -> tuple[ClockOption, ...]:
        """One for each clock that is asked for; `real_mhz` are those of this cost."""
        rows = zip(clocks_mhz, self.seconds, self.energy_j(power, real_mhz), strict=True)
        return tuple(ClockOption(mhz, float(time_s), float(joules)) for mhz, time_s, joules in rows)

    def held_clock_mhz(self, system: System, clock_mhz: Floats) -> Floats:
        """The clock at or below `clock_mhz`, of this cost, where working power meets the cap.

        The cap acts on the mean of work, not of bubbles: a card averages over milliseconds.
        """
        low = np.full_like(clock_mhz, system.clock_min_mhz)
        high = np.maximum(clock_mhz, low)
        free = self._working_w(system, clock_mhz, high) <= system.power_cap_w
        for _ in range(SEARCH_STEPS):
            middle = 0.5 * (low + high)
            fits = self._working_w(system, clock_mhz, middle) <= system.power_cap_w
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return np.where(free, clock_mhz, low)

    def _working_w(self, system: System, own_mhz: Floats, clock_mhz: Floats) -> Floats:
        """Of the work at another clock than its own."""
        power, slower = power_of(system), own_mhz / clock_mhz
        compute, waiting = self.compute * slower, self.launch * slower
        slower = memory_slowdown(system, clock_mhz) / memory_slowdown(system, own_mhz)
        waiting = waiting + self.memory * slower + (self.tensor + self.expert + self.context)
        joules = self.flops * power.flop_j * power.voltage_square(clock_mhz)
        joules = joules + BITS * self.bytes * power.hbm_bit_j
        joules = joules + power.waiting_over_idle_w(clock_mhz) * waiting
        return np.asarray(power.idle_w + joules / np.maximum(compute + waiting, 1e-12))

    def send(self, ring: Group, volume: Floats, crossing: Floats | float = 1.0) -> None:
        """Adds what a collective moves; of slow links the share `crossing`."""
        up, out = ring.bits(volume)
        self.up_bits = self.up_bits + up
        self.out_bits = self.out_bits + out * crossing

    def bound_by_host(self) -> "Cost":
        """The same where the host needs longer to launch than the GPU to work."""
        found = Cost(self.figures.copy())
        found.launch += np.maximum(0.0, self.host - self.seconds)
        return found

    def energy_j(self, power: Power, clock_mhz: Floats) -> Floats:
        """Of one GPU, idle power included."""
        joules = self.flops * power.flop_j * power.voltage_square(clock_mhz)
        joules = joules + BITS * self.bytes * power.hbm_bit_j
        joules = joules + self.up_bits * power.up_bit_j + self.out_bits * power.out_bit_j
        joules = joules + power.waiting_over_idle_w(clock_mhz) * (self.seconds - self.compute)
        return np.asarray(joules + power.idle_w * self.seconds)


@dataclass(slots=True)
class Rates:
    """Rates of one system at each run's clock; arrays of one entry per run."""

    matrix: Floats  # FLOP/s of large products in the run's number type
    half: Floats  # of large products of 16 bits
    attention: Floats
    bytes: Floats
    kernel_s: Floats
    eight: Floats  # energy of a FLOP in the run's type, in those of 16 bits


def rates(system: System, runs: Runs) -> Rates:
    clock = np.where(runs.clock_mhz > 0.0, runs.clock_mhz, system.clock_max_mhz)
    ratio = clock / system.peak_clock_mhz
    slower = memory_slowdown(system, clock)
    peak = np.full(len(runs), system.bf16_tflops)
    for dtype in ("fp32", "fp8", "fp4"):
        peak = np.where(runs.word("dtype", dtype), system.tflops(dtype), peak)
    half = np.where(narrow(runs), system.bf16_tflops, peak) * 1e12 * ratio
    return Rates(
        matrix=peak * 1e12 * ratio * system.matrix_efficiency,
        half=half * system.matrix_efficiency,
        attention=half * system.attention_efficiency * _attention(system, runs),
        bytes=system.hbm_gb_s * 1e9 * system.hbm_efficiency / slower,
        kernel_s=system.kernel_s / ratio,
        eight=system.bf16_tflops / peak,
    )


def _attention(system: System, runs: Runs) -> Floats:
    """Rate of the run's kernel over that of the kernel that the system's number stands for."""
    ratio = np.ones(len(runs))
    if system.attention_kernel:
        for name, rate in ATTENTION_RATES.items():
            relative = rate / ATTENTION_RATES[system.attention_kernel]
            ratio = np.where(runs.word("attention", name), relative, ratio)
    return ratio


def cost_of(system: System, rates: Rates, work: Work, runs: Runs) -> Cost:
    """Cost of one phase without collectives."""
    cost = Cost.none(len(runs))
    read = np.where(narrow(runs), 1.0, HALF)
    for product in work.products:
        padded = padded_flops(product, system.processors)
        rate = rates.matrix if product.eight_bit else rates.half
        weight = rates.eight if product.eight_bit else np.maximum(rates.eight, 1.0)
        # Of what is kept of the weights, two bits each say where it stood.
        marks = np.where(np.asarray(product.kept) < 1.0, 1.0 + SPARSE_BITS / (BITS * HALF), 1.0)
        moved = product.m * product.k + product.k * product.n * product.kept * marks
        moved = moved * (read if product.eight_bit else HALF)
        moved = (moved + product.written * product.m * product.n) * product.count
        compute = padded / rate * product.kept
        if system.tile_ends and product.eight_bit:  # of a linear layer
            ends = system.tile_ends * HALF / read
            long = 1.0 + ends / LONG
            compute = compute * (1.0 + ends / np.maximum(product.k, 1.0)) / long
        if not product.grouped:  # whose rows are a mean, and padded by their kernels
            odd = (product.n % ALIGNED > 0) | (product.k % ALIGNED > 0) | (product.m % ALIGNED > 0)
            compute = compute / np.where(odd, MISALIGNED, 1.0)
        memory = moved / rates.bytes
        if product.grouped:
            both = np.hypot(compute, memory)
            cost.compute += compute * compute / both
            cost.memory += memory * memory / both
        else:
            cost.compute += np.where(compute >= memory, compute, 0.0)
            cost.memory += np.where(compute >= memory, 0.0, memory)
        cost.flops += product.flops * weight
        cost.bytes += moved
    ends = 1.0 + system.attention_ends * runs.context / runs.sequence
    slower = system.attention_backward if work.gradients else 1.0
    cost.compute += work.attention_flops * ends / (rates.attention * slower)
    cost.flops += work.attention_flops
    cost.memory += work.bytes / rates.bytes
    cost.bytes += work.bytes
    cost.launch += work.kernels * rates.kernel_s
    cost.host += np.where(runs.cuda_graphs > 0, 0.0, work.kernels * system.launch_s)
    return cost


def padded_flops(product: Products, processors: int) -> Floats:
    """FLOPs with the idle processors of each product's last wave, at the best tile."""
    rows, columns, rate = TILES[:, :, np.newaxis]
    split = np.maximum(1.0, np.floor(product.k / SPLIT_K))
    tiles = np.ceil(product.m / rows) * np.ceil(product.n / columns) * product.count
    filled = np.minimum(processors, tiles * split)
    busy = tiles * processors / np.maximum(filled, 1.0)
    slots = np.where(tiles < processors, busy, np.ceil(tiles / processors) * processors)
    return np.asarray((2.0 * rows * columns * slots * product.k / rate).min(axis=0))
