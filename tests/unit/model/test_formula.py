"""The closed form: its sums, its counts, and what it may never do."""

from dataclasses import replace
from math import gcd

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.estimate import BREAKDOWN, COMPONENTS, ENERGIES
from joulecut_lab.model.links import group
from joulecut_lab.model.run import WORDS, Run, misfit
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.stage_profile import stage_profile
from joulecut_lab.model.work import model_flops

GPT = ARCHITECTURES["gpt3-175b"]
DGX = SYSTEMS["a100-sxm-80gb"]
MODELS = (
    GPT,
    ARCHITECTURES["llama-3-70b"],
    ARCHITECTURES["mixtral-8x7b"],
    ARCHITECTURES["deepseek-v3"],
)
small = st.sampled_from([1, 2, 4, 8])


@st.composite
def runs(draw: st.DrawFn) -> tuple[Architecture, Run]:
    tensor, pipe, data, context = draw(small), draw(small), draw(small), draw(small)
    micro, count = draw(small), draw(st.integers(1, 16))
    schedule = draw(st.sampled_from(WORDS["schedule"]))
    chunks = 2 if schedule in {"interleaved-1f1b", "zb-v", "dualpipe-v"} else 1
    model = draw(st.sampled_from(MODELS))
    expert = gcd(draw(small), tensor * data * context) if model.experts else 1
    shard = gcd(draw(st.sampled_from([0, 1, 2])), data * context)
    run = Run(
        tensor * pipe * data * context, tensor, pipe, data, context,
        expert=expert, expert_tensor=draw(st.sampled_from([0, 1])), shard=shard,
        weight_bytes=draw(st.sampled_from([1, 2])), scaling=draw(st.sampled_from(WORDS["scaling"])),
        recompute_share=draw(st.sampled_from([0.0, 0.5, 1.0])),
        sparsity=draw(st.sampled_from([0.5, 1.0])),
        dispatch_once=draw(st.booleans()), overlap_expert=draw(st.booleans()),
        schedule=schedule, chunks=chunks, microbatch=micro,
        global_batch=data * micro * count * (pipe if chunks > 1 else 1), sequence=2048,
        dtype=draw(st.sampled_from(WORDS["dtype"])),
        recompute=draw(st.sampled_from(WORDS["recompute"])),
        sequence_parallel=draw(st.booleans()), zero=draw(st.integers(0, 3)),
        overlap_gradients=draw(st.booleans()), flash_attention=draw(st.booleans()),
        clock_mhz=draw(st.sampled_from([0.0, 900.0, 1200.0])),
        offload=draw(st.sampled_from(WORDS["offload"])), fused_loss=draw(st.booleans()),
        dropout=draw(st.booleans()), overlap_tensor=draw(st.booleans()),
        forward_only=draw(st.booleans()), cuda_graphs=draw(st.booleans()),
        context_exchange=draw(st.sampled_from(WORDS["context_exchange"])),
    )  # fmt: skip
    assume(misfit(run, model) is None)
    return model, run


@settings(max_examples=20)
@given(runs(), st.sampled_from(["a100-sxm-80gb", "h100-sxm", "b200", "mi300x"]))
def test_parts_sum_to_the_whole_and_are_never_negative(
    case: tuple[Architecture, Run], name: str
) -> None:
    model, run = case
    found = formula.estimate(model, SYSTEMS[name], run)
    assert tuple(found.breakdown_s) == BREAKDOWN
    assert tuple(found.component_time_s) == COMPONENTS
    assert tuple(found.energy_breakdown_j) == ENERGIES
    assert sum(found.breakdown_s.values()) == pytest.approx(found.iteration_time_s, rel=1e-9)
    assert sum(found.component_time_s.values()) == pytest.approx(found.iteration_time_s, rel=1e-9)
    total_j = found.energy_j + found.host_j
    assert sum(found.energy_breakdown_j.values()) == pytest.approx(total_j, rel=1e-9)
    parts = (found.breakdown_s, found.component_time_s, found.energy_breakdown_j, found.hidden_s)
    for part in parts:
        assert all(np.isfinite(value) and value >= 0.0 for value in part.values()), part
    assert 0.0 < found.mfu < 1.0
    assert found.hfu >= found.mfu
    assert len(found.memory) == run.pipeline
    assert all(stage.total_bytes > 0.0 for stage in found.memory)


