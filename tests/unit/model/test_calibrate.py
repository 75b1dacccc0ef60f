"""Calibration: finds the system that made the rows, and leaves alone what they do not show."""

from dataclasses import replace

import numpy as np
import pytest

from joulecut_lab.model import formula
from joulecut_lab.model.calibrate import Measurement, calibrate
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Run
from joulecut_lab.model.system import FITTED

MODEL = ARCHITECTURES["megatron-22b"]
KNOWN = SYSTEMS["a100-sxm-80gb"]
RUNS = [
    Run(8, tensor, 1, 8 // tensor, global_batch=16, recompute=recompute, clock_mhz=clock)
    for tensor in (2, 8)
    for recompute in ("none", "full")
    for clock in (900.0, 1400.0)
]


def measured(system: object, runs: list[Run], noise: float = 0.0) -> list[Measurement]:
    luck = np.random.default_rng(1)
    rows = []
    for run in runs:
        found = formula.estimate(MODEL, system, run)
        factor = float(np.exp(noise * luck.standard_normal()))
        rows.append(
            Measurement(MODEL, run, found.iteration_time_s * factor, found.energy_j * factor)
        )
    return rows


def test_what_rows_do_not_show_stays_and_all_numbers_are_named() -> None:
    """On one node nothing shows the network, and without energies nothing shows power."""
    rows = [replace(row, energy_j=None) for row in measured(KNOWN, RUNS[:4])]
    found = calibrate(rows, KNOWN)
    assert set(found.fitted) | set(found.assumed) == set(FITTED)
    assert "scale_out_efficiency" in found.assumed
    assert found.system.scale_out_efficiency == KNOWN.scale_out_efficiency
    assert found.time_error < 0.005
    assert not found.components
    assert found.system.hbm_pj_per_bit == KNOWN.hbm_pj_per_bit


@pytest.mark.nightly
@pytest.mark.parametrize("wild", [1, 7])
def test_one_wild_row_does_not_move_the_rest(wild: int) -> None:
    """Plain least squares would be 11 to 15 % off on the others."""
    rows = [replace(row, energy_j=None) for row in measured(KNOWN, RUNS)]
    rows[wild] = replace(rows[wild], iteration_time_s=3.0 * rows[wild].iteration_time_s)
    found = calibrate(rows, KNOWN)
    told = [formula.estimate(MODEL, found.system, row.run).iteration_time_s for row in rows]
    errors = [abs(one / row.iteration_time_s - 1.0) for one, row in zip(told, rows, strict=True)]
    assert np.mean(np.delete(errors, wild)) < 0.06


@pytest.mark.nightly
def test_a_card_above_its_limit_has_a_higher_one() -> None:
    strong = replace(KNOWN, power_cap_w=500.0, compute_pj_per_flop=1.8)
    found = calibrate(measured(strong, RUNS[-3:]), replace(KNOWN, power_cap_w=200.0))
    assert found.system.power_cap_w > 300.0
    assert any("raised" in note for note in found.notes)


# The same rows, but for the fifth digit.
@pytest.mark.long
@pytest.mark.parametrize("noise", [0.002, 0.002001])
def test_components_of_power_are_found_within_their_errors(noise: float) -> None:
    """Clocks tell arithmetic from the rest, recomputation and tensor groups memory from waiting."""
    made = {"idle_w": 80.0, "compute_pj_per_flop": 1.1, "hbm_pj_per_bit": 9.0}
    runs = [replace(run, clock_mhz=f) for run in RUNS for f in (900.0, 1100.0, 1250.0, 1410.0)]
    rows = measured(replace(KNOWN, **made), runs, noise)
    found = calibrate(rows, replace(KNOWN, idle_w=0.0))
    assert found.energy_error < 0.01
    for name, value in made.items():
        assert abs(np.log(found.fitted[name] / value)) < 3.0 * found.doubt[name] < 0.6
    assert sum(found.components.values()) == pytest.approx(1.0)
