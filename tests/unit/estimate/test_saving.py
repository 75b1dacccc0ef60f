"""The predicted saving of a choice is what the choice then saves, on average."""

import numpy as np
import pytest

from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.pooled import Snapshot, refit
from joulecut_engine.estimate.saving import FOLDS, Options, dealt, expected_saving

CLOCKS = np.arange(855.0, 1411.0, 15.0)
BASE = CLOCKS.size - 1
CHOICES = 200
BIAS_MAX = 0.005  # half a point


def _truth(share: float) -> Options:
    time_s = 0.05 * (1.0 - share + share * 1410.0 / CLOCKS)
    voltage = 1.0 + 0.76 * np.maximum(0.0, CLOCKS - 1107.0) / 1000.0
    return Options(time_s, time_s * (52.0 + 200.0 * CLOCKS / 1000.0 * voltage**2))


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.04])
@pytest.mark.parametrize("budget", [0.05, 1.0])
def test_over_many_choices_what_is_predicted_is_what_is_saved(noise: float, budget: float) -> None:
    random = np.random.default_rng(7)
    honest, naive = [], []
    for _ in range(CHOICES):
        truth = _truth(random.uniform(0.3, 0.9))
        folds = [
            Options(
                truth.time_s * random.lognormal(0.0, noise / 4.0, CLOCKS.size),
                truth.energy_j * random.lognormal(0.0, noise, CLOCKS.size),
            )
            for _ in range(FOLDS)
        ]
        found = expected_saving(folds, base=BASE, budget=budget, allowed=range(CLOCKS.size))
        realised = 1.0 - truth.energy_j[found.chosen] / truth.energy_j[BASE]
        honest.append(found.saved_ratio - realised)
        naive.append(found.naive_ratio - realised)
    print(
        f"noise {noise:.0%} budget {budget:.0%}: naive {np.mean(naive):+.2%}, "
        f"honest {np.mean(honest):+.2%}"
    )
    assert abs(np.mean(honest)) < BIAS_MAX
    if noise == 0.04 and budget == 1.0:
        assert np.mean(naive) > BIAS_MAX  # the curse is real in this simulation


def test_predictions_of_the_online_estimator_are_unbiased_too() -> None:
    random = np.random.default_rng(11)
    subject, grid = Subject("gpt", "GPU-a", 0, "forward"), CLOCKS
    off = []
    for _ in range(12):
        truth = _truth(random.uniform(0.4, 0.9))
        estimator = OnlineEstimator()
        for i in range(0, CLOCKS.size, 6):
            for _ in range(8):
                time_s = truth.time_s[i] * random.lognormal(0.0, 0.01)
                power_w = truth.energy_j[i] / truth.time_s[i] * random.lognormal(0.0, 0.02)
                sample = Sample(subject, int(CLOCKS[i]), float(time_s), float(power_w))
                assert estimator.learn((sample,)) == ()
        folds = []
        for part in dealt(estimator.snapshot()):
            (curve,) = refit(part).curves.values()
            folds.append(Options(curve.time_s(grid), curve.time_s(grid) * curve.power_w(grid)))
        found = expected_saving(folds, base=BASE, budget=0.1, allowed=range(CLOCKS.size))
        realised = 1.0 - truth.energy_j[found.chosen] / truth.energy_j[BASE]
        off.append(found.saved_ratio - realised)
    assert abs(np.mean(off)) < BIAS_MAX


def test_every_reading_is_dealt_once() -> None:
    estimator = OnlineEstimator()
    for i in range(11):
        sample = Sample(Subject("gpt", "GPU-a", 0, "forward"), 1410 - 15 * (i % 2), 0.05, 300.0)
        estimator.learn((sample,))
    whole = estimator.snapshot()
    parts = dealt(whole, 3)
    numbers = sorted(r.number for part in parts for _, readings in part.cells for r in readings)
    assert numbers == list(range(1, 12))
    assert dealt(Snapshot(), 2) == (Snapshot(), Snapshot())


def test_one_fold_cannot_judge_itself() -> None:
    with pytest.raises(ValueError, match="one fold"):
        expected_saving([_truth(0.8)], base=BASE, budget=0.1, allowed=range(CLOCKS.size))


def test_only_allowed_clocks_are_chosen() -> None:
    folds = [_truth(0.8)] * 2
    found = expected_saving(folds, base=BASE, budget=1.0, allowed=(BASE - 1, BASE))
    assert found.chosen == BASE - 1
    assert expected_saving(folds, base=BASE, budget=0.0, allowed=(0, 1)).chosen == BASE
