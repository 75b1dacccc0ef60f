"""Architectures from the `config.json` of the Hugging Face hub.

Most families name the same thing alike (`NAMES`); a row of `FAMILIES` says what one does otherwise
or leaves out of the file. Families whose layers differ in more than experts and windows are
refused, and so is an unknown one: a guess would give a wrong number of parameters. Of models that
see or hear the language model is read.
"""

from collections.abc import Callable, Mapping
from typing import Any

from joulecut_lab.model.architecture import Architecture

WHOLE_MAX = 10**9
# Keys by field of `Architecture`; the first that is there and not null counts.
NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size",),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner"),
    "head_dim": ("qk_nope_head_dim", "head_dim"),
    "value_dim": ("v_head_dim",),
    "rope_dim": ("qk_rope_head_dim",),
    "kv_rank": ("kv_lora_rank",),
    "query_rank": ("q_lora_rank",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "experts_active": ("num_experts_per_tok", "experts_per_token"),
    "experts_shared": ("n_shared_experts",),
    "expert_ffn": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}
NEEDED = ("layers", "hidden", "heads", "vocab")
# Experts in every layer after the first ones: what a step of other layers must be.
STEPS = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")

Row = dict[str, Any]  # by field: a value, a key with its default, or a function of what was read


def _head_norms(found: Row) -> int:
    """Norms of queries and keys over all heads at once."""
    each = found["head_dim"] or found["hidden"] // found["heads"]
    return int(found["layers"] * each * (found["heads"] + found["kv_heads"]))


def _sinks(found: Row) -> int:
    """Biases of outputs and experts, and a sink for each head."""
    biases = found["experts"] * (2 * found["ffn"] + found["hidden"])
    return int(found["layers"] * (found["hidden"] + found["heads"] + biases))


def _activations(found: Row) -> int:
    """xIELU has two numbers a layer."""
    return 2 * int(found["layers"])


_ROUTER: Row = {"router_bias": True}
_QUERY: Row = {"query_bias": True}
_TIED: Row = {"tied": ("tie_word_embeddings", True)}
_GPT: Row = {"gated": False, "bias": True, "norm_bias": True}
_QWEN3: Row = {"head_norm": True, "head_dim": ("head_dim", 128)}
_GEMMA: Row = {"head_dim": ("head_dim", 256), **_TIED}
_HEAD_NORMS: Row = {"extra": _head_norms}
FAMILIES: dict[str, Row] = {
    "llama": {}, "seed_oss": {}, "baichuan": {}, "mistral": {}, "ministral": {}, "ministral3": {},
    "mixtral": {}, "phi3": {}, "deepseek": {}, "deepseek_v2": {},
    "deepseek_v3": _ROUTER, "kimi_k2": _ROUTER,
    "granite": _TIED, "granitemoe": _TIED, "smollm3": _TIED, "ernie4_5": _TIED,
    "qwen2": _QUERY, "mimo": _QUERY, "qwen2_vl": _QUERY, "qwen2_5_vl": _QUERY,
    "qwen3": _QWEN3, "qwen3_moe": _QWEN3, "qwen3_vl": _QWEN3, "qwen3_vl_moe": _QWEN3,
    "internlm2": {"query_bias": ("bias", False)},
    "dots1": {**_ROUTER, "head_norm": True},
    "glm4": {"head_dim": ("head_dim", 128), "query_bias": ("attention_bias", True), "norms": 4},
    "glm4_moe": {**_ROUTER, "head_dim": ("head_dim", 128), "head_norm": ("use_qk_norm", False)},
    "gpt_oss": {**_ROUTER, **_QUERY, "head_dim": ("head_dim", 64), "extra": _sinks},
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "norms": 4},
    "gemma3": {**_GEMMA, "norms": 4, "head_norm": True},
    "olmo2": _HEAD_NORMS, "olmo3": _HEAD_NORMS, "olmoe": _HEAD_NORMS,
    "apertus": {"gated": False, "head_norm": True, "extra": _activations},
    "llama4": {
        "head_dim": ("head_dim", 128), "experts_shared": 1,
        "expert_ffn": ("intermediate_size", 8192), "ffn": ("intermediate_size_mlp", 16384),
    },
    "minimax_m2": {**_HEAD_NORMS, **_ROUTER, "head_dim": ("head_dim", 128)},
    "nemotron": {"gated": False, "norm_bias": True},  # squared ReLU, LayerNorm
    "gpt2": {**_GPT, **_TIED, "positions": ("n_positions", 1024)},
    "gpt_neox": {**_GPT, "bias": ("attention_bias", True)},
    "bloom": {**_GPT, **_TIED, "embedding_norm": True},
    "starcoder2": {**_GPT, **_TIED, "bias": ("use_bias", True)},
}  # fmt: skip
# Of layers with a sliding window one in so many sees everything, unless `layer_types` says it.
FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt_oss": 2, "llama4": 4, "olmo3": 4}
WINDOW_IF_ASKED = ("qwen", "mimo")  # beginnings of families with windows off by default


