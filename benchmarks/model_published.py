"""Published throughputs of training runs that `benchmarks/model.py` predicts, with their sources.

No number of the catalogue is fitted to these rows. A family is one source on one kind of cluster.
What a source does not say (interleaving, recomputation of an unnamed kind) is said in `note`.
Values are tokens per second and GPU, model TFLOP/s per GPU as the source counts them (nothing
repeated; scores in full, or the half that a causal mask leaves), or seconds of an iteration.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.system import System

Unit = Literal["tokens/s", "TFLOP/s", "s"]
H100_TFLOPS = 989.5  # the peak that MFU of the sources refers to


@dataclass(frozen=True, slots=True)
class Published:
    family: str
    name: str
    model: Architecture
    system: System
    run: dict[str, Any]  # of `Run`
    unit: Unit
    value: float
    gib: float = 0.0  # peak memory, where the source has it
    scores: float = 1.0  # share of the attention scores that TFLOP/s count


SOURCES = {
    "torchtitan H100": "pytorch/torchtitan benchmarks/, December 2024; 500 W, HBM2e of 96 GB",
    "torchtitan A100": "pytorch/torchtitan docs/performance.md, July 2024; FSDP2 on 64 A100",
    "torchtitan H200": "pytorch/torchtitan benchmarks/ (Trainy, WhiteFiber), June 2025",
    "fms-fsdp A100": "foundation-model-stack/fms-fsdp README, 2024; 128 A100, 400 Gb/s a node",
    "fms-fsdp H100": "the same, March 2024; 96 H100, 800 Gb/s a node",
    "KempnerForge H200": "KempnerInstitute/KempnerForge mfu_scaling 2026-04-05, weak_scaling "
    "2026-06-30; 4 H200 a node",
    "Llama 3 405B": "Llama team, arXiv 2407.21783, table 4, July 2024",
    "MoE folding": "Liu et al., arXiv 2504.14960, tables 3 and 5, April 2025; interleaving unnamed",
    "Qwen3 Megatron-Core": "yanring/Megatron-MoE-ModelZoo best_practice/Qwen3, 2025; 256 H100",
    "DeepSeek-V3": "DeepSeek-AI, arXiv 2412.19437, section 4.2: 180 K H800 hours per 1e12 tokens",
}
# Families whose layers are experts, and those that shard weights: what the bars are for.
EXPERTS = ("MoE folding", "Qwen3 Megatron-Core", "DeepSeek-V3")
FSDP = ("torchtitan H100", "torchtitan A100", "torchtitan H200", "fms-fsdp A100", "fms-fsdp H100",
        "KempnerForge H200")  # fmt: skip


def rows() -> list[Published]:
    return [*_torchtitan(), *_fms(), *_kempner(), *_llama(), *_folding(), *_qwen(), *_deepseek()]


def hopper_cudnn() -> System:
    """H100 with the attention of cuDNN, which Transformer Engine takes: 1.6 times as fast as the
    catalogue's FlashAttention-2 (595 and 370 TFLOP/s at 16,384 tokens, arXiv 2407.08608, figure 5).
    """
    base = SYSTEMS["h100-sxm"]
    return replace(base, attention_efficiency=595.0 / 370.0 * base.attention_efficiency)


def grand_teton() -> System:
    """H100 with 96 GB of HBM2e at 2.4 TB/s, 500 W."""
    base = SYSTEMS["h100-sxm"]
    return replace(base, hbm_gb_s=2400.0, hbm_bytes=96e9, power_cap_w=500.0)


def _torchtitan() -> list[Published]:
    found: list[Published] = []
    system = grand_teton()
    small, middle, large = (ARCHITECTURES[f"llama-3-{size}"] for size in ("8b", "70b", "405b"))
    fsdp = {"flash_attention": True, "zero": 3, "overlap_gradients": True,
            "scaling": "dynamic", "context_exchange": "gathered"}  # fmt: skip

    def add(
        name: str, model: Architecture, tokens: float, gib: float = 0.0, **keys: object
    ) -> None:
        run = {**fsdp, **keys}
        found.append(
            Published("torchtitan H100", name, model, system, run, "tokens/s", tokens, gib)
        )

    # Its selective recomputation repeats every second product and all between them.
    some = {"recompute": "full", "recompute_share": 0.5}
    one = {"sequence": 8192, "microbatch": 2, **some}
    for gpus, half, eight, gib in ((8, 6667, 8532, 77.0), (128, 6514, 8380, 62.0)):
        keys = {"gpus": gpus, "data": gpus, "global_batch": 2 * gpus, **one}
        add(f"8B FSDP {gpus}", small, half, gib, **keys)
        add(f"8B FSDP {gpus} fp8", small, eight, gib, **keys, dtype="fp8")
    for context, tokens, gib in ((1, 3890, 83.9), (2, 2540, 84.2), (4, 1071, 84.0), (8, 548, 84.5)):
        data = 8 // context
        add(f"8B CP {context} fp8", small, tokens, gib, gpus=8, data=data, context=context,
            global_batch=data, sequence=32768 * context, dtype="fp8", recompute="full")  # fmt: skip
    wide = {"sequence": 8192, "microbatch": 16, "recompute": "full", "dtype": "fp8", "gpus": 256,
            "data": 32, "tensor": 8, "global_batch": 512, "sequence_parallel": True}  # fmt: skip
    add("70B 2D fp8", middle, 829, 71.9, **wide)
    add("70B 2D AsyncTP fp8", middle, 876, 67.6, **wide, overlap_tensor=True)
    # Its default is as many microbatches as stages: 8 of 4 sequences.
    deep = {"gpus": 512, "data": 8, "microbatch": 4, "tensor": 8, "pipeline": 8,
            "global_batch": 256, "sequence": 8192, "dtype": "fp8", "recompute": "full",
            "sequence_parallel": True, "overlap_tensor": True}  # fmt: skip
    add("405B 3D 1F1B fp8", large, 100, 82.5, **deep)
    add("405B 3D interleaved fp8", large, 128, 72.7, **deep, chunks=2)
    for context, tokens, gib in ((1, 76, 75.3), (2, 47, 75.9), (4, 31, 77.1), (8, 16, 84.9)):
        data = 8 // context
        keys = {**deep, "data": data, "context": context, "microbatch": 1,
                "global_batch": 8 * data, "sequence": 32768 * context}  # fmt: skip
        add(f"405B 4D CP {context} fp8", large, tokens, gib, **keys)
    a100 = {**fsdp, "gpus": 64, "data": 64}
    for name, model, recompute, batch, sequence, tokens in (
        ("8B selective", small, "pointwise", 1, 8192, 2973),
        ("70B full", middle, "full", 1, 8192, 331),
        ("2-13B none", ARCHITECTURES["llama-2-13b"], "none", 2, 4096, 2162),
        ("2-13B selective", ARCHITECTURES["llama-2-13b"], "pointwise", 2, 4096, 1904),
        ("2-70B selective", ARCHITECTURES["llama-2-70b"], "pointwise", 1, 4096, 355),
        ("2-70B full", ARCHITECTURES["llama-2-70b"], "full", 2, 4096, 353),
    ):
        run = {**a100, "microbatch": batch, "global_batch": 64 * batch, "sequence": sequence}
        run |= some if recompute == "pointwise" else {"recompute": recompute}
        family = "torchtitan A100"
        found.append(
            Published(family, name, model, SYSTEMS["a100-sxm-80gb"], run, "tokens/s", tokens)
        )
    for gpus, tokens, gib in ((32, 10938, 47.96), (64, 10753, 46.97)):
        run = {**fsdp, **one, "gpus": gpus, "data": gpus, "global_batch": 2 * gpus,
               "dtype": "fp8", "weight_bytes": 1}  # fmt: skip
        family = "torchtitan H200"
        found.append(
            Published(family, f"8B fp8 {gpus}", small, SYSTEMS["h200"], run, "tokens/s", tokens,
                      gib)
        )  # fmt: skip
    return found


def _fms() -> list[Published]:
    """Hybrid sharding keeps the shards within a node."""
    llama2 = ARCHITECTURES["llama-2-70b"]
    middle = replace(llama2, layers=48, ffn=22016, name="llama-2-34b")
    found = []
    for family, system, gpus, cases in (
        ("fms-fsdp A100", replace(SYSTEMS["a100-sxm-80gb"], scale_out_gb_s=6.25), 128,
         ((ARCHITECTURES["llama-2-7b"], 8, "none", 2, 3760),
          (ARCHITECTURES["llama-2-13b"], 8, "none", 1, 1700),
          (middle, 0, "full", 8, 772), (llama2, 0, "full", 6, 380))),
        ("fms-fsdp H100", replace(SYSTEMS["h100-sxm"], scale_out_gb_s=12.5), 96,
         ((ARCHITECTURES["llama-2-7b"], 8, "none", 2, 7500),
          (ARCHITECTURES["llama-2-13b"], 0, "pointwise", 2, 3800),
          (middle, 0, "full", 2, 1550))),
    ):  # fmt: skip
        for model, shard, recompute, batch, tokens in cases:
            run = {"gpus": gpus, "data": gpus, "zero": 3, "shard": shard, "recompute": recompute,
                   "microbatch": batch, "global_batch": gpus * batch, "sequence": 4096,
                   "flash_attention": True, "overlap_gradients": True,
                   "gradient_bytes": 2}  # fmt: skip
            if recompute == "pointwise":  # of some blocks; how many is not said
                run |= {"recompute": "full", "recompute_share": 0.5}
            found.append(Published(family, model.name, model, system, run, "tokens/s", tokens))
    return found


def _kempner() -> list[Published]:
    """Weights and moments have 16 bits, gradients 32 on their way (distributed/parallel.py)."""
    system = replace(SYSTEMS["h200"], gpus_per_node=4)
    large = ARCHITECTURES["llama-3-70b"]
    models = {
        "7B": (ARCHITECTURES["llama-3-8b"], 4, 2),
        "13B": (replace(large, layers=40, hidden=5120, heads=40, ffn=17920), 4, 4),
        "70B": (large, 2, 4),
    }
    found = []
    for size, tensor, data, tokens, gb in (
        ("7B", 1, 1, 10471, 80.7), ("7B", 1, 2, 18728, 62.4), ("7B", 2, 1, 13163, 57.8),
        ("7B", 1, 4, 38983, 61.1), ("7B", 4, 1, 25135, 39.4), ("7B", 2, 2, 25980, 45.9),
        ("7B", 4, 2, 44299, 32.7), ("13B", 1, 8, 35405, 88.5), ("13B", 4, 2, 29860, 45.0),
        ("7B", 4, 4, 82988, 29.4), ("7B", 4, 8, 155917, 27.6), ("13B", 4, 8, 110373, 36.2),
        ("13B", 4, 16, 216507, 34.8), ("13B", 4, 32, 423306, 34.0), ("13B", 4, 40, 534644, 33.9),
        ("70B", 4, 8, 18688, 93.2), ("70B", 4, 16, 35824, 86.8), ("70B", 4, 24, 52190, 84.6),
        ("70B", 4, 32, 69985, 83.6), ("70B", 4, 40, 85571, 82.9),
    ):  # fmt: skip
        model, batch, rounds = models[size]
        gpus = tensor * data
        run = {"gpus": gpus, "tensor": tensor, "data": data, "zero": 3, "recompute": "full",
               "microbatch": batch, "global_batch": batch * rounds * data, "sequence": 4096,
               "flash_attention": True, "overlap_gradients": True,
               "sequence_parallel": tensor > 1, "gradient_bytes": 2, "moment_bytes": 2,
               "master_bytes": 0, "reduce_bytes": 4}  # fmt: skip
        name = f"{size} TP {tensor} FSDP {data}"
        family = "KempnerForge H200"
        value = tokens / gpus
        found.append(Published(family, name, model, system, run, "tokens/s", value, gb))
    return found


MEGATRON = {
    "sequence_parallel": True, "flash_attention": True, "fused_loss": True, "zero": 1,
    "overlap_gradients": True,
}  # fmt: skip


def _llama() -> list[Published]:
    """One layer a chunk; embedding and loss take the place of one each. Gradients are sharded."""
    found = []
    for data, context, sequence, value in (
        (64, 1, 8192, 430), (128, 1, 8192, 400), (8, 16, 131072, 380)
    ):  # fmt: skip
        run = {**MEGATRON, "gpus": 128 * data * context, "tensor": 8, "pipeline": 16, "chunks": 8,
               "data": data, "context": context, "sequence": sequence, "zero": 2,
               "global_batch": 2**24 // sequence}  # fmt: skip
        model, system = ARCHITECTURES["llama-3-405b"], SYSTEMS["h100-sxm"]
        name = f"{run['gpus']} GPUs, {sequence}"
        found.append(Published("Llama 3 405B", name, model, system, run, "TFLOP/s", value))
    return found


def _folding() -> list[Published]:
    """Batch 256 of 4,096 tokens. Before folding, GPUs that share a tensor share each expert.

    Interleaving and recomputation are not named: one layer a chunk and none are taken. Nor is the
    count of FLOPs: half of the scores, as Megatron-Core's counter has had it since early 2025. With
    all of them the error of the rows of 16,384 to 131,072 tokens would go from -2 to -27 %, with
    half it is the same at each length.
    """
    mixtral = ARCHITECTURES["mixtral-8x22b"]
    fine = replace(mixtral, experts=64, experts_active=8, expert_ffn=2048, name="8x22b-g8t8")
    upcycled = replace(ARCHITECTURES["llama-3-70b"], experts=8, experts_active=2, name="8x70b")
    qwen = replace(
        ARCHITECTURES["qwen2-7b"], layers=28, hidden=3584, heads=28, kv_heads=4, vocab=151936,
        experts=64, experts_active=8, expert_ffn=2560, experts_shared=8, name="qwen2-57b-a14b",
    )  # fmt: skip
    found = []

    def add(
        name: str, model: Architecture, gpus: int, layout: tuple[int, ...], mfu: float,
        sequence: int = 4096, batch: int = 256, **keys: object
    ) -> None:  # fmt: skip
        tensor, expert, pipeline, parts, context = layout
        run = {
            **MEGATRON,
            "gpus": gpus,
            "tensor": tensor,
            "expert": expert,
            "context": context,
            "pipeline": pipeline,
            "expert_tensor": parts,
            "sequence": sequence,
            "data": gpus // (tensor * pipeline * context),
            "global_batch": batch,
            **keys,
        }
        layers = model.layers // pipeline
        if pipeline > 1 and batch % (run["data"] * pipeline) == 0:
            run["chunks"] = layers
        value = mfu / 100.0 * H100_TFLOPS
        system = hopper_cudnn()
        found.append(
            Published("MoE folding", name, model, system, run, "TFLOP/s", value, scores=0.5)
        )

    add("8x22B TP+EP", mixtral, 128, (4, 8, 1, 4, 1), 36.6)
    add("8x22B MCore", mixtral, 128, (2, 4, 8, 2, 1), 46.3)
    add("8x22B folded", mixtral, 128, (2, 8, 8, 1, 1), 49.3)
    add("57B TP+EP", qwen, 64, (4, 4, 1, 4, 1), 23.1)
    add("57B MCore", qwen, 64, (2, 4, 4, 2, 1), 35.3)
    add("57B folded", qwen, 64, (2, 4, 4, 1, 1), 39.0)
    add("G8T8 TP+EP", fine, 128, (8, 8, 1, 8, 1), 8.7)
    add("G8T8 MCore", fine, 128, (2, 8, 8, 2, 1), 17.1)
    add("G8T8 folded", fine, 128, (4, 8, 8, 1, 1), 28.8)
    add("8x70B MCore", upcycled, 256, (8, 4, 8, 8, 1), 38.8)
    add("8x70B folded", upcycled, 256, (8, 8, 16, 1, 1), 41.6)
    for name, model, tensor, mfu in (
        ("8x22B FSDP+EP", mixtral, 2, 23.4), ("G8T8 FSDP+EP", fine, 4, 9.0)
    ):  # fmt: skip
        add(name, model, 128, (tensor, 8, 1, tensor, 1), mfu, zero=3)
    add("57B FSDP+EP", qwen, 64, (1, 8, 1, 1, 1), 25.4, zero=3)
    for context, gpus, tensor, sequence, batch, mfu in (
        (4, 128, 2, 16384, 1024, 47.6), (8, 256, 2, 32768, 512, 45.1),
        (8, 512, 4, 65536, 256, 44.5), (8, 1024, 8, 131072, 128, 42.9),
    ):  # fmt: skip
        layout = (tensor, 8, 8, 1, context)
        add(f"8x22B folded {sequence}", mixtral, gpus, layout, mfu, sequence, batch)
    return found


def _qwen() -> list[Published]:
    """Layers count 96 with both ends; norms and activations are repeated where it says so.

    Of its rows with both, step time x TFLOP/s is 1.48e11 FLOPs a token, which has half of the
    scores. FSDP sends gradients of 16 bits: with 32 the links alone would take the whole step at
    their line rate.
    """
    model, system = ARCHITECTURES["qwen3-235b-a22b"], hopper_cudnn()
    found = []
    for name, tensor, expert, pipeline, chunks, value, keys in (
        ("EP 32", 2, 32, 8, 4, 19.7, {"recompute": "pointwise"}),
        ("EP 32 overlapped", 2, 32, 8, 4, 17.6, {"recompute": "pointwise", "overlap_expert": True}),
        (
            "EP 8 FSDP",
            2,
            8,
            1,
            1,
            17.6,
            {"recompute": "full", "zero": 3, "microbatch": 4, "reduce_bytes": 2},
        ),
        ("EP 8 PP 32", 2, 8, 32, 3, 24.2, {"recompute": "pointwise", "dispatch_once": False}),
        ("EP 8 TP 4", 4, 8, 8, 4, 29.0, {}),
    ):
        run = {
            **MEGATRON,
            "gpus": 256,
            "tensor": tensor,
            "expert": expert,
            "pipeline": pipeline,
            "chunks": chunks,
            "expert_tensor": 1,
            "sequence": 4096,
            "global_batch": 2048,
            "data": 256 // (tensor * pipeline),
            "dispatch_once": True,
            **keys,
        }
        found.append(Published("Qwen3 Megatron-Core", name, model, system, run, "s", value))
    for context, value in ((1, 295), (2, 335), (4, 368), (8, 389)):
        sequence = 16384 * context
        run = {
            **MEGATRON,
            "gpus": 256,
            "tensor": 4,
            "expert": 8,
            "pipeline": 8,
            "chunks": 4,
            "expert_tensor": 1,
            "context": context,
            "sequence": sequence,
            "global_batch": 256,
            "data": 8 // context,
            "dispatch_once": True,
            "recompute": "experts",
        }
        name = f"{sequence} tokens"
        found.append(
            Published("Qwen3 Megatron-Core", name, model, system, run, "TFLOP/s", value,
                      scores=0.5)
        )  # fmt: skip
    return found


def _deepseek() -> list[Published]:
    """As examples/model/deepseek-v3.yaml."""
    run = {
        "gpus": 2048, "pipeline": 16, "data": 128, "expert": 64, "schedule": "dualpipe-v",
        "chunks": 2, "global_batch": 15360, "sequence": 4096, "dtype": "fp8",
        "flash_attention": True, "fused_loss": True, "recompute": "pointwise", "zero": 1,
        "overlap_gradients": True, "dispatch_once": True, "moment_bytes": 2, "mtp_layers": 1,
    }  # fmt: skip
    model, system = ARCHITECTURES["deepseek-v3"], SYSTEMS["node-h800"]
    return [Published("DeepSeek-V3", "2,048 H800", model, system, run, "tokens/s", 1543)]
