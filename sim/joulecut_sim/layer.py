"""The kernels of one decoder layer: operations, bytes and tiles, independent of any clock.

The plant's own count, from the shapes of a GPT layer (attention and a four times wider MLP):
the predictors have a count of their own, so an error of either shows as a residual.
"""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Pass = Literal["forward", "training"]
DTYPES: tuple[Dtype, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8")
PASSES: tuple[Pass, ...] = ("forward", "training")
# Bytes of one value in memory. tf32 is fp32 in memory; around fp8 products everything else
# stays 16 bits wide, as mixed-precision recipes keep it.
WIDTH_BYTES: dict[Dtype, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
OPERAND_BYTES: dict[Dtype, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
# How often an elementwise kernel goes over its values: read and written, a norm twice read.
NORM_PASSES, ADD_PASSES, GELU_PASSES, SOFTMAX_PASSES = 3, 3, 2, 3


@dataclass(frozen=True, slots=True)
class Shape:
    """One decoder layer. `d_model`, `heads` and `d_ffn` as in the GPT-3 paper (2005.14165,
    table 2.1); `sequence` tokens in each of `batch` sequences."""

    model: str
    d_model: int
    heads: int
    d_ffn: int
    sequence: int
    batch: int = 1

    @property
    def tokens(self) -> int:
        return self.sequence * self.batch


# GPT-3 paper, table 2.1: Small, Medium, XL, 13B, 175B. Its XL has 24 heads of 128, which is
# more than d_model = 2048 holds; 16 heads, as its readers build it.
SIZES: dict[str, tuple[int, int]] = {
    "gpt-125m": (768, 12),
    "gpt-350m": (1024, 16),
    "gpt-1.3b": (2048, 16),
    "gpt-13b": (5120, 40),
    "gpt-175b": (12288, 96),
}
SEQUENCES = (128, 512, 1024)


def shape(model: str, sequence: int, batch: int) -> Shape:
    """The layer of a named model. Raises KeyError for a name not in `SIZES`."""
    d_model, heads = SIZES[model]
    return Shape(model, d_model, heads, 4 * d_model, sequence, batch)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: `flops` of a matrix product (0: none), `vector_flops` of all else, `bytes` to
    and from memory. `tiles` are the ways to cut its output over SMs: how many, and the time of one
    over that of the whole output on one SM."""

    flops: float
    vector_flops: float
    bytes: float
    tiles: tuple[tuple[int, float], ...]

    def filled(self, sms: int) -> float:
        """Share of the SMs' time that makes output: the last round of tiles leaves some idle, and
        libraries take the cut that ends first."""
        return 1.0 / min(-(-count // sms) * sms * each for count, each in self.tiles)


# Tiles of output: rows, columns, and the time of a result over that of the largest tile, which
# reads each operand least often. CUTLASS reaches 0.95, 0.80 and 0.60 of its best rate with them.
TILES = ((128, 128, 1.0), (128, 64, 0.95 / 0.80), (64, 128, 0.95 / 0.80), (64, 64, 0.95 / 0.60))
BLOCK = 1024  # values of a block of an elementwise kernel: 128 threads of 8


def kernels(layer: Shape, dtype: Dtype, which: Pass) -> tuple[Kernel, ...]:
    """The launches of one forward, or of one forward and backward.

    The backward does each matrix product twice (gradients of input and weights) and each
    elementwise kernel once more.
    """
    products = _products(layer, dtype)
    elements = _elementwise(layer, dtype)
    forward = (*products, *elements)
    return forward if which == "forward" else (*forward, *products, *products, *elements)


def flops(layer: Shape, which: Pass) -> float:
    """Floating-point operations of the matrix products, the useful work of a layer."""
    forward = sum(kernel.flops for kernel in _products(layer, "fp16"))
    return forward * (3.0 if which == "training" else 1.0)


def memory_bytes(layer: Shape, dtype: Dtype, which: Pass) -> float:
    """What the layer keeps on the card: weights, gradients, and activations as counted by
    Korthikanti et al. (2205.05198): s*b*h * (34 + 5*a*s/h) bytes at 16 bits."""
    wide = WIDTH_BYTES[dtype]
    weights = 4.0 * layer.d_model**2 + 2.0 * layer.d_model * layer.d_ffn
    per_token = 34.0 * layer.d_model + 5.0 * layer.heads * layer.sequence
    activations = layer.tokens * per_token * wide / 2.0
    return weights * wide * (2.0 if which == "training" else 1.0) + activations


def _products(layer: Shape, dtype: Dtype) -> tuple[Kernel, ...]:
    tokens, d, ffn = layer.tokens, layer.d_model, layer.d_ffn
    per_head = d // layer.heads
    return (
        _product(tokens, 3 * d, d, dtype),
        _product(layer.sequence, layer.sequence, per_head, dtype, layer.batch * layer.heads),
        _product(layer.sequence, per_head, layer.sequence, dtype, layer.batch * layer.heads),
        _product(tokens, d, d, dtype),
        _product(tokens, ffn, d, dtype),
        _product(tokens, d, ffn, dtype),
    )


def _product(rows: int, columns: int, inner: int, dtype: Dtype, copies: int = 1) -> Kernel:
    operands = (rows * inner + inner * columns) * OPERAND_BYTES[dtype]
    return Kernel(
        flops=2.0 * rows * columns * inner * copies,
        vector_flops=0.0,
        bytes=float(copies * (operands + rows * columns * WIDTH_BYTES[dtype])),
        tiles=tuple(
            (copies * -(-rows // high) * -(-columns // wide),
             high * wide * dearer / (copies * rows * columns))
            for high, wide, dearer in TILES
        ),
    )  # fmt: skip


def _elementwise(layer: Shape, dtype: Dtype) -> tuple[Kernel, ...]:
    wide, hidden = WIDTH_BYTES[dtype], layer.tokens * layer.d_model
    scores = layer.batch * layer.heads * layer.sequence**2
    norm = _swept(hidden, NORM_PASSES, wide, 8.0)
    add = _swept(hidden, ADD_PASSES, wide, 1.0)
    gelu = _swept(layer.tokens * layer.d_ffn, GELU_PASSES, wide, 12.0)
    softmax = _swept(scores, SOFTMAX_PASSES, wide, 10.0)
    return (norm, softmax, add, norm, gelu, add)


def _swept(values: int, passes: int, wide: int, flops_each: float) -> Kernel:
    blocks = -(-values // BLOCK)
    return Kernel(
        0.0, values * flops_each, float(values * passes * wide), ((blocks, 1.0 / blocks),)
    )
