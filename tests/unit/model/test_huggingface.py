"""Configurations as published give the published number of parameters."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.families import FAMILIES
from joulecut_lab.model.hub_keys import Unreadable
from joulecut_lab.model.huggingface import INDESCRIBABLE, architecture_of
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


CONFIGS = yaml.safe_load((Path(__file__).parent / "published_configs.yaml").read_text())
PUBLISHED, TODAYS, ROUNDED = (
    {name: (one["config"], one["parameters"]) for name, one in CONFIGS[kind].items()}
    for kind in ("published", "todays", "rounded")
)


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert architecture_of(config).parameters == pytest.approx(parameters, rel=1e-3)


def test_every_family_is_in_the_table() -> None:
    """Its row, or that of the family that it is another name of."""
    tables = (*PUBLISHED.values(), *TODAYS.values(), *ROUNDED.values())
    tested = {config.get("text_config", config)["model_type"] for config, _ in tables}
    alike = {"deepseek_v32": "glm_moe_dsa", "qwen3_5_moe": "qwen3_next", "olmo3": "olmo2",
             "cohere2": "cohere", "glm": "glm4"}  # fmt: skip

    def own(name: str) -> str:
        name = name.removesuffix("_text")  # the language model of one that sees
        family = FAMILIES[name]
        return name if family.fields or family.rules else own(family.like)

    assert {own(one) for one in FAMILIES} == {own(one) for one in {*tested, *alike}}


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