class Unreadable(ValueError):
    """A configuration that gives no architecture: key, fault, and what is allowed."""

    def __init__(self, key: str, what: str, allowed: str) -> None:
        super().__init__(f"{key}: {what}; allowed: {allowed}")
        self.key, self.what, self.allowed = key, what, allowed


def architecture_of(config: Mapping[str, Any], name: str = "") -> Architecture:
    """Raises Unreadable."""
    if isinstance(inner := config.get("text_config"), Mapping):
        shared = {"tie_word_embeddings": config.get("tie_word_embeddings")}
        config = {**shared, **inner}
    family = config.get("model_type")
    family = family.removesuffix("_text") if isinstance(family, str) else None
    if family not in FAMILIES:
        what = "missing" if family is None else f'"{family}" is not known'
        raise Unreadable("model_type", what, f"{', '.join(FAMILIES)}; or a shape in the run file")
    for key in STEPS:
        if _whole(config, (key,), 1) != 1:
            raise Unreadable(key, "not 1", "1: experts in every later layer")
    if config.get("mlp_only_layers"):
        raise Unreadable("mlp_only_layers", "names layers", "none: experts in every layer")
    found = Architecture(**_fields(config, FAMILIES[family]), **_window(config, family),
                         name=name or str(config.get("_name_or_path") or family))  # fmt: skip
    if found.hidden % found.heads and not found.head_dim:
        what = f"{found.hidden} is no multiple of {found.heads} heads"
        raise Unreadable("hidden_size", what, "a multiple, or head_dim beside it")
    return found


def _fields(config: Mapping[str, Any], row: Row) -> Row:
    found: Row = {"gated": True}
    for field, names in NAMES.items():
        usual: int | None = None if field in NEEDED else 0
        if field in {"kv_heads", "ffn"}:
            usual = found["heads"] if field == "kv_heads" else 4 * found["hidden"]
        found[field] = _whole(config, names, usual, low=0 if usual == 0 else 1)
    if found["experts"]:  # of each token: at most `topk_group` of the groups that stand for nodes
        limit, groups = (_whole(config, (key,), 1) for key in ("topk_group", "n_group"))
        found["expert_nodes"] = limit if limit < groups else 0
    keys = {"tied": ("tie_word_embeddings", False), "query_bias": ("attention_bias", False), **row}
    functions: list[tuple[str, Callable[[Row], int]]] = []
    for field, value in keys.items():
        if callable(value):
            functions.append((field, value))
        elif isinstance(value, tuple):
            key, usual = value
            if isinstance(usual, bool):
                found[field] = _flag(config, key, usual)
            else:
                found[field] = _whole(config, (key,), usual)
        else:
            found[field] = value
    return found | {field: function(found) for field, function in functions}


def _window(config: Mapping[str, Any], family: str) -> Row:
    """Sliding windows, and in how many layers."""
    on = _flag(config, "use_sliding_window", not family.startswith(WINDOW_IF_ASKED))
    window = _whole(config, ("sliding_window", "attention_chunk_size"), 0, low=0) if on else 0
    every = FULL_EVERY.get(family)
    if not window or every is None:
        return {"window": window}
    types, layers = config.get("layer_types"), _whole(config, NAMES["layers"])
    listed = types.count("sliding_attention") if isinstance(types, list) else 0
    return {"window": window, "window_layers": listed or layers - layers // every}


def _whole(
    config: Mapping[str, Any], names: tuple[str, ...], otherwise: int | None = None, low: int = 1
) -> int:
    for name in names:
        value = config.get(name)
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


def _flag(config: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = config.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, bool):
        raise Unreadable(name, f"{value!r:.40} is neither", "true or false")
    return value
