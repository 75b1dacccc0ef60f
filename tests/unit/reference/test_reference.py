"""The reference of a phase: what default clocks take now, however the job moves meanwhile."""

import math
import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.chunk import DEFAULT, Chunk, Setting, Timed, Usual
from joulecut_controller.reference import reference as module
from joulecut_controller.reference.noise import Noise
from joulecut_controller.reference.reference import Answer, Figure, Reference

LOWERED, OTHER = ("GPU-0", 1200), ("GPU-0", 1100)
SLOWDOWN = {DEFAULT: 0.0, LOWERED: 0.04, OTHER: 0.06}


class Job:
    """One iteration a second under clocks that the test sets."""

    def __init__(self, seed: int = 1, noise: float = 0.01, spread: float = 0.0) -> None:
        self.reference, self.chance = Reference(), random.Random(f"reference {seed}")
        self.noise, self.spread, self.now_s, self.level = noise, spread, 0.0, 0.0
        self.work, self.memory = 0.0, 0.0  # of the newest iteration, and its part in the next
        self.operations = 1.3  # their slowdown over that of iterations
        self.setting: Setting = DEFAULT

    def run(
        self, iterations: int, setting: Setting, drift: Callable[[float], float] = lambda _: 0.0
    ) -> "Job":
        """`drift` is the level over time; `spread` that of an iteration's work."""
        self.setting = setting
        for _ in range(iterations):
            self.now_s += 1.0
            fresh = self.spread * math.sqrt(1.0 - self.memory**2)
            work = self.work = self.memory * self.work + self.chance.gauss(0.0, fresh)
            log_s = self.level + drift(self.now_s) + SLOWDOWN[setting] + work
            timed = Timed(
                log_s + self.chance.gauss(0.0, self.noise),
                work + self.operations * SLOWDOWN[setting] if self.spread else None,
            )
            self.reference.take(Chunk(self.now_s, setting, (timed,)))
        return self

    @property
    def answer(self) -> Answer:
        return self.reference.answer(self.setting)


def predicted(job: Job, slowdown: float = 0.04) -> Job:
    job.reference.predict(LOWERED, slowdown)
    return job


def test_a_steady_job_is_known_to_the_noise_of_its_iterations() -> None:
    job = predicted(Job().run(40, DEFAULT)).run(60, LOWERED)
    assert job.answer.slowdown.mean == pytest.approx(0.04, abs=0.004)
    assert job.answer.slowdown.sd == pytest.approx(0.01 * math.sqrt(1 / 40 + 1 / 60), rel=0.5)
    assert job.answer.default.mean == pytest.approx(0.0, abs=0.005)
    assert not job.answer.doubt(0.06)
    assert job.answer.doubt(0.02), "nothing is left of this budget"


@pytest.mark.parametrize("slowdown", [0.02, 0.04, 0.08])
def test_a_wrong_prediction_is_corrected_and_corrects_the_next_ones(slowdown: float) -> None:
    job = predicted(Job().run(40, DEFAULT), slowdown).run(60, LOWERED)
    assert job.answer.slowdown.mean == pytest.approx(0.04, abs=0.005)
    assert job.answer.scale.mean == pytest.approx(0.04 / slowdown, rel=0.2)


def test_the_answers_of_many_jobs_are_as_wrong_as_they_say() -> None:
    """Beside default windows of a dozen iterations every five minutes, and a level that wanders."""
    wrong = []
    for seed in range(20):
        job = predicted(Job(seed).run(30, DEFAULT))
        phase = seed * 0.7

        def wander(now_s: float, phase: float = phase) -> float:
            return 0.01 * math.sin(now_s / 600.0 + phase)

        for _ in range(4):
            job.run(288, LOWERED, wander).run(12, DEFAULT, wander)
        slowdown = job.run(30, LOWERED, wander).answer.slowdown
        wrong.append((slowdown.mean - 0.04) / slowdown.sd)
    assert np.mean(np.abs(wrong) < 2.0) >= 0.9


