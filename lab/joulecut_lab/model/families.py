"""Families of models whose layers are alike: one function each, from keys of a configuration."""

from dataclasses import replace
from typing import Any

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.hub_keys import Keys, Unreadable


def llama(keys: Keys) -> Architecture:
    heads = keys.whole("num_attention_heads")
    return Architecture(
        layers=keys.whole("num_hidden_layers"),
        hidden=keys.whole("hidden_size"),
        heads=heads,
        kv_heads=keys.whole("num_key_value_heads", otherwise=heads),
        ffn=keys.whole("intermediate_size"),
        vocab=keys.whole("vocab_size"),
        gated=True,
        head_dim=keys.whole("head_dim", otherwise=0, low=0),
        tied=keys.flag("tie_word_embeddings", False),
        query_bias=keys.flag("attention_bias", False),
    )


def mistral(keys: Keys) -> Architecture:
    return replace(llama(keys), window=keys.whole("sliding_window", otherwise=0, low=0))


def mixtral(keys: Keys) -> Architecture:
    return replace(
        mistral(keys),
        experts=keys.whole("num_local_experts", otherwise=8),
        experts_active=keys.whole("num_experts_per_tok", otherwise=2),
    )


def qwen(keys: Keys) -> Architecture:
    """The first Qwen: its intermediate_size counts both of the gated matrices."""
    wide = keys.whole("intermediate_size")
    if wide % 2:
        raise Unreadable("intermediate_size", f"{wide} is odd", "twice the width")
    heads = keys.whole("num_attention_heads")
    return Architecture(
        layers=keys.whole("num_hidden_layers"),
        hidden=keys.whole("hidden_size"),
        heads=heads,
        kv_heads=heads,
        ffn=wide // 2,
        vocab=keys.whole("vocab_size"),
        gated=True,
        head_dim=keys.whole("kv_channels", otherwise=0, low=0),
        tied=keys.flag("tie_word_embeddings", False),
        query_bias=True,
    )


def qwen2(keys: Keys) -> Architecture:
    """Its window is off unless use_sliding_window says otherwise."""
    window = keys.whole("sliding_window", otherwise=0, low=0)
    on = keys.flag("use_sliding_window", False)
    return replace(llama(keys), query_bias=True, window=window if on else 0)


def qwen2_moe(keys: Keys) -> Architecture:
    """The shared expert counts as several of the routed ones' width."""
    found = qwen_experts(keys, qwen2(keys))
    shared = keys.times("shared_expert_intermediate_size", found.expert_ffn)
    return replace(found, experts_shared=shared)


def qwen3(keys: Keys) -> Architecture:
    head_dim = keys.whole("head_dim", otherwise=128)
    bias = keys.flag("attention_bias", False)
    return replace(qwen2(keys), query_bias=bias, head_norm=True, head_dim=head_dim)


def qwen3_moe(keys: Keys) -> Architecture:
    return qwen_experts(keys, qwen3(keys))


def qwen_experts(keys: Keys, dense: Architecture) -> Architecture:
    if keys.whole("decoder_sparse_step", otherwise=1) != 1:
        raise Unreadable("decoder_sparse_step", "not 1", "1: experts in every layer")
    return replace(
        dense,
        experts=keys.whole("num_experts"),
        experts_active=keys.whole("num_experts_per_tok"),
        expert_ffn=keys.whole("moe_intermediate_size"),
        dense_layers=len(keys.listed("mlp_only_layers")),
    )


