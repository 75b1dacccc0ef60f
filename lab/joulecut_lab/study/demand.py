"""What a layer asks of a card by the data sheet: the times that its own time is made of.

Counted from shape and data type alone, so it holds for layers that nobody has run. The
count is the predictors' (`predict.roofline`), not the simulator's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from joulecut_engine.estimate.card import Card, named
from joulecut_engine.estimate.roofline import (
    BYTES_HALF,
    GIGA,
    PROCESSORS,
    TERA,
    Ceiling,
    Matmul,
    terms,
)
from joulecut_lab.study.learners import clock_mhz
from joulecut_lab.study.row import Row
from joulecut_lab.study.scores import Floats
from joulecut_sim.layer import OPERAND_BYTES, WIDTH_BYTES, Dtype, Shape

BACKWARD = 2.0  # each product twice more: gradients of its input and of its weights
PROCESSORS_USUAL = 108  # of a card whose count is not known: an A100's


@dataclass(frozen=True, slots=True)
class Demand:
    """One layer's data-sheet times in seconds at the card's highest clock, and its sizes.

    `parts_s` of shape (8,): products at the roofline, the same in whole rounds of tiles,
    their arithmetic, their traffic, streamed bytes, launches; then arithmetic and traffic
    of attention. The first three and attention's arithmetic follow the clock.
    """

    parts_s: Floats
    flops: float
    bytes: float
    peak_flops_per_s: float
    card: Card


FOLLOWS = np.array([True, True, True, False, False, False, True, False])


def sheet(row: Row) -> Card | None:
    """The data sheet of the row's card; None where none is known."""
    return named(row.card)


def demand(row: Row, card: Card) -> Demand:
    return _demand(row.layer, row.dtype, row.which == "training", card)


@lru_cache(maxsize=4096)  # as many layers as any sweep has; rows repeat them at every clock
def _demand(layer: Shape, dtype: Dtype, training: bool, card: Card) -> Demand:
    peak, bandwidth = _peak_tflops(card, dtype) * TERA, card.memory_gb_s * GIGA
    wide = WIDTH_BYTES[dtype]
    # `terms` counts two bytes a number: a bandwidth in numbers of this width corrects it.
    ceiling = Ceiling(
        name=card.name,
        flops_per_s=peak,
        bytes_per_s=bandwidth * BYTES_HALF / OPERAND_BYTES[dtype],
        processors=PROCESSORS.get(card.name, PROCESSORS_USUAL),
    )
    tokens, width, inner = float(layer.tokens), float(layer.d_model), float(layer.d_ffn)
    sizes = (
        (tokens, 3.0 * width, width),
        (tokens, width, width),
        (tokens, inner, width),
        (tokens, width, inner),
    )
    products = [Matmul(*(np.array([size]) for size in three)) for three in sizes]
    scores = float(layer.batch * layer.heads) * layer.sequence**2
    # Two norms and two sums go over the width, the activation over the inner width, the
    # softmax over the scores: read and written.
    streamed = wide * (10.0 * tokens * width + 2.0 * tokens * inner + 3.0 * scores)
    parts_s = terms(products, np.zeros(1), ceiling)[0]
    attention_flops = 4.0 * scores * layer.d_model / layer.heads
    attention_s = [attention_flops / peak, 4.0 * scores * wide / bandwidth]
    products_again = 1.0 + BACKWARD if training else 1.0
    parts_s = products_again * np.concatenate([parts_s, attention_s])
    parts_s[4] = streamed / bandwidth * (2.0 if training else 1.0)
    moved = OPERAND_BYTES[dtype] * sum(float(one.bytes[0]) for one in products) / BYTES_HALF
    flops = sum(float(one.flops[0]) for one in products) + attention_flops
    return Demand(
        parts_s=parts_s,
        flops=products_again * flops,
        bytes=products_again * moved + streamed * (2.0 if training else 1.0),
        peak_flops_per_s=peak,
        card=card,
    )


def _peak_tflops(card: Card, dtype: Dtype) -> float:
    """Of matrix products; tf32 has half the 16-bit peak, fp8 twice (data sheets)."""
    factors: dict[Dtype, float] = {"tf32": 0.5, "fp8": 2.0}
    return card.single_tflops if dtype == "fp32" else card.half_tflops * factors.get(dtype, 1.0)


@dataclass(frozen=True, slots=True)
class Table:
    """Demands of many rows, as arrays over rows; `speed` is clock over the highest."""

    parts_s: Floats  # (rows, 8), at the highest clock
    flops: Floats
    bytes: Floats
    peak: Floats
    ratios: Floats  # (rows, 5): the card's, see `Card.ratios`
    limit_w: Floats
    clock_max_mhz: Floats
    asked_mhz: Floats
    tokens: Floats
    sizes: Floats  # (rows, 4): d_model, heads, d_ffn, sequence, as they are


def table(rows: Sequence[Row], cards: Sequence[Card]) -> Table:
    """`cards` are the data sheets of the rows' cards, one each."""
    found = [demand(row, card) for row, card in zip(rows, cards, strict=True)]
    return Table(
        parts_s=np.array([one.parts_s for one in found]),
        flops=np.array([one.flops for one in found]),
        bytes=np.array([one.bytes for one in found]),
        peak=np.array([one.peak_flops_per_s for one in found]),
        ratios=np.array([card.ratios() for card in cards]),
        limit_w=np.array([card.power_limit_w for card in cards]),
        clock_max_mhz=np.array([float(card.clock_max_mhz) for card in cards]),
        asked_mhz=np.array([clock_mhz(row) for row in rows]),
        tokens=np.array([float(row.layer.tokens) for row in rows]),
        sizes=np.array([(r.d_model, r.heads, r.d_ffn, r.sequence) for r in rows], dtype=np.float64),
    )
