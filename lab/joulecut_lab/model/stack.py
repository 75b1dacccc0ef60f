"""What training stacks ship switched on: defaults of a run's keys, each with its source.

A key that the run gives itself is never replaced. Without a stack every key keeps the plain
default, which is off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from joulecut_lab.model.system import System

Stack = Literal["megatron", "megatron-bridge", "torchtitan", "deepspeed", "fsdp", "plain"]
STACKS: tuple[Stack, ...] = get_args(Stack)
Condition = Literal["", "tensor", "cudnn", "no cudnn", "tiles", "no tiles"]


@dataclass(frozen=True, slots=True)
class Default:
    """`when`: with a tensor group; on cards where kernels of attention differ (Hopper on) or not;
    on cards that scale tiles in hardware (MXFP8, Blackwell) or not.
    """

    key: str
    value: Any
    source: str
    when: Condition = ""


_TE = "Transformer Engine takes cuDNN's attention on Hopper and Blackwell"
_FA2 = "FlashAttention-2 through PyTorch's or Hugging Face's scaled_dot_product_attention"
_MCORE = "Megatron-Core's example scripts: --use-distributed-optimizer --overlap-grad-reduce"
_BRIDGE = "recipes of Megatron-Bridge and NeMo: distributed optimizer, overlap of both"

DEFAULTS: dict[Stack, tuple[Default, ...]] = {
    "plain": (),
    "megatron": (
        Default("flash_attention", True, "Transformer Engine's fused attention"),
        Default("attention", "cudnn", _TE, "cudnn"),
        Default("zero", 1, _MCORE),
        Default("overlap_gradients", True, _MCORE),
        Default("sequence_parallel", True, "example scripts: --sequence-parallel", "tensor"),
        Default("gradient_bytes", 4, "--accumulate-allreduce-grads-in-fp32, on with bf16"),
        Default("scaling", "delayed", "--fp8-recipe delayed"),
    ),
    "megatron-bridge": (
        Default("flash_attention", True, "Transformer Engine's fused attention"),
        Default("attention", "cudnn", _TE, "cudnn"),
        Default("zero", 1, _BRIDGE),
        Default("overlap_gradients", True, _BRIDGE),
        Default("sequence_parallel", True, "recipes: on with tensor groups", "tensor"),
        Default("overlap_tensor", True, "recipes: tp_comm_overlap", "tensor"),
        Default("fused_loss", True, "recipes: cross_entropy_loss_fusion of Transformer Engine"),
        Default("gradient_bytes", 4, "main gradients of 32 bits"),
        Default("reduce_bytes", 2, "recipes: grad_reduce_in_fp32 false"),
        Default("scaling", "dynamic", "recipes for Hopper: current scaling", "no tiles"),
        Default("scaling", "delayed", "recipes for Blackwell: MXFP8, scaled by tiles", "tiles"),
        Default("dispatch_once", True, "recipes with experts: DeepEP or HybridEP"),
        Default("overlap_expert", True, "recipes: overlap_moe_expert_parallel_comm"),
        Default("cuda_graphs", True, "recipes for experts and Blackwell: CUDA graphs"),
    ),
    "torchtitan": (
        Default("flash_attention", True, _FA2),
        Default("attention", "flash2", _FA2, "cudnn"),
        Default("zero", 3, "FSDP2 over the data-parallel group"),
        Default("overlap_gradients", True, "FSDP2 prefetches and reduces beside work"),
        Default("sequence_parallel", True, "its tensor plan shards norms as well", "tensor"),
        Default("fused_loss", True, "compile: the loss is fused"),
        Default("context_exchange", "gathered", "rotate method allgather, compiled"),
        Default("gradient_bytes", 4, "reduce_dtype float32"),
        Default("scaling", "dynamic", "float8 with tensorwise dynamic scales"),
    ),
    "deepspeed": (
        Default("flash_attention", True, _FA2),
        Default("attention", "flash2", _FA2, "cudnn"),
        Default("overlap_gradients", True, "zero_optimization.overlap_comm"),
        Default("gradient_bytes", 4, "gradients of bf16 are summed in 32 bits"),
        Default("reduce_bytes", 2, "communication_data_type: that of the model"),
    ),
    "fsdp": (
        Default("flash_attention", True, _FA2),
        Default("attention", "flash2", _FA2, "cudnn"),
        Default("zero", 3, "FULL_SHARD"),
        Default("overlap_gradients", True, "backward_prefetch BACKWARD_PRE"),
        Default("gradient_bytes", 4, "sharded parameters and gradients of 32 bits"),
        Default("reduce_bytes", 2, "mixed precision PURE: reduced in bf16"),
        Default("scaling", "dynamic", "Transformer Engine's or torchao's current scales"),
    ),
}  # fmt: skip


def defaults_of(stack: Stack, given: Mapping[str, object], system: System) -> tuple[Default, ...]:
    """Those that hold for a run with the keys `given`, without the keys that it gives."""
    grouped = isinstance(tensor := given.get("tensor", 1), int) and tensor > 1
    holds: dict[Condition, bool] = {
        "": True,
        "tensor": grouped,
        "cudnn": bool(system.attention_kernel),
        "no cudnn": not system.attention_kernel,
        "tiles": bool(system.fp4_tflops),
        "no tiles": not system.fp4_tflops,
    }
    return tuple(one for one in DEFAULTS[stack] if holds[one.when] and one.key not in given)
