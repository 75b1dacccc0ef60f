"""Roofline terms: what each means, and that no sum of them can be absurd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.card import CARDS, find_card
from joulecut_lab.study.roofline import GIGA, TERA, Ceiling, Matmul, terms

SIZES = st.integers(1, 65536)


def ceiling(model: str = "A100-SXM") -> Ceiling:
    card = find_card(model)
    return Ceiling(card.half_tflops * TERA, card.memory_gb_s * GIGA, card.processors)


def test_every_known_card_has_a_count_of_processors() -> None:
    assert all(card.processors > 0 for card in CARDS)


def test_a_square_product_by_hand() -> None:
    one = Matmul(1024, 1024, 1024)
    assert one.flops == 2 * 1024**3
    assert one.bytes == 2 * 3 * 1024**2
    _, _, arithmetic_s, memory_s = terms([one], ceiling())
    assert arithmetic_s == pytest.approx(2 * 1024**3 / 312e12)
    assert memory_s == pytest.approx(6 * 1024**2 / 2.039e12)


@given(SIZES, SIZES, SIZES)
def test_whole_rounds_of_tiles_never_beat_the_arithmetic(
    rows: int, columns: int, depth: int
) -> None:
    one, card = Matmul(rows, columns, depth), ceiling()
    assert one.tiled_s(card) >= one.flops / card.flops_per_s * (1 - 1e-12)


def test_one_row_more_than_a_full_round_starts_another() -> None:
    card = ceiling()
    rows = 128 * card.processors  # one round of tiles of 128 x 256, for 256 columns
    full, over = Matmul(rows, 256, 4096), Matmul(rows + 1, 256, 4096)
    assert full.tiled_s(card) == pytest.approx(full.flops / card.flops_per_s)
    assert over.tiled_s(card) > 1.04 * full.tiled_s(card)


def test_a_memory_bound_product_is_bound_by_memory() -> None:
    roofline_s, _, arithmetic_s, memory_s = terms([Matmul(1, 8192, 8192)], ceiling())
    assert roofline_s == memory_s
    assert roofline_s > 10 * arithmetic_s
