"""Families of models: one row each, from keys of a `config.json`.

A row names the family that it begins with, the fields of `Architecture` that it reads otherwise,
and what follows from several keys. Counts of parameters are those of the published weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.hub_keys import Keys, Unreadable

Read = Callable[[Keys, dict[str, Any]], Any]  # of the fields before it
Rule = Callable[[Keys, Architecture], Architecture]


@dataclass(frozen=True, slots=True)
class Family:
    """Fields are read in order, those of `like` first; a value that is no reader stands as it is.
    `rules` apply in order to what was read, those of `like` first."""

    like: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


def architecture(name: str, keys: Keys) -> Architecture:
    """Raises Unreadable."""
    reads, rules = _whole(name)
    found: dict[str, Any] = {}
    for key, read in reads.items():
        found[key] = read(keys, found) if callable(read) else read
    made = Architecture(**found)
    for rule in rules:
        made = rule(keys, made)
    return made


def _whole(name: str) -> tuple[dict[str, Any], tuple[Rule, ...]]:
    family = FAMILIES[name]
    if not family.like:
        return family.fields, family.rules
    fields, rules = _whole(family.like)
    return fields | family.fields, rules + family.rules


def whole(*names: str, otherwise: int | str | None = None, low: int = 1) -> Read:
    """A whole number; `otherwise` may be the name of a field."""

    def read(keys: Keys, found: dict[str, Any]) -> int:
        usual = found[otherwise] if isinstance(otherwise, str) else otherwise
        return keys.whole(*names, otherwise=usual, low=low)

    return read


def count(*names: str) -> Read:
    """A whole number that may be missing: 0."""
    return whole(*names, otherwise=0, low=0)


def flag(name: str, otherwise: bool) -> Read:
    return lambda keys, _: keys.flag(name, otherwise)


def fourfold(*names: str) -> Read:
    """A width; missing it is four times the hidden size."""
    return lambda keys, found: keys.whole(*names, otherwise=4 * found["hidden"])


TIED = {"tied": flag("tie_word_embeddings", True)}
LOCAL_EXPERTS = {
    "experts": whole("num_local_experts", otherwise=8),
    "experts_active": whole("num_experts_per_tok", otherwise=2),
}
LAYER_NORM = {"gated": False, "bias": True, "norm_bias": True}


def windowed(every: int) -> Rule:
    """Sliding windows in all layers but each `every`-th, unless `layer_types` says it."""

    def rule(keys: Keys, found: Architecture) -> Architecture:
        window = keys.whole("sliding_window", "attention_chunk_size", otherwise=0, low=0)
        letters = keys.word("sliding_window_pattern")  # EXAONE: LLLG
        pattern = len(letters)
        if not letters.isalpha():
            names = ("sliding_window_pattern", "_sliding_window_pattern")
            pattern = keys.whole(*names, otherwise=every)
        layers = keys.counted(
            "layer_types", "sliding_attention", "chunked_attention",
            otherwise=found.layers - found.layers // pattern,
        )  # fmt: skip
        return replace(found, window=window if layers else 0, window_layers=layers if window else 0)

    return rule


def all_heads_normed(_: Keys, found: Architecture) -> Architecture:
    """Norms of queries and keys over all heads at once."""
    norms = found.layers * found.query_dim * (found.heads + found.kv_heads)
    return replace(found, extra=norms)


def normed_if_asked(keys: Keys, found: Architecture) -> Architecture:
    return all_heads_normed(keys, found) if keys.flag("use_qk_norm", False) else found


def _window_if_on(keys: Keys, _: dict[str, Any]) -> int:
    window = keys.whole("sliding_window", otherwise=0, low=0)
    return window if keys.flag("use_sliding_window", False) else 0


def _half(keys: Keys, _: dict[str, Any]) -> int:
    """The first Qwen's intermediate_size counts both of the gated matrices."""
    wide = keys.whole("intermediate_size")
    if wide % 2:
        raise Unreadable("intermediate_size", f"{wide} is odd", "twice the width")
    return wide // 2


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


def shared_expert(otherwise: int = 0) -> Rule:
    """The shared expert counts as several of the routed ones' width."""
    name = "shared_expert_intermediate_size"
    return lambda keys, found: replace(
        found, experts_shared=keys.times(name, found.expert_ffn, otherwise=otherwise)
    )


