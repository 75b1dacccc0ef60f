"""What a simulated job costs: reproducible, monotone, and adding up."""

import pytest

from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ, INSTRUCTIONS
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import A100_SXM, CARDS, Sku

STILL = Noise(0.0, 0.0, 0.0)


def _plant(sku: Sku = A100_SXM, *, noise: Noise = STILL, seed: int = 1) -> Plant:
    return Plant([sku] * 4, 6, time_scale=0.1, noise=noise, seed=seed)


@pytest.mark.parametrize("sku", CARDS.values(), ids=lambda sku: sku.name)
def test_a_lower_clock_is_slower_and_draws_less(sku: Sku) -> None:
    swept = [clock for clock in sku.clocks_mhz if clock >= CLOCK_SWEPT_MIN_MHZ]
    plant = _plant(sku)
    for kind in INSTRUCTIONS:
        times = [plant.time_s(0, kind, clock) for clock in swept]
        powers = [plant.power_w(0, kind, clock) for clock in swept]
        assert times == sorted(times, reverse=True)
        assert powers == sorted(powers)
        assert min(powers) > sku.blocking_power_w > sku.idle_power_w
        assert max(powers) <= sku.power_limit_w
