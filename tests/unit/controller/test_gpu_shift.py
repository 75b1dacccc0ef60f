"""A GPU that became faster or slower than the others shows, though reports get lost."""

import numpy as np
import pytest

from joulecut_controller.observe.gpu_paces import IN_ROW, GpuPaces

SHIFTED = "GPU-1"


def iteration(
    draws: np.random.Generator, ratio: float, gpus: int, lost: float, noise: float = 0.003
) -> dict[str, dict[str, tuple[float, float]]]:
    """Busy seconds by GPU; SHIFTED takes `ratio` times as long as the others."""
    work = draws.lognormal(0.0, 0.1)  # of the iteration, the same for all
    seconds = work * draws.lognormal(0.0, noise, gpus)
    return {
        f"GPU-{i}": {"forward": (seconds[i] * (ratio if f"GPU-{i}" == SHIFTED else 1.0), 1.0)}
        for i in range(gpus)
        if draws.random() >= lost
    }


@pytest.mark.parametrize("gpus", [4, 32])
@pytest.mark.parametrize("lost", [0.0, 0.3])
@pytest.mark.parametrize("ratio", [0.85, 1.2])
def test_a_gpu_that_shifts_is_found_in_a_few_of_its_reports(
    gpus: int, lost: float, ratio: float
) -> None:
    draws, paces = np.random.default_rng(7), GpuPaces()
    for _ in range(300):
        assert paces.take(iteration(draws, 1.0, gpus, lost)) is None
    reports = 0
    for _ in range(40):
        seen = iteration(draws, ratio, gpus, lost)
        reports += SHIFTED in seen and len(seen) * 2 >= gpus
        found = paces.take(seen)
        if found is not None:
            break
    assert found.uuids == (SHIFTED,)
    assert found.ratio == pytest.approx(ratio, abs=0.03)
    assert reports == IN_ROW


@pytest.mark.parametrize("noise", [0.003, 0.01])
@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("lost", [0.0, 0.3])
@pytest.mark.parametrize("ratio", [1.0, 0.85, 1.2])
def test_a_gpu_that_shifts_while_clocks_change_is_found_under_the_next_ones(
    gpus: int, lost: float, ratio: float, noise: float
) -> None:
    """Work follows its clock by 0.25 to 0.93, each GPU's by another part, and plans change the
    clocks of some GPUs a little and of others a lot. Of two GPUs either may be the one.
    """
    draws = np.random.default_rng(8)
    for _ in range(8):
        before_mhz = {f"GPU-{i}": int(draws.integers(1000, 1410)) for i in range(gpus)}
        after_mhz = {u: int(mhz * draws.uniform(0.96, 1.04)) for u, mhz in before_mhz.items()}
        slower = {
            u: (before_mhz[u] / after_mhz[u]) ** draws.uniform(0.25, 0.93) for u in before_mhz
        }
        before = GpuPaces(before_mhz)
        for _ in range(90):
            assert before.take(iteration(draws, 1.0, gpus, lost, noise)) is None
        now, found = GpuPaces(after_mhz, before.latest), []
        for _ in range(90):
            seen = iteration(draws, ratio, gpus, lost, noise)
            seen = {
                uuid: {"forward": (busy["forward"][0] * slower[uuid], 1.0)}
                for uuid, busy in seen.items()
            }
            found.append(now.take(seen))
        assert [shift.uuids for shift in found if shift] == [(SHIFTED,)] * (ratio != 1.0)
