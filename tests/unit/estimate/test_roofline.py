"""Roofline terms: what each means, and that no sum of them can be absurd."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.card import CARDS, Card, named
from joulecut_engine.estimate.roofline import (
    PROCESSORS,
    Ceiling,
    Matmul,
    coefficients,
    terms,
)

SIZES = st.integers(1, 65536)


def ceiling(model: str = "A100-SXM") -> Ceiling:
    card = named(model)
    assert card is not None
    return Ceiling.of(card)


def product(rows: int, columns: int, depth: int) -> Matmul:
    return Matmul(*(np.array([float(size)]) for size in (rows, columns, depth)))


def test_every_known_card_has_a_ceiling() -> None:
    for card in CARDS:
        found = Ceiling.of(card)
        assert found.flops_per_s > 1e12
        assert found.bytes_per_s > 1e11
    assert set(PROCESSORS) == {card.name for card in CARDS}


def test_a_card_without_a_number_of_processors_is_refused() -> None:
    with pytest.raises(ValueError, match="Unheard is none of A100-SXM"):
        Ceiling.of(Card("Unheard", 1000, 100.0, 100.0, 10.0, 1.0))


def test_a_square_product_by_hand() -> None:
    one, card = product(1024, 1024, 1024), ceiling()
    assert one.flops[0] == 2 * 1024**3
    assert one.bytes[0] == 2 * 3 * 1024**2
    assert one.arithmetic_s(card)[0] == pytest.approx(2 * 1024**3 / 312e12)
    assert one.memory_s(card)[0] == pytest.approx(6 * 1024**2 / 2.039e12)


@given(SIZES, SIZES, SIZES)
def test_whole_rounds_of_tiles_never_beat_the_arithmetic(
    rows: int, columns: int, depth: int
) -> None:
    one, card = product(rows, columns, depth), ceiling()
    assert one.tiled_s(card)[0] >= one.arithmetic_s(card)[0] * (1 - 1e-12)


def test_one_row_more_than_a_full_round_starts_another() -> None:
    card = ceiling()
    rows = 128 * card.processors  # one round of tiles of 128 x 256, for 256 columns
    full, over = product(rows, 256, 4096), product(rows + 1, 256, 4096)
    assert full.tiled_s(card)[0] == pytest.approx(full.arithmetic_s(card)[0])
    assert over.tiled_s(card)[0] > 1.04 * full.tiled_s(card)[0]


@given(st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6).filter(lambda c: sum(c) > 0.1))
def test_coefficients_are_found_again_and_never_negative(true: list[float]) -> None:
    random = np.random.default_rng(0)
    matmuls = [Matmul(*random.integers(1, 20000, (3, 60)).astype(float)) for _ in range(3)]
    rows_s = terms(matmuls, random.uniform(1e5, 1e9, 60), ceiling("A40"))
    time_s = rows_s @ np.array(true)
    found = coefficients(rows_s, time_s)
    assert (found >= 0.0).all()
    assert rows_s @ found == pytest.approx(time_s, rel=1e-6)


def test_a_memory_bound_product_is_bound_by_memory() -> None:
    one, card = product(1, 8192, 8192), ceiling()
    rows_s = terms([one], np.zeros(1), card)
    assert rows_s[0, 0] == one.memory_s(card)[0]
    assert rows_s[0, 0] > 10 * one.arithmetic_s(card)[0]
