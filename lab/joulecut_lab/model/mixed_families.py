"""Families with windows in some layers, recurrences in others, or small parts of their own.

Counts of parameters are those of the published weights.
"""

from dataclasses import replace

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.families import deepseek, llama, mixtral, plain, qwen_experts
from joulecut_lab.model.hub_keys import Keys, Unreadable


def windowed(keys: Keys, found: Architecture, every: int) -> Architecture:
    """Sliding windows in all layers but each `every`-th, unless `layer_types` says it."""
    window = keys.whole("sliding_window", "attention_chunk_size", otherwise=0, low=0)
    pattern = keys.whole("sliding_window_pattern", "_sliding_window_pattern", otherwise=every)
    count = keys.counted(
        "layer_types", "sliding_attention", "chunked_attention",
        otherwise=found.layers - found.layers // pattern,
    )  # fmt: skip
    return replace(found, window=window if count else 0, window_layers=count if window else 0)


def gemma(keys: Keys) -> Architecture:
    return replace(
        llama(keys), head_dim=keys.whole("head_dim", otherwise=256),
        tied=keys.flag("tie_word_embeddings", True),
    )  # fmt: skip


def gemma2(keys: Keys) -> Architecture:
    return windowed(keys, replace(gemma(keys), norms=4), 2)


def gemma3(keys: Keys) -> Architecture:
    return windowed(keys, replace(gemma(keys), norms=4, head_norm=True), 6)


def gemma4(keys: Keys) -> Architecture:
    """Its full layers have wider heads and take keys for values; of these only the parameters
    count.
    """
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers", "num_experts"):
        if keys.whole(key, otherwise=0, low=0):
            raise Unreadable(key, "what it switches on cannot be described", "0 or none")
    found = windowed(keys, replace(gemma(keys), norms=4, head_norm=True), 6)
    full = found.layers - found.window_layers
    wide = keys.whole("global_head_dim", otherwise=found.head_dim)
    few = keys.whole("num_global_key_value_heads", otherwise=found.kv_heads)
    once = 1 if keys.flag("attention_k_eq_v", False) else 2
    weights = found.hidden * wide * (2 * found.heads + once * few)
    more = full * (weights - found.attention_weights + 2 * (wide - found.head_dim))
    return replace(found, extra=more)


def gpt_oss(keys: Keys) -> Architecture:
    found = replace(
        llama(keys), head_dim=keys.whole("head_dim", otherwise=64), query_bias=True,
        experts=keys.whole("num_local_experts", otherwise=128),
        experts_active=keys.whole("num_experts_per_tok", "experts_per_token", otherwise=4),
        router_bias=True,
    )  # fmt: skip
    # Biases of outputs and experts, and a sink for each head.
    biases = found.experts * (2 * found.ffn + found.hidden)
    extra = found.layers * (found.hidden + found.heads + biases)
    return windowed(keys, replace(found, extra=extra), 2)


def glm(keys: Keys) -> Architecture:
    return replace(
        llama(keys), head_dim=keys.whole("head_dim", otherwise=128),
        query_bias=keys.flag("attention_bias", True),
    )  # fmt: skip


def glm4(keys: Keys) -> Architecture:
    return replace(glm(keys), norms=4)


def glm4_moe(keys: Keys) -> Architecture:
    return replace(
        llama(keys), head_dim=keys.whole("head_dim", otherwise=128),
        head_norm=keys.flag("use_qk_norm", False),
        experts=keys.whole("n_routed_experts"), experts_active=keys.whole("num_experts_per_tok"),
        experts_shared=keys.whole("n_shared_experts", otherwise=1, low=0),
        expert_ffn=keys.whole("moe_intermediate_size"),
        dense_layers=keys.whole("first_k_dense_replace", otherwise=1, low=0), router_bias=True,
    )  # fmt: skip


def deepseek_sparse(keys: Keys) -> Architecture:
    """With an indexer, which picks the keys of each query; trained on all of them."""
    found = replace(deepseek(keys), router_bias=True)
    heads = keys.whole("index_n_heads", otherwise=0, low=0)
    width = keys.whole("index_head_dim", otherwise=128)
    indexer = found.query_rank * heads * width + found.hidden * (width + heads) + 2 * width
    layers = found.layers - keys.counted("indexer_types", "shared", "none")
    return replace(found, extra=layers * indexer if heads else 0)


