"""Variances of single operations, from sums over many of them."""

import random

import pytest

from joulecut_controller.observe.measurement_window import (
    DEVIATIONS_MIN,
    ITERATIONS_MIN,
    OperationVariance,
    ratios,
)


def reported(
    operation: float, gpu: float, iterations: int, microbatches: int = 48, seed: int = 1
) -> OperationVariance:
    """What a GPU would report whose forwards take 1 s and whose backwards take 2 s."""
    dice, variance = random.Random(seed), OperationVariance()
    for _ in range(iterations):
        slow = dice.gauss(1.0, gpu)
        sums = [
            sum(mean_s * slow * dice.gauss(1.0, operation) for _ in range(microbatches))
            for mean_s in (1.0, 2.0)
        ]
        variance.add((sums[0], microbatches), (sums[1], microbatches))
    return variance


@pytest.mark.parametrize("operation", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("gpu", [0.0, 0.005, 0.02])
def test_variance_per_operation_and_per_gpu_are_separated(operation: float, gpu: float) -> None:
    found = ratios([reported(operation, gpu, 400)])
    assert found[0] == pytest.approx(operation, rel=0.1, abs=1e-6)
    assert found[1] == pytest.approx(gpu, rel=0.1, abs=4e-4)


def test_a_few_iterations_tell_nothing() -> None:
    assert ratios([reported(0.01, 0.0, DEVIATIONS_MIN)]) is None
    assert ratios([reported(0.01, 0.0, ITERATIONS_MIN - 1)] * DEVIATIONS_MIN) is None
    assert ratios([]) is None


def test_a_short_baseline_of_many_gpus_is_enough() -> None:
    """A baseline that is steady has eight iterations. Jitter that is not known makes plans late."""
    found = ratios([reported(0.01, 0.0, 8, seed=gpu) for gpu in range(8)])
    assert found[0] == pytest.approx(0.01, rel=0.4)


def test_a_kind_that_did_not_run_is_ignored() -> None:
    variance = OperationVariance()
    for _ in range(2 * DEVIATIONS_MIN):
        variance.add((1.0, 4.0), (0.0, 0.0))
    assert ratios([variance]) is None
