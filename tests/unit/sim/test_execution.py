"""An iteration whose clocks change: against the plant's own, and what a change must do."""

import math

import pytest

from joulecut_sim.execution import Execution
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import find

SKU = find("a100-sxm", "card")


def plant(noise: float = 0.02) -> Plant:
    return Plant([SKU] * 3, 6, noise=Noise(noise, 0.004, 0.015), seed=5)


def finished(plant: Plant, clock: object, steps_s: float, peer_s: float = 0.0) -> Execution:
    run, at_s = Execution(plant, peer_s), 0.0
    while not math.isfinite(run.duration_s):
        at_s += steps_s
        run.advance(at_s, clock)
    run.advance(math.inf, clock)
    return run


@pytest.mark.parametrize("steps_s", [0.01, 0.137, 100.0])
@pytest.mark.parametrize("peer_s", [0.0, 30.0])
def test_constant_clocks_are_the_plants_own_iteration(steps_s: float, peer_s: float) -> None:
    """However finely time advances."""
    clocks = (1410, 1200, 1305)
    whole = plant().iterate(clocks, peer_s)
    mine = finished(
        plant(), lambda stage, _: (clocks[stage], math.inf), steps_s, peer_s
    ).iteration()
    assert mine.duration_s == pytest.approx(whole.duration_s, rel=1e-9)
    assert mine.own_s == pytest.approx(whole.own_s, rel=1e-9)
    for one, other in zip(mine.stages, whole.stages, strict=True):
        assert one.energy_j == pytest.approx(other.energy_j, rel=1e-9)
        assert one.busy_s == pytest.approx(other.busy_s, rel=1e-9)


def test_a_change_within_an_operation_takes_the_rest_of_it() -> None:
    """Halfway through the first forward: half of it at either clock."""
    still = plant(noise=0.0)
    slow_s, fast_s = (still.time_s(0, "forward", mhz) for mhz in (900, 1410))
    run = Execution(still)
    run.advance(100.0, lambda _, at_s: (900, slow_s / 2) if at_s < slow_s / 2 else (1410, math.inf))
    first = run.energy_j[0]
    assert math.isfinite(run.own_s)
    constant = Execution(plant(noise=0.0))
    constant.advance(100.0, lambda *_: (1410, math.inf))
    assert first != constant.energy_j[0]
    late_s = run.own_s - constant.own_s
    assert late_s == pytest.approx((slow_s - fast_s) / 2, rel=1e-6)
