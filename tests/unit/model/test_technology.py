"""Energy of operations: the A100 check adds up, and large layers cost less per FLOP."""

import numpy as np
import pytest

from joulecut_engine.model.catalogue import SYSTEMS
from joulecut_engine.model.post_dennard import SYSTEM, formats, gains
from joulecut_engine.model.technology import (
    INSTRUCTIONS,
    OPERATIONS,
    WIDTHS,
    effective_pj,
    generations,
    package_w,
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


def test_the_growth_of_a_package_passes_between_its_generations() -> None:
    known = generations()
    assert known[0].limit_w < package_w(2021) < known[-1].limit_w < package_w(2026)
    assert sum(np.log(package_w(one.year) / one.limit_w) for one in known) == pytest.approx(0.0)


def test_effective_energy_falls_with_the_layer() -> None:
    system = SYSTEMS["dgx-a100"]
    found = [effective_pj(system, width) for width in WIDTHS]
    assert found == sorted(found, reverse=True)
    peak = system.power_cap_w / system.bf16_tflops  # pJ per FLOP of the data sheet
    assert peak < found[-1] < 3.0 * peak


def test_power_by_format_is_its_rate_times_its_energies() -> None:
    found = {one.name: one for one in formats()}
    split = power_check()
    bf16 = found["bf16"]
    assert bf16.tflops * bf16.arithmetic_pj == pytest.approx(split.arithmetic_w)
    assert bf16.tflops * bf16.instruction_pj == pytest.approx(split.instructions_w)
    hbm_w = bf16.tflops * bf16.memory_pj
    assert bf16.residual_w == pytest.approx(split.data_movement_w - hbm_w)
    for one in found.values():
        assert one.tflops * one.memory_pj == pytest.approx(hbm_w)  # HBM at its full rate
        bits_per_s = SYSTEM.hbm_gb_s * 8e9
        assert one.residual_pj_per_bit * 1e-12 * bits_per_s == pytest.approx(one.residual_w)


def test_gains_are_near_what_is_published() -> None:
    for one in gains():
        assert 0.9 < one.factor / one.published < 1.5
