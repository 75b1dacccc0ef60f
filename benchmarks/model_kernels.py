"""Measured kernels of a card, beside what the model says of the same shape.

Public numbers alone, one row each, as TFLOP/s. They decide how FLOPs and bytes of one product
combine and what its tiles' ends cost, not a card's efficiencies, which come from whole iterations
and so hold what lies between kernels as well. Casts to 8 bits, launches, and attention in a context
ring have no public table.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.cost import cost_of, rates
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.work import Products, Work

Kind = Literal["dense", "experts", "weights of experts", "attention"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`count` products of m x k by k x n, or causal attention of `m` tokens, `n` heads of `k`."""

    card: str
    kind: Kind
    dtype: str
    count: int
    m: int
    k: int
    n: int
    tflops: float
    source: str


def predicted_tflops(kernel: Kernel) -> float:
    """Of the same kernel alone at the card's highest clock."""
    system = SYSTEMS[kernel.card]
    runs = Runs.of([Run(1, dtype=kernel.dtype, cuda_graphs=True, sequence=kernel.m)])
    if kernel.kind == "attention":
        flops = np.array([2.0 * kernel.m**2 * kernel.n * kernel.k])
        work = Work(attention_flops=flops)
    else:
        m, k, n, count = (
            np.array([float(size)]) for size in (kernel.m, kernel.k, kernel.n, kernel.count)
        )
        grouped = kernel.kind != "dense"
        sums = 8.0 if kernel.kind == "weights of experts" else 2.0
        work = Work([Products(m, k, n, count, grouped=grouped, written=sums)])
    cost = cost_of(system, rates(system, runs), work, runs)
    return float(work.flops[0] / cost.seconds[0]) / 1e12


_SIMUMAX = "SimuMax docs/b200, 4dcaae51 (2025), Transformer Engine"
_DEEPGEMM = "DeepGEMM README, February 2025, H800"
_FLASH = "FlashAttention-2 in arXiv 2407.08608, figure 5, July 2024"


def _b200() -> list[Kernel]:
    found = [
        Kernel("b200", "dense", "bf16", 1, m, k, n, tflops, _SIMUMAX)
        for m, k, n, tflops in (
            (4096, 8192, 10240, 1452), (4096, 8192, 1280, 1336), (4096, 4096, 16384, 1116),
            (24640, 5120, 3072, 1186), (4096, 14336, 4096, 1024), (16384, 8192, 57344, 1085),
            (2048, 8192, 5120, 1066), (8192, 16384, 53248, 1091), (16384, 5120, 576, 628),
        )
    ]  # fmt: skip
    for count, rows, k, n, forward, weights in (
        (256, 128, 7168, 4096, 468, 174), (256, 128, 2048, 7168, 401, 180),
        (128, 256, 7168, 4096, 611, 331), (128, 256, 2048, 7168, 683, 317),
        (64, 512, 7168, 4096, 826, 493), (64, 512, 2048, 7168, 962, 483),
        (32, 1024, 7168, 4096, 1028, 650), (32, 1024, 2048, 7168, 865, 617),
        (40, 2460, 5120, 3072, 1095, 937), (40, 2460, 1536, 5120, 1116, 906),
        (40, 9832, 5120, 3072, 1068, 942), (40, 9832, 1536, 5120, 1001, 930),
    ):  # fmt: skip
        found.append(Kernel("b200", "experts", "bf16", count, rows, k, n, forward, _SIMUMAX))
        kind: Kind = "weights of experts"
        found.append(Kernel("b200", kind, "bf16", count, k, rows, n, weights, _SIMUMAX))
    return found


def _h800(kind: Kind, *shapes: tuple[int, int, int, int, float]) -> list[Kernel]:
    return [Kernel("h800-sxm", kind, "fp8", *shape, _DEEPGEMM) for shape in shapes]


def _hopper() -> list[Kernel]:
    dense = _h800(
        "dense", (1, 4096, 7168, 2112, 1058), (1, 4096, 1536, 24576, 990),
        (1, 4096, 512, 32768, 590), (1, 4096, 16384, 7168, 1358), (1, 4096, 7168, 4096, 1304),
        (1, 4096, 2048, 7168, 1025),
    )  # fmt: skip
    experts = _h800(
        "experts", (4, 8192, 7168, 4096, 1297), (4, 8192, 2048, 7168, 1099),
        (8, 4096, 7168, 4096, 1288), (8, 4096, 2048, 7168, 1093), (2, 512, 7168, 4096, 1040),
        (2, 512, 2048, 7168, 916), (4, 256, 7168, 4096, 932), (4, 256, 2048, 7168, 815),
    )  # fmt: skip
    attention = [
        Kernel("h100-sxm", "attention", "bf16", 1, tokens, 128, 16, tflops, _FLASH)
        for tokens, tflops in ((1024, 260), (2048, 298), (4096, 319), (8192, 333), (16384, 335))
    ]
    return [*dense, *experts, *attention]


KERNELS: tuple[Kernel, ...] = (*_b200(), *_hopper())