@settings(max_examples=10)
@given(st.lists(runs(), min_size=2, max_size=6))
def test_many_runs_at_once_are_what_each_is_alone(cases: list[tuple[Architecture, Run]]) -> None:
    many = [run for _, run in cases if misfit(run, GPT) is None]
    assume(many)
    together = formula.evaluate(GPT, DGX, Runs.of(many))
    for i, run in enumerate(many):
        alone = formula.estimate(GPT, DGX, run)
        assert together.iteration_time_s[i] == pytest.approx(alone.iteration_time_s, rel=1e-9)
        assert together.energy_j[i] == pytest.approx(alone.energy_j, rel=1e-9)
        peak = max(stage.total_bytes for stage in alone.memory)
        assert together.memory_bytes[i] == pytest.approx(peak, rel=1e-9)
        assert together.runs.run(i) == replace(run, clock_mhz=run.clock_mhz or 1410.0)


def test_model_flops_are_those_of_the_publication() -> None:
    """SC21, equation 3, without recomputation."""
    batch, s, layers, h, vocab = 512, 2048, 96, 12288, 51200
    expected = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    run = Run(512, 8, 8, 8, global_batch=batch)
    model = replace(GPT, vocab=vocab)
    assert model_flops(model, Runs.of([run]))[0] == pytest.approx(expected, rel=1e-6)
    full = formula.estimate(model, DGX, replace(run, recompute="full"))
    assert full.hfu / full.mfu == pytest.approx(4 / 3, rel=5e-3)


@settings(max_examples=15)
@given(runs(), st.floats(200.0, 500.0))
def test_the_power_cap_holds(case: tuple[Architecture, Run], cap_w: float) -> None:
    model, run = case
    system = replace(DGX, power_cap_w=cap_w, waiting_w=80.0, compute_pj_per_flop=1.3)
    found = formula.estimate(model, system, run)
    lowest = found.clock_mhz <= system.clock_min_mhz * 1.001
    assert lowest or found.power_w_per_gpu <= cap_w * 1.01


def test_evaluation_exchanges_no_gradients() -> None:
    """Copies of the model in other nodes add nothing to what an evaluation draws."""
    costly = replace(DGX, scale_out_pj_per_bit=1e4, power_cap_w=1e6)
    alone, copies = (
        formula.estimate(
            GPT, costly, Run(8 * data, 8, 1, data, global_batch=data, forward_only=True)
        )
        for data in (1, 8)
    )
    assert copies.energy_breakdown_j["scale_out"] == 0.0
    assert copies.power_w_per_gpu == pytest.approx(alone.power_w_per_gpu)


@pytest.mark.parametrize("forward_only", [False, True])
def test_the_power_cap_lets_work_draw_what_it_allows(forward_only: bool) -> None:
    """Without a pipeline nothing waits, so a cap that binds is nearly met."""
    run = Run(8, 8, microbatch=4, global_batch=64, forward_only=forward_only)
    found = formula.estimate(GPT, replace(DGX, power_cap_w=250.0), run)
    assert found.clock_mhz < 1400.0
    assert found.power_w_per_gpu == pytest.approx(250.0, rel=0.02)


def test_a_lower_limit_makes_no_operation_cheaper() -> None:
    """Defaults that follow the data sheet's limit once made 175 W cost 7 % of time, not 70."""
    run = Run(8, 8, microbatch=4, global_batch=64, clock_mhz=900.0)
    whole, half = (
        formula.estimate(GPT, replace(DGX, power_cap_w=cap_w), run).energy_breakdown_j
        for cap_w in (DGX.power_cap_w, 0.9 * DGX.power_cap_w)
    )
    assert half == pytest.approx(whole)


