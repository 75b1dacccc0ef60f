"""What the decoder-layer plant knows of a card's silicon, beyond its clocks and limits.

Its own form, on purpose unlike the predictors': a voltage that bends smoothly, leakage that
follows temperature, and power counted by what causes it. Peaks, SMs and bandwidths are the
data sheets' (dense). The watts of all cards but the A30 are assumed: chosen so that a large
layer in 16 bits meets the card's limit about where measured training stages do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log1p

from joulecut_sim.layer import Dtype
from joulecut_sim.skus import A30, A40, A100_SXM, B200, H100_SXM, H200, V100_PCIE, Sku, find

BEND_MHZ = 60.0  # assumed: how gradually the voltage leaves its floor, a few clock steps


@dataclass(frozen=True, slots=True)
class LayerCard:
    """`peak_tflops` at the highest clock; powers in watts at the voltage's floor.

    `tensor_pj` is the energy of one floating-point operation of a matrix product in 16 bits,
    `tree_w_per_ghz` what the clock tree and instruction issue take with every SM at work,
    `leakage_w` at 65 degrees, `uncore_w` what runs whatever the SM clock (memory controllers,
    links, regulators), `memory_pj` the energy of one byte moved. By model, relative: `busy`
    (switching per operation), `reached` (share of the peak), `reread` (memory traffic over
    the least there can be).
    """

    sku: Sku
    sms: int
    bandwidth_gb_s: float
    memory_gib: float
    peak_tflops: Mapping[Dtype, float]
    knee_mhz: float
    volt_slope: float  # of the relative voltage, per GHz above the knee
    tensor_pj: float
    tree_w_per_ghz: float
    leakage_w: float
    uncore_w: float
    memory_pj: float = 60.0  # HBM2 with its interface, about 7 pJ per bit; assumed elsewhere
    busy: Mapping[str, float] = field(default_factory=dict)
    reached: Mapping[str, float] = field(default_factory=dict)
    reread: Mapping[str, float] = field(default_factory=dict)

    def voltage(self, clock_mhz: float) -> float:
        """Relative to its floor; smooth, so without the corner that predictors assume."""
        over = (clock_mhz - self.knee_mhz) / BEND_MHZ
        soft = over if over > 40.0 else log1p(exp(over))  # beyond it they are the same float
        return 1.0 + self.volt_slope * soft * BEND_MHZ / 1000.0

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        return tuple(self.peak_tflops)


_V100 = LayerCard(
    sku=V100_PCIE,
    sms=80,
    bandwidth_gb_s=900.0,
    memory_gib=16.0,
    peak_tflops={"fp32": 14.0, "fp16": 112.0},
    knee_mhz=1000.0,
    volt_slope=0.8,
    tensor_pj=0.7,
    tree_w_per_ghz=48.0,
    leakage_w=20.0,
    uncore_w=35.0,
)
# Fitted to these four rows of a study on an A30 (fastest Pareto point against the point of
# least energy: energy saved, time lost): GPT-125M s=512 30.8 / 23.9 %, 1.3B s=512 20.5 / 14.8,
# 13B s=1024 11.8 / 11.3, 175B s=1024 19.9 / 30.7. Batch and data type are not told there;
# taken as a forward and backward of 4 sequences in fp16. Eighteen numbers for eight figures:
# the table is reproduced, not explained. They leave room on both sides: near its minimum the
# curve is flat, and noise moves the best clock by a step or two (28 seeds and grids stay within
# 3 points). The 350M's numbers lie between its neighbours'.
_A30 = LayerCard(
    sku=A30,
    sms=56,
    bandwidth_gb_s=933.0,
    memory_gib=24.0,
    peak_tflops={"fp32": 10.3, "tf32": 82.0, "fp16": 165.0, "bf16": 165.0},
    knee_mhz=1035.0,
    volt_slope=0.949,
    tensor_pj=0.47,
    tree_w_per_ghz=20.6,
    leakage_w=13.8,
    uncore_w=23.4,
    busy={"gpt-125m": 0.67, "gpt-350m": 0.92, "gpt-1.3b": 1.16, "gpt-13b": 2.04, "gpt-175b": 1.76},
    reached={
        "gpt-125m": 0.704,
        "gpt-350m": 0.81,
        "gpt-1.3b": 0.92,
        "gpt-13b": 0.92,
        "gpt-175b": 0.468,
    },
    reread={"gpt-125m": 1.73, "gpt-350m": 3.0, "gpt-1.3b": 5.2, "gpt-13b": 11.0, "gpt-175b": 1.0},
)
_A40 = LayerCard(
    sku=A40,
    sms=84,
    bandwidth_gb_s=696.0,
    memory_gib=48.0,
    peak_tflops={"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7},
    knee_mhz=1130.0,
    volt_slope=0.55,
    tensor_pj=0.5,
    tree_w_per_ghz=60.0,
    leakage_w=22.0,
    uncore_w=48.0,
    memory_pj=110.0,  # GDDR6
)
_A100 = LayerCard(
    sku=A100_SXM,
    sms=108,
    bandwidth_gb_s=2039.0,
    memory_gib=80.0,
    peak_tflops={"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0},
    knee_mhz=1100.0,
    volt_slope=0.76,
    tensor_pj=0.5,
    tree_w_per_ghz=62.0,
    leakage_w=30.0,
    uncore_w=55.0,
)
_H100 = LayerCard(
    sku=H100_SXM,
    sms=132,
    bandwidth_gb_s=3350.0,
    memory_gib=80.0,
    peak_tflops={"fp32": 66.9, "tf32": 494.0, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0},
    knee_mhz=1000.0,
    volt_slope=0.5,
    tensor_pj=0.27,
    tree_w_per_ghz=78.0,
    leakage_w=38.0,
    uncore_w=80.0,
    memory_pj=45.0,
)
_H200 = LayerCard(
    sku=H200,
    sms=132,
    bandwidth_gb_s=4800.0,
    memory_gib=141.0,
    peak_tflops={"fp32": 66.9, "tf32": 494.0, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0},
    knee_mhz=1000.0,
    volt_slope=0.45,
    tensor_pj=0.27,
    tree_w_per_ghz=80.0,
    leakage_w=38.0,
    uncore_w=88.0,
    memory_pj=42.0,
)
_B200 = LayerCard(
    sku=B200,
    sms=148,
    bandwidth_gb_s=8000.0,
    memory_gib=180.0,
    peak_tflops={"fp32": 75.0, "tf32": 1100.0, "fp16": 2250.0, "bf16": 2250.0, "fp8": 4500.0},
    knee_mhz=1000.0,
    volt_slope=0.45,
    tensor_pj=0.2,
    tree_w_per_ghz=110.0,
    leakage_w=70.0,
    uncore_w=150.0,
    memory_pj=38.0,
)
LAYER_CARDS: dict[str, LayerCard] = {
    card.sku.name: card for card in (_A100, _A40, _V100, _A30, _H100, _H200, _B200)
}


def layer_card(name: str, where: str) -> LayerCard:
    """The card of that name. Raises BadInput, which names the choice."""
    return LAYER_CARDS[find(name, where, {n: card.sku for n, card in LAYER_CARDS.items()}).name]
