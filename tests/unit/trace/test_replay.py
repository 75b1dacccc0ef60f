"""Replay of traces: the recording itself at its own clock, and what must follow at others."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.trace import kineto
from joulecut_lab.trace.kernels import Kernel, Recording, class_of, matmul_flops
from joulecut_lab.trace.replay import Played, occupancy, replay
from joulecut_wire.errors import BadInput

US = 1e-6


def _launch(ts: float, correlation: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts, "dur": 2.0,
            "pid": 1, "tid": 1, "args": {"correlation": correlation}}  # fmt: skip


def _gpu(name: str, stream: int, ts: float, dur: float, correlation: int, **args: Any) -> Any:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0,
            "tid": stream, "args": {"device": 0, "stream": stream, "correlation": correlation,
                                    **args}}  # fmt: skip


def _step(compute_us: float = 100.0, at_us: float = 1000.0) -> list[dict[str, Any]]:
    """gemm, then its gradient's all-reduce on another stream beside a second gemm, then a sync and
    the optimizer. Consistent times: each starts when it may.
    """
    first, second = at_us + 10, at_us + 10 + compute_us
    reduced, joined = second + 2, second + compute_us
    ended = max(reduced + 150, joined)
    ring = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
            "dtype": "BFloat16", "Group size": 2, "Process Group Ranks": "[0, 1]"}  # fmt: skip
    return [
        _launch(at_us, 1),
        _gpu("ampere_bf16_s16816gemm_bf16_128x128", 7, first, compute_us, 1),
        _launch(at_us + 4, 2),
        _gpu("ampere_bf16_s16816gemm_bf16_128x128", 7, second, compute_us, 2),
        _launch(at_us + 8, 3),
        _gpu("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", 20, reduced, 150.0, 3, **ring),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": at_us + 12,
         "dur": ended + 5 - (at_us + 12), "pid": 1, "tid": 1, "args": {"correlation": 4}},
        _launch(ended + 8, 5),
        _gpu("multi_tensor_apply_kernel<adam>", 7, ended + 15, 30.0, 5),
    ]  # fmt: skip


def _recorded(events: list[dict[str, Any]], rank: int = 0) -> Recording:
    return kineto.recording(events, rank, f"rank {rank}")


def _same(recording: Recording, played: Played) -> None:
    for kernel, start_s, duration_s in zip(
        recording.kernels, played.start_s, played.duration_s, strict=True
    ):
        assert start_s == pytest.approx(kernel.start_s, abs=1e-9)
        assert duration_s == pytest.approx(kernel.duration_s, abs=1e-9)


def test_at_its_own_clock_the_replay_is_the_recording() -> None:
    recording = _recorded(_step())
    _same(recording, replay(recording, lambda _: 1.0))


def test_a_kernel_that_starts_within_its_launch_call_keeps_its_place() -> None:
    """Times of a profiler count from 1970 or from the boot: a start at 0 is 54 years early."""
    long_call = {**_launch(1.7e15, 1), "dur": 20.0}
    recording = _recorded([
        long_call, _gpu("gemm", 7, 1.7e15 + 5, 100.0, 1), _launch(1.7e15 + 30, 2),
        _gpu("gemm", 20, 1.7e15 + 40, 10.0, 2),
    ])  # fmt: skip
    played = replay(recording, lambda _: 1.0)
    assert played.span_s == pytest.approx(recording.span_s)
    assert played.span_s == pytest.approx(100 * US, rel=0.01)


def test_slower_compute_delays_what_follows_and_hides_more_network() -> None:
    recording = _recorded(_step())
    slow = replay(recording, lambda k: 1.0 if "all" in k.kind else 2.0)
    assert [k.kind for k in recording.kernels] == ["matmul", "matmul", "all-reduce", "optimizer"]
    assert slow.start_s[1] - slow.start_s[0] == pytest.approx(200 * US)
    assert slow.start_s[2] - slow.start_s[0] == pytest.approx(202 * US)  # it has waited for a gemm
    # the optimizer, which the host launched after it had waited, starts after both
    assert slow.start_s[3] >= max(slow.start_s[k] + slow.duration_s[k] for k in (1, 2))
    assert occupancy(recording, slow).exposed_s < 50 * US


@given(st.integers(0, 2**32))
def test_stream_order_is_rebuilt_from_any_order_of_events(seed: int) -> None:
    events = _step()
    random.Random(seed).shuffle(events)
    assert _recorded(events).kernels == _recorded(_step()).kernels


def test_a_recorded_wait_counts_and_not_the_guess() -> None:
    """The all-reduce waits for the second gemm, as its event says, although it starts beside it."""
    wait = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": 1007.0, "dur": 0.0,
            "pid": 1, "tid": 1, "args": {"stream": 20, "wait_on_stream": 7,
                                         "wait_on_cuda_event_record_corr_id": 2}}  # fmt: skip
    kernels = _recorded([*_step(), wait]).kernels
    assert [k.waits_for for k in kernels] == [(), (), (0,), (1, 2)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<FlashAttnFwdSm90>>", "attention"),
        ("pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce-scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "all-reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send-recv"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::add>", "pointwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "optimizer"),
        ("void cunn_SoftMaxForward<4, float>", "softmax-loss"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", "normalisation"),
        ("triton_red_fused__to_copy_mean_mul_pow_rsqrt_2", "reduction"),
        ("triton_poi_fused_mul_silu_3", "pointwise"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1", "matmul"),
        ("_ZN5aiter24fmha_fwd_hd128_bf16_causalE", "attention"),
        ("ck_tile::kentry<256, 2, ck_tile::FmhaBwdDQDKDVKernel<ck_tile::gemm>>", "attention"),
        ("bwd_kernel_dk_dv.kd", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_knob_7_64x128x128_4x1x1", "attention"),
        ("void deep_gemm::sm90_fp8_gemm_1d1d_impl<7168u, 4096u>", "matmul"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<mx_float8>>", "matmul"),
        ("void transformer_engine::quantize_mxfp8_kernel<false>", "pointwise"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc", "convolution"),
        ("void two_shot_all_reduce_kernel<c10::BFloat16, 8>", "all-reduce"),
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>", "normalisation"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot", "all-reduce"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", "reduce-scatter"),
        ("nvshmem_all_to_all", "all-to-all"),
        ("triton_poi_fused_all_reduce_wait_tensor_0", "pointwise"),
        ("ck::kernel_batched_gemm_softmax_gemm_xdl_cshuffle_v1", "attention"),
        ("chunk_scaled_dot_kkt_fwd_kernel", "attention"),
        ("fused_moe_kernel", "matmul"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x64x1_swiglu", "matmul"),
        ("void apply_rotary_embedding<c10::BFloat16>", "pointwise"),
        ("gen_conv_kernel", "convolution"),
        ("my_kernel", "other"),
    ],
)
def test_classes_of_known_kernels(name: str, kind: str) -> None:
    assert class_of(name) == kind


@pytest.mark.parametrize(
    ("collective", "kind"),
    [
        ("allreduce", "all-reduce"), ("_allgather_base", "all-gather"),
        ("reduce_scatter_tensor_coalesced", "reduce-scatter"), ("all_to_allv", "all-to-all"),
        ("alltoall_base", "all-to-all"), ("broadcast", "broadcast"), ("send", "send-recv"),
        ("coalesced", "other"),
    ],
)  # fmt: skip
def test_the_arguments_of_a_collective_come_before_its_name(collective: str, kind: str) -> None:
    assert class_of("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage)", collective) == kind


def test_an_operator_counts_where_the_name_says_nothing() -> None:
    assert class_of("custom_42", operator="aten::_scaled_mm") == "matmul"
    assert class_of("void at::native::vectorized_elementwise", operator="aten::mm") == "pointwise"


def test_flops_of_products() -> None:
    assert matmul_flops([(64, 128), (128, 256)]) == 2 * 64 * 128 * 256
    assert matmul_flops([(4, 64, 128), (256, 128)]) == 2 * 4 * 64 * 128 * 256  # linear: transposed
    assert matmul_flops([(256,), (64, 128), (128, 256)]) == 2 * 64 * 128 * 256  # addmm: a bias
    assert matmul_flops([(64, 3), (5, 7)]) == 0
    assert matmul_flops([(64,)]) == 0


@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", '{"traceEvents": 3}', '{"traceEvents": []}',
     '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}',
     '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "x", "dur": 1}]}',
     '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]}',
     '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}]}',
     '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": 3}]}'],
)  # fmt: skip
def test_what_is_no_trace_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"trace\.json"):
        kineto.read(path)


def test_a_rank_is_the_file_s_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": _step(), "distributedInfo": {"rank": 5}}))
    assert kineto.read(path).rank == 5


def test_without_launches_gaps_stay_as_they_were() -> None:
    kernels = tuple(
        Kernel(f"k{i}", "pointwise", 0, 7, start_s=i * 1e-3, duration_s=4e-4) for i in range(5)
    )
    played = replay(Recording("r", 0, kernels), lambda _: 2.0)
    assert played.start_s[-1] == pytest.approx(4 * (8e-4 + 6e-4))