def every_layer(keys: Keys, found: Architecture) -> Architecture:
    """Of deepseek: experts after the first layers. Extra prediction layers are left out, as
    published counts leave them out.
    """
    if keys.whole("moe_layer_freq", otherwise=1) != 1:
        raise Unreadable("moe_layer_freq", "not 1", "1: experts in every later layer")
    limit = keys.whole("topk_group", otherwise=1)
    nodes = limit if limit < keys.whole("n_group", otherwise=1) else 0
    return replace(found, expert_nodes=nodes)


def indexed(keys: Keys, found: Architecture) -> Architecture:
    """With an indexer, which picks the keys of each query; trained on all of them."""
    heads = keys.whole("index_n_heads", otherwise=0, low=0)
    width = keys.whole("index_head_dim", otherwise=128)
    indexer = found.query_rank * heads * width + found.hidden * (width + heads) + 2 * width
    layers = found.layers - keys.counted("indexer_types", "shared", "none")
    return replace(found, extra=layers * indexer if heads else 0)


def projected(keys: Keys, found: Architecture) -> Architecture:
    """Of OPT: positions start at 2; opt-350m projects its embedding and has no last norm."""
    width = keys.whole("word_embed_proj_dim", otherwise=found.hidden)
    positions = keys.whole("max_position_embeddings") + 2
    return replace(found, positions=positions, embedding_dim=0 if width == found.hidden else width)


def multi_query(keys: Keys, found: Architecture) -> Architecture:
    """Of Falcon: one head of keys in the first ones, and blocks in parallel."""
    grouped = keys.flag("new_decoder_architecture", False)
    kv_heads = found.heads
    if grouped:
        kv_heads = keys.whole("num_kv_heads", "n_head_kv", otherwise=found.heads)
    elif keys.flag("multi_query", True):
        kv_heads = 1
    parallel = keys.flag("parallel_attn", True) and not grouped
    return replace(found, kv_heads=kv_heads, norms=1 if parallel else 2)


def wide_full_layers(keys: Keys, found: Architecture) -> Architecture:
    """Of Gemma 4: its full layers have wider heads and take keys for values; of these only the
    parameters count.
    """
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers", "num_experts"):
        if keys.whole(key, otherwise=0, low=0):
            raise Unreadable(key, "what it switches on cannot be described", "0 or none")
    full = found.layers - found.window_layers
    wide = keys.whole("global_head_dim", otherwise=found.head_dim)
    few = keys.whole("num_global_key_value_heads", otherwise=found.kv_heads)
    once = 1 if keys.flag("attention_k_eq_v", False) else 2
    weights = found.hidden * wide * (2 * found.heads + once * few)
    more = full * (weights - found.attention_weights + 2 * (wide - found.head_dim))
    return replace(found, extra=more)


def sinks(_: Keys, found: Architecture) -> Architecture:
    """Of gpt-oss: biases of outputs and experts, and a sink for each head."""
    biases = found.experts * (2 * found.ffn + found.hidden)
    return replace(found, extra=found.layers * (found.hidden + found.heads + biases))


def delta(keys: Keys, found: Architecture) -> Architecture:
    """Gated delta rule in all layers but each fourth, whose attention has a gate per head
    (Qwen3-Next).
    """
    every = keys.whole("full_attention_interval", otherwise=4)
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
    gates += found.expert_layers * found.hidden  # of the shared expert
    return replace(
        found, head_norm=True, linear_layers=linear, linear_state=values * each * width,
        linear_weights=found.hidden * (2 * key_dim + 3 * value_dim + 2 * values),
        extra=linear * small + gates,
    )  # fmt: skip


def interleaved(keys: Keys, found: Architecture) -> Architecture:
    """Of Llama 4: experts in each `interleave_moe_layer_step`-th layer; the others count as the
    first ones."""
    step = keys.whole("interleave_moe_layer_step", otherwise=1)
    experts = len(keys.listed("moe_layers")) or found.layers // step
    return replace(found, dense_layers=found.layers - experts)


