"""Configurations as published give the published number of parameters.

The values are those of each model's config.json on the Hugging Face hub, the counts those of its
published weights (safetensors index), or of the paper where weights are not public.
"""

from typing import Any

import pytest

from joulecut_lab.model.huggingface import FAMILIES, Unreadable, architecture_of


def _llama(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
        "vocab_size": vocab,
    }  # fmt: skip


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert architecture_of(config).parameters == pytest.approx(parameters, rel=1e-3)


def test_every_family_is_in_the_table() -> None:
    tested = {config["model_type"] for config, _ in PUBLISHED.values()}
    assert set(FAMILIES) - tested == {"RefinedWeb", "RefinedWebModel"}


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