def delta(keys: Keys, found: Architecture, every: int) -> Architecture:
    """Gated delta rule in all layers but each `every`-th, whose attention has a gate per head
    (Qwen3-Next).
    """
    every = keys.whole("full_attention_interval", otherwise=every)
    linear = keys.counted(
        "layer_types", "linear_attention", otherwise=found.layers - found.layers // every
    )
    values = keys.whole("linear_num_value_heads", otherwise=32)
    width = keys.whole("linear_value_head_dim", otherwise=128)
    key_dim = keys.whole("linear_num_key_heads", otherwise=16)
    key_dim *= (each := keys.whole("linear_key_head_dim", otherwise=128))
    value_dim = values * width
    small = (2 * key_dim + value_dim) * keys.whole("linear_conv_kernel_dim", otherwise=4)
    small += 2 * values + width - 2 * found.query_dim  # in place of norms of queries and keys
    gates = (found.layers - linear) * found.hidden * found.heads * found.query_dim
    return replace(
        found, head_norm=True, linear_layers=linear, linear_state=values * each * width,
        linear_weights=found.hidden * (2 * key_dim + 3 * value_dim + 2 * values),
        extra=found.extra + linear * small + gates,
    )  # fmt: skip


def qwen3_next(keys: Keys) -> Architecture:
    found = replace(llama(keys), head_dim=keys.whole("head_dim", otherwise=256))
    found = replace(qwen_experts(keys, found), head_norm=True)
    shared = keys.times("shared_expert_intermediate_size", found.expert_ffn, otherwise=512)
    gate = found.expert_layers * found.hidden  # of the shared expert
    found = replace(found, experts_shared=shared, extra=gate)
    return delta(keys, found, 4)


def qwen3_5_moe(keys: Keys) -> Architecture:
    return qwen3_next(Keys({"intermediate_size": 1, **keys.given}))


def qwen3_5(keys: Keys) -> Architecture:
    found = replace(llama(keys), head_dim=keys.whole("head_dim", otherwise=256))
    return delta(keys, found, 4)


def llama4(keys: Keys) -> Architecture:
    """Experts in each `interleave_moe_layer_step`-th layer; the others count as the first ones."""
    found = llama(keys)
    step = keys.whole("interleave_moe_layer_step", otherwise=1)
    experts = len(keys.listed("moe_layers")) or found.layers // step
    found = replace(
        found, head_dim=keys.whole("head_dim", otherwise=128),
        expert_ffn=found.ffn, ffn=keys.whole("intermediate_size_mlp", otherwise=16384),
        experts=keys.whole("num_local_experts", otherwise=16),
        experts_active=keys.whole("num_experts_per_tok", otherwise=1),
        experts_shared=1, dense_layers=found.layers - experts,
    )  # fmt: skip
    return windowed(keys, found, 4)


def minimax(keys: Keys) -> Architecture:
    """MiniMax-Text-01: lightning attention in seven of eight layers."""
    found = replace(mixtral(keys), window=0, head_dim=keys.whole("head_dim", otherwise=128))
    listed = keys.listed("attn_type_list") or keys.listed("layer_types")
    linear = sum(one in (0, "linear_attention") for one in listed)
    width = found.heads * found.query_dim
    return replace(
        found, linear_layers=linear, linear_weights=5 * found.hidden * width,
        linear_state=found.heads * found.query_dim**2, extra=linear * width,
    )  # fmt: skip


def minimax_m2(keys: Keys) -> Architecture:
    found = replace(
        mixtral(keys), window=0, head_dim=keys.whole("head_dim", otherwise=128), router_bias=True,
    )  # fmt: skip
    return all_heads_normed(found) if keys.flag("use_qk_norm", False) else found


def olmo(keys: Keys) -> Architecture:
    """The first OLMo: its norms have no parameters."""
    found = llama(keys)
    return replace(found, extra=-(2 * found.layers + 1) * found.hidden)


def all_heads_normed(found: Architecture) -> Architecture:
    """Norms of queries and keys over all heads at once."""
    norms = found.layers * found.query_dim * (found.heads + found.kv_heads)
    return replace(found, extra=norms)


def olmo2(keys: Keys) -> Architecture:
    return all_heads_normed(llama(keys))


def olmo3(keys: Keys) -> Architecture:
    return windowed(keys, olmo2(keys), 4)


def olmoe(keys: Keys) -> Architecture:
    return replace(
        olmo2(keys), experts=keys.whole("num_experts", otherwise=64),
        experts_active=keys.whole("num_experts_per_tok", otherwise=8),
    )  # fmt: skip


def phi(keys: Keys) -> Architecture:
    """Phi-1 and 2: blocks in parallel, biases everywhere, of the logits too."""
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    vocab = keys.whole("vocab_size")
    return plain(
        keys, hidden, heads, norms=1, extra=vocab,
        kv_heads=keys.whole("num_key_value_heads", otherwise=heads),
        ffn=keys.whole("intermediate_size", otherwise=4 * hidden),
        tied=keys.flag("tie_word_embeddings", False),
    )  # fmt: skip


def phimoe(keys: Keys) -> Architecture:
    """LayerNorms, and biases of attention and of the logits."""
    found = replace(mixtral(keys), query_bias=keys.flag("attention_bias", False), norm_bias=True)
    out = found.layers * found.hidden if found.query_bias else 0
    return replace(found, extra=out + (found.vocab if keys.flag("lm_head_bias", False) else 0))


def granite(keys: Keys) -> Architecture:
    return replace(llama(keys), tied=keys.flag("tie_word_embeddings", True))