def lightning(keys: Keys, found: Architecture) -> Architecture:
    """Of MiniMax-Text-01: lightning attention in seven of eight layers."""
    listed = keys.listed("attn_type_list") or keys.listed("layer_types")
    linear = sum(one in (0, "linear_attention") for one in listed)
    width = found.heads * found.query_dim
    return replace(
        found, linear_layers=linear, linear_weights=5 * found.hidden * width,
        linear_state=found.heads * found.query_dim**2, extra=linear * width,
    )  # fmt: skip


def logit_biases(keys: Keys, found: Architecture) -> Architecture:
    """Of Phi MoE: biases of attention's output and of the logits."""
    out = found.layers * found.hidden if found.query_bias else 0
    return replace(found, extra=out + (found.vocab if keys.flag("lm_head_bias", False) else 0))


def mamba_layers(keys: Keys, found: Architecture) -> Architecture:
    """Of Granite 4: Mamba-2 in most layers; a shared block beside experts, or alone."""
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
    passed = inner + 2 * keys.whole("mamba_n_groups", otherwise=1) * state
    kernel = keys.whole("mamba_d_conv", otherwise=4) + keys.flag("mamba_conv_bias", True)
    hidden = found.hidden
    return replace(
        found, linear_layers=linear, linear_state=inner * state,
        linear_weights=hidden * (inner + passed + heads) + inner * hidden,
        extra=linear * (passed * kernel + 3 * heads + inner),
    )  # fmt: skip


