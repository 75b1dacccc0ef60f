"""Published layouts: what they are made of, and that the closed form counts as the parts do."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Run, misfit, part_layers
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.stages import layers_of
from joulecut_lab.model.sweep import Space, evaluate

LLAMA = ARCHITECTURES["llama-3-405b"]
QWEN = ARCHITECTURES["qwen3-235b-a22b"]
AS_PUBLISHED = Run(
    8192, 8, 16, 64, chunks=8, global_batch=2048, sequence=8192, zero=2, sequence_parallel=True,
    flash_attention=True,
)  # fmt: skip


def test_llama_405b_has_one_layer_a_chunk_between_embedding_and_loss() -> None:
    """Llama team 2024, section 3.3.2: the ends take the place of a layer each."""
    assert misfit(AS_PUBLISHED, LLAMA) is None
    counts = part_layers(LLAMA.layers, AS_PUBLISHED)
    assert counts == [0, *[1] * 126, 0]
    too_deep = replace(AS_PUBLISHED, chunks=9)
    assert misfit(too_deep, LLAMA) is not None


def test_experts_spread_over_gpus_that_share_a_tensor() -> None:
    """Qwen3-235B on 256 H100: TP 2, PP 8, EP 32 (Megatron-Core)."""
    run = Run(256, 2, 8, 16, expert=32, chunks=4, global_batch=2048, sequence=4096)
    assert misfit(run, QWEN) is None
    assert part_layers(QWEN.layers, run) == [2, *[3] * 30, 2]
    whole = misfit(replace(run, expert_tensor=2), QWEN)
    assert whole.key == "expert"


@given(
    layers=st.integers(1, 130), pipeline=st.sampled_from([1, 2, 4, 8, 16]),
    chunks=st.integers(1, 8), first=st.integers(0, 12), last=st.integers(0, 12),
)  # fmt: skip
def test_the_closed_form_has_the_layers_of_the_parts(
    layers: int, pipeline: int, chunks: int, first: int, last: int
) -> None:
    model = replace(LLAMA, layers=layers)
    run = Run(
        8 * pipeline, 8, pipeline, chunks=chunks, global_batch=16 * pipeline,
        first_layers=first, last_layers=last,
    )  # fmt: skip
    assume(misfit(run, model) is None)
    counts = part_layers(layers, run)
    assert sum(counts) == layers
    assert min(counts) >= 0
    found = layers_of(model, Runs.of([run]))
    if len(counts) > 1:
        assert (found.first[0], found.last[0]) == (counts[0], counts[-1])
        assert found.between_all[0] == sum(counts[1:-1])
        assert found.between[0] == max(counts[1:-1], default=0)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_sharding_more_never_needs_more_memory(name: str) -> None:
    runs = [
        Run(
            data * tensor, tensor, data=data, zero=zero, global_batch=data, shard=shard,
            flash_attention=True,
        )
        for data, tensor, shard in product((1, 2, 8), (1, 4), (0, 1))
        for zero in range(4)
    ]  # fmt: skip
    needed = formula.evaluate(ARCHITECTURES[name], SYSTEMS["b200"], Runs.of(runs)).memory_bytes
    assert (np.diff(needed.reshape(-1, 4), axis=1) <= 0.0).all()


def test_repeating_more_keeps_less() -> None:
    model, system = ARCHITECTURES["deepseek-v3"], SYSTEMS["node-h800"]
    base = Run(
        2048, 1, 16, 128, expert=64, global_batch=15360, sequence=4096, flash_attention=True, zero=1
    )
    kept, took = [], []
    for word, share in (("none", 1.0), ("pointwise", 1.0), ("full", 0.5), ("full", 1.0)):
        run = replace(base, recompute=word, recompute_share=share)
        found = formula.estimate(model, system, run)
        kept.append(found.memory[0].activations_bytes)
        took.append(found.breakdown_s["recompute"])
    assert kept[0] > kept[1] > kept[3]
    assert kept[0] > kept[2] > kept[3]
    assert took[0] == 0.0 < took[1] < took[3]
    assert took[2] == pytest.approx(0.5 * took[3], rel=0.1)


DEEPSEEK = ARCHITECTURES["deepseek-v3"]
DRAFTING = Run(
    2048, 1, 16, 128, expert=64, schedule="dualpipe-v", global_batch=15360, sequence=4096,
    dtype="fp8", flash_attention=True, zero=1, mtp_layers=1,
)  # fmt: skip


def test_a_layer_that_predicts_further_takes_the_place_of_one_of_the_last_part() -> None:
    """DeepSeek-V3's 61 layers, its extra one and both ends are 64: two a part."""
    assert misfit(DRAFTING, DEEPSEEK) is None
    counts = part_layers(DEEPSEEK.layers, DRAFTING)
    assert counts == [1, *[2] * 30, 0]
    found = layers_of(DEEPSEEK, Runs.of([DRAFTING]))
    assert (float(found.first[0]), float(found.last[0])) == (1.0, 0.0)
    too_many = misfit(replace(DRAFTING, mtp_layers=3), DEEPSEEK)
    assert too_many.key == "mtp_layers"


