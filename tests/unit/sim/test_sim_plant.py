"""What a simulated job costs: reproducible, monotone, and adding up."""

import pytest

from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ, INSTRUCTIONS
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import A100_SXM, CARDS, Sku

STILL = Noise(0.0, 0.0, 0.0)


def _plant(sku: Sku = A100_SXM, *, noise: Noise = STILL, seed: int = 1) -> Plant:
    return Plant([sku] * 4, 6, time_scale=0.1, noise=noise, seed=seed)


def test_energy_is_work_plus_waiting() -> None:
    plant = _plant()
    clocks = [1410, 1200, 1005, 855]
    done = plant.iterate(clocks)
    for stage, run in enumerate(done.stages):
        busy_s = sum(run.busy_s.values())
        worked = sum(
            plant.power_w(stage, kind, clocks[stage]) * run.busy_s[kind] for kind in INSTRUCTIONS
        )
        assert run.energy_j == pytest.approx(worked + 83.64 * (done.duration_s - busy_s))
        assert run.busy_s["forward"] == pytest.approx(
            6 * plant.time_s(stage, "forward", clocks[stage])
        )


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


def test_gpus_differ_a_little_and_only_where_noise_is_asked_for() -> None:
    plant = _plant(noise=Noise(), seed=3)
    assert len(set(plant.time_ratio)) == len(set(plant.power_ratio)) == 4
    assert all(abs(ratio - 1.0) < 0.08 for ratio in plant.time_ratio + plant.power_ratio)
    assert _plant().time_ratio == [1.0] * 4
