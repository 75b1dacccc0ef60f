"""Architectures from the `config.json` of the Hugging Face hub.

Families name the same thing differently and leave out what their code defaults to. Each family has
one function here, which knows both. An unknown family is refused: a guess would give a wrong
number of parameters. Of models that see or hear the language model is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from joulecut_lab.model import families, mixed_families
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.hub_keys import Keys, Unreadable


def architecture_of(config: Mapping[str, Any], name: str = "") -> Architecture:
    """Raises Unreadable."""
    family = config.get("model_type")
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and family in WRAPPERS:
        config = {**_shared(config), **inner, "model_type": inner.get("model_type", family)}
        family = config["model_type"]
    if not isinstance(family, str) or family not in FAMILIES.keys() | INDESCRIBABLE.keys():
        what = "missing" if family is None else f'"{family}" is not known'
        raise Unreadable("model_type", what, ", ".join(FAMILIES))
    if family in INDESCRIBABLE:
        what = f"{INDESCRIBABLE[family]} cannot be described"
        if family == "nemotron_h":
            what += f"; it has {mixed_families.nemotron_h(Keys(config)):,} parameters"
        raise Unreadable("model_type", f"{family}: {what}", "a family of layers that are alike")
    found = FAMILIES[family](Keys(config))
    if found.hidden % found.heads and not found.head_dim:
        what = f"{found.hidden} is no multiple of {found.heads} heads"
        raise Unreadable("hidden_size", what, "a multiple, or head_dim beside it")
    return replace(found, name=name or str(config.get("_name_or_path") or family))


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a wrapper says of its language model outside of it."""
    return {key: config[key] for key in ("tie_word_embeddings",) if key in config}


# Models around a language model, which `text_config` describes.
WRAPPERS = {
    "gemma3", "gemma4", "llama4", "mistral3", "llava", "qwen3_5", "qwen3_5_moe", "kimi_k25",
    "glm4v", "glm4v_moe", "qwen3_vl", "qwen3_vl_moe",
}  # fmt: skip
INDESCRIBABLE = {
    "nemotron_h": "layers of one block each",
    "kimi_linear": "latent attention beside a recurrence",
    "mamba": "layers without a feed-forward block",
    "mamba2": "layers without a feed-forward block",
    "jamba": "experts and recurrences in layers of their own",
    "falcon_h1": "attention and recurrence side by side",
    "gemma3n": "embeddings for every layer",
}
FAMILIES: dict[str, Callable[[Keys], Architecture]] = {
    "gpt2": families.gpt2,
    "llama": families.llama,
    "mistral": families.mistral,
    "mixtral": families.mixtral,
    "qwen": families.qwen,
    "qwen2": families.qwen2,
    "qwen2_moe": families.qwen2_moe,
    "qwen3": families.qwen3,
    "qwen3_moe": families.qwen3_moe,
    "deepseek_v2": families.deepseek,
    "deepseek_v3": families.deepseek,
    "bloom": families.bloom,
    "opt": families.opt,
    "falcon": families.falcon,
    "RefinedWeb": families.falcon,  # names of falcon before it joined the library
    "RefinedWebModel": families.falcon,
    "gpt_neox": families.gpt_neox,
    "gpt_oss": mixed_families.gpt_oss,
    "kimi_k2": families.deepseek,
    "deepseek_v32": mixed_families.deepseek_sparse,
    "glm": mixed_families.glm,
    "glm4": mixed_families.glm4,
    "glm4_moe": mixed_families.glm4_moe,
    "glm_moe_dsa": mixed_families.deepseek_sparse,
    "gemma": mixed_families.gemma,
    "gemma2": mixed_families.gemma2,
    "gemma3": mixed_families.gemma3,
    "gemma3_text": mixed_families.gemma3,
    "gemma4": mixed_families.gemma4,
    "gemma4_text": mixed_families.gemma4,
    "qwen3_next": mixed_families.qwen3_next,
    "qwen3_5": mixed_families.qwen3_5,
    "qwen3_5_text": mixed_families.qwen3_5,
    "qwen3_5_moe": mixed_families.qwen3_5_moe,
    "qwen3_5_moe_text": mixed_families.qwen3_5_moe,
    "llama4": mixed_families.llama4,
    "llama4_text": mixed_families.llama4,
    "minimax": mixed_families.minimax,
    "minimax_text_01": mixed_families.minimax,
    "minimax_m2": mixed_families.minimax_m2,
    "olmo": mixed_families.olmo,
    "olmo2": mixed_families.olmo2,
    "olmo3": mixed_families.olmo3,
    "olmoe": mixed_families.olmoe,
    "phi": mixed_families.phi,
    "phi3": families.mistral,
    "phimoe": mixed_families.phimoe,
    "granite": mixed_families.granite,
    "granitemoe": mixed_families.granitemoe,
    "granitemoehybrid": mixed_families.granite_hybrid,
    "smollm3": mixed_families.granite,
    "apertus": mixed_families.apertus,
    "nemotron": mixed_families.nemotron,
    "cohere": mixed_families.cohere,
    "cohere2": mixed_families.cohere2,
    "starcoder2": mixed_families.starcoder2,
    "ministral": families.mistral,
    "ministral3": families.mistral,
    "seed_oss": families.llama,
    "mimo": families.qwen2,
}
