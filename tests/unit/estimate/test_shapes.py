"""Layer times of shapes never run, on a made-up card whose law is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.estimate import shapes
from joulecut_engine.estimate.roofline import Ceiling
from joulecut_engine.estimate.shapes import LayerSample, LayerShape

BIG = Ceiling("big", 300e12, 2e12, 100)
SMALL = Ceiling("small", 150e12, 0.7e12, 84)
MODELS = {
    "a": (4096, 32, 32, 11008),
    "b": (5120, 40, 40, 13824),
    "c": (8192, 64, 8, 28672),
    "d": (2048, 16, 16, 8192),
}


def shape(name: str, tokens: int, split: int = 1) -> LayerShape:
    d_model, heads, kv_heads, d_ffn = MODELS[name]
    return LayerShape(tokens, d_model, heads, kv_heads, d_ffn, gated=True, tensor_parallel=split)


def true_s(one: LayerShape, ceiling: Ceiling) -> float:
    """A roofline of the whole layer with launches, at 70 % of the peaks."""
    width = one.d_model // one.heads
    weights = one.d_model * (width * (one.heads + 2 * one.kv_heads) + one.d_model + 3 * one.d_ffn)
    arithmetic_s = 2.0 * one.tokens * weights / one.tensor_parallel / ceiling.flops_per_s
    memory_s = 2.0 * weights / one.tensor_parallel / ceiling.bytes_per_s
    return (arithmetic_s + memory_s) / 0.7 + 40e-6


def samples(names: str, ceiling: Ceiling = BIG) -> list[LayerSample]:
    return [
        LayerSample(one, ceiling, true_s(one, ceiling))
        for name in names
        for tokens in (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
        for split in (1, 2, 4, 8)
        for one in (shape(name, tokens, split),)
    ]


def median_off(model: shapes.ShapeModel, asked: list[LayerSample]) -> float:
    return float(np.median(np.abs(shapes.off_by(model, asked))))


def test_a_model_never_run_is_predicted() -> None:
    assert median_off(shapes.fit(samples("abc")), samples("d")) < 0.05
    assert median_off(shapes.fit(samples("abd")), samples("c")) < 0.05


def test_a_length_far_beyond_keeps_to_the_physics() -> None:
    model = shapes.fit(samples("abcd"))
    far = shape("a", 65536)
    assert model.time_s([far], BIG)[0] == pytest.approx(true_s(far, BIG), rel=0.15)


def test_a_few_layers_calibrate_a_card_that_is_slower_than_its_sheet() -> None:
    model = shapes.fit(samples("abc"))
    slower = [LayerSample(s.shape, SMALL, 1.2 * s.time_s) for s in samples("abc", SMALL)]
    few = slower[::7]
    assert median_off(model, slower) > 0.1
    assert median_off(model.calibrated(few), slower) < 0.05


def test_both_cards_are_told_apart_and_keep_their_order() -> None:
    mixed = [one for pair in zip(samples("ab"), samples("ab", SMALL), strict=True) for one in pair]
    off = shapes.off_by(shapes.fit(mixed), mixed)
    assert float(np.abs(off).max()) < 0.25
    assert float(np.median(np.abs(off))) < 0.03


def test_the_same_bytes_on_every_run() -> None:
    asked = [shape("d", 100), shape("c", 77)]
    first, second = (shapes.fit(samples("abc")).time_s(asked, SMALL) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_a_band_is_as_wide_as_the_family_that_fits_worst() -> None:
    """Family d is 20 % slower than its shape says: a band that knows of it allows for it."""
    even = samples("abc")
    odd = [LayerSample(s.shape, s.ceiling, 1.2 * s.time_s) for s in samples("d")]
    names = ["a", "b", "c"]
    families = [name for name in names for _ in range(len(even) // 3)]
    narrow = shapes.band(even, families)
    wide = shapes.band([*even, *odd], [*families, *("d" for _ in odd)])
    assert narrow < 0.12
    assert wide > 0.15


def test_one_family_makes_no_band() -> None:
    with pytest.raises(ValueError, match="at least two"):
        shapes.band(samples("a"), ["a"] * len(samples("a")))


def test_no_samples_make_no_model() -> None:
    with pytest.raises(ValueError, match="no samples"):
        shapes.fit([])


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(time_s: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        LayerSample(shape("a", 1), BIG, time_s)


def test_a_shape_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        shape("a", 0)


@settings(max_examples=30)
@given(st.integers(1, 100_000), st.sampled_from("abcd"), st.sampled_from((1, 2, 4, 8)))
def test_every_answer_is_a_time(tokens: int, name: str, split: int) -> None:
    model = _FITTED
    time_s = model.time_s([shape(name, tokens, split)], SMALL)
    assert np.isfinite(time_s).all()
    assert (time_s > 0.0).all()


_FITTED = shapes.fit(samples("ab"))
