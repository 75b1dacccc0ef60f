"""The carried parameters against the public sweep they were fitted to."""

from pathlib import Path

import pytest
from simulator.fit import distinct, errors, fit, read

from joulecut_sim.gpt3 import Instruction, curve

SWEEPS = Path(__file__).resolve().parents[3] / "shared/data/perseus/stage_profile"
STAGES = 8
# Mean errors allowed. The A40's backward jumps by up to 8 % between neighbouring clocks,
# which no smooth curve follows; the other curves keep to the A100's bound.
TIME_MAX = {"a100-sxm": 0.01, "a40": 0.015}
POWER_MAX = {"a100-sxm": 0.015, "a40": 0.016}
FILES = {"a100-sxm": "gpt3-175b+a100_sxm_bf16.csv", "a40": "gpt3-175b+a40_bf16.csv"}


def _sweep(card: str) -> Path:
    path = SWEEPS / FILES[card]
    if not path.exists():
        pytest.skip(f"{path.name} is not here: the fit is compared where the data is")
    return path


@pytest.mark.parametrize("card", FILES)
def test_parameters_follow_the_sweep(card: str) -> None:
    sweep = read(_sweep(card))
    assert {stage for stage, _ in sweep} == set(range(STAGES))
    for (stage, instruction), rows in sweep.items():
        assert instruction in {"forward", "backward"}
        kind: Instruction = "forward" if instruction == "forward" else "backward"
        time_error, power_error = errors(rows, curve(card, stage, STAGES, kind))
        assert time_error <= TIME_MAX[card], (stage, instruction)
        assert power_error <= POWER_MAX[card], (stage, instruction)


@pytest.mark.parametrize("card", FILES)
def test_the_fit_can_be_redone(card: str) -> None:
    sweep = read(_sweep(card))
    fitted = fit(sweep)
    assert (
        set(fitted)
        == set(distinct(sweep))
        == {(stage, kind) for stage in (0, 7) for kind in ("forward", "backward")}
    )
    for (stage, instruction), found in fitted.items():
        kind: Instruction = "forward" if instruction == "forward" else "backward"
        carried = curve(card, stage, STAGES, kind)
        for clock in sweep[stage, instruction]:
            assert found.time_s(clock) == pytest.approx(carried.time_s(clock), rel=0.002)
            assert found.power_w(clock) == pytest.approx(carried.power_w(clock), rel=0.005)
