"""Every card that can be simulated: its tables hold together, and an agent can be given it."""

from pathlib import Path

import pytest

from joulecut_sim.card import StateFile
from joulecut_sim.layer_plant import layer_card
from joulecut_sim.skus import CARDS, Sku
from joulecut_wire.errors import BadInput


@pytest.mark.parametrize("sku", CARDS.values(), ids=lambda sku: sku.name)
def test_a_card_is_one_that_could_be(sku: Sku, tmp_path: Path) -> None:
    assert list(sku.clocks_mhz) == sorted(set(sku.clocks_mhz))
    assert sku.power_limit_min_w < sku.power_limit_w <= sku.power_limit_max_w
    assert sku.idle_power_w < sku.blocking_power_w < sku.power_limit_w
    watts = [sku.load_power_w(clock, 1.0) for clock in sku.clocks_mhz]
    assert watts == sorted(watts)
    full_w = sku.load_power_w(sku.cap_clock_mhz(1.0, sku.power_limit_w), 1.0)
    assert 0.75 * sku.power_limit_w < full_w <= sku.power_limit_w
    assert 55.0 < sku.ambient_celsius + sku.heating_celsius_per_w * full_w < 80.0
    with StateFile.open(tmp_path / "gpus.state", cards=1, sku=sku.name) as state:
        assert state.sku is sku


def test_an_unknown_card_is_refused_with_the_choice() -> None:
    with pytest.raises(BadInput, match="a100-sxm, a40") as told:
        layer_card("rtx", "--card")
    assert "--card" in str(told.value)
