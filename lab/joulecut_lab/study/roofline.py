"""Roofline of a decoder layer: the time its arithmetic and traffic need by the data sheet.

Times of all shapes and cards, divided by these, lie within a factor of two of each other; a
forest on raw shapes is 20-40 % off on shapes it was not fitted to. So a layer's time is a sum
of data-sheet times with fitted coefficients (`layers`). Times in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_lab.study.scoring import Floats

TERA, GIGA = 1e12, 1e9
BYTES_HALF = 2.0  # of one number in fp16 or bf16
# Kernels cut the result into tiles of such sizes, one per multiprocessor at a time, and
# small tiles feed the tensor cores worse: tile rows, columns, and arithmetic per result
# relative to the largest (each operand read for a tile is used rows or columns times).
TILES = (
    (128, 256, 1.0),
    (256, 128, 1.0),
    (128, 128, 1.05),
    (128, 64, 1.2),
    (64, 128, 1.2),
    (64, 64, 1.5),
)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A card's dense arithmetic peak in fp16 or bf16, memory bandwidth, multiprocessors."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    processors: int


@dataclass(frozen=True, slots=True)
class Matmul:
    """[rows, depth] x [depth, columns], arrays of shape (n,): one kernel of n layers."""

    rows: Floats
    columns: Floats
    depth: Floats

    @property
    def flops(self) -> Floats:
        return 2.0 * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> Floats:
        """Each operand and the result once: caches are assumed to do the rest."""
        return BYTES_HALF * (
            self.rows * self.columns + self.columns * self.depth + self.rows * self.depth
        )

    def arithmetic_s(self, ceiling: Ceiling) -> Floats:
        return self.flops / ceiling.flops_per_s

    def memory_s(self, ceiling: Ceiling) -> Floats:
        return self.bytes / ceiling.bytes_per_s

    def tiled_s(self, ceiling: Ceiling) -> Floats:
        """Arithmetic in whole rounds of tiles: the last round may leave processors idle."""
        tile_s = 2.0 * ceiling.processors / ceiling.flops_per_s  # of one result per unit depth
        each = []
        for rows, columns, dearer in TILES:
            tiles = np.ceil(self.rows / rows) * np.ceil(self.columns / columns)
            rounds = np.ceil(tiles / ceiling.processors)
            each.append(rounds * (rows * columns * dearer * tile_s))
        return np.asarray(np.min(each, axis=0) * self.depth)


def terms(matmuls: Sequence[Matmul], streamed_bytes: Floats, ceiling: Ceiling) -> Floats:
    """Seconds that may make up a layer's time, of shape (n, 6).

    Matrix products at the roofline; the same with whole rounds of tiles; all arithmetic;
    all traffic of the products; what is only streamed (norms, activations, residuals); one
    microsecond, of which the coefficient counts the launches.
    """
    arithmetic = [one.arithmetic_s(ceiling) for one in matmuls]
    memory = [one.memory_s(ceiling) for one in matmuls]
    tiled = [one.tiled_s(ceiling) for one in matmuls]
    columns = (
        sum(np.maximum(a, m) for a, m in zip(arithmetic, memory, strict=True)),
        sum(np.maximum(t, m) for t, m in zip(tiled, memory, strict=True)),
        sum(arithmetic),
        sum(memory),
        streamed_bytes / ceiling.bytes_per_s,
        np.full_like(streamed_bytes, 1e-6),
    )
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
