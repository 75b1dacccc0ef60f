"""The simulated decoder layer: counted right, physical, and as a published table has it."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.study.cell import Cell, Selection, grid
from joulecut_lab.study.layer import sweep
from joulecut_lab.study.measure import Rule
from joulecut_lab.study.row import Row, savings
from joulecut_lab.study.simulated import SimulatedBench
from joulecut_lab.talks.layers import TAKEAWAY, UNEXPLAINED
from joulecut_sim.layer import SIZES, Dtype, flops, kernels, memory_bytes, shape
from joulecut_sim.layer_plant import (
    A30_BATCH,
    HUNTING,
    LAYER_CARDS,
    LayerPlant,
    layer_card,
)

cards = st.sampled_from(sorted(LAYER_CARDS))
models = st.sampled_from(sorted(SIZES))
sequences = st.sampled_from((128, 512, 1024))


def _rows(model: str, sequence: int, count: int, seed: int) -> list[Row]:
    bench = SimulatedBench(layer_card("a30", ""), seed=seed)
    selection = Selection((model,), (sequence,), ("fp16",), A30_BATCH, "training", count)
    clocks = grid(selection, bench.choices_mhz(), "a30")
    told: list[str] = []
    return list(sweep(bench, bench, selection.cells(), clocks, rule=Rule(), say=told.append))


@pytest.mark.parametrize(("model", "sequence"), sorted(TAKEAWAY))
@pytest.mark.parametrize("count", [25, 83])
def test_the_simulated_a30_has_the_published_savings(model: str, sequence: int, count: int) -> None:
    """Within 5 points, as measured with noise, on the full clock table, and half a step of clocks
    more (2 % of the time) on a coarse one; half of the rows taught nothing. Noise of one sweep
    moves the best clock to the next one: both are medians. One row is not explained, and said so
    beside the table.
    """
    allowed = 5.0 if count == 83 else 7.0
    saved, slower = TAKEAWAY[model, sequence]
    found = [savings(_rows(model, sequence, count, seed))[0] for seed in (1, 2, 7)]
    saves = 100 * statistics.median(one.saved_ratio for one in found) - saved
    slows = 100 * statistics.median(one.slower_ratio for one in found) - slower
    if (model, sequence) == UNEXPLAINED:
        assert max(abs(saves), abs(slows)) > 10.0
        return
    assert abs(saves) <= allowed
    assert abs(slows) <= allowed


@pytest.mark.parametrize("dtype", ["fp16", "tf32"])
def test_larger_layers_need_less_energy_an_operation(dtype: Dtype) -> None:
    """The talk's second observation, at its three clocks and two sequence lengths."""
    card = layer_card("a30", "")
    for sequence in (128, 1024):
        for clock in (555, 945, 1440):
            layers = [shape(model, sequence, A30_BATCH) for model in SIZES]
            joules = [LayerPlant(card, one, dtype, "training").at(clock).energy_j / flops(
                one, "training") for one in layers]  # fmt: skip
            assert joules == sorted(joules, reverse=True)


def test_longer_sequences_lower_the_best_clock() -> None:
    """The talk's third observation: higher for no layer, lower for most."""
    card = layer_card("a30", "")
    falls = 0
    for model in SIZES:
        best = []
        for sequence in (128, 1024):
            plant = LayerPlant(card, shape(model, sequence, A30_BATCH), "fp16", "training")
            best.append(min(card.sku.clocks_mhz, key=lambda c, p=plant: p.at(c).energy_j))
        assert best[1] <= best[0]
        falls += best[1] < best[0]
    assert falls >= 3


@given(models, sequences, st.integers(1, 16))
def test_operations_are_those_of_the_textbook(model: str, sequence: int, batch: int) -> None:
    """24 b s d^2 + 4 b s^2 d forward with an MLP four times as wide (Korthikanti et al.)."""
    layer = shape(model, sequence, batch)
    d = layer.d_model
    textbook = 24.0 * batch * sequence * d**2 + 4.0 * batch * sequence**2 * d
    assert flops(layer, "forward") == pytest.approx(textbook, rel=1e-12)
    assert flops(layer, "training") == 3.0 * flops(layer, "forward")
    assert sum(k.flops for k in kernels(layer, "fp16", "training")) == flops(layer, "training")


