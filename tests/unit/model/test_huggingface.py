"""Configurations as published give the published number of parameters."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.huggingface import Unreadable, architecture_of
from joulecut_lab.model.run import Run


def _llama(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
        "vocab_size": vocab,
    }  # fmt: skip


CONFIGS = yaml.safe_load((Path(__file__).parent / "published_configs.yaml").read_text())
PUBLISHED, TODAYS = (
    {name: (one["config"], one["parameters"]) for name, one in CONFIGS[kind].items()}
    for kind in ("published", "todays")
)


@pytest.mark.parametrize("name", TODAYS)
def test_todays_families_are_estimated(name: str) -> None:
    """With finite times and memory, and more time for longer contexts."""
    model = architecture_of(TODAYS[name][0])
    times = []
    for sequence in (4096, 32768):
        run = Run(8, data=8, global_batch=8, sequence=sequence, flash_attention=True)
        found = formula.estimate(model, SYSTEMS["dgx-h100"], run)
        times.append(found.iteration_time_s)
        assert found.model_flops > 6.0 * 8 * sequence * 0.5 * model.active_parameters
    assert times[1] > times[0]


@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-20b"])
def test_windows_cost_less_at_long_contexts(name: str) -> None:
    def slope(**change: Any) -> float:
        model, times = architecture_of(TODAYS[name][0] | change), []
        for sequence in (4096, 65536):
            run = Run(8, data=8, global_batch=8, sequence=sequence, flash_attention=True)
            times.append(formula.estimate(model, SYSTEMS["dgx-h100"], run).iteration_time_s)
        return times[1] / times[0]

    assert slope() < 0.8 * slope(sliding_window=None)


@pytest.mark.parametrize("name", [*PUBLISHED, *TODAYS])
def test_parameters_are_the_published_ones(name: str) -> None:
    config, parameters = (PUBLISHED | TODAYS)[name]
    assert architecture_of(config).parameters == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq"),
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
