"""Systems and models by name: data-sheet numbers, each with its source.

A system is an accelerator in its usual node. Peaks are dense; links are GB/s per GPU and direction,
half of what data sheets print for both directions. Numbers that no data sheet gives (idle power,
power of a node without its GPUs) say so. A name of an accelerator and of its node both work.
"""

from dataclasses import dataclass, replace
from typing import Any

from joulecut_engine.datasheets import SHEETS
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.power import explicit
from joulecut_lab.model.system import System

MIB = float(1 << 20)
# No data sheet gives a node's power without its GPUs. These are sums of processors, memory,
# switches, NICs, drives and board under training, and 6 % of the node lost in power supplies. Fans
# of an air-cooled node come on top: nodes of eight H100 drew up to 76 % of their 10.2 kW in
# training (arXiv 2506.14551), some 600 W more than this.
_HOST = "assumed: sum of the parts under training and 6 % supply losses, without fans"
_IDLE = "assumed: typical nvidia-smi or rocm-smi reading without work"


@dataclass(frozen=True, slots=True)
class Entry:
    """One system and where its numbers come from; `node` is its second name."""

    system: System
    node: str
    sources: tuple[tuple[str, str], ...]  # fields, source


def _facts(sheet: str) -> dict[str, Any]:
    """The fields of a system that are those of its data sheet."""
    facts = SHEETS[sheet]
    return {
        "processors": facts.processors, "bf16_tflops": facts.bf16_tflops,
        "fp8_tflops": facts.fp8_tflops, "fp4_tflops": facts.fp4_tflops,
        "fp32_tflops": facts.fp32_tflops, "tf32_tflops": facts.tf32_tflops,
        "int8_tops": facts.int8_tops, "hbm_gb_s": facts.memory_gb_s,
        "hbm_bytes": facts.memory_bytes, "clock_max_mhz": float(facts.clocks_mhz[-1]),
        "power_cap_w": facts.limit_w,
    }  # fmt: skip