def test_a_stage_profile_adds_up_to_the_estimate() -> None:
    run = Run(64, 8, 8, global_batch=32, flash_attention=True, clock_mhz=1005.0)
    found = formula.estimate(GPT, DGX, run)
    profile = stage_profile(GPT, DGX, run, (1005,))
    slowest = max(
        profile.options[stage, "forward"][0].time_s + profile.options[stage, "backward"][0].time_s
        for stage in range(8)
    )
    idle = ("bubble", "pipeline_comm", "data_comm", "optimizer", "offload")
    busy = found.iteration_time_s - sum(found.breakdown_s[name] for name in idle)
    assert 32 * slowest == pytest.approx(busy, rel=1e-9)


def test_what_leaves_a_node_in_an_exchange_takes_each_gpu_s_own_link() -> None:
    system = SYSTEMS["dgx-h100"]
    ring = group(system, np.array([32.0]), np.array([1.0]))
    volume = np.array([4e9])
    own = system.scale_out_gb_s * 1e9 * system.scale_out_efficiency
    latency = 5 * system.scale_out_latency_s
    assert ring.exchange(volume)[0] == pytest.approx(24 / 32 * 4e9 / own + latency)
    assert ring.exchange(volume, 0.5)[0] < ring.exchange(volume)[0]


def test_experts_cost_the_same_however_their_group_is_folded() -> None:
    """Splitting every expert, or spreading them, leaves FLOPs and expert weights of a GPU alone."""
    model, system = ARCHITECTURES["mixtral-8x22b"], replace(DGX, power_cap_w=1e6, waiting_w=90.0)
    base = Run(32, 4, data=8, global_batch=64, sequence=4096, sequence_parallel=True, zero=1)
    found = [
        formula.estimate(model, system, replace(base, expert=expert, expert_tensor=parts))
        for expert, parts in ((2, 4), (8, 1), (4, 2))
    ]
    assert len({one.hardware_flops for one in found}) == 1
    weights = [one.memory[0].weights_bytes for one in found]
    assert weights == pytest.approx([weights[0]] * 3)
    joules = [one.energy_breakdown_j["compute"] for one in found]
    assert joules == pytest.approx([joules[0]] * 3)


def test_hybrid_shards_stay_in_their_node_and_sum_across() -> None:
    """Sums of gradients alone leave a node, a third less than weights twice and gradients."""
    system = replace(SYSTEMS["dgx-a100"], scale_out_gb_s=2.0)
    model = ARCHITECTURES["llama-2-7b"]
    base = Run(64, data=64, global_batch=64, zero=3, gradient_bytes=2, flash_attention=True)
    whole, hybrid = (formula.estimate(model, system, replace(base, shard=n)) for n in (0, 8))
    assert hybrid.breakdown_s["data_comm"] < 0.8 * whole.breakdown_s["data_comm"]
    assert hybrid.memory[0].optimizer_bytes == pytest.approx(8 * whole.memory[0].optimizer_bytes)


@settings(max_examples=20)
@given(
    st.sampled_from(MODELS), st.sampled_from(["dgx-a100", "dgx-h100", "dgx-b200"]),
    st.floats(0.4, 1.0), small, small, small, st.sampled_from(WORDS["schedule"]), st.booleans(),
)  # fmt: skip
def test_a_higher_clock_is_never_slower(
    model: Architecture, name: str, limit: float, tensor: int, pipeline: int, data: int,
    schedule: str, overlap: bool,
) -> None:  # fmt: skip
    """Also under a power limit, which leaves one clock whatever was asked for above it."""
    system = replace(SYSTEMS[name], power_cap_w=limit * SYSTEMS[name].power_cap_w)
    run = Run(
        tensor * pipeline * data, tensor, pipeline, data, schedule=schedule,
        global_batch=16 * data, flash_attention=True, overlap_gradients=overlap,
    )  # fmt: skip
    assume(misfit(run, model) is None)
    clocks = np.arange(0.5 * system.clock_max_mhz, system.clock_max_mhz + 1.0, 15.0)
    times_s = formula.evaluate(
        model, system, Runs.of([run] * len(clocks)).at_clock(clocks)
    ).iteration_time_s
    assert (np.diff(times_s) <= 1e-9 * times_s[:-1]).all()
