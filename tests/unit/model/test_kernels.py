"""Measured kernels: what the model's rules for one kernel promise on cards with public numbers."""

import numpy as np
import pytest
from model_kernels import KERNELS, predicted_tflops


@pytest.mark.parametrize(
    ("card", "kind", "most"),
    [
        ("b200", "experts", 0.15),
        ("b200", "weights of experts", 0.2),
        ("h800-sxm", "experts", 0.15),
        ("h800-sxm", "dense", 0.1),
        ("h100-sxm", "attention", 0.03),
    ],
)
def test_products_take_about_as_long_as_measured(card: str, kind: str, most: float) -> None:
    """Efficiencies of the catalogue as they are; single kernels are off by more."""
    rows = [kernel for kernel in KERNELS if (kernel.card, kernel.kind) == (card, kind)]
    assert len(rows) >= 5
    gaps = [predicted_tflops(kernel) / kernel.tflops - 1.0 for kernel in rows]
    assert float(np.abs(gaps).mean()) < most


def test_few_rows_for_each_expert_are_slow() -> None:
    rows = [k for k in KERNELS if (k.card, k.kind, k.k) == ("b200", "experts", 7168)]
    rates = [predicted_tflops(kernel) for kernel in sorted(rows, key=lambda kernel: kernel.m)]
    assert rates == sorted(rates)
    assert rates[0] < 0.6 * rates[-1]
