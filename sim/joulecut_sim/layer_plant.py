"""A decoder layer on a simulated card: time, power by cause and the clock under the power limit.

A kernel's time blends those of its products, memory traffic and instruction issue, which overlap
in part, plus a gap that no clock shortens. Power is the sum of four causes; a governor finds the
clock at which it meets the card's limit, and the temperature at which leakage and cooling agree.
The form differs on purpose from the predictors': the voltage bends smoothly and leakage follows
temperature. Peaks, SMs and bandwidths are those of the data sheets (dense). The watts of all cards
but the A30 are assumed, such that a large layer in 16 bits meets the card's limit at about the
clock where measured training stages do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log1p

import numpy as np
from numpy.typing import NDArray

from joulecut_sim.layer import Dtype, Kernel, Pass, Shape, kernels
from joulecut_sim.skus import A30, A40, A100_SXM, B200, H100_SXM, H200, V100_PCIE, Sku, find

BEND_MHZ = 60.0  # assumed: how gradually the voltage leaves its floor, a few clock steps


@dataclass(frozen=True, slots=True)
class LayerCard:
    """What the data sheet does not say of a card; powers in watts at the voltage's floor.

    `tensor_pj` is the energy of one floating-point operation of a matrix product in 16 bits,
    `tree_w_per_ghz` what the clock tree and instruction issue take with every SM at work,
    `leakage_w` at 65 degrees, `uncore_w` what runs whatever the SM clock (memory controllers,
    links, regulators), `memory_pj` the energy of one byte moved. `reached` is the share of the peak
    that a large product reaches, `reread` the traffic of elementwise kernels over the least there
    can be (libraries that do not fuse them), `gap_s` the drain and launch between two kernels of a
    stream, `sm_bytes_per_clock` what one SM moves (64 by design, less for misses and replays), and
    `blend` the norm in which compute, memory and issue times add (infinity: a max).
    """

    sku: Sku
    knee_mhz: float
    volt_slope: float  # of the relative voltage, per GHz above the knee
    tensor_pj: float
    tree_w_per_ghz: float
    leakage_w: float
    uncore_w: float
    memory_pj: float = 60.0  # HBM2 with its interface, about 7 pJ per bit; assumed elsewhere
    reached: float = 0.80  # assumed, as all below, but for the A30
    reread: float = 1.0
    gap_s: float = 1.5e-6
    sm_bytes_per_clock: float = 48.0
    blend: float = 3.0

    def voltage(self, clock_mhz: float) -> float:
        """Relative to its floor; smooth, so without the corner that predictors assume."""
        over = (clock_mhz - self.knee_mhz) / BEND_MHZ
        soft = over if over > 40.0 else log1p(exp(over))  # beyond it they are the same float
        return 1.0 + self.volt_slope * soft * BEND_MHZ / 1000.0

    @property
    def sms(self) -> int:
        return self.sku.sheet.processors

    @property
    def bandwidth_gb_s(self) -> float:
        return self.sku.sheet.memory_gb_s

    @property
    def memory_gib(self) -> float:
        return self.sku.sheet.memory_gb

    @property
    def peak_tflops(self) -> Mapping[Dtype, float]:
        """Dense, at the highest clock. Tensor units before Ampere know 16 bits as fp16 alone."""
        facts = self.sku.sheet
        peaks: dict[Dtype, float] = {"fp32": facts.fp32_tflops, "tf32": facts.tf32_tflops}
        peaks |= {"fp16": facts.bf16_tflops, "bf16": facts.bf16_tflops, "fp8": facts.fp8_tflops}
        if not facts.tf32_tflops:
            del peaks["bf16"]
        return {dtype: peak for dtype, peak in peaks.items() if peak}

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        return tuple(self.peak_tflops)


# Fitted to five rows of a study on an A30 (fastest Pareto point against the point of least energy:
# energy saved, time lost in per cent), least to the largest error: GPT-125M s=512 30.8 / 23.9, 1.3B
# s=128 24.5 / 27.4, 1.3B s=512 20.5 / 14.8, 13B s=1024 11.8 / 11.3, 175B s=128 13.5 / 11.3. Batch
# and type are not given there; taken as a forward and backward of one sequence in fp16. Twelve
# numbers, the same for all layers, for ten figures: what they explain are the rows they have not
# seen, 125M s=1024, 13B s=512 and 175B s=512, which they meet within 5 points; 175B s=1024 (19.9 /
# 30.7) they do not.
A30_FITTED = (
    ("gpt-125m", 512), ("gpt-1.3b", 128), ("gpt-1.3b", 512), ("gpt-13b", 1024), ("gpt-175b", 128),
)  # fmt: skip
A30_BATCH = 1
# Card, knee in MHz, slope, pJ of a tensor operation, W/GHz of the tree, W of leakage and uncore.
LAYER_CARDS: dict[str, LayerCard] = {
    card.sku.name: card
    for card in (
        LayerCard(A100_SXM, 1100.0, 0.76, 0.5, 62.0, 30.0, 55.0),
        LayerCard(A40, 1130.0, 0.55, 0.5, 60.0, 22.0, 48.0, memory_pj=110.0),  # GDDR6
        LayerCard(V100_PCIE, 1000.0, 0.8, 0.7, 48.0, 20.0, 35.0),
        LayerCard(
            A30, 1128.0, 1.1, 1.341, 9.17, 8.85, 35.3, memory_pj=21.8, reached=0.554, reread=3.0,
            sm_bytes_per_clock=27.1, gap_s=0.55e-6, blend=1.76,
        ),
        LayerCard(H100_SXM, 1000.0, 0.5, 0.27, 78.0, 38.0, 80.0, memory_pj=45.0),
        LayerCard(H200, 1000.0, 0.45, 0.27, 80.0, 38.0, 88.0, memory_pj=42.0),
        LayerCard(B200, 1000.0, 0.45, 0.2, 110.0, 70.0, 150.0, memory_pj=38.0),
    )
}  # fmt: skip


def layer_card(name: str, where: str) -> LayerCard:
    """The card of that name. Raises BadInput, which names the choice."""
    return LAYER_CARDS[find(name, where, {n: card.sku for n, card in LAYER_CARDS.items()}).name]


Floats = NDArray[np.float64]

REACHED = 0.80  # assumed: share of the data sheet's peak that a large product reaches
STREAMED = 0.88  # assumed: share of the data sheet's bandwidth that a copy reaches
WARM_CELSIUS = 65.0  # where `leakage_w` holds
LEAKAGE_CELSIUS = 55.0  # assumed: leakage grows by a factor e in so many degrees
LEAKAGE_VOLTS = 2.5  # assumed: exponent of leakage over relative voltage
# Assumed, of one fp32 operation outside the tensor units, matrix products included: an instruction
# is fetched and its operands read for every multiply-add. 30 pJ of that and 4.6 of arithmetic at
# 45 nm (Horowitz; Dally) are 6 to 7 pJ an operation at 7 nm.
VECTOR_PJ = 8.0
# Energy of an operation of the tensor units relative to 16 bits: area grows with the mantissa, and
# tf32 has fp16's with twice the bytes of operands.
WEIGHT: dict[Dtype, float] = {"tf32": 1.7, "fp16": 1.0, "bf16": 0.95, "fp8": 0.55}
TREE_IDLE = 0.45  # assumed: share of the clock tree that stays awake in memory-bound kernels
# Assumed: a request far above what the limit allows makes the governor hunt, which costs a
# little of the mean clock; so the fastest clock is not the highest one.
HUNTING = 0.035
GOVERNOR_STEPS = 24  # bisections: the clock to 1e-4 MHz
KEPT_MAX = 4096  # operating points remembered
SETTLING = 8  # leakage follows a tenth of what the heat does: 1e-6 degrees after so many


@dataclass(frozen=True, slots=True)
class Parts:
    """Watts by cause; they sum up to the board's power."""

    switching_w: float  # operations that the layer is there for
    clock_w: float  # clock tree, instruction issue and other overhead
    leakage_w: float
    memory_w: float  # memory traffic and all that the SM clock does not reach

    @property
    def power_w(self) -> float:
        return self.switching_w + self.clock_w + self.leakage_w + self.memory_w


