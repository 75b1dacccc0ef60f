"""Energy of operations: the A100 check adds up, and large layers cost less per FLOP."""

import pytest

from joulecut_engine.model.catalogue import SYSTEMS
from joulecut_engine.model.technology import (
    INSTRUCTIONS,
    OPERATIONS,
    WIDTHS,
    effective_pj,
    generations,
    power_check,
)


def test_the_limit_of_an_a100_is_split_without_rest() -> None:
    found = power_check()
    parts = found.arithmetic_w + found.instructions_w + found.idle_w + found.data_movement_w
    assert parts == pytest.approx(400.0)
    assert found.data_movement_w > 0.5 * found.limit_w  # arithmetic is the small part


def test_a_newer_process_costs_less_per_operation() -> None:
    pj = {(energy.what, energy.nm): energy.pj for energy in OPERATIONS}
    for what, nm in pj:
        if nm == 45 and (what, 7) in pj:
            assert pj[what, 7] < pj[what, 45]


def test_wider_instructions_have_less_overhead() -> None:
    overheads = [one.overhead for one in INSTRUCTIONS]
    assert overheads == sorted(overheads, reverse=True)


def test_every_generation_gains() -> None:
    assert all(one.gain is None or one.gain > 1.2 for one in generations())


def test_effective_energy_falls_with_the_layer() -> None:
    system = SYSTEMS["dgx-a100"]
    found = [effective_pj(system, width) for width in WIDTHS]
    assert found == sorted(found, reverse=True)
    peak = system.power_cap_w / system.bf16_tflops  # pJ per FLOP of the data sheet
    assert peak < found[-1] < 3.0 * peak
