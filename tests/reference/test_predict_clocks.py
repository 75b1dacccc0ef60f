"""The estimator on the public GPT-3 stages: clocks, cards and operations never measured.

The bars are the product's promises; `benchmarks/predict.py` prints what they are met by.
"""

import pytest
from prediction import clocks
from prediction.clocks import Case
from prediction.scores import Score
from prediction.sweeps import STAGES_AT

pytestmark = pytest.mark.skipif(
    not STAGES_AT.is_dir(), reason="the public Perseus profiles are not beside this repository"
)

# What such clocks allow by public experiments: time, power, energy.
THREE = (1.5, 3.5, 4.0)
SECOND = {"A100": (0.3, 0.8, 0.8), "A40": (0.5, 0.6, 0.7)}


def case(card: str, kind: str) -> Case:
    (found,) = [one for one in clocks.held_out(card) if one.name == f"{card}, {kind}"]
    return found


def shown(name: str, found: Score) -> None:
    print(f"{name}: t/P/E {found.error}, regret {found.regret}, overshoot {found.overshoot}")


@pytest.mark.parametrize("card", SECOND)
def test_three_clocks_on_a_known_card(card: str) -> None:
    found = clocks.ours(case(card, "3 clocks"), named=True)
    shown(f"{card}, three clocks", found)
    assert all(value <= bar for value, bar in zip(found.error, THREE, strict=True))


@pytest.mark.parametrize("card", SECOND)
def test_every_second_clock(card: str) -> None:
    found = clocks.ours(case(card, "every second clock"))
    shown(f"{card}, every second", found)
    assert all(value <= bar for value, bar in zip(found.error, SECOND[card], strict=True))
    assert found.covered >= 88.0