def deepseek(keys: Keys) -> Architecture:
    """Latent attention; experts after the first layers. Extra prediction layers are left out, as
    published counts leave them out.
    """
    if keys.whole("moe_layer_freq", otherwise=1) != 1:
        raise Unreadable("moe_layer_freq", "not 1", "1: experts in every later layer")
    limit = keys.whole("topk_group", otherwise=1)
    return replace(
        llama(keys),
        head_dim=keys.whole("qk_nope_head_dim"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        value_dim=keys.whole("v_head_dim"),
        kv_rank=keys.whole("kv_lora_rank"),
        query_rank=keys.whole("q_lora_rank", otherwise=0, low=0),
        experts=keys.whole("n_routed_experts", otherwise=0, low=0),
        experts_active=keys.whole("num_experts_per_tok", otherwise=0, low=0),
        experts_shared=keys.whole("n_shared_experts", otherwise=0, low=0),
        expert_ffn=keys.whole("moe_intermediate_size", otherwise=0, low=0),
        dense_layers=keys.whole("first_k_dense_replace", otherwise=0, low=0),
        router_bias=keys.word("topk_method") == "noaux_tc",
        expert_nodes=limit if limit < keys.whole("n_group", otherwise=1) else 0,
    )


def plain(keys: Keys, hidden: int, heads: int, **given: Any) -> Architecture:
    """One without gates: keys and values for every head, and biases, unless `given` says more."""
    usual: dict[str, Any] = {"kv_heads": heads, "bias": True, "norm_bias": True}
    for key, name in (("layers", "num_hidden_layers"), ("vocab", "vocab_size")):
        if key not in given:
            usual[key] = keys.whole(name)
    return Architecture(hidden=hidden, heads=heads, **(usual | given))


def gpt2(keys: Keys) -> Architecture:
    hidden = keys.whole("n_embd")
    return plain(
        keys, hidden, keys.whole("n_head"),
        layers=keys.whole("n_layer"),
        ffn=keys.whole("n_inner", otherwise=4 * hidden),
        vocab=keys.whole("vocab_size", otherwise=50257),
        positions=keys.whole("n_positions", "n_ctx", otherwise=1024),
        tied=keys.flag("tie_word_embeddings", True),
    )  # fmt: skip


def gpt_neox(keys: Keys) -> Architecture:
    hidden = keys.whole("hidden_size")
    return plain(
        keys, hidden, keys.whole("num_attention_heads"),
        ffn=keys.whole("intermediate_size", otherwise=4 * hidden),
        tied=keys.flag("tie_word_embeddings", False),
        bias=keys.flag("attention_bias", True),
    )  # fmt: skip


def bloom(keys: Keys) -> Architecture:
    hidden = keys.whole("hidden_size", "n_embed")
    return plain(
        keys, hidden, keys.whole("n_head", "num_attention_heads"),
        layers=keys.whole("n_layer", "num_hidden_layers"),
        ffn=4 * hidden,
        tied=keys.flag("tie_word_embeddings", True),
        embedding_norm=True,
    )  # fmt: skip


def opt(keys: Keys) -> Architecture:
    """Its positions start at 2; opt-350m projects its embedding and has no last norm."""
    hidden = keys.whole("hidden_size")
    projected = keys.whole("word_embed_proj_dim", otherwise=hidden)
    return plain(
        keys, hidden, keys.whole("num_attention_heads"),
        ffn=keys.whole("ffn_dim"),
        positions=keys.whole("max_position_embeddings") + 2,
        tied=keys.flag("tie_word_embeddings", True),
        bias=keys.flag("enable_bias", True),
        final_norm=keys.flag("do_layer_norm_before", True),
        embedding_dim=0 if projected == hidden else projected,
    )  # fmt: skip


def falcon(keys: Keys) -> Architecture:
    hidden = keys.whole("hidden_size")
    heads = keys.whole("num_attention_heads", "n_head")
    grouped = keys.flag("new_decoder_architecture", False)
    kv_heads = keys.whole("num_kv_heads", "n_head_kv", otherwise=heads) if grouped else heads
    if not grouped and keys.flag("multi_query", True):
        kv_heads = 1
    return plain(
        keys, hidden, heads,
        layers=keys.whole("num_hidden_layers", "n_layer"),
        kv_heads=kv_heads,
        ffn=keys.whole("ffn_hidden_size", otherwise=4 * hidden),
        tied=keys.flag("tie_word_embeddings", True),
        bias=keys.flag("bias", False),
        norms=1 if keys.flag("parallel_attn", True) and not grouped else 2,
    )  # fmt: skip
