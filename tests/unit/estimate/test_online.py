"""Learning from running work: what is learnt, what is refused, what survives a restart."""

from collections.abc import Iterable

import numpy as np
import pytest

from joulecut_engine.estimate.correction import READINGS_MIN
from joulecut_engine.estimate.estimator import Prediction, Sample, Subject
from joulecut_engine.estimate.online import REFIT_EVERY, OnlineEstimator
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

GRID = tuple(range(210, 1411, 15))
TIMES: dict[Kind, float] = {"forward": 0.05, "backward": 0.09}
SUBJECT = Subject("gpt", "GPU-gpt-0", 0, "forward")


def _time_s(kind: Kind, clock_mhz: int, share: float = 0.8) -> float:
    return TIMES[kind] * (1.0 - share + share * 1410.0 / clock_mhz)


def _power_w(clock_mhz: int) -> float:
    voltage = 1.0 + 0.76 * max(0.0, clock_mhz - 1107.0) / 1000.0
    return 52.0 + 160.0 * clock_mhz / 1000.0 * voltage**2


def _profile(share: float = 0.75, stages: int = 2) -> Profile:
    """A sweep in which less of the time follows the clock."""
    return Profile(
        {
            (stage, kind): tuple(
                ClockOption(c, _time_s(kind, c, share), _time_s(kind, c, share) * _power_w(c))
                for c in range(810, 1411, 15)
            )
            for stage in range(stages)
            for kind in TIMES
        }
    )


class Job:
    """A job that runs: each call is one iteration of all its GPUs at one clock."""

    def __init__(
        self, seed: int = 0, noise: float = 0.01, gpus: int = 2, name: str = "gpt"
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.noise, self.name = noise, name
        self.uuids = [f"GPU-{name}-{i}" for i in range(gpus)]
        self.offset = {uuid: 1.0 + 0.04 * i for i, uuid in enumerate(self.uuids)}

    def run(self, clock_mhz: int) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                Subject(self.name, uuid, stage, kind),
                clock_mhz,
                _time_s(kind, clock_mhz)
                * self.offset[uuid]
                * float(self.random.lognormal(0.0, self.noise)),
                _power_w(clock_mhz) * float(self.random.lognormal(0.0, self.noise)),
                asked_mhz=clock_mhz,
            )
            for stage, uuid in enumerate(self.uuids)
            for kind in TIMES
        )


def _model(*names: str) -> OnlineEstimator:
    return OnlineEstimator({name: _profile() for name in names or ("gpt",)})


def _fit(model: OnlineEstimator) -> None:
    for _ in range(8):  # of at most so many workloads here
        model.fit()


def _counted(model: OnlineEstimator, reason: str) -> int:
    return dict(model.learning_stats("gpt").refused).get(reason, 0)


def _seen(model: OnlineEstimator, subject: Subject, clock_mhz: int) -> bool:
    """Whether readings of this GPU and work are kept at this clock."""
    work = (subject.workload, subject.uuid, subject.stage, subject.kind, clock_mhz)
    return any(tuple(cell[:5]) == work for cell, _ in model._window.cells())


def _teach(model: OnlineEstimator, job: Job, clocks: Iterable[int], times: int = 8) -> None:
    for clock in clocks:
        for _ in range(times):
            assert model.learn(job.run(clock)) == ()
    _fit(model)


def _predicted(model: OnlineEstimator, subject: Subject) -> Prediction:
    predicted = model.predict(subject, GRID)
    assert predicted is not None
    return predicted


def _same(one: Prediction, two: Prediction) -> bool:
    return all(
        getattr(one, name).tobytes() == getattr(two, name).tobytes()
        for name in ("time_s", "power_w")
    )


def test_a_new_clock_or_enough_samples_correct_the_curve_of_all_gpus() -> None:
    """A GPU without samples has the curve alone."""
    model, job = _model(), Job(noise=0.0, gpus=1)
    unseen, low = Subject("gpt", "GPU-gpt-1", 0, "forward"), GRID.index(900)
    seen = []
    for clock in (1410, 1395, 1200):
        for _ in range(READINGS_MIN - (clock == 1395)):
            model.learn(job.run(clock))
        model.fit()
        seen.append(_predicted(model, unseen).time_s[low])
    assert seen[0] == seen[1] != seen[2]
    job.offset = dict.fromkeys(job.uuids, 1.05)
    for _ in range(REFIT_EVERY):
        model.fit()
        assert _predicted(model, unseen).time_s[low] == seen[2]
        for _ in range(2):
            model.learn(job.run(1200))  # two of the four kinds of work
    model.fit()
    assert _predicted(model, unseen).time_s[low] > 1.02 * seen[2]


def test_a_capped_sample_belongs_to_the_clock_asked_and_not_to_the_curve_below() -> None:
    """A card held at 1275 MHz: asking for more costs what 1275 MHz does."""
    model = _model()
    for clock in (1410, 1350, 1335, 1290, 1260, 1200, 1110, 990):
        held = min(clock, 1275)
        for _ in range(8):
            sample = Sample(
                SUBJECT,
                held,
                _time_s("forward", held),
                _power_w(held),
                asked_mhz=clock,
                capped=clock > held,
            )
            assert model.learn((sample,)) == ()
    _fit(model)
    predicted = _predicted(model, SUBJECT)
    for clock in (1410, 1350, 1290, 1200, 1050):
        expected = _time_s("forward", min(clock, 1275))
        assert predicted.time_s[GRID.index(clock)] == pytest.approx(expected, rel=0.012)


def test_work_that_stays_another_under_the_same_name_begins_again() -> None:
    model, job = _model(), Job(gpus=1)
    _teach(model, job, (1410, 1200))
    job.offset = dict.fromkeys(job.uuids, 1.8)
    refused = [one for _ in range(6 + READINGS_MIN) for one in model.learn(job.run(1200))]
    assert len(refused) < 10
    assert _counted(model, "shape-changed") == 1
    assert not _seen(model, SUBJECT, 1410)
    _fit(model)
    at = GRID.index(1200)
    expected = 1.8 * _time_s("forward", 1200)
    assert _predicted(model, SUBJECT).time_s[at] == pytest.approx(expected, rel=0.03)


def test_of_many_workloads_each_has_its_turn_and_keeps_its_curve() -> None:
    jobs = [Job(i, name=f"job{i}") for i in range(5)]
    model = _model(*(job.name for job in jobs))
    for clock in (1410, 1200, 990):
        for job in jobs:
            for _ in range(READINGS_MIN):
                model.learn(job.run(clock))
    for job in jobs:
        before = {one.name: _predicted_of(model, one) for one in jobs}
        model.fit()
        for one in jobs:
            assert _same(before[one.name], _predicted_of(model, one)) == (one is not job)
    model.set_profiles({job.name: _profile() for job in jobs if job.name != "job1"})
    model.fit()
    assert model.predict(Subject("job1", jobs[1].uuids[0], 0, "forward"), GRID) is None


def _predicted_of(model: OnlineEstimator, job: Job) -> Prediction:
    return _predicted(model, Subject(job.name, job.uuids[0], 0, "forward"))
