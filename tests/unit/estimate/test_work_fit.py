"""Physics and own measurements together: who teaches whom, and how sure it is."""

from dataclasses import replace

import numpy as np
import pytest

from joulecut_engine.estimate.card import CARDS, find_card
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.physics import Physics, Sweep
from joulecut_engine.graph.pipeline import Kind
from joulecut_lab.fit.fitted import Banded
from joulecut_lab.fit.next_probe import choose
from joulecut_lab.fit.recognise import candidates, recognise
from joulecut_lab.sweep_fit import JudgedCurve, fit_judged

CLOCKS = np.arange(855.0, 1411.0, 15.0)
A100 = next(card for card in CARDS if card.name == "A100-SXM")


def _departure(clocks_mhz: np.ndarray, size: float = 0.02) -> np.ndarray:
    """What no curve of the form can follow, the same for all work on the card."""
    return 1.0 + size * np.sin(clocks_mhz / 1410.0 * 25.0)


def _work(
    name: str, seed: int, kind: Kind = "forward", departs: float = 0.02, noise: float = 0.001
) -> Evidence:
    random = np.random.default_rng(seed)
    truth = Physics(
        1410.0,
        float(random.uniform(0.01, 1.0)),
        float(random.uniform(0.5, 0.95)),
        float(random.uniform(45.0, 60.0)),
        float(random.uniform(150.0, 200.0)),
        0.76,
        1107.0,
    )
    time_s = truth.time_s(CLOCKS) * _departure(CLOCKS, departs)
    power_w = truth.power_w(CLOCKS) / _departure(CLOCKS, departs)
    sweep = Sweep(
        CLOCKS,
        time_s * random.lognormal(0.0, noise, CLOCKS.size),
        power_w * random.lognormal(0.0, 2.0 * noise, CLOCKS.size),
    )
    return Evidence(Work(name, 0, kind), sweep, A100)


def _miss(curves: dict[Work, JudgedCurve], whole: Evidence) -> float:
    curve = curves[whole.work]
    return float(np.mean(np.abs(curve.time_s(CLOCKS) / whole.sweep.time_s - 1.0)))


def test_its_own_luck_is_repeated_nowhere() -> None:
    """One wild clock of one workload bends its own curve there, and nobody's elsewhere."""
    calm = [_work(f"w{i}", i, departs=0.0) for i in range(3)]
    wild = _work("wild", 50, departs=0.0)
    time_s = wild.sweep.time_s.copy()
    time_s[20] *= 1.1
    bent = replace(wild, sweep=replace(wild.sweep, time_s=time_s))
    before, after = fit_judged([*calm, wild]), fit_judged([*calm, bent])
    curve, straight = after[wild.work], before[wild.work]
    ratio = curve.time_s(CLOCKS) / straight.time_s(CLOCKS)
    assert 1.0 < ratio[20] < 1.1
    assert np.abs(ratio[np.abs(CLOCKS - CLOCKS[20]) > 250.0] - 1.0).max() < 0.005
    for one in calm:
        other = after[one.work].time_s(CLOCKS) / before[one.work].time_s(CLOCKS)
        assert np.abs(other - 1.0).max() < 0.02


def test_a_dense_noisy_sweep_is_averaged_and_not_believed_point_by_point() -> None:
    whole = _work("noisy", 3, departs=0.0, noise=0.02)
    exact = _work("noisy", 3, departs=0.0, noise=1e-9)
    fitted = fit_judged([whole])
    assert _miss(fitted, exact) < 0.5 * float(
        np.mean(np.abs(whole.sweep.time_s / exact.sweep.time_s - 1.0))
    )


def test_evidence_must_be_of_different_work_at_ascending_clocks() -> None:
    one = _work("gpt", 1)
    with pytest.raises(ValueError, match="same work"):
        fit_judged([one, one])
    back = Sweep(CLOCKS[::-1].copy(), one.sweep.time_s, one.sweep.power_w)
    with pytest.raises(ValueError, match="ascending"):
        fit_judged([replace(one, sweep=back)])


def test_two_clocks_on_a_card_at_its_power_limit() -> None:
    """The limit hides where the cap binds; the card's data sheet tells it."""
    a40 = next(card for card in CARDS if card.name == "A40")
    clocks = np.arange(855.0, 1741.0, 15.0)
    truth = Physics(1740.0, 0.11, 0.6, 95.0, 95.0, 0.45, 1131.0, 1540.0)
    two = np.array([855.0, 1740.0])
    misses = {}
    for card in (a40, None):
        one = Evidence(
            Work("w", 0, "forward"), Sweep(two, truth.time_s(two), truth.power_w(two)), card
        )
        curve = fit_judged([one])[one.work]
        energy = curve.time_s(clocks) * curve.power_w(clocks)
        misses[card] = np.mean(np.abs(energy / truth.time_s(clocks) / truth.power_w(clocks) - 1.0))
    assert misses[a40] < 0.02
    assert misses[a40] < misses[None]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-16GB", "V100-SXM"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 2080 SUPER", None),
        ("A4000", None),
        ("", None),
    ],
)
def test_cards_are_found_by_the_name_the_driver_says(model: str, name: str | None) -> None:
    card = find_card(model)
    assert (card.name if card else None) == name


def test_cards_are_recognised_by_clock_and_power() -> None:
    def name(clock_max_mhz: float, power_w: float, seen_mhz: float) -> str | None:
        card = recognise(clock_max_mhz, power_w, seen_mhz)
        return card.name if card else None

    assert name(1410, 475.0, 1410) == "A100-SXM"
    assert name(1410, 245.0, 1410) == "A100-PCIe"
    assert name(1410, 235.0, 855) is None  # either A100 draws that at 855 MHz
    assert name(1410, 264.0, 1410) == "A100-SXM"  # more than the PCIe card may draw
    assert name(1410, 186.0, 1410) is None  # light work on the one, heavy on the other
    assert name(1740, 298.0, 1740) == "A40"
    assert name(1740, 200.0, 1740) == "A40"  # no other card has its clocks
    assert name(1740, 900.0, 1740) is None
    assert name(1980, 650.0, 1980) == "H100-SXM or H200"  # one clock, one limit, one chip
    assert name(1234, 100.0, 1234) is None
    assert [card.name for card in candidates(1410, 235.0)] == ["A100-PCIe", "A100-SXM"]


def test_a_choice_keeps_budget_and_evidence() -> None:
    clocks = (900, 1000, 1200, 1400)
    time_s = np.array([1.5, 1.3, 1.08, 1.0])
    predicted = Banded(
        clocks, time_s, np.array([60.0, 65.0, 80.0, 100.0]), time_s * 0.97, time_s * 1.03
    )
    assert choose(predicted, 0.10, known_mhz=clocks).clock_mhz == 1200
    assert choose(predicted, 1.0, known_mhz=clocks).clock_mhz == 1000
    assert choose(predicted, 1.0, known_mhz=(1200, 1400)).clock_mhz == 1200
    found = choose(predicted, 0.10, known_mhz=clocks)
    assert found.slowdown_ratio == pytest.approx(0.08)
    assert found.saved_ratio == pytest.approx(1.0 - 1.08 * 80.0 / 100.0)
    with pytest.raises(ValueError, match="no clock"):
        choose(predicted, 0.1, known_mhz=())
