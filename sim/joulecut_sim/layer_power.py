"""How long a decoder layer takes on a simulated card at a clock, and where its joules go.

Every kernel is as slow as its products, its memory traffic or its issue make it, blended
(they overlap, but not wholly), plus a gap that no clock shortens. Power is the sum of four
parts; the governor finds the clock at which the sum meets the card's limit, and the
temperature at which leakage and cooling agree. None of it is the predictors' form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np
from numpy.typing import NDArray

from joulecut_sim.layer import Dtype, Kernel, Pass, Shape, kernels
from joulecut_sim.layer_card import LayerCard

Floats = NDArray[np.float64]

GAP_S = 1.5e-6  # assumed: drain and launch between kernels of one stream, no host in the way
BLEND = 3.0  # norm in which compute, memory and issue times add (infinity: a max); fitted, A30
REACHED = 0.80  # assumed: share of the data sheet's peak that a large product reaches
STREAMED = 0.88  # assumed: share of the data sheet's bandwidth that a copy reaches
SM_BYTES_PER_CLOCK = 48.0  # assumed: 64 by design, less for misses and replays
WARM_CELSIUS = 65.0  # where `leakage_w` holds
LEAKAGE_CELSIUS = 55.0  # assumed: leakage grows by a factor e in so many degrees
LEAKAGE_VOLTS = 2.5  # assumed: exponent of leakage over relative voltage
VECTOR_PJ = 8.0  # assumed: fp32 outside the tensor units, several times one inside
# Energy of an operation relative to 16 bits: multiplier area grows with the mantissa (45 nm:
# fp16 1.5 pJ, fp32 4.6 pJ for multiply and add; Horowitz), tf32 has fp16's mantissa.
WEIGHT: dict[Dtype, float] = {"fp32": 3.1, "tf32": 1.7, "fp16": 1.0, "bf16": 0.95, "fp8": 0.55}
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
        self._busy = card.busy.get(layer.model, 1.0)
        self._reached = card.reached.get(layer.model, REACHED)
        self._flops = np.array([kernel.flops for kernel in launched])
        self._vector = np.array([kernel.vector_flops for kernel in launched])
        reread = card.reread.get(layer.model, 1.0)
        self._bytes = reread * np.array([kernel.bytes for kernel in launched])
        # The last wave of tiles leaves SMs idle: a layer too small for the card wastes most.
        tiles = np.array([kernel.tiles for kernel in launched], dtype=float)
        self._filled = tiles / (np.ceil(tiles / card.sms) * card.sms)

    def _kernel_times(self, clock_mhz: float) -> tuple[Floats, Floats]:
        """Seconds of each kernel, and the share of it in which the SMs compute."""
        card = self.card
        speed = clock_mhz / card.sku.clock_max_mhz
        peak = card.peak_tflops[self.dtype] * 1e12 * self._reached * speed
        vector_peak = card.peak_tflops["fp32"] * 1e12 * REACHED * speed
        compute = (self._flops / peak + self._vector / vector_peak) / self._filled
        memory = self._bytes / (card.bandwidth_gb_s * 1e9 * STREAMED)
        issue = self._bytes / (SM_BYTES_PER_CLOCK * card.sms * clock_mhz * 1e6)
        blend = (compute**BLEND + memory**BLEND + issue**BLEND) ** (1.0 / BLEND)
        return blend + GAP_S, compute / (blend + GAP_S)

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
        useful_pj = self._flops * card.tensor_pj * WEIGHT[self.dtype] + self._vector * VECTOR_PJ
        awake = TREE_IDLE + (1.0 - TREE_IDLE) * float((computing * times).sum()) / time_s
        return _Warm(
            time_s,
            Parts(
                switching_w=self._busy * volts**2 * float(useful_pj.sum()) * 1e-12 / time_s,
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
