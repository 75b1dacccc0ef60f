"""The period of power samples: right within 1 %, or refused."""

import math
import random

import pytest

from joulecut_agent.jobs.power_period import Period, find_period

STEP_S, WINDOW_S = 0.1, 200.0
COUNT = round(WINDOW_S / STEP_S)
FINE = 5  # parts of a step
Parts = list[tuple[float, float]]  # relative length and watts, in order


def pipeline(rng: random.Random) -> Parts:
    """Microbatches alike to 2 %, between warm-up and drain."""
    microbatches = rng.choice([4, 8, 16, 48])
    one = [(1.0, 330.0), (2.0, 390.0), (0.2, 250.0)]
    steady = [(length, watts * rng.uniform(0.98, 1.02)) for length, watts in one * microbatches]
    whole = sum(length for length, _ in steady)
    return [(rng.uniform(0.05, 0.25) * whole, 100.0), *steady, (0.05 * whole, 200.0)]


def anything(rng: random.Random) -> Parts:
    return [(rng.random(), rng.uniform(100.0, 400.0)) for _ in range(rng.randint(2, 30))]


def trace(rng: random.Random, parts: Parts, period_s: float) -> tuple[list[float], float]:
    """Power, and the mean of the iterations in it: times vary by 1 %, samples by a third of how
    much power varies.
    """
    whole = sum(length for length, _ in parts)
    edges = [(sum(one for one, _ in parts[: i + 1]) / whole, w) for i, (_, w) in enumerate(parts)]
    begin_s, duration_s, iterations, fine = 0.0, period_s, 0, []
    for i in range(COUNT * FINE):
        at_s = i * STEP_S / FINE
        while at_s >= begin_s + duration_s:
            begin_s, iterations = begin_s + duration_s, iterations + 1
            duration_s = period_s * rng.gauss(1.0, 0.01)
        phase = (at_s - begin_s) / duration_s
        fine.append(next((watts for edge, watts in edges if phase <= edge), edges[-1][1]))
    means = [sum(fine[i : i + FINE]) / FINE for i in range(0, len(fine), FINE)]
    mean = sum(means) / COUNT
    deviation = math.sqrt(sum((one - mean) ** 2 for one in means) / COUNT)
    noisy = [one + rng.gauss(0.0, deviation / 3.0) for one in means]
    return noisy, begin_s / iterations


@pytest.mark.parametrize("shape", [pipeline, anything])
def test_a_period_is_right_within_one_percent_or_refused(shape: object) -> None:
    rng, found = random.Random(1), 0
    assert callable(shape)
    for _ in range(10):
        period_s = math.exp(rng.uniform(math.log(1.0), math.log(48.0)))
        samples, true_s = trace(rng, shape(rng), period_s)
        answer = find_period(samples, STEP_S)
        if isinstance(answer, Period):
            found += 1
            assert answer.period_s == pytest.approx(true_s, rel=0.01)
    assert found >= 5


def white(rng: random.Random) -> list[float]:
    return [rng.gauss(300.0, 40.0) for _ in range(COUNT)]


def constant(rng: random.Random) -> list[float]:
    return [rng.gauss(300.0, 1.5) for _ in range(COUNT)]


def drifting(rng: random.Random) -> list[float]:
    watts, samples = 300.0, []
    for _ in range(COUNT):
        watts += rng.gauss(0.0, 3.0)
        samples.append(watts)
    return samples


def requests(rng: random.Random) -> list[float]:
    """Busy and idle at random, as an inference server is."""
    samples: list[float] = []
    while len(samples) < COUNT:
        for watts in (100.0, 350.0):
            steps = 1 + int(rng.expovariate(1.0 / 20.0))
            samples += [watts + rng.gauss(0.0, 5.0) for _ in range(steps)]
    return samples[:COUNT]


@pytest.mark.parametrize("noise", [white, constant, drifting, requests])
def test_what_has_no_period_is_refused(noise: object) -> None:
    rng = random.Random(1)
    assert callable(noise)
    answers = [find_period(noise(rng), STEP_S) for _ in range(20)]
    assert not any(isinstance(one, Period) for one in answers)


def test_a_known_period_is_followed_through_a_few_iterations() -> None:
    rng = random.Random(1)
    samples, true_s = trace(rng, pipeline(rng), 5.0)
    followed = find_period(samples[:400], STEP_S, near_s=4.7)
    assert isinstance(followed, Period)
    assert followed.period_s == pytest.approx(true_s, rel=0.01)
    assert isinstance(find_period(samples[:400], STEP_S, near_s=6.9), str)


def test_few_samples_are_refused() -> None:
    assert isinstance(find_period([], STEP_S), str)
    assert isinstance(find_period([1.0] * 40, STEP_S), str)
