"""Configurations as published give the published number of parameters.

The values are those of each model's config.json on the Hugging Face hub, the counts those of its
published weights (safetensors index), or of the paper where weights are not public.
"""

from typing import Any

import pytest

from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.hub_keys import Unreadable
from joulecut_lab.model.huggingface import FAMILIES, INDESCRIBABLE, architecture_of
from joulecut_lab.model.run import Run


def _llama(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
        "vocab_size": vocab,
    }  # fmt: skip


def _of(
    family: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:  # fmt: skip
    return {**_llama(layers, hidden, heads, kv, ffn, vocab), "model_type": family, **more}


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
         "n_positions": 1024, "n_inner": None},
        124_439_808,
    ),
    "gpt2-xl": (
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab_size": 50257,
         "n_positions": 1024},
        1_557_611_200,
    ),
    "Llama-2-7b": (_llama(32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "Llama-2-70b": (_llama(80, 8192, 64, 8, 28672, 32000), 68_976_648_192),
    "Meta-Llama-3-8B": (_llama(32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "Meta-Llama-3-70B": (_llama(80, 8192, 64, 8, 28672, 128256), 70_553_706_496),
    "Llama-3.1-405B": (_llama(126, 16384, 128, 8, 53248, 128256), 405_853_388_800),
    "Llama-3.2-1B": (
        _llama(16, 2048, 32, 8, 8192, 128256) | {"head_dim": 64, "tie_word_embeddings": True},
        1_235_814_400,
    ),
    "Mistral-7B-v0.1": (
        _llama(32, 4096, 32, 8, 14336, 32000) | {"model_type": "mistral", "sliding_window": 4096},
        7_241_732_096,
    ),
    "Mistral-Nemo-Base-2407": (  # 40 x 128 is not its hidden size
        _llama(40, 5120, 32, 8, 14336, 131072) | {"model_type": "mistral", "head_dim": 128},
        12_247_782_400,
    ),
    "Mixtral-8x7B-v0.1": (
        _llama(32, 4096, 32, 8, 14336, 32000)
        | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "Qwen-72B": (
        {"model_type": "qwen", "num_hidden_layers": 80, "hidden_size": 8192,
         "num_attention_heads": 64, "intermediate_size": 49152, "vocab_size": 152064,
         "kv_channels": 128, "no_bias": True, "tie_word_embeddings": False},
        72_287_920_128,
    ),
    "Qwen2-0.5B": (
        _llama(24, 896, 14, 2, 4864, 151936) | {"model_type": "qwen2", "tie_word_embeddings": True},
        494_032_768,
    ),
    "Qwen2-7B": (_llama(28, 3584, 28, 4, 18944, 152064) | {"model_type": "qwen2"}, 7_615_616_512),
    "Qwen2-72B": (
        _llama(80, 8192, 64, 8, 29568, 152064) | {"model_type": "qwen2"}, 72_706_203_648,
    ),
    "Qwen1.5-MoE-A2.7B": (
        _llama(24, 2048, 16, 16, 5632, 151936)
        | {"model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4,
           "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
        14_315_784_192,
    ),
    "Qwen3-0.6B": (
        _llama(28, 1024, 16, 8, 3072, 151936)
        | {"model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": True},
        596_049_920,
    ),
    "Qwen3-8B": (
        _llama(36, 4096, 32, 8, 12288, 151936) | {"model_type": "qwen3", "head_dim": 128},
        8_190_735_360,
    ),
    "Qwen3-30B-A3B": (
        _llama(48, 2048, 32, 4, 6144, 151936)
        | {"model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128,
           "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        30_532_122_624,
    ),
    "DeepSeek-V2-Lite": (
        _llama(27, 2048, 16, 16, 10944, 102400)
        | {"model_type": "deepseek_v2", "q_lora_rank": None, "kv_lora_rank": 512,
           "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
           "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
           "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1},
        15_706_484_224,
    ),
    "DeepSeek-V2": (
        _llama(60, 5120, 128, 128, 12288, 102400)
        | {"model_type": "deepseek_v2", "q_lora_rank": 1536, "kv_lora_rank": 512,
           "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
           "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
           "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "moe_layer_freq": 1},
        235_741_434_880,
    ),
    "DeepSeek-V3": (  # its report: 671 B without the layer that predicts a second token
        _llama(61, 7168, 128, 128, 18432, 129280)
        | {"model_type": "deepseek_v3", "q_lora_rank": 1536, "kv_lora_rank": 512,
           "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
           "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
           "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
           "num_nextn_predict_layers": 1, "topk_method": "noaux_tc"},
        671_026_419_200,
    ),
    "bloom-560m": (
        {"model_type": "bloom", "n_layer": 24, "n_embed": 1024, "n_head": 16,
         "vocab_size": 250880},
        559_214_592,
    ),
    "bloom": (
        {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112,
         "vocab_size": 250880},
        176_247_271_424,
    ),
    "opt-125m": (
        {"model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768,
         "num_attention_heads": 12, "ffn_dim": 3072, "vocab_size": 50272,
         "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
        125_239_296,
    ),
    "opt-350m": (
        {"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 1024,
         "num_attention_heads": 16, "ffn_dim": 4096, "vocab_size": 50272,
         "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
         "do_layer_norm_before": False},
        331_196_416,
    ),
    "opt-6.7b": (
        {"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096,
         "num_attention_heads": 32, "ffn_dim": 16384, "vocab_size": 50272,
         "max_position_embeddings": 2048, "word_embed_proj_dim": 4096},
        6_658_473_984,
    ),
    "falcon-7b": (
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544,
         "num_attention_heads": 71, "vocab_size": 65024, "multi_query": True,
         "parallel_attn": True, "new_decoder_architecture": False, "bias": False},
        6_921_720_704,
    ),
    "falcon-40b": (
        {"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192,
         "num_attention_heads": 128, "num_kv_heads": 8, "vocab_size": 65024,
         "multi_query": True, "parallel_attn": True, "new_decoder_architecture": True,
         "bias": False},
        41_303_293_952,
    ),
    "gpt-neox-20b": (
        {"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144,
         "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432},
        20_554_567_680,
    ),
}  # fmt: skip


TODAYS: dict[str, tuple[dict[str, Any], int]] = {
    "gpt-oss-20b": (
        _of(
            "gpt_oss",
            24,
            2880,
            64,
            8,
            2880,
            201088,
            head_dim=64,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
        ),
        20_914_757_184,
    ),
    "gpt-oss-120b": (
        _of(
            "gpt_oss",
            36,
            2880,
            64,
            8,
            2880,
            201088,
            head_dim=64,
            num_local_experts=128,
            num_experts_per_tok=4,
            sliding_window=128,
        ),
        116_829_156_672,
    ),
    "gemma-2b": (_of("gemma", 18, 2048, 8, 1, 16384, 256000, head_dim=256), 2_506_172_416),
    "gemma-7b": (_of("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256), 8_537_680_896),
    "gemma-2-9b": (
        _of("gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096),
        9_241_705_984,
    ),
    "gemma-2-27b": (
        _of("gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128, sliding_window=4096),
        27_227_128_320,
    ),
    "gemma-3-1b": (
        _of("gemma3_text", 26, 1152, 4, 1, 6912, 262144, head_dim=256, sliding_window=512),
        999_885_952,
    ),
    "gemma-3-27b": (
        _of("gemma3_text", 62, 5376, 32, 16, 21504, 262208, head_dim=128, sliding_window=1024),
        27_009_346_304,
    ),
    "OLMo-2-7B": (_of("olmo2", 32, 4096, 32, 32, 11008, 100352), 7_298_617_344),
    "OLMo-2-13B": (_of("olmo2", 40, 5120, 40, 40, 13824, 100352), 13_716_198_400),
    "OLMoE": (
        _of("olmoe", 16, 2048, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8),
        6_919_161_856,
    ),
    "OLMo-7B": (_of("olmo", 32, 4096, 32, 32, 11008, 50304), 6_888_095_744),
    "phi-2": (_of("phi", 32, 2560, 32, 32, 10240, 51200), 2_779_683_840),
    "Phi-3-mini": (_of("phi3", 32, 3072, 32, 32, 8192, 32064, sliding_window=2047), 3_821_079_552),
    "phi-4": (_of("phi3", 40, 5120, 40, 10, 17920, 100352), 14_659_507_200),
    "Phi-3.5-MoE": (
        _of(
            "phimoe",
            32,
            4096,
            32,
            8,
            6400,
            32064,
            num_local_experts=16,
            num_experts_per_tok=2,
            attention_bias=True,
            lm_head_bias=True,
        ),
        41_873_153_344,
    ),
    "granite-3.1-8b": (_of("granite", 40, 4096, 32, 8, 12800, 49155), 8_170_848_256),
    "granite-3.0-3b-a800m": (
        _of("granitemoe", 32, 1536, 24, 8, 512, 49155, num_local_experts=40, num_experts_per_tok=8),
        3_298_793_472,
    ),
    "SmolLM3-3B": (_of("smollm3", 36, 2048, 16, 4, 11008, 128256), 3_075_098_624),
    "Apertus-8B": (_of("apertus", 32, 4096, 32, 8, 21504, 131072), 8_053_338_176),
    "GLM-4-9B-0414": (
        _of("glm4", 40, 4096, 32, 2, 13696, 151552, head_dim=128, attention_bias=True),
        9_400_279_040,
    ),
    "GLM-4.5-Air": (
        _of(
            "glm4_moe",
            46,
            4096,
            96,
            8,
            10944,
            151552,
            head_dim=128,
            attention_bias=True,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            use_qk_norm=False,
        ),
        106_852_251_264,
    ),
    "Kimi-K2": (
        _of(
            "kimi_k2",
            61,
            7168,
            64,
            64,
            18432,
            163840,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_routed_experts=384,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            first_k_dense_replace=1,
            topk_method="noaux_tc",
        ),
        1_026_408_232_448,
    ),
    "Qwen3-Next": (
        _of(
            "qwen3_next",
            48,
            2048,
            16,
            2,
            5120,
            151936,
            head_dim=256,
            num_experts=512,
            num_experts_per_tok=10,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
        ),
        79_674_391_296,
    ),
    "Scout": (
        {
            "model_type": "llama4",
            "text_config": _of(
                "llama4_text",
                48,
                5120,
                40,
                8,
                8192,
                202048,
                num_local_experts=16,
                num_experts_per_tok=1,
                intermediate_size_mlp=16384,
                interleave_moe_layer_step=1,
                attention_chunk_size=8192,
            ),
        },
        107_769_861_120,
    ),
    "Maverick": (
        {
            "model_type": "llama4",
            "text_config": _of(
                "llama4_text",
                48,
                5120,
                40,
                8,
                8192,
                202048,
                num_local_experts=128,
                num_experts_per_tok=1,
                intermediate_size_mlp=16384,
                interleave_moe_layer_step=2,
                attention_chunk_size=8192,
            ),
        },
        400_711_848_960,
    ),
    "MiniMax-Text-01": (
        _of(
            "minimax_text_01",
            80,
            6144,
            64,
            8,
            9216,
            200064,
            head_dim=128,
            num_local_experts=32,
            num_experts_per_tok=2,
            attn_type_list=([0] * 7 + [1]) * 10,
        ),
        456_089_655_296,
    ),
    "MiniMax-M2": (
        _of(
            "minimax_m2",
            62,
            3072,
            48,
            8,
            1536,
            200064,
            head_dim=128,
            num_local_experts=256,
            num_experts_per_tok=8,
            use_qk_norm=True,
        ),
        228_689_764_864,
    ),
    "command-r": (_of("cohere", 40, 8192, 64, 64, 22528, 256000), 34_980_831_232),
    "starcoder2-7b": (_of("starcoder2", 32, 4608, 36, 4, 18432, 49152), 7_173_923_840),
    "Minitron-4B-Base": (
        _of("nemotron", 32, 3072, 24, 8, 9216, 256000, head_dim=128),
        4_190_862_336,
    ),
}
# As their makers round them; of models that see the language model alone.
ROUNDED: dict[str, tuple[dict[str, Any], float]] = {
    "gemma-4-31B": (
        {
            "model_type": "gemma4",
            "text_config": _of(
                "gemma4_text",
                60,
                5376,
                32,
                16,
                21504,
                262144,
                head_dim=256,
                global_head_dim=512,
                num_global_key_value_heads=4,
                attention_k_eq_v=True,
                sliding_window=1024,
            ),
        },
        30.7e9,
    ),
    "Qwen3.5-27B": (
        {
            "model_type": "qwen3_5",
            "text_config": _of(
                "qwen3_5_text",
                64,
                5120,
                24,
                4,
                17408,
                248320,
                head_dim=256,
                linear_num_value_heads=48,
            ),
        },
        27e9,
    ),
    "GLM-5": (
        _of(
            "glm_moe_dsa",
            78,
            6144,
            64,
            64,
            12288,
            154880,
            q_lora_rank=2048,
            kv_lora_rank=512,
            qk_nope_head_dim=192,
            qk_rope_head_dim=64,
            v_head_dim=256,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
            index_n_heads=32,
            index_head_dim=128,
        ),
        744e9,
    ),
    "granite-4.0-h-micro": (
        _of(
            "granitemoehybrid",
            40,
            2048,
            32,
            8,
            8192,
            100352,
            shared_intermediate_size=8192,
            num_local_experts=0,
            layer_types=(["mamba"] * 9 + ["attention"]) * 4,
            mamba_n_heads=64,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
        ),
        3.19e9,
    ),
    "granite-4.0-h-small": (
        _of(
            "granitemoehybrid",
            40,
            4096,
            32,
            8,
            768,
            100352,
            shared_intermediate_size=1536,
            num_local_experts=72,
            num_experts_per_tok=10,
            layer_types=(["mamba"] * 9 + ["attention"]) * 4,
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
        ),
        32.2e9,
    ),
}


@pytest.mark.parametrize("name", TODAYS)
def test_parameters_of_todays_families_are_the_published_ones(name: str) -> None:
    config, parameters = TODAYS[name]
    assert architecture_of(config).parameters == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_counts(name: str) -> None:
    config, parameters = ROUNDED[name]
    assert architecture_of(config).parameters == pytest.approx(parameters, rel=5e-3)


@pytest.mark.parametrize("name", [*TODAYS, *ROUNDED])
def test_todays_families_are_estimated(name: str) -> None:
    """With finite times and memory, and more time for longer contexts."""
    model = architecture_of((TODAYS | ROUNDED)[name][0])
    times = []
    for sequence in (4096, 32768):
        run = Run(8, data=8, global_batch=8, sequence=sequence, flash_attention=True)
        found = formula.estimate(model, SYSTEMS["dgx-h100"], run)
        times.append(found.iteration_time_s)
        assert found.model_flops > 6.0 * 8 * sequence * 0.5 * model.active_parameters
    assert times[1] > times[0]


def test_windows_and_recurrences_cost_less_at_long_contexts() -> None:
    def slope(name: str, **change: Any) -> float:
        config = (TODAYS | ROUNDED)[name][0] | change
        model, times = architecture_of(config), []
        for sequence in (4096, 65536):
            run = Run(8, data=8, global_batch=8, sequence=sequence, flash_attention=True)
            times.append(formula.estimate(model, SYSTEMS["dgx-h100"], run).iteration_time_s)
        return times[1] / times[0]

    full = {"sliding_window": None}
    for name in ("gemma-3-27b", "gpt-oss-20b"):
        assert slope(name) < 0.8 * slope(name, **full)
    assert slope("Qwen3-Next") < 0.8 * slope("Qwen3-Next", layer_types=["full_attention"] * 48)


@pytest.mark.parametrize("family", INDESCRIBABLE)
def test_what_cannot_be_described_is_refused_by_name(family: str) -> None:
    config = _of(family, 4, 64, 4, 4, 256, 1024, hybrid_override_pattern="M-M*", mamba_num_heads=8,
                 mamba_head_dim=16, ssm_state_size=16, n_groups=2)  # fmt: skip
    with pytest.raises(Unreadable, match=f"{family}: .* cannot be described"):
        architecture_of(config)


def test_a_hybrid_that_is_refused_has_its_exact_count() -> None:
    """NVIDIA's Nemotron-H-8B-Base-8K."""
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    config = _of("nemotron_h", 52, 4096, 32, 8, 21504, 131072, hybrid_override_pattern=pattern,
                 mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
                 head_dim=128, conv_kernel=4)  # fmt: skip
    with pytest.raises(Unreadable, match="it has 8,100,852,736 parameters"):
        architecture_of(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert architecture_of(config).parameters == pytest.approx(parameters, rel=1e-3)


def test_every_family_is_in_the_table() -> None:
    """Its function, which several names may have."""
    tables = (*PUBLISHED.values(), *TODAYS.values(), *ROUNDED.values())
    tested = {config.get("text_config", config)["model_type"] for config, _ in tables}
    alike = {"deepseek_v32": "glm_moe_dsa", "qwen3_5_moe": "qwen3_next", "olmo3": "olmo2",
             "cohere2": "cohere", "glm": "glm4"}  # fmt: skip
    done = {FAMILIES[one] for one in tested} | {FAMILIES[one] for one in alike}
    assert {one for one, read in FAMILIES.items() if read not in done} == set()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 4097}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)
def test_a_fault_names_its_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(Unreadable) as caught:
        architecture_of(_llama(32, 4096, 32, 8, 14336, 32000) | change)
    assert caught.value.key == key


def test_a_window_counts_only_where_it_is_on() -> None:
    config = _llama(28, 3584, 28, 4, 18944, 152064) | {"model_type": "qwen2"}
    assert architecture_of(config | {"sliding_window": 131072}).window == 0
    on = {"sliding_window": 4096, "use_sliding_window": True}
    assert architecture_of(config | on).window == 4096
