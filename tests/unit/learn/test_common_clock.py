"""One clock for all GPUs of a job that reports its rate: in its budget, and in few steps."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.learn.advice import OVER_RATIO, Advice, ExplorerInput
from joulecut_controller.learn.explorer import advise
from joulecut_controller.learn.measurement_log import JobConstants, Measurement
from joulecut_controller.policy.policy import Slo
from joulecut_controller.reference.reference import Figure
from joulecut_engine.graph.pipeline import Pipeline

TABLE_MHZ = tuple(range(855, 1411, 15))
STAGES = 2
STEPS_MAX = 40


class Job:
    """Work of which a part follows the clock. Power falls with a power of the clock to a floor."""

    def __init__(self, part: float, exponent: float, floor: float, sd: float, seed: int) -> None:
        self.part, self.exponent, self.floor, self.sd = part, exponent, floor, sd
        self.chance = random.Random(f"common {seed}")
        self.measured: list[Measurement] = []

    def slowdown(self, mhz: int) -> float:
        return math.log(1.0 - self.part + self.part * TABLE_MHZ[-1] / mhz)

    def joules(self, mhz: int) -> float:
        watts = self.floor + (1.0 - self.floor) * (mhz / TABLE_MHZ[-1]) ** self.exponent
        return watts * math.exp(self.slowdown(mhz))

    def measure(self, mhz: int) -> Figure:
        seen = self.slowdown(mhz) + self.chance.gauss(0.0, self.sd)
        if all(one.clocks_mhz[0] != mhz for one in self.measured):
            sd_s = max(0.001, self.sd * 50**0.5)
            joules = (self.joules(mhz),) * STAGES
            one = Measurement((mhz,) * STAGES, 50, math.exp(seen), sd_s, joules)
            self.measured.append(one)
        return Figure(seen, max(self.sd, 1e-4))

    def advise(self, mhz: int, budget: float, slowdown: Figure | None) -> Advice:
        pipeline = Pipeline("1f1b", STAGES, 8)
        constants = JobConstants(pipeline, (TABLE_MHZ[-1],) * STAGES, TABLE_MHZ[-1], 80.0)
        facts = ExplorerInput(
            constants, (TABLE_MHZ,) * STAGES, (mhz,) * STAGES,
            Slo(max_slowdown=budget).budget(1.0), 50, (0,) * STAGES, slowdown=slowdown,
        )  # fmt: skip
        return advise(facts, tuple(self.measured))

    def best(self, budget: float) -> float:
        """Of one clock within the budget: the saved ratio."""
        allowed = [m for m in TABLE_MHZ if self.slowdown(m) <= math.log1p(max(budget, 0.003))]
        return 1.0 - min(map(self.joules, allowed)) / self.joules(TABLE_MHZ[-1])


@given(
    part=st.floats(0.1, 1.0),
    exponent=st.floats(1.5, 3.0),
    floor=st.floats(0.0, 0.5),
    sd=st.sampled_from([0.0, 0.001, 0.003]),
    budget=st.sampled_from([0.01, 0.02, 0.05, 0.1]),
    seed=st.integers(0, 99),
)
def test_it_ends_in_time_near_the_best_common_clock(
    part: float, exponent: float, floor: float, sd: float, budget: float, seed: int
) -> None:
    job, mhz = Job(part, exponent, floor, sd, seed), TABLE_MHZ[-1]
    job.measure(mhz)
    advice = job.advise(mhz, budget, None)
    for _ in range(STEPS_MAX):
        if not advice.changes:
            break
        assert len(set(advice.clocks_mhz)) == 1, "one clock for all"
        mhz = advice.clocks_mhz[0]
        assert job.slowdown(mhz) <= math.log1p(budget) + OVER_RATIO + 4.0 * sd
        advice = job.advise(mhz, budget, job.measure(mhz))
    assert advice.verdict == "enough"
    if sd == 0.0 and budget > 0.01:  # a step of the table costs as much there
        saved = 1.0 - job.joules(mhz) / job.joules(TABLE_MHZ[-1])
        assert saved >= 0.6 * job.best(budget) - 0.01


def test_noise_allows_the_step_that_no_work_can_miss_and_no_other() -> None:
    job = Job(0.5, 2.5, 0.2, 0.02, 1)
    job.measure(TABLE_MHZ[-1])
    first = job.advise(TABLE_MHZ[-1], 0.05, None)
    assert first.verdict == "probe"
    assert first.clocks_mhz[0] >= TABLE_MHZ[-1] / 1.05
    job.measure(first.clocks_mhz[0])
    assert job.advise(first.clocks_mhz[0], 0.05, Figure(0.0, 0.02)).verdict == "enough"


def test_a_late_job_goes_back() -> None:
    job = Job(1.0, 2.5, 0.2, 0.0, 1)
    for mhz in (1410, 1305):
        job.measure(mhz)
    advice = job.advise(1305, 0.02, Figure(job.slowdown(1305), 0.001))
    assert advice.verdict == "raise"
    assert job.slowdown(advice.clocks_mhz[0]) <= 0.02


def test_nothing_is_free_at_no_slowdown_and_it_says_what_would_be() -> None:
    job = Job(0.6, 2.5, 0.2, 0.0, 1)
    job.measure(1410)
    advice = job.advise(1410, 0.0, None)
    assert advice.verdict == "enough"
    assert "operations" in advice.reason
