"""What a window measures: only whole iterations of training, and only their energy."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_states import job_state

from joulecut_controller.chunk import Chunk
from joulecut_controller.observe.iteration_stats import IterationStats
from joulecut_controller.observe.measurement_window import SAMPLES_KEPT
from joulecut_controller.policy.policy import JobPolicy, Slo
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.trust.job_step import JobStep
from joulecut_controller.trust.measured_windows import Mark, MeasuredWindows
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_controller.view import GpuView, Measured
from joulecut_wire.messages import GpuDescription, GpuSnapshot, IterationReport

LAG_S = 0.4
BUSY_W = (310.0, 270.0)
IDLE_W = 90.0
UUIDS = ("GPU-0", "GPU-1")
STAGES = tuple((uuid,) for uuid in UUIDS)
MARK = Mark("default", "shape", "", 0.0, 0, slot=0, measured=True)


@dataclass
class Shelf:
    """A book that takes everything."""

    kept: list[MeasuredWindow] = field(default_factory=list)

    def keep(self, window: MeasuredWindow) -> bool:
        self.kept.append(window)
        return True

    def note(self, job: str, text: str, generation: int) -> bool:
        del job, text, generation
        return True

    def windows(self, job: str, since_unix_s: float) -> list[MeasuredWindow]:
        del job, since_unix_s
        return self.kept


@dataclass
class Job:
    """A job on two GPUs: iterations of its own and other things, in any order, sampled as a
    controller samples: looked at every `pass_s`, with snapshots 0.2 s old.
    """

    pass_s: float = 1.0
    now_s: float = 100.0
    seed: int = 7
    energy_j: list[float] = field(default_factory=lambda: [5000.0, 8000.0])
    without: str = ""  # a GPU without an energy counter
    number: int = 0
    shelf: Shelf = field(default_factory=Shelf)
    windows: MeasuredWindows = field(init=False)
    stats: IterationStats = field(init=False)
    _next_s: float = field(init=False)
    _arrived: list[ArrivedReport] = field(default_factory=list)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.windows = MeasuredWindows(self.shelf, "job")
        self.stats = IterationStats(lag_s=LAG_S)
        self._next_s = self.now_s
        self._chance = random.Random(self.seed)

    def iterate(self, seconds: float, *, reported: bool = True) -> None:
        self._pass(seconds, list(BUSY_W))
        if reported:
            self._report(self._chance.uniform(0.05, 0.3), seconds)
        self.number += 1

    def pause(self, seconds: float) -> None:
        """A checkpoint that no report covers."""
        self._pass(seconds, [IDLE_W, IDLE_W])

    def checkpoint(self, seconds: float) -> None:
        """A checkpoint inside an iteration, which then reports as much longer."""
        started_s = self.now_s
        self._pass(2.0, list(BUSY_W))
        self._pass(seconds, [IDLE_W, IDLE_W])
        self._report(0.2, self.now_s - started_s)
        self.number += 1

    def _report(self, lag_s: float, seconds: float) -> None:
        for stage, uuid in enumerate(UUIDS):
            report = IterationReport("job", uuid, stage, self.number, seconds)
            self._arrived.append(ArrivedReport(report, self.now_s + lag_s))

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
        gpus = self.gpus()
        measured, fresh = self.stats.fold(STAGES, here, gpus, self.now_s)
        mark = replace(MARK, since_s=measured.since_s)
        self.windows.see(step(measured, self.now_s, gpus, fresh.chunk), mark)

    def gpus(self, age_s: float = 0.2) -> dict[str, GpuView]:
        made = {}
        for n, (uuid, energy_j) in enumerate(zip(UUIDS, self.energy_j, strict=True)):
            counter_j = None if uuid == self.without else energy_j - age_s * BUSY_W[n]
            shown = GpuSnapshot(uuid, energy_j=counter_j)
            description = GpuDescription(uuid, n, "A100", (1410,))
            made[uuid] = GpuView(description, "n1:1", "n1", shown, age_s)
        return made

    def figures(self) -> MeasuredWindow:
        made = self.windows.so_far()
        assert made is not None
        return made

    def outcome(self, mark: Mark | None = None) -> str:
        """What became of the window, which ends now."""
        measured, _ = self.stats.fold(STAGES, (), self.gpus(), self.now_s)
        over = replace(mark or replace(MARK, since_s=measured.since_s), slot=1)
        before = Counter({outcome: n for _, outcome, n in self.windows.outcomes})
        self.windows.see(step(measured, self.now_s, {}, None), over)
        after = Counter({outcome: n for _, outcome, n in self.windows.outcomes})
        [outcome] = (after - before).keys()
        return outcome


def step(
    measured: Measured, now_s: float, gpus: dict[str, GpuView], chunk: Chunk | None
) -> JobStep:
    return JobStep(
        job=replace(
            job_state(JobPolicy("job", "enforce", Slo(max_slowdown=0.05)), STAGES),
            measured=measured,
        ),
        shape="shape",
        now_s=now_s,
        unix_s=now_s + 1e9,
        gpus=gpus,
        chunk=chunk,
        dwell_s=0.0,
        plan=None,
        lowered=False,
        as_asked=True,
    )


def test_a_plain_window_measures_time_and_energy() -> None:
    job = Job()
    for n in range(60):
        job.iterate(5.0 + 0.05 * (-1) ** n)
    made = job.figures()
    assert made.left_out == 0
    assert made.iterations >= 57
    assert made.time_mean_s == pytest.approx(5.0, rel=2e-3)
    assert made.energy_j == pytest.approx(5.0 * sum(BUSY_W), rel=3e-3)
    assert made.begun_unix_s >= 1e9 + 100.0
    assert made.ended_unix_s <= 1e9 + job.now_s + 0.4
    assert job.outcome() == "kept"
    assert job.shelf.kept == [made]


@settings(max_examples=25)
@given(
    st.sets(st.integers(8, 54), max_size=4),
    st.sets(st.integers(8, 54), max_size=4),
    st.floats(6.0, 40.0),
    st.floats(1.0, 8.0),
    st.integers(0, 99),
)
def test_checkpoints_and_evaluations_are_no_part_of_it(
    inside: set[int], between: set[int], pause_s: float, iteration_s: float, seed: int
) -> None:
    job = Job(seed=seed)
    chance = random.Random(seed)
    for n in range(60):
        if n in between:
            job.pause(pause_s)
        if n in inside:
            job.checkpoint(max(pause_s, 2.0 * iteration_s))
        else:
            job.iterate(iteration_s * chance.gauss(1.0, 0.01))
    made = job.figures()
    assert made.left_out >= len(inside)
    # Of plain iterations the first ones, and those whose reports are still under way.
    assert made.iterations + len(inside) >= 60 - 5
    assert made.time_mean_s == pytest.approx(iteration_s, rel=0.01)
    # One half of a percent: what is lost between samples beside a pause of a minute.
    assert made.energy_j == pytest.approx(made.time_mean_s * sum(BUSY_W), rel=0.005)


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
    for _ in range(200):
        job.iterate(4.0 * chance.lognormvariate(0.0, 0.04))
    made = job.figures()
    assert made.left_out == 0
    assert made.time_sd_s == pytest.approx(0.16, rel=0.2)


def test_a_job_that_is_often_something_else_has_none_either() -> None:
    job = Job()
    for n in range(80):
        job.iterate(4.0 if n % 3 else 9.0)
    assert job.outcome() == "irregular"


def test_few_iterations_are_none() -> None:
    job = Job()
    for _ in range(7):
        job.iterate(4.0)
    assert job.windows.so_far() is None
    assert job.outcome() == "short"


def test_without_the_counter_of_one_gpu_there_is_no_sum() -> None:
    job = Job(without=UUIDS[1])
    for _ in range(40):
        job.iterate(4.0)
    assert job.figures().energy_j == 0.0
    assert job.outcome() == "counter"


@pytest.mark.parametrize("at", [5, 30, 55])
def test_a_driver_that_is_loaded_again_takes_no_joules_away(at: int) -> None:
    """Its counters begin again."""
    job = Job()
    for n in range(80):
        if n == at:
            job.energy_j = [100.0, 100.0]
        job.iterate(5.0)
    assert job.figures().energy_j == pytest.approx(5.0 * sum(BUSY_W), rel=5e-3)


def test_memory_is_bounded_however_long_and_fast() -> None:
    job = Job(pass_s=60.0)
    for _ in range(10_000):
        job.iterate(0.5)
    track = job.stats._track
    assert all(len(gpu.samples) <= SAMPLES_KEPT for gpu in track.window._gpus.values())


def test_iterations_of_ten_minutes_have_their_energy_too() -> None:
    """More samples than are kept lie within one."""
    job = Job(pass_s=4.0)
    for _ in range(14):
        job.iterate(600.0)
    assert job.figures().energy_j == pytest.approx(600.0 * sum(BUSY_W), rel=1e-3)
    assert job.outcome() == "kept"
