"""Kernels of a recorded step, by class.

A class groups kernels that react to a clock alike: matrix products follow the SM clock, pointwise
kernels the memory, collectives the network. The arguments of an event come first: they name a
collective. Then the rules below read names of cuBLAS, CUTLASS, cuDNN, Tensile, Composable Kernel,
MIOpen, NCCL and RCCL, Triton and PyTorch; what none knows is what its operator says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

KernelClass = Literal[
    "matmul",
    "attention",
    "convolution",
    "normalisation",
    "softmax-loss",
    "embedding",
    "reduction",
    "pointwise",
    "optimizer",
    "copy",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "send-recv",
    "other",
]
CLASSES: tuple[KernelClass, ...] = get_args(KernelClass)
NETWORK: tuple[KernelClass, ...] = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv",
)  # fmt: skip
COMPUTE: tuple[KernelClass, ...] = ("matmul", "attention", "convolution")

_WHOLE = r"^(?!triton_(?:red|per)).*"  # Inductor names what a kernel is fused with
# First match wins: an attention kernel also names its GEMM tiles, an optimizer is pointwise.
_RULES: tuple[tuple[KernelClass, str], ...] = (
    ("pointwise", r"^triton_poi"),
    ("all-reduce", rf"{_WHOLE}all_?reduce|cross_device_reduce|ar_fusion|msccl"),
    ("reduce-scatter", r"(nccl|multimem|shot).*reduce_?scatter|userbuffers.*_rs(\b|_)"),
    ("all-gather", r"(nccl|multimem).*all_?gather|userbuffers.*_ag\b"),
    ("all-to-all", rf"{_WHOLE}all_?to_?all|deep_ep.*(dispatch|combine|notify)"),
    ("broadcast", r"nccl.*(broadcast|_reduce_)|nccl(dev)?kernel_reduce\b"),
    ("send-recv", r"nccl.*(send|recv)|userbuffers|nvshmemi?_.*(put|get|transfer)"),
    ("copy", r"memcpy|memset"),
    ("attention", r"flash(?!infer)|fmha|attention|mha_|attn_(fwd|bwd)|sdpa|\bmla_|_mla_"),
    ("attention", r"batch(prefill|decode)with|softmax_gemm|bwd_kernel_d[kqv]|linear_attn"),
    ("attention", r"gated_delta|selective_scan|mamba|ssd_|chunk_\w*(fwd|bwd)|recompute_w_u"),
    ("optimizer", r"multi_tensor|adam|lamb_|sgd|foreach"),
    ("softmax-loss", r"softmax|cross_?entropy|nll_loss"),
    ("normalisation", r"layer_?norm|rms_?norm|batch_?norm|group_?norm|ln_(fwd|bwd)|bn_(fw|bw)"),
    ("convolution", r"conv(olve|olution|\dd|_kernel)|implicit_conv|winograd|s\d*cudnn|cask_cudnn"),
    ("convolution", r"[dw]grad_alg|asmconv|naive_conv|igemm_(fwd|bwd|wrw)"),
    ("convolution", r"gridwiseconv|devicegroupedconv"),
    ("matmul", r"gemm|nvjet|cutlass|cublas|xmma|gemv|matmul|_mm_|wgmma|splitk|cijk_|tensile"),
    ("matmul", r"triton_mm|triton_tem_fused_(mm|addmm|bmm)|(?:scaled|grouped)_mm|fused_moe"),
    ("matmul", r"(?<!fused_)bmm"),
    ("pointwise", r"rotary|rope"),
    ("embedding", r"embedding|index_?select|gather|scatter|indexing|index_elementwise"),
    ("reduction", r"reduce|triton_(red|per)|norm_kernel"),
    ("pointwise", r"elementwise|vectorized|triton_|catarray|fill|gelu|silu|swiglu|rotary|dropout"),
    ("reduction", r"topk|radix_?sort|cumsum|routing|moe_align"),
    ("pointwise", r"transpose|permute|copy_kernel|cast|quant|pool|nchw|nhwc"),
)  # fmt: skip
# Operators of PyTorch, for a kernel whose own name says nothing.
_OPERATOR_RULES: tuple[tuple[KernelClass, str], ...] = (
    ("attention", r"flash_attention|scaled_dot_product|efficient_attention"),
    ("convolution", r"aten::.*conv"),
    ("matmul", r"aten::(mm|bmm|addmm|baddbmm|linear|matmul|_scaled_mm|_grouped_mm)$"),
    ("embedding", r"aten::embedding"),
    ("normalisation", r"aten::.*_norm"),
    ("softmax-loss", r"aten::.*(softmax|nll_loss|cross_entropy)"),
    ("copy", r"aten::(copy_|_to_copy)$"),
    ("pointwise", r"aten::(add|mul|sub|div|gelu|silu|relu|neg|exp|pow|cat|where|fill)_?$"),
    ("reduction", r"aten::(sum|mean|max|min|norm)$"),
)  # fmt: skip
# Names of collectives in an event's arguments, without other letters.
_COLLECTIVE_RULES: tuple[tuple[KernelClass, str], ...] = (
    ("all-reduce", r"allreduce|barrier"),
    ("reduce-scatter", r"reducescatter"),
    ("all-gather", r"allgather"),
    ("all-to-all", r"alltoall"),
    ("send-recv", r"send|recv|p2p"),
    ("broadcast", r"broadcast|reduce|gather|scatter"),
)


def _compiled(
    rules: tuple[tuple[KernelClass, str], ...],
) -> tuple[tuple[KernelClass, re.Pattern[str]], ...]:
    return tuple((found, re.compile(pattern)) for found, pattern in rules)


_COMPILED, _OPERATORS = _compiled(_RULES), _compiled(_OPERATOR_RULES)
_COLLECTIVES = _compiled(_COLLECTIVE_RULES)


@dataclass(frozen=True, slots=True)
class Collective:
    """What a communication kernel moves: bytes of one rank, and the ranks of its group."""

    size_bytes: int
    group: str = ""  # equal on all members
    ranks: int = 0  # 0: not recorded


@dataclass(frozen=True, slots=True)
class Kernel:
    """One interval of a stream. `launch_s` is the host's call; None where it is not recorded.

    `waits_for` are earlier places in the same recording that end before it may start, beside the
    kernel before it on its stream.
    """

    name: str
    kind: KernelClass
    device: int
    stream: int
    start_s: float
    duration_s: float
    launch_s: float | None = None
    waits_for: tuple[int, ...] = ()
    collective: Collective | None = None
    dims: tuple[tuple[int, ...], ...] = ()  # of the operator's inputs
    dtype: str = ""

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Recording:
    """One rank's kernels in start order."""

    source: str
    rank: int
    kernels: tuple[Kernel, ...]
    steps: int = 1
    timed: bool = True  # False: durations of a synthetic trace are unknown
    dropped: int = 0  # kernels without a time stamp
    resolution_s: float = 0.0  # of its time stamps

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return max(k.end_s for k in self.kernels) - min(k.start_s for k in self.kernels)


