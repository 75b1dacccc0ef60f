"""Power of a card after Dennard scaling, and where its gains came from.

p = f (e_op + e_mem): voltage no longer falls with size, so a card's power is its rate f times the
energy of an operation and of the memory traffic beside it. The A100 and `technology`'s figures of
7 nm are put in for CUDA and tensor cores; what the limit leaves these figures do not explain.
"""

from dataclasses import dataclass

from joulecut_engine.model.catalogue import SYSTEMS
from joulecut_engine.model.technology import INSTRUCTIONS, LINKS, OPERATIONS

SYSTEM = SYSTEMS["a100-sxm-80gb"]
_PJ = {(one.what, one.nm): one.pj for one in OPERATIONS}
_OVERHEAD = {one.name: one.arithmetic_pj * one.overhead for one in INSTRUCTIONS}
_SHARE = {one.name: one.overhead for one in INSTRUCTIONS}
_HBM_PJ_PER_BIT = next(link.pj_per_bit for link in LINKS if link.what == "HBM2")
FLOPS_OF_HFMA = 2.0
# NVIDIA A100 data sheet: 624 TOPS of 8-bit integers, twice the rate of 16 bits.
INT8_OVER_BF16 = 2.0
HALF_TFLOPS = 78.0  # of 16 bits without tensor cores, NVIDIA A100 white paper


@dataclass(frozen=True, slots=True)
class FormatPower:
    """A format at the card's peak. pJ are of one FLOP (or integer operation): half a product and
    half a sum, what its instruction adds, and HBM at its full rate.
    """

    name: str
    tflops: float
    arithmetic_pj: float
    instruction_pj: float
    memory_pj: float

    @property
    def power_w(self) -> float:
        """f (e_op + e_mem), without idle power; T x p cancel."""
        return self.tflops * (self.arithmetic_pj + self.instruction_pj + self.memory_pj)

    @property
    def residual_w(self) -> float:
        """Not explained, of the limit; below 0 where the figures explain more than that."""
        return SYSTEM.power_cap_w - SYSTEM.idle_w - self.power_w

    @property
    def residual_pj_per_bit(self) -> float:
        """The same for each bit that HBM moves: caches, registers and wires."""
        return self.residual_w / (SYSTEM.hbm_gb_s * 8e-3)


def formats() -> tuple[FormatPower, ...]:
    """CUDA cores, where an instruction costs what HFMA's does, and tensor cores."""
    hbm_w = SYSTEM.hbm_gb_s * 8e-3 * _HBM_PJ_PER_BIT
    found = []
    for name, product, total, tflops, instruction in (
        ("fp32, CUDA cores", "fp32", "fp32", SYSTEM.fp32_tflops, "HFMA"),
        ("fp16, CUDA cores", "fp16", "fp16", HALF_TFLOPS, "HFMA"),
        ("fp16", "fp16", "fp32", SYSTEM.bf16_tflops, "HMMA"),
        ("bf16", "bf16", "fp32", SYSTEM.bf16_tflops, "HMMA"),
        ("int8", "int8", "int32", SYSTEM.bf16_tflops * INT8_OVER_BF16, "IMMA"),
    ):
        pj = (_PJ[f"{product} multiply", 7] + _PJ[f"{total} add", 7]) / 2.0
        whole = instruction == "HFMA"
        added = _OVERHEAD[instruction] / FLOPS_OF_HFMA if whole else pj * _SHARE[instruction]
        found.append(FormatPower(name, tflops, pj, added, hbm_w / tflops))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Gain:
    """One source of a decade's gain in performance: by these tables, and as published."""

    what: str
    how: str
    factor: float
    published: float


HOT_CHIPS = "Dally, Hot Chips 2023 keynote (recalled): one chip, K20X of 2012 to H100 of 2022"


def gains() -> tuple[Gain, ...]:
    """The chain; their product is the whole gain."""
    fp32, *_, int8 = formats()
    process = (_PJ["fp32 multiply", 45] + _PJ["fp32 add", 45]) / (2.0 * fp32.arithmetic_pj)
    instructions = (1.0 + _SHARE["HFMA"]) / (1.0 + _SHARE["HMMA"])
    return (
        Gain("number formats", "fp32 to int8, arithmetic at 7 nm",
             fp32.arithmetic_pj / int8.arithmetic_pj, 16.0),
        Gain("instructions", "HFMA to HMMA, whole over arithmetic", instructions, 12.5),
        Gain("process", "45 to 7 nm, fp32", process, 2.5),
        Gain("sparsity", "two of four, data sheet", 2.0, 2.0),
    )  # fmt: skip
