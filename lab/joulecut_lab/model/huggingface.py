"""Architectures from the `config.json` of the Hugging Face hub.

Families name the same thing differently and leave out what their code defaults to. Each family has
one function here, which knows both. An unknown family is refused: a guess would give a wrong
number of parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from joulecut_lab.model.architecture import Architecture

WHOLE_MAX = 10**9


class Unreadable(ValueError):
    """A configuration that gives no architecture: key, fault, and what is allowed."""

    def __init__(self, key: str, what: str, allowed: str) -> None:
        super().__init__(f"{key}: {what}; allowed: {allowed}")
        self.key, self.what, self.allowed = key, what, allowed


def architecture_of(config: Mapping[str, Any], name: str = "") -> Architecture:
    """Raises Unreadable."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        what = "missing" if family is None else f'"{family}" is not known'
        raise Unreadable("model_type", what, ", ".join(FAMILIES))
    found = FAMILIES[family](_Keys(config))
    if found.hidden % found.heads and not found.head_dim:
        what = f"{found.hidden} is no multiple of {found.heads} heads"
        raise Unreadable("hidden_size", what, "a multiple, or head_dim beside it")
    return replace(found, name=name or str(config.get("_name_or_path") or family))


class _Keys:
    """Checked access to a configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def whole(self, *names: str, otherwise: int | None = None, low: int = 1) -> int:
        """The first of these keys that is there and not null."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise Unreadable(name, f"{value!r:.40} is no whole number", f"{low} or more")
            if not low <= value <= WHOLE_MAX:
                shown = f"{value}" if abs(value) <= WHOLE_MAX**2 else "a huge number"
                raise Unreadable(name, f"{shown} is out of range", f"{low} to {WHOLE_MAX}")
            return value
        if otherwise is None:
            raise Unreadable(names[0], "missing", "a whole number")
        return otherwise

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self._config.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise Unreadable(name, f"{value!r:.40} is neither", "true or false")
        return value

    def word(self, name: str) -> str:
        return str(self._config.get(name) or "")

    def listed(self, name: str) -> list[Any]:
        value = self._config.get(name)
        return value if isinstance(value, list) else []


def _llama(keys: _Keys) -> Architecture:
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


def _mistral(keys: _Keys) -> Architecture:
    return replace(_llama(keys), window=keys.whole("sliding_window", otherwise=0, low=0))


def _mixtral(keys: _Keys) -> Architecture:
    return replace(
        _mistral(keys),
        experts=keys.whole("num_local_experts", otherwise=8),
        experts_active=keys.whole("num_experts_per_tok", otherwise=2),
    )


def _qwen(keys: _Keys) -> Architecture:
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


def _qwen2(keys: _Keys) -> Architecture:
    """Its window is off unless use_sliding_window says otherwise."""
    window = keys.whole("sliding_window", otherwise=0, low=0)
    on = keys.flag("use_sliding_window", False)
    return replace(_llama(keys), query_bias=True, window=window if on else 0)


