"""Run files: whatever a key holds, the file is read and computed, or refused in one line."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab import run_file
from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.run import Run
from joulecut_lab.model.system import System
from joulecut_wire import document
from joulecut_wire.errors import BadInput

FILE: dict[str, dict[str, Any]] = {
    "model": {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 51200},
    "system": {"accelerator": "a100-sxm-80gb", "gpus_per_node": 8},
    "run": {"gpus": 16, "tensor": 2, "pipeline": 2, "global_batch": 16, "sequence": 2048},
    "cost": {"tokens": 300.0},
}
KINDS = {"model": Architecture, "system": System, "run": Run, "cost": run_file.Cost}
PLACES = [(section, field.name) for section, kind in KINDS.items() for field in fields(kind)]
VALUES = st.sampled_from([0, 1, 2, 7, 10**9, 10**300, 0.5, 1.5, 1e18, -1, True, "x", None, [], {}])


def read(data: dict[str, dict[str, Any]]) -> run_file.RunFile:
    raw = yaml.safe_dump(data).encode()
    return run_file.of_document(document.parse(raw, "run.yaml"), Path("run.yaml"))


def changed(*changes: tuple[str, str, Any]) -> dict[str, dict[str, Any]]:
    data = {section: dict(keys) for section, keys in FILE.items()}
    for section, key, value in changes:
        data[section][key] = value
    return data


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=2))
def test_any_value_is_computed_or_refused_in_one_line(
    drawn: list[tuple[tuple[str, str], Any]],
) -> None:
    try:
        file = read(changed(*((*place, value) for place, value in drawn)))
    except BadInput as error:
        assert str(error).startswith("run.yaml:")
        return
    formula.estimate(file.architecture, file.system, file.run)


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("model", "heads", 0, "a whole number from 1"),
        ("run", "tensor", 0, "a whole number from 1"),
        ("system", "hbm_gb_s", 0, "a number above 0"),
        ("system", "matrix_efficiency", 0.0, "a number above 0"),
        ("cost", "pue", 0, "a number from 1 to 10"),
        ("cost", "pue", 0.9, "a number from 1 to 10"),
    ],
)
def test_a_number_that_would_be_divided_by_is_named(
    section: str, key: str, value: object, allowed: str
) -> None:
    with pytest.raises(BadInput, match=rf"{section}\.{key}: .*{allowed}"):
        read(changed((section, key, value)))


def test_a_number_beyond_every_float_is_named_in_a_configuration() -> None:
    raw = b'{"model_type": "gpt2", "n_embd": ' + b"9" * 400 + b"}"
    with pytest.raises(BadInput, match="n_embd: a huge number is out of range"):
        run_file.huggingface(raw, Path("config.json"))