_A100 = System(
    name="a100-sxm-80gb", **_facts("a100-sxm"), gpus_per_node=8,
    scale_up_gb_s=300.0, scale_out_gb_s=25.0, idle_w=55.0, host_w=1140.0,
    knee_mhz=1107.0, matrix_efficiency=0.80, hbm_efficiency=0.58, scale_up_efficiency=0.94,
    scale_out_efficiency=0.78,
)  # fmt: skip
_A100_SOURCES = (
    ("bf16_tflops fp32_tflops hbm_gb_s hbm_bytes scale_up_gb_s power_cap_w",
     "NVIDIA A100 data sheet, 2021: NVLink 600 GB/s both directions"),
    ("clock_max_mhz processors", "NVIDIA A100 architecture white paper: boost clock"),
    ("gpus_per_node scale_out_gb_s",
     "DGX A100 data sheet: 8 x 200 Gb/s"),
    ("knee_mhz", "fit of the A100 SXM sweep of the Perseus artifact (SOSP'24)"),
    ("matrix_efficiency hbm_efficiency scale_up_efficiency scale_out_efficiency",
     "fit of Tables 4 and 5 of Korthikanti et al. (arXiv 2205.05198), DGX A100"),
    ("host_w", _HOST),
    ("idle_w", _IDLE),
)  # fmt: skip
_H100 = System(
    name="h100-sxm", **_facts("h100-sxm"), gpus_per_node=8,
    scale_up_gb_s=450.0, scale_out_gb_s=50.0, host_gb_s=55.0, clock_peak_mhz=1830.0, idle_w=80.0,
    host_w=1500.0, knee_mhz=1000.0, voltage_slope_per_ghz=0.47,
    matrix_efficiency=0.62, attention_efficiency=0.32, attention_kernel="flash2",
    attention_backward=0.87, attention_ends=310.0, tile_ends=300.0,
)  # fmt: skip
_H100_SOURCES = (
    ("bf16_tflops fp8_tflops fp32_tflops clock_peak_mhz processors",
     "NVIDIA H100 architecture white paper: 132 SM x 4096 FLOP at a boost clock of 1,830 MHz"),
    ("hbm_gb_s hbm_bytes scale_up_gb_s power_cap_w",
     "NVIDIA H100 data sheet: SXM, NVLink 900 GB/s both directions"),
    ("clock_max_mhz", "highest SM clock that the driver lists"),
    ("host_gb_s", "PCIe 5.0 x16: 63 GB/s, 55 in copies"),
    ("gpus_per_node scale_out_gb_s",
     "DGX H100 data sheet: 8 x 400 Gb/s"),
    ("host_w", _HOST),
    ("knee_mhz voltage_slope_per_ghz",
     "fits of public sweeps of H100 NVL and H200, arXiv 2607.00819"),
    ("matrix_efficiency",
     "Megatron-Core r0.8: 177B at 433 TFLOP/s, 44 %, of which large products take nine tenths"),
    ("tile_ends", "FP8 products of 512 to 16,384 on an H800 (DeepGEMM, February 2025)"),
    ("attention_backward",
     "322 of 370, 516 of 595 and 561 of 648 TFLOP/s (arXiv 2407.08608, figures 5 and 6)"),
    ("attention_efficiency attention_kernel attention_ends",
     "fit of FlashAttention-2 at 1,024 to 16,384 tokens, 260 to 335 TFLOP/s (arXiv 2407.08608)"),
    ("idle_w", "nvidia-smi reading of an idle board, 80 W"),
)  # fmt: skip
_B200 = System(
    name="b200", **_facts("b200"), gpus_per_node=8, scale_up_gb_s=900.0,
    scale_out_gb_s=50.0, host_gb_s=55.0, clock_peak_mhz=1856.0, idle_w=140.0, host_w=1930.0,
    matrix_efficiency=0.44, attention_efficiency=0.31, attention_kernel="cudnn",
    hbm_efficiency=0.55,
    scale_up_efficiency=0.57, scale_up_latency_s=60e-6, tile_ends=240.0,
)  # fmt: skip
_B200_SOURCES = (
    ("bf16_tflops fp8_tflops fp4_tflops fp32_tflops hbm_gb_s scale_up_gb_s power_cap_w",
     "NVIDIA Blackwell architecture brief: HGX B200 at 1,000 W, NVLink 1.8 TB/s both directions"),
    ("hbm_bytes gpus_per_node scale_out_gb_s",
     "DGX B200 data sheet: 1,440 GB in 8 GPUs, 8 x 400 Gb/s"),
    ("matrix_efficiency attention_efficiency attention_kernel hbm_efficiency",
     "fit of SimuMax's measured iterations on 8 B200 (docs/b200)"),
    ("scale_up_efficiency scale_up_latency_s", "the same fit"),
    ("tile_ends", "products of 512 and 576 beside longer ones, SimuMax docs/b200"),
    ("host_w", _HOST),
    ("clock_max_mhz", "highest SM clock that the driver lists"),
    ("clock_peak_mhz processors", "148 SM x 8192 FLOP that give the data sheet's peak"),
    ("host_gb_s", "PCIe 5.0 x16: 63 GB/s, 55 in copies"),
    ("idle_w", _IDLE),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = (
    Entry(
        System(
            name="v100-sxm-32gb", processors=80, gpus_per_node=8,
            bf16_tflops=125.0, fp32_tflops=15.7,
            hbm_gb_s=900.0, hbm_bytes=32_768 * MIB, scale_up_gb_s=150.0, scale_out_gb_s=6.25,
            host_gb_s=12.5, clock_max_mhz=1530.0, power_cap_w=300.0, idle_w=42.0, host_w=650.0,
        ),
        "dgx-v100",
        (
            ("bf16_tflops fp32_tflops hbm_gb_s hbm_bytes scale_up_gb_s power_cap_w",
             "NVIDIA V100 data sheet, 2020: SXM2, peak of 16-bit floats; no bf16"),
            ("clock_max_mhz processors", "NVIDIA V100 architecture white paper: boost clock"),
            ("gpus_per_node scale_out_gb_s", "DGX-1 data sheet: 4 x 100 Gb/s for 8 GPUs"),
            ("host_gb_s", "PCIe 3.0 x16: 15.8 GB/s, 12.5 in copies"),
            ("host_w", _HOST),
            ("idle_w", _IDLE),
        ),
    ),
    Entry(
        System(
            name="a30", **_facts("a30"), gpus_per_node=2,
            scale_up_gb_s=100.0, scale_out_gb_s=12.5, idle_w=28.0, host_w=300.0,
        ),
        "node-a30",
        (
            ("bf16_tflops fp32_tflops hbm_gb_s hbm_bytes scale_up_gb_s power_cap_w clock_max_mhz",
             "NVIDIA A30 data sheet: NVLink bridge of two cards, 200 GB/s both directions"),
            ("processors", "NVIDIA Ampere data sheets and white paper"),
            ("gpus_per_node scale_out_gb_s host_w",
             "assumed: two bridged cards, 100 Gb/s each, 150 W of host per card"),
            ("idle_w", _IDLE),
        ),
    ),
    Entry(
        System(
            name="a40", **_facts("a40"), gpus_per_node=2,
            scale_up_gb_s=56.25, scale_out_gb_s=12.5, idle_w=30.0, host_w=300.0, knee_mhz=1131.0,
            voltage_slope_per_ghz=0.45,
        ),
        "node-a40",
        (
            ("bf16_tflops fp32_tflops hbm_gb_s hbm_bytes scale_up_gb_s power_cap_w clock_max_mhz",
             "NVIDIA A40 data sheet: NVLink bridge of two cards, 112.5 GB/s both directions"),
            ("processors", "NVIDIA Ampere data sheets and white paper"),
            ("gpus_per_node scale_out_gb_s host_w",
             "assumed: two bridged cards, 100 Gb/s each, 150 W of host per card"),
            ("knee_mhz voltage_slope_per_ghz",
             "fit of the A40 sweep of the Perseus artifact (SOSP'24)"),
            ("idle_w", _IDLE),
        ),
    ),
    Entry(_A100, "dgx-a100", _A100_SOURCES),
    Entry(
        replace(_A100, name="a100-sxm-40gb", hbm_gb_s=1555.0, hbm_bytes=40_960 * MIB),
        "dgx-a100-40gb",
        _A100_SOURCES,
    ),
    Entry(_H100, "dgx-h100", _H100_SOURCES),
    Entry(
        replace(_H100, name="h800-sxm", scale_up_gb_s=200.0),
        "node-h800",
        (*_H100_SOURCES, ("scale_up_gb_s", "DeepSeek-V3 report: NVLink 400 GB/s both directions")),
    ),
    Entry(
        replace(_H100, name="h200", **_facts("h200")),
        "dgx-h200",
        (*_H100_SOURCES, ("hbm_gb_s hbm_bytes", "NVIDIA H200 data sheet")),
    ),
    Entry(_B200, "dgx-b200", _B200_SOURCES),
    Entry(
        replace(_B200, name="b300", **_facts("b300"), clock_peak_mhz=1856.0, scale_out_gb_s=100.0),
        "dgx-b300",
        (
            *_B200_SOURCES,
            ("hbm_bytes scale_out_gb_s fp4_tflops power_cap_w",
             "NVIDIA DGX B300 data sheet, 2025: 8 x 800 Gb/s; 1,100 W as a driver states it"),
        ),
    ),
    Entry(
        replace(
            _B200, name="gb200", **_facts("gb200"), gpus_per_node=4, scale_up_size=72,
            clock_peak_mhz=2008.0, host_w=1390.0, host_gb_s=200.0,
        ),
        "gb200-nvl72",
        (
            *_B200_SOURCES,
            ("gpus_per_node scale_up_size bf16_tflops fp8_tflops fp4_tflops hbm_bytes power_cap_w",
             "NVIDIA GB200 NVL72 data sheet, divided by 72; 18 trays of 4 GPUs"),
            ("clock_peak_mhz processors", "152 SM x 8192 FLOP that give the data sheet's peak"),
            ("host_gb_s", "NVLink-C2C: 450 GB/s per superchip and direction, two GPUs share it"),
            ("host_w", "assumed: 36 processors of 300 W, switches, NICs of a rack in 18 trays"),
        ),
    ),
    Entry(
        System(
            name="mi300x", **_facts("mi300x"), gpus_per_node=8, scale_up_gb_s=448.0,
            scale_out_gb_s=50.0, host_gb_s=55.0, idle_w=140.0, host_w=1300.0,
        ),
        "node-mi300x",
        (
            ("bf16_tflops fp8_tflops fp32_tflops hbm_gb_s hbm_bytes clock_max_mhz power_cap_w",
             "AMD Instinct MI300X data sheet"),
            ("processors", "AMD Instinct MI300X data sheet: compute units"),
            ("gpus_per_node scale_up_gb_s",
             "AMD Instinct MI300X platform data sheet: 7 links of 64 GB/s per direction"),
            ("scale_out_gb_s", "assumed: 8 x 400 Gb/s, as a node of eight H100"),
            ("host_w", _HOST),
            ("host_gb_s", "PCIe 5.0 x16: 63 GB/s, 55 in copies"),
            ("idle_w", _IDLE),
        ),
    ),
)  # fmt: skip

SYSTEMS: dict[str, System] = {
    name: replace(explicit(entry.system), name=name)
    for entry in ENTRIES
    for name in (entry.system.name, entry.node)
}


def sources_of(name: str) -> dict[str, str]:
    """By field of a system: where its number comes from. Later lines replace earlier ones."""
    entry = next(e for e in ENTRIES if name in {e.system.name, e.node})
    source_of = {field: source for fields, source in entry.sources for field in fields.split()}
    source_of["hbm_bytes"] = "MiB as nvidia-smi or rocm-smi lists them"
    peaks = source_of.get("bf16_tflops", "")
    return {"tf32_tflops": peaks, "int8_tops": peaks} | source_of


def _gpt(name: str, layers: int, hidden: int, heads: int, **more: object) -> Architecture:
    """GPT-3 and Megatron-LM: LayerNorm, biases, learnt positions, tied embedding."""
    found = Architecture(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden,
        vocab=51200, positions=2048, tied=True, bias=True, norm_bias=True,
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


def _llama(name: str, *shape: int) -> Architecture:
    """Llama: RMSNorm, no biases, rotary positions, gated feed-forward.

    `shape` is layers, hidden, heads, kv_heads, ffn, vocab.
    """
    layers, hidden, heads, kv_heads, ffn, vocab = shape
    return Architecture(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn,
        vocab=vocab, gated=True,
    )  # fmt: skip


_MODELS: tuple[Architecture, ...] = (
    # Radford et al. 2019, as published on the Hugging Face hub
    _gpt("gpt2", 12, 768, 12, vocab=50257, positions=1024),
    _gpt("gpt2-xl", 48, 1600, 25, vocab=50257, positions=1024),
    # Brown et al. 2020, table 2.1; vocabulary padded as in Megatron-LM
    _gpt("gpt3-6.7b", 32, 4096, 32),
    _gpt("gpt3-13b", 40, 5120, 40),
    _gpt("gpt3-175b", 96, 12288, 96),
    # Narayanan et al., SC21, table 1
    _gpt("megatron-1.7b", 24, 2304, 24),
    _gpt("megatron-3.6b", 30, 3072, 32),
    _gpt("megatron-7.5b", 36, 4096, 32),
    _gpt("megatron-18b", 40, 6144, 48),
    _gpt("megatron-39b", 48, 8192, 64),
    _gpt("megatron-76b", 60, 10240, 80),
    _gpt("megatron-145b", 80, 12288, 96),
    _gpt("megatron-310b", 96, 16384, 128),
    _gpt("megatron-1t", 128, 25600, 160),
    # Korthikanti et al., MLSys 2023, table 3
    _gpt("megatron-22b", 48, 6144, 64),
    _gpt("megatron-530b", 105, 20480, 128),
    # Touvron et al. 2023; Llama team 2024, table 3
    _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
    _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
    _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
    _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256),
    _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256),
    _llama("llama-3-405b", 126, 16384, 128, 8, 53248, 128256),
    # Jiang et al. 2023, 2024
    replace(_llama("mistral-7b", 32, 4096, 32, 8, 14336, 32000), window=4096),
    replace(
        _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000), experts=8, experts_active=2
    ),
    replace(
        _llama("mixtral-8x22b", 56, 6144, 48, 8, 16384, 32768), experts=8, experts_active=2
    ),
    # Mistral AI: Mistral-Large-Instruct-2411 on the Hugging Face hub
    replace(_llama("mistral-large", 88, 12288, 96, 8, 28672, 32768), head_dim=128),
    # Qwen team, configurations on the Hugging Face hub
    replace(_llama("qwen-72b", 80, 8192, 64, 64, 24576, 152064), query_bias=True),
    replace(_llama("qwen2-7b", 28, 3584, 28, 4, 18944, 152064), query_bias=True),
    replace(_llama("qwen2-72b", 80, 8192, 64, 8, 29568, 152064), query_bias=True),
    replace(
        _llama("qwen3-8b", 36, 4096, 32, 8, 12288, 151936), head_dim=128, head_norm=True
    ),
    replace(
        _llama("qwen3-32b", 64, 5120, 64, 8, 25600, 151936), head_dim=128, head_norm=True
    ),
    replace(
        _llama("qwen3-235b-a22b", 94, 4096, 64, 4, 12288, 151936), head_dim=128, head_norm=True,
        experts=128, experts_active=8, expert_ffn=1536,
    ),
    # DeepSeek-AI 2024: V2, section 3.1.2; V3, section 4.2
    Architecture(
        name="deepseek-v2", layers=60, hidden=5120, heads=128, kv_heads=128, ffn=12288,
        vocab=102400, gated=True, head_dim=128, rope_dim=64, value_dim=128, kv_rank=512,
        query_rank=1536, experts=160, experts_active=6, experts_shared=2, expert_ffn=1536,
        dense_layers=1,
    ),
    Architecture(
        name="deepseek-v3", layers=61, hidden=7168, heads=128, kv_heads=128, ffn=18432,
        vocab=129280, gated=True, head_dim=128, rope_dim=64, value_dim=128, kv_rank=512,
        query_rank=1536, experts=256, experts_active=8, experts_shared=1, expert_ffn=2048,
        dense_layers=3, router_bias=True, expert_nodes=4,
    ),
)  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {model.name: model for model in _MODELS}