@pytest.mark.parametrize("jump", [-0.12, -0.05, 0.05, 0.12])
def test_a_jump_opens_the_level_within_a_dozen_iterations_and_leaves_the_effect(
    jump: float,
) -> None:
    job = predicted(Job().run(40, DEFAULT)).run(100, LOWERED)
    job.level = jump
    job.run(12, LOWERED)
    assert job.answer.moved == pytest.approx(jump, abs=0.02)
    assert job.answer.doubt(0.05)
    job.run(12, DEFAULT)
    assert not job.run(1, LOWERED).answer.doubt(0.06)
    assert job.answer.slowdown.mean == pytest.approx(0.04, abs=0.01)
    assert job.answer.default.mean == pytest.approx(jump, abs=0.01)


@pytest.mark.parametrize("jump", [0.1, -0.1])
def test_a_jump_that_default_clocks_confirm_leaves_the_effect_known(jump: float) -> None:
    """A window at default clocks follows at once. Else the next jump under the same clocks would be
    taken for their doing: a job that stalls no more, for clocks that make it quicker.
    """
    job = predicted(Job(noise=0.003).run(40, DEFAULT)).run(60, LOWERED)
    job.level = jump
    for _ in range(12):
        job.run(0 if job.reference.moved else 1, LOWERED)
    job.run(12, DEFAULT)
    job.level = 0.0
    assert job.run(12, LOWERED).reference.moved == pytest.approx(0.0, abs=0.02)
    assert job.answer.slowdown.mean == pytest.approx(0.04, abs=0.03)
    assert job.run(12, DEFAULT).answer.default.mean == pytest.approx(0.0, abs=0.005)
    assert job.run(12, LOWERED).answer.slowdown.mean == pytest.approx(0.04, abs=0.01)


@pytest.mark.parametrize("longer", [-0.2, 0.25, 0.45])
def test_one_odd_iteration_is_no_jump_and_three_in_a_row_are(longer: float) -> None:
    job = predicted(Job().run(40, DEFAULT)).run(100, LOWERED)
    before = job.answer
    for _ in range(4):
        job.run(1, LOWERED, lambda _: longer).run(11, LOWERED)
    assert job.answer.moved == 0.0
    assert job.answer.slowdown.mean == pytest.approx(before.slowdown.mean, abs=0.004)
    assert not job.answer.doubt(0.06)
    job.run(3, LOWERED, lambda _: longer)
    assert job.answer.moved == pytest.approx(longer, abs=0.02)


@pytest.mark.parametrize("slope", [0.8, 1.0, 1.25])
def test_work_in_waves_hides_no_slowdown_where_operations_are_predicted(slope: float) -> None:
    """Clocks that use the slack of a pipeline slow its operations by far more than its iterations.
    Without a prediction the difference is taken for less work.
    """
    off = []
    for seed in range(24):
        job = Job(seed, spread=0.1)
        job.memory, job.operations = 0.9, 3.0
        job.run(40, DEFAULT).reference.predict(LOWERED, 0.04 / slope, operations_log=0.12 / slope)
        slowdown = job.run(60, LOWERED).answer.slowdown
        off.append((slowdown.mean - 0.04, slowdown.sd))
    assert math.sqrt(sum(by**2 for by, _ in off) / len(off)) < 0.012  # 0.027 without
    assert sum(abs(by) < 2.0 * sd for by, sd in off) >= 20


def test_effects_that_another_gpu_changed_are_measured_again() -> None:
    """The job waits for another GPU from now on, so the same clocks cost other parts of it."""
    job = predicted(Job().run(40, DEFAULT)).run(60, LOWERED)
    job.reference.forget_effects()
    assert not job.answer.settings
    assert job.answer.slowdown.sd > 0.05
    job.run(12, DEFAULT).reference.predict(LOWERED, 0.15)
    slowed = job.run(20, LOWERED, lambda _: 0.11).answer.slowdown
    assert slowed.mean == pytest.approx(0.15, abs=0.01)