FAMILIES: dict[str, Family] = {
    "llama": Family("", {
        "layers": whole("num_hidden_layers"), "hidden": whole("hidden_size"),
        "heads": whole("num_attention_heads"),
        "kv_heads": whole("num_key_value_heads", otherwise="heads"),
        "ffn": whole("intermediate_size"), "vocab": whole("vocab_size"), "gated": True,
        "head_dim": count("head_dim"), "tied": flag("tie_word_embeddings", False),
        "query_bias": flag("attention_bias", False),
    }),
    "seed_oss": Family("llama"),
    "internlm2": Family("llama", {"query_bias": flag("bias", False)}),
    "baichuan": Family("llama"),
    "ernie4_5": Family("llama", TIED),
    "exaone4": Family("llama", {"head_norm": True, "head_dim": count("head_dim")}, (windowed(4),)),
    "chatglm": Family("llama", {
        "layers": whole("num_layers"), "ffn": whole("ffn_hidden_size"),
        "kv_heads": whole("multi_query_group_num", otherwise="heads"),
        "vocab": whole("padded_vocab_size"), "head_dim": count("kv_channels"),
        "query_bias": flag("add_qkv_bias", False),
    }),
    "mistral": Family("llama", {"window": count("sliding_window")}),
    "ministral": Family("mistral"),
    "ministral3": Family("mistral"),
    "phi3": Family("mistral"),
    "mixtral": Family("mistral", LOCAL_EXPERTS),
    "qwen": Family("llama", {
        "kv_heads": lambda _, found: found["heads"], "ffn": _half,
        "head_dim": count("kv_channels"), "query_bias": True,
    }),
    "qwen2": Family("llama", {"query_bias": True, "window": _window_if_on}),
    "mimo": Family("qwen2"),
    "qwen2_moe": Family("qwen2", {}, (qwen_experts, shared_expert())),
    "qwen3": Family("qwen2", {
        "query_bias": flag("attention_bias", False), "head_norm": True,
        "head_dim": whole("head_dim", otherwise=128),
    }),
    "qwen3_moe": Family("qwen3", {}, (qwen_experts,)),
    "qwen2_vl": Family("qwen2"),
    "qwen2_5_vl": Family("qwen2"),
    "qwen3_vl": Family("qwen3"),
    "qwen3_vl_moe": Family("qwen3_moe"),
    "qwen3_5": Family("llama", {"head_dim": whole("head_dim", otherwise=256)}, (delta,)),
    "qwen3_next": Family("llama", {
        "head_dim": whole("head_dim", otherwise=256), "head_norm": True,
    }, (qwen_experts, shared_expert(512), delta)),
    "qwen3_5_moe": Family("qwen3_next", {"ffn": whole("intermediate_size", otherwise=1)}),
    "deepseek": Family("llama", {
        "experts": count("n_routed_experts"),
        "experts_active": count("num_experts_per_tok"), "experts_shared": count("n_shared_experts"),
        "expert_ffn": count("moe_intermediate_size"),
        "dense_layers": count("first_k_dense_replace"),
        "router_bias": lambda keys, _: keys.word("topk_method") == "noaux_tc",
    }, (every_layer,)),
    "dots1": Family("deepseek", {"head_dim": count("head_dim"), "head_norm": True}),
    "deepseek_v2": Family("deepseek", {
        "head_dim": whole("qk_nope_head_dim"), "rope_dim": whole("qk_rope_head_dim"),
        "value_dim": whole("v_head_dim"), "kv_rank": whole("kv_lora_rank"),
        "query_rank": count("q_lora_rank"),
    }),
    "deepseek_v3": Family("deepseek_v2"),
    "kimi_k2": Family("deepseek_v2"),
    "deepseek_v32": Family("deepseek_v2", {"router_bias": True}, (indexed,)),
    "glm_moe_dsa": Family("deepseek_v32"),
    "gpt_oss": Family("llama", {
        "head_dim": whole("head_dim", otherwise=64), "query_bias": True, "router_bias": True,
        "experts": whole("num_local_experts", otherwise=128),
        "experts_active": whole("num_experts_per_tok", "experts_per_token", otherwise=4),
    }, (sinks, windowed(2))),
    "glm": Family("llama", {
        "head_dim": whole("head_dim", otherwise=128), "query_bias": flag("attention_bias", True),
    }),
    "glm4": Family("glm", {"norms": 4}),
    "glm4_moe": Family("llama", {
        "head_dim": whole("head_dim", otherwise=128), "head_norm": flag("use_qk_norm", False),
        "experts": whole("n_routed_experts"), "experts_active": whole("num_experts_per_tok"),
        "experts_shared": whole("n_shared_experts", otherwise=1, low=0),
        "expert_ffn": whole("moe_intermediate_size"),
        "dense_layers": whole("first_k_dense_replace", otherwise=1, low=0), "router_bias": True,
    }),
    "glm4v": Family("glm4"),
    "glm4v_moe": Family("glm4_moe"),
    "gemma": Family("llama", {"head_dim": whole("head_dim", otherwise=256), **TIED}),
    "gemma2": Family("gemma", {"norms": 4}, (windowed(2),)),
    "gemma3": Family("gemma", {"norms": 4, "head_norm": True}, (windowed(6),)),
    "gemma4": Family("gemma3", {}, (wide_full_layers,)),
    "llama4": Family("llama", {
        "head_dim": whole("head_dim", otherwise=128), "expert_ffn": whole("intermediate_size"),
        "ffn": whole("intermediate_size_mlp", otherwise=16384), "experts_shared": 1,
        "experts": whole("num_local_experts", otherwise=16),
        "experts_active": whole("num_experts_per_tok", otherwise=1),
    }, (interleaved, windowed(4))),
    "minimax": Family("mixtral", {
        "window": 0, "head_dim": whole("head_dim", otherwise=128),
    }, (lightning,)),
    "minimax_text_01": Family("minimax"),
    "minimax_m1": Family("minimax"),
    "minimax_m2": Family("mixtral", {
        "window": 0, "head_dim": whole("head_dim", otherwise=128), "router_bias": True,
    }, (normed_if_asked,)),
    # The first OLMo's norms have no parameters.
    "olmo": Family("llama", {
        "extra": lambda _, found: -(2 * found["layers"] + 1) * found["hidden"],
    }),
    "olmo2": Family("llama", {}, (all_heads_normed,)),
    "olmo3": Family("olmo2", {}, (windowed(4),)),
    "olmoe": Family("olmo2", {
        "experts": whole("num_experts", otherwise=64),
        "experts_active": whole("num_experts_per_tok", otherwise=8),
    }),
    "granite": Family("llama", TIED),
    "smollm3": Family("granite"),
    "granitemoe": Family("granite", LOCAL_EXPERTS),
    "granitemoehybrid": Family("granite", {}, (mamba_layers,)),
    "phimoe": Family("mixtral", {"norm_bias": True}, (logit_biases,)),
    # Squared ReLU without a gate, LayerNorm.
    "nemotron": Family("llama", {"gated": False, "norm_bias": True}),
    # xIELU, with two numbers a layer and no gate.
    "apertus": Family("llama", {
        "gated": False, "head_norm": True, "extra": lambda _, found: 2 * found["layers"],
    }),
    # Blocks in parallel behind one norm without a bias.
    "cohere": Family("llama", {"norms": 1, **TIED}, (normed_if_asked,)),
    "cohere2": Family("cohere", {}, (windowed(4),)),
    "gpt_neox": Family("", {
        "hidden": whole("hidden_size"), "heads": whole("num_attention_heads"),
        "layers": whole("num_hidden_layers"), "kv_heads": lambda _, found: found["heads"],
        "ffn": fourfold("intermediate_size"), "vocab": whole("vocab_size"), **LAYER_NORM,
        "tied": flag("tie_word_embeddings", False), "bias": flag("attention_bias", True),
    }),
    # Phi-1 and 2: blocks in parallel, biases everywhere, of the logits too.
    "phi": Family("gpt_neox", {
        "kv_heads": whole("num_key_value_heads", otherwise="heads"), "bias": True, "norms": 1,
        "extra": lambda _, found: found["vocab"],
    }),
    "stablelm": Family("phi", {
        "gated": True, "bias": False, "query_bias": flag("use_qkv_bias", False), "extra": 0,
        "norms": lambda keys, _: 1 if keys.flag("use_parallel_residual", False) else 2,
    }),
    "gptj": Family("gpt_neox", {
        "layers": whole("n_layer"), "hidden": whole("n_embd"), "heads": whole("n_head"),
        "ffn": fourfold("n_inner"), "norms": 1, "bias": False,
        # Biases of the feed-forward blocks and of the logits alone.
        "extra": lambda _, f: f["layers"] * (f["ffn"] + f["hidden"]) + f["vocab"],
    }),
    "mpt": Family("gpt_neox", {
        "layers": whole("n_layers"), "hidden": whole("d_model"), "heads": whole("n_heads"),
        "kv_heads": whole("kv_n_heads", otherwise="heads"),
        "bias": lambda keys, _: not keys.flag("no_bias", True),
        "norm_bias": lambda _, f: f["bias"],
        "ffn": lambda keys, f: f["hidden"] * keys.whole("expansion_ratio", otherwise=4), **TIED,
        "positions": lambda keys, _: 0 if keys.flag("alibi", False) else keys.whole("max_seq_len"),
    }),
    "dbrx": Family("mpt", {
        "gated": True, "ffn": whole("ffn_hidden_size"), "experts": whole("moe_num_experts"),
        "experts_active": whole("moe_top_k"), "tied": flag("tie_word_embeddings", False),
        "positions": 0,
    }),
    "starcoder2": Family("gpt_neox", {
        "kv_heads": whole("num_key_value_heads", otherwise="heads"), **TIED,
        "bias": flag("use_bias", True), "window": count("sliding_window"),
    }),
    "gpt2": Family("gpt_neox", {
        "layers": whole("n_layer"), "hidden": whole("n_embd"), "heads": whole("n_head"),
        "ffn": fourfold("n_inner"), "vocab": whole("vocab_size", otherwise=50257), "bias": True,
        "positions": whole("n_positions", "n_ctx", otherwise=1024), **TIED,
    }),
    "gpt_bigcode": Family("gpt2", {
        "kv_heads": lambda keys, f: 1 if keys.flag("multi_query", True) else f["heads"],
    }),
    "bloom": Family("gpt_neox", {
        "layers": whole("n_layer", "num_hidden_layers"), "hidden": whole("hidden_size", "n_embed"),
        "heads": whole("n_head", "num_attention_heads"), "bias": True, "embedding_norm": True,
        "ffn": lambda _, found: 4 * found["hidden"], **TIED,
    }),
    "opt": Family("gpt_neox", {
        "ffn": whole("ffn_dim"), **TIED, "bias": flag("enable_bias", True),
        "final_norm": flag("do_layer_norm_before", True),
    }, (projected,)),
    "falcon": Family("gpt_neox", {
        "layers": whole("num_hidden_layers", "n_layer"),
        "heads": whole("num_attention_heads", "n_head"), "ffn": fourfold("ffn_hidden_size"),
        **TIED, "bias": flag("bias", False),
    }, (multi_query,)),
    "RefinedWeb": Family("falcon"),  # names of falcon before it joined the library
    "RefinedWebModel": Family("falcon"),
}  # fmt: skip
