"""What a stretch measures: only whole iterations of training, and only their energy."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_controller.trust.measurement import (
    ITERATIONS_MAX,
    SAMPLES_KEPT,
    EndedIteration,
    WindowMeans,
    WindowMeasurement,
)
from joulecut_controller.view import GpuView
from joulecut_wire.messages import GpuDescription, GpuSnapshot

LAG_S = 0.4
BUSY_W = (310.0, 270.0)
IDLE_W = 90.0


@dataclass
class Job:
    """A job on two GPUs: iterations of its own and other things, in any order, sampled as a
    controller samples: counters in steps of 0.1 s, looked at every `pass_s`.
    """

    pass_s: float = 1.0
    now_s: float = 100.0
    seed: int = 7
    energy_j: list[float] = field(default_factory=lambda: [5000.0, 8000.0])
    number: int = 0
    measurement: WindowMeasurement = field(init=False)
    _next_s: float = field(init=False)
    _arrived: list[EndedIteration] = field(default_factory=list)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.measurement = WindowMeasurement(self.now_s, ("GPU-0", "GPU-1"), lag_s=LAG_S)
        self._next_s = self.now_s
        self._chance = random.Random(self.seed)

    def iterate(self, seconds: float, *, reported: bool = True, power: float = 1.0) -> None:
        self._pass(seconds, [watts * power for watts in BUSY_W])
        if reported:
            lag_s = self._chance.uniform(0.05, 0.3)
            self._arrived.append(EndedIteration(self.number, self.now_s + lag_s, seconds))
        self.number += 1

    def pause(self, seconds: float) -> None:
        """A checkpoint that no report covers."""
        self._pass(seconds, [IDLE_W, IDLE_W])

    def checkpoint(self, seconds: float) -> None:
        """A checkpoint inside an iteration, which then reports as much longer."""
        started_s = self.now_s
        self._pass(2.0, list(BUSY_W))
        self._pass(seconds, [IDLE_W, IDLE_W])
        self._arrived.append(EndedIteration(self.number, self.now_s + 0.2, self.now_s - started_s))
        self.number += 1

    def _pass(self, seconds: float, watts: list[float]) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            step_s = min(until_s, self._next_s) - self.now_s
            self.energy_j = [e + w * step_s for e, w in zip(self.energy_j, watts, strict=True)]
            self.now_s += step_s
            if self.now_s >= self._next_s:
                self._look()
                self._next_s += self.pass_s

    def _look(self) -> None:
        here = [one for one in self._arrived if one.arrived_s <= self.now_s]
        self._arrived = [one for one in self._arrived if one.arrived_s > self.now_s]
        self.measurement.take(here)
        self.measurement.see(self.view(), self.now_s)

    def view(self, age_s: float = 0.2, celsius: float | None = 61.0) -> dict[str, GpuView]:
        return {
            f"GPU-{n}": GpuView(
                GpuDescription(f"GPU-{n}", n, "A100", (1410,)),
                "n1:1",
                "n1",
                GpuSnapshot(
                    f"GPU-{n}", energy_j=energy_j - age_s * BUSY_W[n], temperature_celsius=celsius
                ),
                age_s,
            )
            for n, energy_j in enumerate(self.energy_j)
        }

    def figures(self) -> WindowMeans:
        made = self.measurement.figures()
        assert isinstance(made, WindowMeans), made
        return made


def test_a_plain_stretch_measures_time_and_energy() -> None:
    job = Job()
    for n in range(60):
        job.iterate(5.0 + 0.05 * (-1) ** n)
    made = job.figures()
    assert made.left_out == 0
    assert made.iterations >= 57
    assert made.time_mean_s == pytest.approx(5.0, rel=2e-3)
    assert made.energy_j == pytest.approx(5.0 * sum(BUSY_W), rel=3e-3)
    assert made.temperature_celsius == 61.0
    assert made.begun_s >= 100.0
    assert made.ended_s <= job.now_s + 0.4


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.integers(5, 54), max_size=4),
    st.sets(st.integers(5, 54), max_size=4),
    st.floats(3.0, 40.0),
    st.floats(1.0, 8.0),
    st.integers(0, 99),
)
def test_checkpoints_and_evaluations_are_no_part_of_it(
    inside: set[int], between: set[int], pause_s: float, iteration_s: float, seed: int
) -> None:
    job = Job(seed=seed)
    chance = random.Random(seed)
    times_s = []
    for n in range(60):
        if n in between:
            job.pause(pause_s)
        if n in inside:
            job.checkpoint(max(pause_s, iteration_s))
        else:
            times_s.append(iteration_s * chance.gauss(1.0, 0.01))
            job.iterate(times_s[-1])
    made = job.figures()
    assert made.left_out >= len(inside)
    # Of plain iterations the first and the last, and one whose report is still under way.
    assert made.iterations + len(inside) >= 60 - 3 - len(inside | between) * 2
    assert made.time_mean_s == pytest.approx(iteration_s, rel=0.01)
    # One half of a percent: what is lost between samples beside a pause of a minute.
    assert made.energy_j == pytest.approx(made.time_mean_s * sum(BUSY_W), rel=0.005)


def test_the_same_stretch_with_and_without_checkpoints_says_the_same() -> None:
    plain, broken = Job(), Job()
    for n in range(80):
        plain.iterate(4.0)
        broken.iterate(4.0)
        if n % 15 == 7:
            broken.checkpoint(25.0)
    assert broken.figures().left_out == 5
    assert broken.figures().energy_j == pytest.approx(plain.figures().energy_j, rel=0.003)
    assert broken.figures().time_mean_s == pytest.approx(plain.figures().time_mean_s, rel=1e-9)


def test_lost_reports_do_not_look_like_a_pause() -> None:
    job = Job()
    for n in range(80):
        job.iterate(4.0, reported=n % 9 not in (3, 4))
    made = job.figures()
    assert made.left_out == 0
    assert made.energy_j == pytest.approx(4.0 * sum(BUSY_W), rel=0.003)


def test_usual_noise_stays_in() -> None:
    chance = random.Random(3)
    job = Job()
    times_s = [4.0 * chance.lognormvariate(0.0, 0.04) for _ in range(200)]
    for seconds in times_s:
        job.iterate(seconds)
    made = job.figures()
    assert made.left_out == 0
    assert made.time_sd_s == pytest.approx(0.16, rel=0.2)


def test_what_is_not_whole_is_not_counted() -> None:
    job = Job()
    job.measurement.take(
        [
            EndedIteration(0, 104.0, 4.0),
            EndedIteration(1, 104.3, 4.0),
            EndedIteration(2, 108.5, 4.0),
        ]
    )
    # Only the last began, lag and all, after the stretch did.
    assert [one.number for one in job.measurement._ended] == [2]


def test_a_job_that_changes_its_steps_has_no_mean() -> None:
    job = Job()
    for n in range(80):
        job.iterate(4.0 if n < 40 else 4.3)
    assert job.figures().fault == "pace"


def test_a_job_that_is_often_something_else_has_none_either() -> None:
    job = Job()
    for n in range(80):
        job.iterate(4.0 if n % 3 else 9.0)
    assert job.figures().fault == "irregular"


def test_few_iterations_are_none() -> None:
    job = Job()
    for _ in range(7):
        job.iterate(4.0)
    assert job.measurement.figures() == "short"


def test_without_the_counter_of_one_gpu_there_is_no_sum() -> None:
    job = Job()
    measurement = WindowMeasurement(job.now_s, ("GPU-0", "GPU-1", "GPU-2"), lag_s=LAG_S)
    job.measurement = measurement
    for _ in range(40):
        job.iterate(4.0)
    assert job.figures().fault == "counter"
    assert job.figures().energy_j is None


@pytest.mark.parametrize("at", [5, 30, 55])
def test_a_driver_that_is_loaded_again_takes_no_joules_away(at: int) -> None:
    """Its counters begin again."""
    job = Job()
    for n in range(60):
        if n == at:
            job.energy_j = [100.0, 100.0]
        job.iterate(5.0)
    assert job.figures().energy_j in (None, pytest.approx(5.0 * sum(BUSY_W), rel=5e-3))


def test_a_missing_temperature_is_none_and_not_zero() -> None:
    job = Job()
    measurement = WindowMeasurement(0.0, ("GPU-0",), lag_s=LAG_S)
    for step in range(100):
        measurement.take([EndedIteration(step, 4.0 * step + 5.0, 4.0)])
        job.energy_j[0] += 4.0 * BUSY_W[0]
        measurement.see(job.view(celsius=None), 4.0 * step + 5.0)
    made = measurement.figures()
    assert isinstance(made, WindowMeans)
    assert made.temperature_celsius is None
    assert made.energy_j == pytest.approx(4.0 * BUSY_W[0], rel=1e-6)


def test_memory_is_bounded_however_long_and_fast() -> None:
    measurement = WindowMeasurement(0.0, ("GPU-0",), lag_s=LAG_S)
    job = Job()
    for step in range(30_000):
        measurement.take([EndedIteration(step, 1.0 + 0.5 * step, 0.5)])
        if step % 2:
            job.energy_j[0] += BUSY_W[0]
            measurement.see(job.view(), 1.0 + 0.5 * step)
    assert len(measurement._ended) == ITERATIONS_MAX
    assert measurement.full
    (counter,) = measurement._counters.values()
    assert len(counter.at_s) <= SAMPLES_KEPT
    made = measurement.figures()
    assert isinstance(made, WindowMeans)
    assert made.energy_j == pytest.approx(0.5 * BUSY_W[0], rel=0.002)