def granitemoe(keys: Keys) -> Architecture:
    return replace(
        granite(keys), experts=keys.whole("num_local_experts", otherwise=8),
        experts_active=keys.whole("num_experts_per_tok", otherwise=2),
    )  # fmt: skip


def granite_hybrid(keys: Keys) -> Architecture:
    """Granite 4: Mamba-2 in most layers; a shared block beside experts, or alone."""
    found = granite(keys)
    shared = keys.whole("shared_intermediate_size", otherwise=0, low=0)
    experts = keys.whole("num_local_experts", otherwise=0, low=0)
    if experts:
        found = replace(
            found, experts=experts, experts_active=keys.whole("num_experts_per_tok"),
            experts_shared=keys.times("shared_intermediate_size", found.ffn),
        )  # fmt: skip
    elif shared:
        found = replace(found, ffn=shared)
    linear = keys.counted("layer_types", "mamba")
    heads = keys.whole("mamba_n_heads", otherwise=128)
    state = keys.whole("mamba_d_state", otherwise=128)
    inner = heads * keys.whole("mamba_d_head", otherwise=64)
    weights, small = mamba2(keys, found.hidden, heads, inner, "mamba_")
    return replace(
        found, linear_layers=linear, linear_weights=weights, linear_state=inner * state,
        extra=linear * small,
    )  # fmt: skip


def mamba2(keys: Keys, hidden: int, heads: int, inner: int, prefix: str) -> tuple[int, int]:
    """Weights of the matrices of a Mamba-2 mixer, and its other parameters."""
    state = keys.whole(f"{prefix}d_state", "ssm_state_size", otherwise=128)
    groups = keys.whole(f"{prefix}n_groups", "n_groups", otherwise=1)
    kernel = keys.whole(f"{prefix}d_conv", "conv_kernel", otherwise=4)
    passed = inner + 2 * groups * state
    bias = keys.flag("use_conv_bias" if prefix == "" else f"{prefix}conv_bias", True)
    small = passed * (kernel + (1 if bias else 0)) + 3 * heads + inner
    return hidden * (inner + passed + heads) + inner * hidden, small


def nemotron_h(keys: Keys) -> int:
    """Parameters: layers are Mamba-2, attention, or a block alone, each with its norm."""
    hidden, vocab = keys.whole("hidden_size"), keys.whole("vocab_size")
    pattern = keys.word("hybrid_override_pattern")
    heads = keys.whole("mamba_num_heads")
    inner = heads * keys.whole("mamba_head_dim")
    mamba = sum(mamba2(keys, hidden, heads, inner, ""))
    width = keys.whole("head_dim", "attention_head_dim", otherwise=128)
    attention = 2 * hidden * width
    attention *= keys.whole("num_attention_heads") + keys.whole("num_key_value_heads")
    dense = 2 * hidden * keys.whole("intermediate_size")
    experts = keys.whole("n_routed_experts", otherwise=0, low=0)
    routed = experts * (2 * hidden * keys.whole("moe_intermediate_size", otherwise=0, low=0))
    routed += experts * (hidden + 1)
    routed += 2 * hidden * keys.whole("moe_shared_expert_intermediate_size", otherwise=0, low=0)
    each = {"M": mamba, "*": attention, "-": dense, "E": routed}
    unknown = next((one for one in pattern if one not in each), "")
    if unknown or not pattern:
        raise Unreadable("hybrid_override_pattern", f"{pattern!r:.40}", "letters M, *, - and E")
    ends = hidden * vocab * (1 if keys.flag("tie_word_embeddings", False) else 2) + hidden
    return ends + sum(each[one] + hidden for one in pattern)


def nemotron(keys: Keys) -> Architecture:
    """Nemotron 4 and Minitron: squared ReLU without a gate, LayerNorm."""
    return replace(llama(keys), gated=False, norm_bias=True)


def apertus(keys: Keys) -> Architecture:
    """xIELU, with two numbers a layer and no gate; norms of queries and keys."""
    found = replace(llama(keys), gated=False, head_norm=True)
    return replace(found, extra=2 * found.layers)


def cohere(keys: Keys) -> Architecture:
    """Blocks in parallel behind one norm without a bias."""
    found = replace(llama(keys), norms=1, tied=keys.flag("tie_word_embeddings", True))
    return all_heads_normed(found) if keys.flag("use_qk_norm", False) else found


def cohere2(keys: Keys) -> Architecture:
    return windowed(keys, cohere(keys), 4)


def starcoder2(keys: Keys) -> Architecture:
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    return plain(
        keys, hidden, heads, ffn=keys.whole("intermediate_size", otherwise=4 * hidden),
        kv_heads=keys.whole("num_key_value_heads", otherwise=heads),
        tied=keys.flag("tie_word_embeddings", True), bias=keys.flag("use_bias", True),
        window=keys.whole("sliding_window", otherwise=0, low=0),
    )  # fmt: skip
