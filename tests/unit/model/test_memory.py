"""Memory: the published bytes per layer, published shares, measured cards."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.catalogue import ARCHITECTURES
from joulecut_lab.model.memory import layer_bytes, memory_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "modelling"
GPT = ARCHITECTURES["gpt3-175b"]
S, H, A, T = 2048.0, 12288.0, 96.0, 8.0
SCORES = 5 * A * S / H


@pytest.mark.parametrize(
    ("tensor", "recompute", "split", "expected"),
    [
        (1, "none", False, 34 + SCORES),
        (8, "none", False, 10 + 24 / T + SCORES / T),
        (8, "none", True, (34 + SCORES) / T),
        (8, "selective", False, 10 + 24 / T),
        (8, "selective", True, 34 / T),
    ],
)
def test_bytes_of_a_layer_are_the_published_ones(
    tensor: int, recompute: str, split: bool, expected: float
) -> None:
    """Korthikanti et al., table 2."""
    run = Run(8, tensor, recompute=recompute, sequence_parallel=split, dropout=True)
    told = layer_bytes(GPT, Runs.of([run]), np.array([S]), False)[0][0]
    assert told == pytest.approx(S * H * expected, rel=1e-9)


def test_full_recomputation_keeps_inputs_and_one_layer() -> None:
    none, full = (
        memory_of(GPT, Runs.of([Run(64, 8, 8, global_batch=8, recompute=kind)]))
        for kind in ("none", "full")
    )
    assert full.activations[0, 0] < 0.15 * none.activations[0, 0]
    assert (full.weights == none.weights).all()


def test_zero_shards_what_it_says() -> None:
    kinds = ("optimizer", "gradients", "weights")
    for stage, names in enumerate([(), kinds[:1], kinds[:2], kinds]):
        run, base = (
            memory_of(GPT, Runs.of([Run(512, 8, 8, 8, global_batch=8, zero=zero)]))
            for zero in (stage, 0)
        )
        for kind in kinds:
            share = 8 if kind in names else 1
            assert getattr(run, kind)[0, 0] * share == pytest.approx(getattr(base, kind)[0, 0])


def test_measured_memory_of_eight_b200() -> None:
    path = DATA / "simumax_b200" / "measured.csv"
    if not path.exists():
        pytest.skip("shared/data/modelling is absent")
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            small = "70b" in row["model"]
            shape = (8192, 64, 8, 28672) if small else (16384, 128, 16, 53248)
            model = Architecture(int(row["layer_num"]), *shape, 128256, gated=True)
            found = [re.search(rf"{key}(\d)", row["parallel"]) for key in ("tp", "pp")]
            tensor, pipe = (int(one[1]) for one in found if one)
            context = int(row["cp_size"])
            data = 8 // (tensor * pipe * context)
            run = Run(
                8, tensor, pipe, data, context, global_batch=int(row["mbc"]) * data,
                sequence=32768 if context > 1 else 4096, sequence_parallel=tensor > 1,
                zero=1, flash_attention=True, fused_loss=True,
            )  # fmt: skip
            told = memory_of(model, Runs.of([run])).peak[0] / 2.0**30
            assert told == pytest.approx(float(row["real_alloc_gib"]), rel=0.01), row["case"]
