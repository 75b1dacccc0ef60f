"""Power of a card after Dennard scaling, and where its gains came from.

p = f (e_op + e_mem): voltage no longer falls with size, so a card's power is its rate f times the
energy of an operation and of the memory traffic beside it. The A100 and `technology`'s figures of
7 nm are put in for CUDA and tensor cores; what the limit leaves these figures do not explain.
`number_check` goes the other way: limit over rate, less the multiply, is left for the operands.
"""

from dataclasses import dataclass

from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.system import System
from joulecut_lab.model.technology import INSTRUCTIONS, LINKS, OPERATIONS

SYSTEM = SYSTEMS["a100-sxm-80gb"]
_PJ = {(one.what, one.nm): one.pj for one in OPERATIONS}
# fp32, 45 nm over 7 nm: the instructions' own energies are of 45 nm.
PROCESS = (_PJ["fp32 multiply", 45] + _PJ["fp32 add", 45]) / (
    _PJ["fp32 multiply", 7] + _PJ["fp32 add", 7]
)
_OVERHEAD = {one.name: one.arithmetic_pj * one.overhead / PROCESS for one in INSTRUCTIONS}
_SHARE = {one.name: one.overhead for one in INSTRUCTIONS}
_HBM_PJ_PER_BIT = next(link.pj_per_bit for link in LINKS if link.what == "HBM2")
# Of an instruction of the CUDA cores: FFMA multiplies and adds once, HFMA2 twice.
_FLOPS = {"fp32": 2.0, "fp16": 4.0}
OPERANDS = 3.0  # of a multiply-add: two read, one written
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
    def residual_w(self) -> float | None:
        """Not explained, of the limit less idle power; None where the parts exceed that."""
        left_w = SYSTEM.power_cap_w - SYSTEM.idle_w - self.power_w
        return left_w if left_w >= 0.0 else None

    @property
    def residual_pj_per_bit(self) -> float | None:
        """The same for each bit that HBM moves: caches, registers and wires."""
        left_w = self.residual_w
        return None if left_w is None else left_w / (SYSTEM.hbm_gb_s * 8e-3)


def formats() -> tuple[FormatPower, ...]:
    """CUDA cores, where an instruction costs what HFMA's does at 7 nm, and tensor cores."""
    hbm_w = SYSTEM.hbm_gb_s * 8e-3 * _HBM_PJ_PER_BIT
    found = []
    for name, product, total, tflops, instruction in (
        ("fp32, CUDA cores", "fp32", "fp32", SYSTEM.fp32_tflops, "HFMA"),
        ("fp16, CUDA cores", "fp16", "fp16", HALF_TFLOPS, "HFMA"),
        ("fp16", "fp16", "fp32", SYSTEM.bf16_tflops, "HMMA"),
        ("bf16", "bf16", "fp32", SYSTEM.bf16_tflops, "HMMA"),
        ("int8", "int8", "int32", SYSTEM.int8_tops, "IMMA"),
    ):
        pj = (_PJ[f"{product} multiply", 7] + _PJ[f"{total} add", 7]) / 2.0
        whole = instruction == "HFMA"
        added = _OVERHEAD[instruction] / _FLOPS[product] if whole else pj * _SHARE[instruction]
        found.append(FormatPower(name, tflops, pj, added, hbm_w / tflops))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Check:
    """A card's limit over one of its rates, beside the multiply's energy at 7 nm."""

    name: str
    tops: float
    limit_w: float
    multiply_pj: float
    bits: int  # of a number, as it is stored

    @property
    def pj(self) -> float:
        """Of one operation, everything included; W over T/s is pJ."""
        return self.limit_w / self.tops

    @property
    def residual_pj_per_bit(self) -> float | None:
        """Over the bits of three operands; None where the multiply alone exceeds `pj`."""
        left_pj = self.pj - self.multiply_pj
        return left_pj / (OPERANDS * self.bits) if left_pj >= 0.0 else None


def number_check(system: System = SYSTEM) -> tuple[Check, ...]:
    """Rates that the card has; its process may be newer than the multiply's 7 nm."""
    return tuple(
        Check(name, tops, system.power_cap_w, _PJ[f"{multiply} multiply", 7], bits)
        for name, tops, multiply, bits in (
            ("vector FP32", system.fp32_tflops, "fp32", 32),
            ("matrix TF32", system.tf32_tflops, "fp32", 32),
            ("matrix FP16", system.bf16_tflops, "fp16", 16),
            ("matrix INT8", system.int8_tops, "int8", 8),
        )
        if tops
    )


@dataclass(frozen=True, slots=True)
class Gain:
    """One source of a decade's gain in performance: by these tables, and as published."""

    what: str
    how: str
    factor: float
    published: float


def gains() -> tuple[Gain, ...]:
    """The chain; their product is the whole gain."""
    fp32, *_, int8 = formats()
    instructions = (1.0 + _SHARE["HFMA"]) / (1.0 + _SHARE["HMMA"])
    return (
        Gain("number formats", "fp32 to int8, arithmetic at 7 nm",
             fp32.arithmetic_pj / int8.arithmetic_pj, 16.0),
        Gain("instructions", "HFMA to HMMA, whole over arithmetic", instructions, 12.5),
        Gain("process", "45 to 7 nm, fp32", PROCESS, 2.5),
        Gain("sparsity", "two of four, data sheet", 2.0, 2.0),
        Gain("number formats", "fp8 to fp4, peaks of a B200",
             SYSTEMS["b200"].fp4_tflops / SYSTEMS["b200"].fp8_tflops, 2.0),
        Gain("die", "one die to two as one GPU, B200", 2.0, 2.0),
    )  # fmt: skip
