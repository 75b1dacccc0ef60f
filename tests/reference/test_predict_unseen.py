"""Layers and applications that were never run, against the promises made for them."""

import numpy as np
import pytest
from prediction import apps, layers
from prediction.sweeps import APPLICATIONS_AT, LAYERS_AT

with_layers = pytest.mark.skipif(
    not LAYERS_AT.is_file(), reason="the public layer times are not beside this repository"
)
with_applications = pytest.mark.skipif(
    not APPLICATIONS_AT.is_dir(), reason="the public A100 sweeps are not beside this repository"
)

CARDS = ("A100", "A40")
MEDIAN_MAX = 3.0  # percent, shapes at default clocks
FAMILY_MAX = 4.0  # of the worst model by itself
CARD_MEAN_MAX = 10.0  # a data sheet alone; 7-8 % are reported elsewhere for power
CALIBRATED_MAX = 5.0
COVERED_MIN = 88.0
APPLICATION_MAX = 5.0


@with_layers
@pytest.mark.parametrize("card", CARDS)
def test_layers_of_a_model_never_run(card: str) -> None:
    logs = [layers.ours(split) for split in layers.unseen_models(card)]
    each = [layers.Off.of(one).median for one in logs]
    together = layers.Off.of(np.concatenate(logs))
    print(f"{card}: {together}, by model {each}")
    assert together.median <= MEDIAN_MAX
    assert max(each) <= FAMILY_MAX


@with_layers
@pytest.mark.parametrize("card", CARDS)
def test_lengths_never_run_between_and_beyond(card: str) -> None:
    between, beyond = (layers.Off.of(layers.ours(one)) for one in layers.unseen_lengths(card))
    print(f"{card}: between {between}, beyond {beyond}")
    assert between.median <= MEDIAN_MAX
    assert beyond.median <= MEDIAN_MAX


@with_layers
@pytest.mark.parametrize("card", CARDS)
def test_few_layers_are_enough(card: str) -> None:
    off = layers.mean([layers.Off.of(layers.ours(one)) for one in layers.few_rows(card, 50)])
    print(f"{card}, 50 layers: {off}")
    assert off.median <= MEDIAN_MAX


@with_layers
@pytest.mark.parametrize("card", CARDS)
def test_a_card_never_seen(card: str) -> None:
    alone, calibrated = layers.unseen_card(card)
    print(f"{card} from the other card: {alone}, with 20 layers {calibrated}")
    assert alone.mean <= CARD_MEAN_MAX
    assert calibrated.mean <= CALIBRATED_MAX
    assert calibrated.mean < alone.mean


@with_layers
def test_bands_hold_what_they_promise_of_a_model_never_seen() -> None:
    found = layers.covered("A40", thinning=3)
    held = [share for share, _ in found.values()]
    print({family: (round(share), round(half, 1)) for family, (share, half) in found.items()})
    assert float(np.mean(held)) >= COVERED_MIN
    assert max(half for _, half in found.values()) <= 12.0, "a band of everything says nothing"


@with_applications
def test_applications_never_swept() -> None:
    found = apps.left_out(apps.ours)
    time, power, energy = apps.medians(found)
    print(f"{len(found)} applications: medians {time:.1f} {power:.1f} {energy:.1f} %")
    print({one.name: round(one.energy, 1) for one in found})
    assert len(found) >= 21
    assert time <= APPLICATION_MAX
    assert power <= APPLICATION_MAX
    assert energy <= APPLICATION_MAX
    assert apps.pooled_energy(found) <= APPLICATION_MAX