def class_of(name: str, collective: str = "", operator: str = "") -> KernelClass:
    """By the collective that the event's arguments name, by the first rule that matches the
    kernel's name, or by its operator; `other` where none does.
    """
    words, lower = re.sub(r"[^a-z0-9]", "", collective.lower()), name.lower()
    for given, rules in ((words, _COLLECTIVES), (lower, _COMPILED), (operator, _OPERATORS)):
        if given and (found := next((kind for kind, rule in rules if rule.search(given)), None)):
            return found
    return "other"


def shapes(given: object) -> tuple[tuple[int, ...], ...]:
    """Those of an operator's inputs as a trace lists them; what is no shape is left out."""
    listed = given if isinstance(given, list) else []
    lists = [one for one in listed if isinstance(one, list)]
    return tuple(tuple(one) for one in lists if all(isinstance(n, int) for n in one))


def stamped(times: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the kernels that have a time, of starts and durations: a start of zero in a trace
    that begins elsewhere is none.
    """
    starts = [start for start, _ in times if start]
    apart = bool(starts) and min(starts) > max(starts) - min(starts)
    whole = not starts
    return [i for i, (start, time) in enumerate(times) if whole or start or (time and not apart)]


def matmul_flops(dims: Sequence[Sequence[int]]) -> int:
    """2 m n k of a product of two matrices or batches; 0 where the shapes are no product.

    aten::addmm has the bias first; aten::linear has its weight transposed.
    """
    matrices = [tuple(shape) for shape in dims if len(shape) >= 2]
    if len(matrices) < 2:
        return 0
    left, right = matrices[-2], matrices[-1]
    rows = 1
    for extent in left[:-1]:
        rows *= extent
    inner = left[-1]
    if right[-2] == inner:
        return 2 * rows * inner * right[-1]
    return 2 * rows * inner * right[-2] if right[-1] == inner else 0