@dataclass(frozen=True, slots=True)
class Operating:
    """A layer at work: the clock it really runs at, seconds per pass, watts by cause."""

    clock_mhz: float
    time_s: float
    parts: Parts
    temperature_celsius: float
    capped: bool

    @property
    def energy_j(self) -> float:
        return self.time_s * self.parts.power_w


class LayerPlant:
    """One layer on one card in one data type."""

    def __init__(self, card: LayerCard, layer: Shape, dtype: Dtype, which: Pass) -> None:
        launched: Sequence[Kernel] = kernels(layer, dtype, which)
        self.card = card
        self.dtype = dtype
        self._kept: dict[float, _Warm] = {}
        self._flops = np.array([kernel.flops for kernel in launched])
        self._vector = np.array([kernel.vector_flops for kernel in launched])
        self._bytes = np.array([
            kernel.bytes * (1.0 if kernel.flops else card.reread) for kernel in launched
        ])  # fmt: skip
        # A layer too small for the card leaves most SMs idle.
        self._filled = np.array([kernel.filled(card.sms) for kernel in launched])
        if dtype == "fp32":  # no tensor unit has it
            self._vector, self._flops = self._vector + self._flops, np.zeros_like(self._flops)

    def _kernel_times(self, clock_mhz: float) -> tuple[Floats, Floats]:
        """Seconds of each kernel, and the share of it in which the SMs compute."""
        card = self.card
        speed = clock_mhz / card.sku.clock_max_mhz
        peak = card.peak_tflops[self.dtype] * 1e12 * card.reached * speed
        vector_peak = card.peak_tflops["fp32"] * 1e12 * REACHED * speed
        compute = (self._flops / peak + self._vector / vector_peak) / self._filled
        memory = self._bytes / (card.bandwidth_gb_s * 1e9 * STREAMED)
        issue = self._bytes / (card.sm_bytes_per_clock * card.sms * clock_mhz * 1e6)
        norm = card.blend
        times = (compute**norm + memory**norm + issue**norm) ** (1.0 / norm) + card.gap_s
        return times, compute / times

    def _warm(self, clock_mhz: float) -> "_Warm":
        """Everything at a clock that does not depend on the temperature; kept, since the
        governor asks for the same clocks again and again."""
        if len(self._kept) > KEPT_MAX:
            self._kept.clear()
        if clock_mhz not in self._kept:
            self._kept[clock_mhz] = self._count(clock_mhz)
        return self._kept[clock_mhz]

    def _count(self, clock_mhz: float) -> "_Warm":
        card = self.card
        times, computing = self._kernel_times(clock_mhz)
        time_s = float(times.sum())
        volts = card.voltage(clock_mhz)
        weight = WEIGHT.get(self.dtype, 0.0)
        useful_pj = self._flops * card.tensor_pj * weight + self._vector * VECTOR_PJ
        awake = TREE_IDLE + (1.0 - TREE_IDLE) * float((computing * times).sum()) / time_s
        return _Warm(
            time_s,
            Parts(
                switching_w=volts**2 * float(useful_pj.sum()) * 1e-12 / time_s,
                clock_w=card.tree_w_per_ghz * awake * volts**2 * clock_mhz / 1000.0,
                leakage_w=card.leakage_w * volts**LEAKAGE_VOLTS,
                memory_w=card.uncore_w + float(self._bytes.sum()) * card.memory_pj * 1e-12 / time_s,
            ),
        )

    def at(self, asked_mhz: float, celsius: float | None = None) -> Operating:
        """The layer with its clock locked at `asked_mhz`; once warm, or at a temperature."""
        limit_w = self.card.sku.power_limit_w
        settled = self._settled(asked_mhz, celsius, capped=False)
        if settled.parts.power_w <= limit_w:
            return settled
        low, high = float(self.card.sku.clock_min_mhz), asked_mhz
        for _ in range(GOVERNOR_STEPS):
            middle = (low + high) / 2.0
            over = self._settled(middle, celsius, capped=False).parts.power_w > limit_w
            low, high = (low, middle) if over else (middle, high)
        above = (asked_mhz - low) / self.card.sku.clock_max_mhz
        return self._settled(low * (1.0 - HUNTING * above), celsius, capped=True)

    def _settled(self, clock_mhz: float, celsius: float | None, *, capped: bool) -> Operating:
        sku, warm = self.card.sku, self._warm(clock_mhz)
        parts = _at(warm.parts, WARM_CELSIUS if celsius is None else celsius)
        if celsius is not None:
            return Operating(clock_mhz, warm.time_s, parts, celsius, capped)
        for _ in range(SETTLING):
            reached = sku.ambient_celsius + sku.heating_celsius_per_w * parts.power_w
            parts = _at(warm.parts, reached)
        return Operating(clock_mhz, warm.time_s, parts, reached, capped)


@dataclass(frozen=True, slots=True)
class _Warm:
    time_s: float
    parts: Parts  # at WARM_CELSIUS


def _at(warm: Parts, celsius: float) -> Parts:
    """The same at another temperature: leakage alone changes."""
    leakage_w = warm.leakage_w * exp((celsius - WARM_CELSIUS) / LEAKAGE_CELSIUS)
    return replace(warm, leakage_w=leakage_w)
