"""Energy of operations: the A100 check is the published one; large layers cost less per FLOP."""

import pytest

from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.post_dennard import SYSTEM, formats, gains, number_check
from joulecut_lab.model.technology import (
    OPERATIONS,
    WIDTHS,
    effective_pj,
)


def test_the_number_check_is_that_of_the_published_slide() -> None:
    """400 W over the data sheet's rates, less the multiply at 7 nm, over three operands' bits."""
    found = [
        (one.name, one.tops, round(one.pj, 2), one.multiply_pj, f"{one.residual_pj_per_bit:.2f}")
        for one in number_check()
    ]
    assert found == [
        ("vector FP32", 19.5, 20.51, 1.31, "0.20"),
        ("matrix TF32", 156.0, 2.56, 1.31, "0.01"),
        ("matrix FP16", 312.0, 1.28, 0.34, "0.02"),
        ("matrix INT8", 624.0, 0.64, 0.07, "0.02"),
    ]


def test_memories_of_7_nm_are_those_published() -> None:
    """pJ per 64 bits and per bit, as the A100 check of the slides lists them."""
    found = {
        one.what.removesuffix(", 64 bits"): (one.pj, round(bit, 2))
        for one in OPERATIONS
        if one.nm == 7 and (bit := one.pj_per_bit) is not None
    }
    assert found == {
        "SRAM 8 KB": (7.5, 0.12), "SRAM 32 KB": (8.5, 0.13), "SRAM 1 MB": (14.0, 0.22),
        "DRAM": (1300.0, 20.31), "HBM2": (450.0, 7.03),
    }  # fmt: skip


def test_effective_energy_falls_with_the_layer() -> None:
    system = SYSTEMS["dgx-a100"]
    found = [effective_pj(system, width) for width in WIDTHS]
    assert found == sorted(found, reverse=True)
    peak = system.power_cap_w / system.bf16_tflops  # pJ per FLOP of the data sheet
    assert peak < found[-1] < 3.0 * peak


def test_power_by_format_is_its_rate_times_its_energies() -> None:
    found = {one.name: one for one in formats()}
    bf16 = found["bf16"]
    hbm_w = bf16.tflops * bf16.memory_pj
    for one in found.values():
        assert one.tflops * one.memory_pj == pytest.approx(hbm_w)  # HBM at its full rate
        assert one.residual_w == pytest.approx(SYSTEM.power_cap_w - SYSTEM.idle_w - one.power_w)
        assert one.residual_w > 0.0  # no format draws more than the card


def test_gains_are_near_what_is_published() -> None:
    for one in gains():
        assert 0.9 < one.factor / one.published < 1.5
