"""The yardstick: the search against trying everything."""

import itertools
import statistics
from collections.abc import Sequence

import pytest
from possible import search, search_in_jitter

from joulecut_lab.demo.possible import possible_saved_ratio
from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import A40, A100_SXM, Sku

MEAN = Noise(operation=0.0)


@pytest.mark.parametrize("sku", [A100_SXM, A40], ids=lambda sku: sku.name)
@pytest.mark.parametrize("slowdown", [0.0, 0.02, 0.10])
def test_no_choice_of_clocks_is_better(sku: Sku, slowdown: float) -> None:
    plant = Plant([sku] * 2, 7, noise=MEAN, seed=5)
    found = search(plant, slowdown)
    swept = [clock for clock in sku.clocks_mhz if clock >= CLOCK_SWEPT_MIN_MHZ]
    base = plant.iterate([sku.clock_max_mhz] * 2)
    limit_s = base.duration_s * (1.0 + slowdown) * (1.0 + 1e-12)
    energies = [
        done.energy_j
        for clocks in itertools.product(swept, repeat=2)
        if (done := plant.iterate(clocks)).duration_s <= limit_s
    ]
    assert found.energy_j == pytest.approx(min(energies), rel=1e-12)
    assert found.baseline_energy_j == pytest.approx(base.energy_j)


def test_in_jitter_the_mean_iteration_keeps_the_deadline() -> None:
    plant = Plant([A100_SXM] * 4, 12, noise=Noise(operation=0.03), seed=3)
    found, exact = search_in_jitter(plant, 0.03), search(plant, 0.03)
    top = [A100_SXM.clock_max_mhz] * 4

    def mean_s(clocks: Sequence[int]) -> float:
        judge = Plant([A100_SXM] * 4, 12, noise=Noise(operation=0.03), seed=3)
        return statistics.fmean(judge.iterate(clocks).own_s for _ in range(400))

    assert mean_s(found.clocks_mhz) <= 1.0315 * mean_s(top)
    assert mean_s(exact.clocks_mhz) > 1.0315 * mean_s(top), "exact on mean times is late"
    assert 0.0 < found.saved_ratio < exact.saved_ratio


def test_the_demo_calls_possible_what_this_search_finds() -> None:
    slowdown = 0.02
    plant = Plant([A100_SXM] * 8, 48, noise=MEAN, seed=2)
    saved = [possible_saved_ratio(plant, slowdown, name) for name in ("gpu", "computation")]
    assert saved[0] == pytest.approx(search(plant, slowdown).saved_ratio, abs=5e-4)
    assert saved[0] <= saved[1]