def test_a_steady_job_hardly_ever_jumps() -> None:
    jumps = sum(
        predicted(Job(seed).run(40, DEFAULT)).run(2000, LOWERED).answer.moved != 0.0
        for seed in range(10)
    )
    assert jumps <= 2  # of 20,000 iterations: the alarm is set for one in 10,000


def test_default_clocks_that_heat_lowers_are_no_change_of_lowered_ones() -> None:
    """Only the level at default clocks moves; the time of lowered clocks stays."""
    job = predicted(Job().run(40, DEFAULT))
    for step in range(1, 7):
        job.run(288, LOWERED)
        job.run(12, DEFAULT, lambda _, step=step: 0.004 * step)
    job.run(1, LOWERED)
    assert job.answer.slowdown.mean == pytest.approx(0.04 - 0.024, abs=0.007)
    assert job.answer.level_sd < 0.005, "how fast it moves is known"
    assert job.run(900, LOWERED).answer.doubt(0.03), "and so it is soon in doubt"


def test_work_that_varies_is_taken_out_as_far_as_operations_show_it() -> None:
    job = predicted(Job(spread=0.12).run(60, DEFAULT)).run(400, LOWERED)
    assert job.answer.slowdown.mean == pytest.approx(0.04, abs=3.0 * job.answer.slowdown.sd)
    assert job.answer.slowdown.sd < 0.12 / math.sqrt(60)
    assert predicted(Job().run(60, DEFAULT)).run(9, LOWERED).answer.slowdown.sd < 0.005


def test_neighbours_that_resemble_each_other_tell_less() -> None:
    dice, alike, apart, wave = random.Random(3), Noise(), Noise(), 0.0
    for _ in range(2000):
        wave = 0.6 * wave + dice.gauss(0.0, 0.8 * 0.01)
        alike.take(wave, 0.0)
        apart.take(dice.gauss(0.0, 0.01), 0.0)
    assert alike.of_time == pytest.approx(4.0 * 0.01**2, rel=0.5)  # (1 + 0.6) / (1 - 0.6)
    assert apart.of_time == pytest.approx(0.01**2, rel=0.3)


def test_slow_stretches_under_the_noise_of_iterations_tell_less() -> None:
    """Neighbours hardly show them; means of blocks show a part. Where they passed for luck of
    single iterations, a job as recorded in production was late for 28 windows in a row.
    """
    dice, seen, slow = random.Random(3), Noise(), 0.0
    for _ in range(600):
        slow = 0.9 * slow + dice.gauss(0.0, 0.006)
        seen.take(slow + dice.gauss(0.0, 0.03), 0.0)
    stretch = (0.006 / (1.0 - 0.9)) ** 2  # of the mean of many, times their number
    assert seen.of_time > 0.03**2 + stretch / 8.0


