"""The catalogue: every number has a source, every model its published size."""

from dataclasses import MISSING, fields

import pytest

from joulecut_lab.model.catalogue import ARCHITECTURES, ENTRIES, sources_of
from joulecut_lab.model.system import System

# Billions of parameters: SC21 table 1, Korthikanti table 3, and the models' own reports.
SIZES = {
    "gpt3-175b": 174.6, "megatron-1.7b": 1.7, "megatron-3.6b": 3.6, "megatron-7.5b": 7.5,
    "megatron-18b": 18.4, "megatron-39b": 39.1, "megatron-76b": 76.1, "megatron-145b": 145.6,
    "megatron-310b": 310.1, "megatron-530b": 529.6, "megatron-1t": 1008.0, "megatron-22b": 22.0,
    "llama-2-70b": 68.98, "llama-3-70b": 70.55, "llama-3-405b": 405.85, "mixtral-8x7b": 46.7,
    "deepseek-v2": 235.7, "deepseek-v3": 671.0, "qwen3-235b-a22b": 235.1,
}  # fmt: skip
# Parameters that a token meets, as the reports print them: V3's 37 B, Mixtral's 13 B, Qwen's 22 B.
ACTIVE = {"mixtral-8x7b": 12.9, "deepseek-v3": 37.5, "qwen3-235b-a22b": 22.2}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.node)
def test_every_number_has_a_source(entry: object) -> None:
    system = entry.system
    told = sources_of(system.name)
    for field in fields(System):
        given = field.default is MISSING or getattr(system, field.name) != field.default
        if field.name != "name" and given:
            assert field.name in told, field.name


@pytest.mark.parametrize("name", SIZES)
def test_models_have_their_published_size(name: str) -> None:
    assert ARCHITECTURES[name].parameters / 1e9 == pytest.approx(SIZES[name], abs=0.08, rel=5e-4)


@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_meets_the_published_share(name: str) -> None:
    assert ARCHITECTURES[name].active_parameters / 1e9 == pytest.approx(ACTIVE[name], rel=1e-2)
