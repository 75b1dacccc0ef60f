"""Sweeps: every part is found once, and the front is what nothing beats."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.money import Prices
from joulecut_lab.model import formula, sweep
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Run, misfit
from joulecut_lab.model.sweep import OBJECTIVES, Layouts, Space, evaluate

MODEL, SYSTEM = ARCHITECTURES["gpt3-13b"], SYSTEMS["dgx-a100"]
BASE = Run(gpus=16, global_batch=32, sequence=2048)
CHOICES = {
    "tensor": (1, 4, 16),
    "pipeline": (1, 2, 5),
    "schedule": ("1f1b", "zb-h1"),
    "chunks": (1, 2),
    "microbatch": (1, 4),
    "zero": (0, 1),
    "clock_mhz": (1410.0, 1005.0),
}
SPACE = Space(MODEL, SYSTEM, BASE, CHOICES, Prices(2.0, 0.1, 1.0))


def _brute() -> set[Run]:
    """One by one: possible, fitting, and not the same as another one."""
    found = set()
    for values in product(*CHOICES.values()):
        keys = dict(zip(CHOICES, values, strict=True))
        shared = keys["tensor"] * keys["pipeline"]
        if 16 % shared:
            continue
        run = Run(gpus=16, global_batch=32, sequence=2048, data=16 // shared, **keys)
        if misfit(run, MODEL) or (run.pipeline == 1 and (run.chunks, run.schedule) != (1, "1f1b")):
            continue
        if run.data == 1 and run.zero:
            continue
        if formula.estimate(MODEL, SYSTEM, run).fits:
            found.add(run)
    return found


def test_a_sweep_finds_what_one_by_one_finds() -> None:
    found = evaluate(SPACE)
    runs = [found.run(i) for i in range(len(found))]
    assert len(set(runs)) == len(runs)
    assert set(runs) == _brute()
    assert found.impossible + found.too_large + len(found) == SPACE.size


def test_parts_together_are_the_whole(monkeypatch: object) -> None:
    monkeypatch.setattr(sweep, "ROWS_MAX", 40)
    parts = list(SPACE.parts())
    assert len(parts) > 4
    assert sum(part.size for part in parts) == SPACE.size
    rows = Layouts.joined([evaluate(part) for part in parts]).columns
    whole = evaluate(SPACE).columns
    assert sorted(rows["money"]) == sorted(whole["money"])


POINTS = st.lists(st.tuples(*[st.integers(1, 6)] * 4), min_size=1, max_size=40)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points: list[tuple[int, ...]]) -> None:
    costs = np.array(points, dtype=float)
    front = Layouts(dict(zip(OBJECTIVES, costs.T, strict=True)), 0, 0).front.columns
    kept = list(zip(*(front[name] for name in OBJECTIVES), strict=True))
    beaten = {
        p for p in points
        if any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in points)
    }  # fmt: skip
    assert sorted(kept) == sorted(set(points) - beaten)
    assert [row[0] for row in kept] == sorted(row[0] for row in kept)


def test_nothing_fits_is_an_empty_answer() -> None:
    space = Space(ARCHITECTURES["megatron-1t"], SYSTEM, BASE, {"tensor": (1, 2)})
    found = evaluate(space)
    assert len(found) == 0
    assert found.too_large == 2
    assert len(found.front) == 0
