"""Architectures from the `config.json` of the Hugging Face hub.

Families name the same thing differently and leave out what their code defaults to. Each family has
a row of `families`, which knows both. An unknown family is refused: a guess would give a wrong
number of parameters. Of models that see or hear the language model is read.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.families import FAMILIES, architecture
from joulecut_lab.model.hub_keys import Keys, Unreadable


def architecture_of(config: Mapping[str, Any], name: str = "") -> Architecture:
    """Raises Unreadable."""
    family = config.get("model_type")
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and family in WRAPPERS:
        config = {**_shared(config), **inner, "model_type": inner.get("model_type", family)}
        family = config["model_type"]
    if isinstance(family, str):
        family = family.removesuffix("_text")
    for key in ("attn_config", "ffn_config"):  # of MPT and DBRX
        inner = config.get(key)
        config = {**config, **inner} if isinstance(inner, Mapping) else config
    if not isinstance(family, str) or family not in FAMILIES.keys() | INDESCRIBABLE.keys():
        what = "missing" if family is None else f'"{family}" is not known'
        raise Unreadable("model_type", what, ", ".join(FAMILIES))
    if family in INDESCRIBABLE:
        what = f"{INDESCRIBABLE[family]} cannot be described"
        raise Unreadable("model_type", f"{family}: {what}", "a family of layers that are alike")
    found = architecture(family, Keys(config))
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
    "glm4v", "glm4v_moe", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
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