def _qwen2_moe(keys: _Keys) -> Architecture:
    """The shared expert counts as several of the routed ones' width."""
    found = _qwen_experts(keys, _qwen2(keys))
    shared = keys.whole("shared_expert_intermediate_size", otherwise=0, low=0)
    if shared % found.expert_ffn:
        what = f"{shared} is no multiple of moe_intermediate_size, {found.expert_ffn}"
        raise Unreadable("shared_expert_intermediate_size", what, "a multiple")
    return replace(found, experts_shared=shared // found.expert_ffn)


def _qwen3(keys: _Keys) -> Architecture:
    head_dim = keys.whole("head_dim", otherwise=128)
    bias = keys.flag("attention_bias", False)
    return replace(_qwen2(keys), query_bias=bias, head_norm=True, head_dim=head_dim)


def _qwen3_moe(keys: _Keys) -> Architecture:
    return _qwen_experts(keys, _qwen3(keys))


def _qwen_experts(keys: _Keys, dense: Architecture) -> Architecture:
    if keys.whole("decoder_sparse_step", otherwise=1) != 1:
        raise Unreadable("decoder_sparse_step", "not 1", "1: experts in every layer")
    return replace(
        dense,
        experts=keys.whole("num_experts"),
        experts_active=keys.whole("num_experts_per_tok"),
        expert_ffn=keys.whole("moe_intermediate_size"),
        dense_layers=len(keys.listed("mlp_only_layers")),
    )


def _deepseek(keys: _Keys) -> Architecture:
    """Latent attention; experts after the first layers. Extra prediction layers are left out, as
    published counts leave them out.
    """
    if keys.whole("moe_layer_freq", otherwise=1) != 1:
        raise Unreadable("moe_layer_freq", "not 1", "1: experts in every later layer")
    limit = keys.whole("topk_group", otherwise=1)
    return replace(
        _llama(keys),
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


def _plain(keys: _Keys, hidden: int, heads: int, **given: Any) -> Architecture:
    """One without gates: keys and values for every head, and biases, unless `given` says more."""
    usual: dict[str, Any] = {"kv_heads": heads, "bias": True, "norm_bias": True}
    for key, name in (("layers", "num_hidden_layers"), ("vocab", "vocab_size")):
        if key not in given:
            usual[key] = keys.whole(name)
    return Architecture(hidden=hidden, heads=heads, **(usual | given))


def _gpt2(keys: _Keys) -> Architecture:
    hidden = keys.whole("n_embd")
    return _plain(
        keys, hidden, keys.whole("n_head"),
        layers=keys.whole("n_layer"),
        ffn=keys.whole("n_inner", otherwise=4 * hidden),
        vocab=keys.whole("vocab_size", otherwise=50257),
        positions=keys.whole("n_positions", "n_ctx", otherwise=1024),
        tied=keys.flag("tie_word_embeddings", True),
    )  # fmt: skip


def _gpt_neox(keys: _Keys) -> Architecture:
    hidden = keys.whole("hidden_size")
    return _plain(
        keys, hidden, keys.whole("num_attention_heads"),
        ffn=keys.whole("intermediate_size", otherwise=4 * hidden),
        tied=keys.flag("tie_word_embeddings", False),
        bias=keys.flag("attention_bias", True),
    )  # fmt: skip


def _bloom(keys: _Keys) -> Architecture:
    hidden = keys.whole("hidden_size", "n_embed")
    return _plain(
        keys, hidden, keys.whole("n_head", "num_attention_heads"),
        layers=keys.whole("n_layer", "num_hidden_layers"),
        ffn=4 * hidden,
        tied=keys.flag("tie_word_embeddings", True),
        embedding_norm=True,
    )  # fmt: skip


def _opt(keys: _Keys) -> Architecture:
    """Its positions start at 2; opt-350m projects its embedding and has no last norm."""
    hidden = keys.whole("hidden_size")
    projected = keys.whole("word_embed_proj_dim", otherwise=hidden)
    return _plain(
        keys, hidden, keys.whole("num_attention_heads"),
        ffn=keys.whole("ffn_dim"),
        positions=keys.whole("max_position_embeddings") + 2,
        tied=keys.flag("tie_word_embeddings", True),
        bias=keys.flag("enable_bias", True),
        final_norm=keys.flag("do_layer_norm_before", True),
        embedding_dim=0 if projected == hidden else projected,
    )  # fmt: skip


def _falcon(keys: _Keys) -> Architecture:
    hidden = keys.whole("hidden_size")
    heads = keys.whole("num_attention_heads", "n_head")
    grouped = keys.flag("new_decoder_architecture", False)
    kv_heads = keys.whole("num_kv_heads", "n_head_kv", otherwise=heads) if grouped else heads
    if not grouped and keys.flag("multi_query", True):
        kv_heads = 1
    return _plain(
        keys, hidden, heads,
        layers=keys.whole("num_hidden_layers", "n_layer"),
        kv_heads=kv_heads,
        ffn=keys.whole("ffn_hidden_size", otherwise=4 * hidden),
        tied=keys.flag("tie_word_embeddings", True),
        bias=keys.flag("bias", False),
        norms=1 if keys.flag("parallel_attn", True) and not grouped else 2,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[_Keys], Architecture]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen": _qwen,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "bloom": _bloom,
    "opt": _opt,
    "falcon": _falcon,
    "RefinedWeb": _falcon,  # names of falcon before it joined the library
    "RefinedWebModel": _falcon,
    "gpt_neox": _gpt_neox,
}
