"""Roofline of a matrix product: the seconds its arithmetic and traffic need by the data sheet.

Times of all shapes and cards, divided by these, lie within a factor of two of each other; a
forest on raw shapes is 20-40 % off on shapes it was not fitted to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from joulecut_lab.study.scoring import Floats

TERA, GIGA = 1e12, 1e9
BYTES_HALF = 2.0  # of one number in fp16 or bf16
# Kernels cut the result into tiles, one per multiprocessor at a time, and small tiles feed the
# tensor cores worse: rows, columns, and arithmetic per result relative to the largest.
TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 1.05), (128, 64, 1.2), (64, 128, 1.2),
         (64, 64, 1.5))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A card's dense arithmetic peak in fp16 or bf16, memory bandwidth, multiprocessors."""

    flops_per_s: float
    bytes_per_s: float
    processors: int


@dataclass(frozen=True, slots=True)
class Matmul:
    """[rows, depth] x [depth, columns]: one kernel."""

    rows: float
    columns: float
    depth: float

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> float:
        """Each operand and the result once: caches are assumed to do the rest."""
        rows, columns, depth = self.rows, self.columns, self.depth
        return BYTES_HALF * (rows * columns + columns * depth + rows * depth)

    def tiled_s(self, ceiling: Ceiling) -> float:
        """Arithmetic in whole rounds of tiles: the last round may leave processors idle."""
        tile_s = 2.0 * ceiling.processors / ceiling.flops_per_s  # of one result per unit depth
        return self.depth * min(
            ceil(ceil(self.rows / rows) * ceil(self.columns / columns) / ceiling.processors)
            * (rows * columns * dearer * tile_s)
            for rows, columns, dearer in TILES
        )


def terms(matmuls: Sequence[Matmul], ceiling: Ceiling) -> Floats:
    """Seconds of all products, (4,): at the roofline, the same in whole rounds of tiles, their
    arithmetic, their traffic.
    """
    arithmetic = np.array([one.flops / ceiling.flops_per_s for one in matmuls])
    memory = np.array([one.bytes / ceiling.bytes_per_s for one in matmuls])
    tiled = np.array([one.tiled_s(ceiling) for one in matmuls])
    each = (np.maximum(arithmetic, memory), np.maximum(tiled, memory), arithmetic, memory)
    return np.array([one.sum() for one in each])
