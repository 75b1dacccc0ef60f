"""Published runs beside the model: no family may get worse unseen.

The rows are those of `benchmarks/model_published.py`, with their sources. Nothing is fitted to
them: a change that helps one family and costs another shows here.
"""

from collections.abc import Iterator

import model as benchmark
import numpy as np
import pytest

# Mean error of the time by family, and of rows of 32,768 tokens and more, in percent: today's.
FAMILIES = {
    "torchtitan H100": 12.8,
    "torchtitan A100": 5.1,
    "torchtitan H200": 1.2,
    "fms-fsdp A100": 7.8,
    "fms-fsdp H100": 12.9,
    "KempnerForge H200": 11.1,
    "Llama 3 405B": 4.5,
    "MoE folding": 11.1,
    "Qwen3 Megatron-Core": 15.2,
    "DeepSeek-V3": 11.4,
}
LONG, LONG_TOKENS = 14.7, 32_768
SLACK = 0.3  # points: of rounding
FALSE_REFUSALS_MAX = 1  # layouts that ran and are said not to fit


@pytest.fixture(scope="module")
def errors() -> dict[str, list[tuple[int, float, bool]]]:
    """By family: tokens of a sequence, error of the time, and whether it is said to fit."""
    found: dict[str, list[tuple[int, float, bool]]] = {}
    for row in benchmark.published_rows():
        value, fits = benchmark.predicted(row)
        error = 100.0 * benchmark.time_error(row, value)
        found.setdefault(row.family, []).append((row.run["sequence"], error, fits))
    return found


def _mean(errors: Iterator[float]) -> float:
    return float(np.mean(np.abs(list(errors))))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_gets_worse(
    errors: dict[str, list[tuple[int, float, bool]]], family: str
) -> None:
    assert _mean(error for _, error, _ in errors[family]) <= FAMILIES[family] + SLACK


def test_long_contexts_do_not_get_worse(
    errors: dict[str, list[tuple[int, float, bool]]],
) -> None:
    rows = [row for family in errors.values() for row in family]
    assert _mean(error for tokens, error, _ in rows if tokens >= LONG_TOKENS) <= LONG + SLACK


def test_layouts_that_ran_fit(errors: dict[str, list[tuple[int, float, bool]]]) -> None:
    rows = [row for family in errors.values() for row in family]
    assert len(errors) == len(FAMILIES)
    assert sum(not fits for *_, fits in rows) <= FALSE_REFUSALS_MAX
