"""A GPU that became faster or slower than the others shows, though reports get lost."""

import numpy as np
import pytest

from joulecut_controller.observe.gpu_paces import IN_ROW, GpuPaces

SHIFTED = "GPU-3"


def iteration(
    draws: np.random.Generator, ratio: float, gpus: int, lost: float
) -> dict[str, dict[str, tuple[float, float]]]:
    """Busy seconds by GPU; SHIFTED takes `ratio` times as long as the others."""
    work = draws.lognormal(0.0, 0.1)  # of the iteration, the same for all
    seconds = work * draws.lognormal(0.0, 0.003, gpus)
    return {
        f"GPU-{i}": {"forward": (seconds[i] * (ratio if f"GPU-{i}" == SHIFTED else 1.0), 1.0)}
        for i in range(gpus)
        if draws.random() >= lost
    }


@pytest.mark.parametrize("gpus", [4, 8, 32])
@pytest.mark.parametrize("lost", [0.0, 0.05, 0.3])
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
