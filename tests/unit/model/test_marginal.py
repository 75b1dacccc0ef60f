"""One component's clock: signs that physics demands, and the published case of four nodes."""

import pytest

from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.marginal import COMPONENTS, marginal, scale
from joulecut_lab.model.run import Run

MODEL, SYSTEM = ARCHITECTURES["llama-2-70b"], SYSTEMS["dgx-h100"]
RUN = Run(
    gpus=32, tensor=8, data=4, global_batch=32, sequence=4096, sequence_parallel=True, zero=2,
    recompute="full", flash_attention=True, gradient_bytes=2,
)  # fmt: skip


def test_todays_clocks_are_the_estimate() -> None:
    cool = Run(**{**_keys(), "clock_mhz": 1005.0})  # below the power limit, which scaling lifts
    today = formula.estimate(MODEL, SYSTEM, cool)
    for component in COMPONENTS:
        (one,) = scale(MODEL, SYSTEM, cool, component, (1.0,))
        assert one.iteration_time_s == pytest.approx(today.iteration_time_s)
        assert one.energy_j == pytest.approx(today.energy_j)


def test_networks_pay_and_cores_do_not() -> None:
    """Published for LLaMA-2-70B on four nodes of eight in a ring: bits cost little, waiting GPUs
    much, so that a faster network saves energy; a faster core costs it.
    """
    found = {one.component: one for one in marginal(MODEL, SYSTEM, RUN)}
    assert found["scale_out"].time < 0.0
    assert found["scale_out"].energy < 0.0
    assert found["scale_up"].energy < 0.0
    assert found["sm"].time < 0.0 < found["sm"].energy


def _keys() -> dict[str, object]:
    return {name: getattr(RUN, name) for name in RUN.__dataclass_fields__}