def test_a_layer_that_predicts_further_costs_a_layer_and_logits() -> None:
    system = SYSTEMS["node-h800"]
    model = replace(DEEPSEEK, layers=8)
    run = replace(DRAFTING, gpus=128, pipeline=1, schedule="1f1b", mtp_layers=0)
    times = [
        formula.estimate(replace(model, layers=layers), system, replace(run, mtp_layers=ahead))
        for layers, ahead in ((8, 0), (9, 0), (8, 1))
    ]
    plain, longer, drafted = (found.iteration_time_s for found in times)
    logits_s = times[0].breakdown_s["embedding_loss"]
    assert longer < drafted < longer + 1.3 * logits_s
    assert drafted > plain + 0.5 * logits_s
    flops = [found.model_flops for found in times]
    assert flops[2] > flops[1] > flops[0]
    memory = [max(stage.total_bytes for stage in found.memory) for found in times]
    assert memory[2] > memory[1]


def test_repeated_experts_cost_time_and_free_memory() -> None:
    """Qwen3-235B's long contexts repeat norms and experts, but no attention (Megatron-Core)."""
    run = Run(
        256, 4, 8, 8, chunks=4, expert=8, global_batch=256, sequence=16384, zero=1,
        flash_attention=True, fused_loss=True, sequence_parallel=True,
    )  # fmt: skip
    found = {
        word: formula.estimate(QWEN, SYSTEMS["dgx-h100"], replace(run, recompute=word))
        for word in ("none", "pointwise", "experts", "full")
    }
    times = [one.iteration_time_s for one in found.values()]
    assert times == sorted(times)
    kept = [max(stage.activations_bytes for stage in one.memory) for one in found.values()]
    assert kept == sorted(kept, reverse=True)
    refused = misfit(replace(AS_PUBLISHED, recompute="experts"), LLAMA)
    assert refused.key == "recompute"


def test_sparse_weights_take_half_of_the_products_that_skip_zeros() -> None:
    """Forward and input gradients of linear layers; those of weights, attention and logits stay."""
    model, system = ARCHITECTURES["llama-3-70b"], SYSTEMS["dgx-h100"]
    base = Run(gpus=64, tensor=8, pipeline=8, global_batch=64, sequence=2048, flash_attention=True)
    dense, sparse = (formula.estimate(model, system, replace(base, sparsity=kept))
                     for kept in (1.0, 0.5))  # fmt: skip
    # Two of three products of a linear layer take half: at most a third of all compute goes.
    saved = 1.0 - sparse.component_time_s["compute"] / dense.component_time_s["compute"]
    assert 0.2 < saved < 1.0 / 3.0
    assert sparse.energy_j < dense.energy_j
    assert sparse.model_flops == dense.model_flops


def test_parts_of_the_mean_gpu_and_of_the_slowest_stage_are_one_iteration() -> None:
    """The last stage, with a large vocabulary, is the slowest; the mean GPU waits for it."""
    run = Run(gpus=8, pipeline=8, global_batch=32, sequence=4096, flash_attention=True,
              first_layers=4, last_layers=4)  # fmt: skip
    found = formula.estimate(ARCHITECTURES["llama-3-8b"], SYSTEMS["dgx-h100"], run)
    for parts in (found.breakdown_s, found.mean_breakdown_s):
        assert sum(parts.values()) == pytest.approx(found.iteration_time_s)
    assert found.mean_breakdown_s["embedding_loss"] < 0.5 * found.breakdown_s["embedding_loss"]
    assert found.mean_breakdown_s["bubble"] > found.breakdown_s["bubble"]


def test_clocks_that_a_cap_makes_equal_are_one_row() -> None:
    model, system = ARCHITECTURES["gpt3-13b"], replace(SYSTEMS["dgx-a100"], power_cap_w=320.0)
    base = Run(gpus=8, tensor=8, global_batch=32, recompute="full", flash_attention=True)
    clocks = (0.0, *(1200.0 + 15.0 * k for k in range(15)))
    held = formula.estimate(model, system, base).clock_mhz
    assert held < 1395.0  # the cap binds
    found = evaluate(Space(model, system, base, {"clock_mhz": clocks}))
    asked = found.columns["clock_mhz"]
    assert len(asked) == sum(0.0 < one < held for one in clocks) + 1
    assert len({*found.columns["held_clock_mhz"].tolist()}) == len(asked)
    assert found.impossible + found.too_large + len(found) == len(clocks)


def test_gathered_keys_of_every_head_are_waited_for() -> None:
    """PyTorch's exchange, compiled: forward gathers every head, backward again with gradients of
    32 bits that go all the way round. A ring sends the heads of keys alone, beside the work.
    """
    model, system = ARCHITECTURES["llama-3-8b"], SYSTEMS["h100-sxm"]
    ring = Run(8, context=8, sequence=262_144, flash_attention=True)
    found = {
        exchange: formula.estimate(model, system, replace(ring, context_exchange=exchange))
        for exchange in ("ring", "gathered")
    }
    sent_bytes = 2.0 * 262_144 / 8 * 32 * (128 + 128)  # keys and values of one member
    rate = 450e9 * system.scale_up_efficiency
    rounds = 7.0 + 7.0 + 2.0 * 8.0
    steps = 7.0 + 7.0
    wanted_s = 32 * (rounds * sent_bytes / rate + steps * system.scale_up_latency_s)
    assert found["ring"].breakdown_s["context_comm"] == 0.0
    assert found["gathered"].breakdown_s["context_comm"] == pytest.approx(wanted_s, rel=1e-9)
