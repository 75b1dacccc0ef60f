"""What the estimator learns of running work: counts, refusals, curves."""

from dataclasses import replace

import numpy as np
import pytest

from joulecut_engine.estimate.correction import fit_profile
from joulecut_engine.estimate.estimator import Estimator, Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

CLOCKS = tuple(range(855, 1411, 15))
KINDS: tuple[Kind, ...] = ("forward", "backward")
UUIDS = ("GPU-a", "GPU-b", "GPU-c")


def truth_s(kind: Kind, clock_mhz: float, curve_of: float = 0.0) -> float:
    """A curve, and one that bends away from it below 1200 MHz."""
    time_s = (0.05 if kind == "forward" else 0.09) * (0.2 + 0.8 * 1410.0 / clock_mhz)
    return time_s * (1.0 + curve_of * max(0.0, 1200.0 - clock_mhz) / 345.0)


def power_w(clock_mhz: float) -> float:
    voltage = 1.0 + 0.76 * max(0.0, clock_mhz - 1107.0) / 1000.0
    return 52.0 + 200.0 * clock_mhz / 1000.0 * voltage**2


def profile(curve_of: float = 0.0) -> Profile:
    return Profile(
        {
            (stage, kind): tuple(
                ClockOption(c, truth_s(kind, c, curve_of), truth_s(kind, c, curve_of) * power_w(c))
                for c in CLOCKS
            )
            for stage in (0, 1)
            for kind in KINDS
        }
    )


class Job:
    """Work that runs; `curve_of` is what the profile did not know."""

    def __init__(self, curve_of: float = 0.0, noise: float = 0.002) -> None:
        self.curve_of, self.noise = curve_of, noise
        self._dice = np.random.default_rng(5)

    def samples(self, clock_mhz: int, factor: float = 1.0) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                Subject("gpt", uuid, stage, kind),
                clock_mhz,
                truth_s(kind, clock_mhz, self.curve_of)
                * factor
                * (1.0 + 0.02 * i)
                * (1.0 + self.noise * self._dice.standard_normal()),
                power_w(clock_mhz),
                asked_mhz=clock_mhz,
            )
            for i, uuid in enumerate(UUIDS)
            for stage in (0, 1)
            for kind in KINDS
        )


def fit(estimator: OnlineEstimator) -> None:
    for _ in range(3):  # of at most so many workloads here
        estimator.fit()


def off(estimator: Estimator, job: Job, clock_mhz: int, uuid: str = "GPU-a") -> float:
    predicted = estimator.predict(Subject("gpt", uuid, 0, "forward"), (clock_mhz,))
    return float(predicted.time_s[0]) / truth_s("forward", clock_mhz, job.curve_of) - 1.0


def test_running_work_corrects_a_profile_that_is_wrong_at_low_clocks() -> None:
    """The bias of a GPU is one number; only the curve can learn where it bends."""
    estimator, job = OnlineEstimator({"gpt": profile()}), Job(curve_of=0.06)
    assert off(estimator, job, 930) < -0.03
    for clock in (1410, 1290, 1200, 1080, 960, 900):
        for _ in range(12):
            estimator.learn(job.samples(clock))
        fit(estimator)
    assert abs(off(estimator, job, 930)) < 0.012
    error = estimator.learning_stats("gpt").error
    assert error < 0.012


def test_work_that_no_fit_covers_is_answered_from_the_profile() -> None:
    estimator, job = OnlineEstimator({"gpt": profile()}), Job()
    fit(estimator)
    for _ in range(4):
        estimator.learn(job.samples(1410))
    estimator.set_profiles({"gpt": profile(), "new": profile()})
    assert estimator.learning_stats("gpt").taken
    assert estimator.predict(Subject("new", "GPU-a", 0, "forward"), CLOCKS) is not None
    estimator.set_profiles({"gpt": profile(curve_of=0.01)})
    assert estimator.learning_stats("gpt").taken == 0
    assert off(estimator, Job(curve_of=0.01), 900) == pytest.approx(0.0, abs=0.002)


def test_what_is_not_learnt_is_counted_by_job_and_reason() -> None:
    estimator, job = OnlineEstimator({"gpt": profile()}), Job()
    good = job.samples(1410)
    estimator.learn(good)
    subject = good[0].subject
    estimator.learn((Sample(subject, 1410, float("nan")), Sample(subject, 1410, 0.05, weight=-1)))
    estimator.learn((Sample(subject, 1410, 0.5),))
    estimator.learn((Sample(subject, 300, 0.05), Sample(subject, 1300, 0.05, capped=True)))
    estimator.learn((Sample(subject, 1200, truth_s("forward", 1200), asked_mhz=1300),))
    estimator.learn((Sample(Subject("no such job", "GPU-a", 0, "forward"), 1200, 0.05),))
    assert estimator.learning_stats("gpt").refused == (
        ("capped", 1),
        ("clock", 1),
        ("clock-not-reached", 1),
        ("not-above-zero", 1),
        ("other-work", 1),
        ("weight", 1),
    )
    assert estimator.learning_stats("no such job").refused == ()
    assert estimator.learning_stats("gpt").taken == len(good) + 1


def predicted() -> OnlineEstimator:
    made = OnlineEstimator({})
    one = replace(profile(), predicted=True, blocking_power_w=70.0)
    made.add_predicted("gpt", one, fit_profile("gpt", one))
    return made


@pytest.mark.parametrize("longer", [1.0, 1.05])
def test_what_all_operations_take_longer_at_lower_clocks_is_no_curve_of_a_predicted_profile(
    longer: float,
) -> None:
    """Heat and clocks come together on a hot day."""
    job, made = Job(), predicted()
    asked = Subject("gpt", "GPU-a", 0, "forward")
    before = made.predict(asked, (1110, 1410))
    for _ in range(30):
        made.learn(job.samples(1410))
        made.learn(job.samples(1110, factor=longer))
    fit(made)
    after = made.predict(asked, (1110, 1410))
    assert after.time_s[0] / after.time_s[1] == pytest.approx(
        before.time_s[0] / before.time_s[1], rel=0.003
    )


def test_a_measured_profile_takes_the_place_of_a_predicted_one() -> None:
    job, made = Job(), predicted()
    for _ in range(10):
        made.learn(job.samples(1110))
    assert made.ran_lower("gpt")
    assert made.measured("gpt").options
    made.set_profiles({"gpt": profile()})
    assert made.predicted("gpt") is None