@given(cards, models, sequences, st.data())
def test_a_lower_clock_is_never_faster_and_never_draws_more(
    card: str, model: str, sequence: int, data: st.DataObject
) -> None:
    """Below the clock that the limit allows; all watts have a cause, none is negative."""
    found = layer_card(card, "")
    dtype: Dtype = data.draw(st.sampled_from(found.dtypes))
    plant = LayerPlant(found, shape(model, sequence, 4), dtype, "training")
    points = [plant.at(clock) for clock in found.sku.clocks_mhz[::7]]
    free = [point for point in points if not point.capped]
    for slower, faster in itertools.pairwise(free):
        assert slower.time_s >= faster.time_s
        assert slower.parts.power_w < faster.parts.power_w
    for point in points:
        parts = point.parts
        assert min(parts.switching_w, parts.clock_w, parts.leakage_w, parts.memory_w) > 0.0
        assert parts.power_w <= found.sku.power_limit_w * (1.0 + 1e-6)
        assert point.temperature_celsius < 90.0


@given(models, sequences)
def test_above_its_limit_a_card_is_held_and_the_highest_clock_is_not_the_fastest(
    model: str, sequence: int
) -> None:
    card = layer_card("h100-sxm", "")
    plant = LayerPlant(card, shape(model, sequence, 4), "fp16", "training")
    capped = [p for p in (plant.at(c) for c in card.sku.clocks_mhz) if p.capped]
    for lower, higher in itertools.pairwise(capped):
        assert higher.time_s >= lower.time_s
        assert lower.clock_mhz - higher.clock_mhz <= HUNTING * 15.0 * 1.1
        assert lower.parts.power_w > 0.95 * card.sku.power_limit_w


def test_narrow_types_are_faster_and_cheaper() -> None:
    card, layer = layer_card("h200", ""), shape("gpt-13b", 1024, 4)
    points = {d: LayerPlant(card, layer, d, "training").at(1200) for d in card.dtypes}
    order = ("fp32", "tf32", "fp16", "fp8")
    for wide, narrow in itertools.pairwise(order):
        assert points[narrow].time_s < points[wide].time_s
        assert points[narrow].energy_j < points[wide].energy_j


def test_what_does_not_fit_is_left_out_and_said() -> None:
    assert memory_bytes(shape("gpt-175b", 1024, 4), "fp32", "training") < 24 * 2**30
    bench = SimulatedBench(layer_card("a30", ""))
    cells = [
        Cell(shape("gpt-175b", 1024, 16), "fp32", "training"),
        Cell(shape("gpt-125m", 128, 1), "fp8", "training"),
    ]
    told: list[str] = []
    assert not list(sweep(bench, bench, cells, (900,), rule=Rule(), say=told.append))
    assert "the card has 24" in told[0]
    assert "has no fp8" in told[1]


def test_a_row_does_not_depend_on_the_rows_before_it() -> None:
    alone = _rows("gpt-350m", 128, 2, seed=3)
    bench = SimulatedBench(layer_card("a30", ""), seed=3)
    layers = [shape(model, 128, A30_BATCH) for model in ("gpt-125m", "gpt-350m")]
    cells = [Cell(layer, "fp16", "training") for layer in layers]
    clocks = tuple(row.clock_asked_mhz for row in alone)
    both = list(sweep(bench, bench, cells, clocks, rule=Rule(), say=lambda _: None))
    for one, other in zip(both[2:], alone, strict=True):
        assert one.time_s == pytest.approx(other.time_s, rel=2e-3)
        assert one.power_w == pytest.approx(other.power_w, rel=4e-3)