@given(
    runs=st.lists(
        st.tuples(st.sampled_from([DEFAULT, LOWERED, OTHER]), st.integers(1, 9)), max_size=9
    ),
    seed=st.integers(0, 99),
)
def test_the_filter_is_the_exact_answer_of_all_iterations_together(
    runs: list[tuple[Setting, int]], seed: int
) -> None:
    """Against one large system of equations, where the level stands still and noise is known."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WALK_PER_S", 0.0)
        patch.setattr(module, "CUSUM_ALARM", math.inf)
        patch.setattr(Noise, "of_time", 0.01**2)
        patch.setattr(Reference, "_learn_walk", lambda _: None)
        reference = Reference()
        reference._walk = 0.0
        iterations = [(DEFAULT, chance.gauss(0.0, 0.01)) for _ in range(module.BEGINS[0])]
        iterations += [
            (setting, SLOWDOWN[setting] + chance.gauss(0.0, 0.01))
            for setting, count in runs
            for _ in range(count)
        ]
        for number, (setting, log_s) in enumerate(iterations):
            if setting != DEFAULT:
                reference.predict(setting, 0.05)
            reference.take(Chunk(float(number), setting, (Timed(log_s),)))
        exact = _exact(iterations)
        for setting in {setting for setting, _ in iterations}:
            found = reference.slowdown(setting)
            assert found.mean == pytest.approx(exact[setting].mean, abs=1e-6)
            assert found.sd == pytest.approx(exact[setting].sd, abs=1e-6)


def _exact(iterations: Iterable[tuple[Setting, float]]) -> dict[Setting, Figure]:
    """Least squares with the priors as rows: b, scale, and an effect for each setting."""
    iterations = list(iterations)
    settings = [s for s in dict.fromkeys(s for s, _ in iterations) if s != DEFAULT]
    size = 2 + len(settings)
    rows, values, weights = [], [], []

    def add(row: dict[int, float], value: float, sd: float) -> None:
        rows.append([row.get(i, 0.0) for i in range(size)])
        values.append(value)
        weights.append(1.0 / sd)

    add({0: 1.0}, 0.0, module.UNKNOWN_SD)
    add({1: 1.0}, 1.0, module.SCALE_SD)
    for place, _ in enumerate(settings):
        add({2 + place: 1.0, 1: -0.05}, 0.0, module.EFFECT_SD)
    for setting, log_s in iterations:
        effect = {} if setting == DEFAULT else {2 + settings.index(setting): 1.0}
        add({0: 1.0} | effect, log_s, 0.01)
    a = np.array(rows) * np.array(weights)[:, None]
    covariance = np.linalg.inv(a.T @ a)
    x = covariance @ a.T @ (np.array(values) * np.array(weights))
    found: dict[Setting, Figure] = {DEFAULT: Figure(0.0, 0.0)}
    for place, setting in enumerate(settings):
        at = 2 + place
        found[setting] = Figure(float(x[at]), math.sqrt(float(covariance[at, at])))
    return found


def test_the_same_chunks_give_the_same_answers_and_memory_is_bounded() -> None:
    def lived() -> Job:
        job = Job(seed=7).run(40, DEFAULT)
        for number in range(200):
            SLOWDOWN[number] = 0.001 * (number % 50)
            job.reference.predict(number, SLOWDOWN[number])
            job.run(12, number).run(2, DEFAULT)
        return job.run(12, LOWERED)

    one, other = lived(), lived()
    assert one.answer == other.answer
    assert len(one.reference._state.x) <= 3 + 2 * module.SETTINGS_KEPT


def test_what_a_controller_before_measured_counts_with_its_doubt() -> None:
    job = Job()
    job.reference.recall(0.0, 0.001)
    predicted(job).run(40, LOWERED)
    assert job.answer.slowdown.mean == pytest.approx(0.04, abs=0.005)
    assert job.answer.level_sd == pytest.approx(0.001, rel=0.2)


def counted(*logs: float) -> list[float]:
    usual: Usual[float] = Usual()
    return [one for log_s in logs for one in usual.take(log_s, log_s).counted]


def test_checkpoints_and_hiccups_are_left_out_and_a_new_pace_is_not() -> None:
    usual = [0.01 * (-1) ** n for n in range(20)]
    assert counted(*usual) == usual[1:], "the first one settles"
    assert counted(*usual, 3.0, *usual) == usual[1:] + usual
    assert counted(*usual, 3.0, 3.0, *usual) == usual[1:] + usual
    assert counted(*usual, *[0.7] * 8) == usual[1:] + [0.7] * 8
    assert counted(0.0, 3.0, *usual) == usual, "the first ones are judged together"


def test_what_is_usual_is_known_across_changes_of_clocks() -> None:
    usual: Usual[float] = Usual()
    for log_s in (9.0, 0.0, 3.0, 0.0, 0.01):
        usual.take(log_s, log_s)
    usual.settle()
    judged = [usual.take(log_s, log_s) for log_s in (9.0, 0.02, 3.0, 0.0)]
    assert [one.counted for one in judged] == [(), (0.02,), (), (0.0,)], "after one that settles"
    assert [one.odd for one in judged] == [(), (), (3.0,), ()]
