"""Learning from running work: what is learnt, what is refused, what survives a restart."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.estimate import online
from joulecut_engine.estimate.estimator import (
    CAP_REASONS,
    Prediction,
    Sample,
    Subject,
    WorkShape,
)
from joulecut_engine.estimate.online import REFIT_EVERY, OnlineEstimator
from joulecut_engine.estimate.refit import refit
from joulecut_engine.graph.pipeline import Kind

MODEL = "NVIDIA A100-SXM4-80GB"
GRID = tuple(range(210, 1411, 15))
TIMES: dict[Kind, float] = {"forward": 0.05, "backward": 0.09}


def _time_s(kind: Kind, clock_mhz: int, share: float = 0.8) -> float:
    return TIMES[kind] * (1.0 - share + share * 1410.0 / clock_mhz)


def _power_w(clock_mhz: int) -> float:
    voltage = 1.0 + 0.76 * max(0.0, clock_mhz - 1107.0) / 1000.0
    return 52.0 + 160.0 * clock_mhz / 1000.0 * voltage**2


class Job:
    """A job that runs: each call is one iteration of all its GPUs at one clock."""

    def __init__(
        self, seed: int = 0, noise: float = 0.01, gpus: int = 2, name: str = "gpt"
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.noise, self.name = noise, name
        self.uuids = [f"GPU-{name}-{i}" for i in range(gpus)]
        self.offset = {uuid: 1.0 + 0.04 * i for i, uuid in enumerate(self.uuids)}
        self.share, self.iteration, self.start_s = 0.8, 0, 0.0

    def run(self, clock_mhz: int, uuids: Iterable[str] | None = None) -> tuple[Sample, ...]:
        self.iteration += 1
        return tuple(
            Sample(
                Subject(self.name, uuid, self.uuids.index(uuid), kind),
                clock_mhz,
                _time_s(kind, clock_mhz, self.share)
                * self.offset[uuid]
                * float(self.random.lognormal(0.0, self.noise)),
                _power_w(clock_mhz) * float(self.random.lognormal(0.0, self.noise)),
                asked_mhz=clock_mhz,
                iteration=self.iteration,
                at_s=self.start_s + 5.0 * self.iteration,
                card=MODEL,
            )
            for uuid in (self.uuids if uuids is None else uuids)
            for kind in TIMES
        )


def _fit(estimator: OnlineEstimator) -> None:
    taken = estimator.snapshot()
    estimator.adopt(taken, refit(taken))


def _teach(estimator: OnlineEstimator, job: Job, clocks: Iterable[int], times: int = 8) -> None:
    for clock in clocks:
        for _ in range(times):
            assert estimator.learn(job.run(clock)) == ()
    _fit(estimator)


def _predicted(estimator: OnlineEstimator, subject: Subject) -> Prediction:
    predicted = estimator.predict(subject, GRID)
    assert predicted is not None
    return predicted


def _same(one: Prediction, two: Prediction) -> bool:
    return all(
        getattr(one, name).tobytes() == getattr(two, name).tobytes()
        for name in ("time_s", "power_w", "time_low_s", "time_high_s")
    )


def test_without_evidence_there_is_no_answer() -> None:
    estimator, job = OnlineEstimator(), Job()
    subject = Subject("gpt", job.uuids[0], 0, "forward")
    assert estimator.predict(subject, GRID) is None
    assert estimator.known_clocks_mhz(subject) == ()
    estimator.learn(job.run(1410))
    assert estimator.predict(subject, GRID) is None  # learnt, not yet fitted
    assert estimator.due()


def test_a_floor_of_of_running_work_tell_the_others() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410, 1275, 1140, 990, 855))
    for stage, uuid in enumerate(job.uuids):
        for kind in TIMES:
            predicted = _predicted(estimator, Subject("gpt", uuid, stage, kind))
            inside = np.array(GRID) >= 855
            times = np.array([_time_s(kind, c) * job.offset[uuid] for c in GRID])
            powers = np.array([_power_w(c) for c in GRID])
            assert predicted.time_s[inside] == pytest.approx(times[inside], rel=0.015)
            assert predicted.power_w[inside] == pytest.approx(powers[inside], rel=0.03)


def test_one_clock_alone_leaves_the_band_open_below_it() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410,))
    subject = Subject("gpt", job.uuids[0], 0, "forward")
    assert estimator.known_clocks_mhz(subject) == (1410,)
    predicted = _predicted(estimator, subject)
    half = GRID.index(705)
    assert predicted.time_high_s[half] >= 2.0 * predicted.time_s[-1] * 0.99


def test_siblings_measured_at_different_clocks_are_no_slope() -> None:
    """One GPU is 10 % slower and the only one seen at 1005 MHz: that is no clock's doing."""
    estimator, job = OnlineEstimator(), Job(noise=0.002)
    stage, (fast, slow) = 0, job.uuids
    job.offset = {fast: 1.0, slow: 1.1}
    for uuid, clocks in ((fast, (1410, 1200, 1110)), (slow, (1410, 1005))):
        for clock in clocks:
            for _ in range(8):
                samples = job.run(clock, [uuid])
                assert (
                    estimator.learn(
                        tuple(
                            Sample(
                                Subject("gpt", uuid, stage, s.subject.kind),
                                s.clock_mhz,
                                s.time_s,
                                s.power_w,
                                card=MODEL,
                            )
                            for s in samples
                        )
                    )
                    == ()
                )
    _fit(estimator)
    predicted = _predicted(estimator, Subject("gpt", fast, stage, "forward"))
    at = GRID.index(1005)
    assert predicted.time_s[at] == pytest.approx(_time_s("forward", 1005), rel=0.02)


def test_a_refit_is_due_for_a_new_clock_or_enough_samples() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410,), times=1)
    assert not estimator.due()
    estimator.learn(job.run(1410))
    assert not estimator.due()
    estimator.learn(job.run(1395))
    assert estimator.due()
    _fit(estimator)
    for _ in range(REFIT_EVERY):
        estimator.learn(job.run(1395))
    assert estimator.due()


def _refused_as(estimator: OnlineEstimator, sample: Sample, reason: str) -> None:
    before = dict(estimator.refused)
    (text,) = estimator.learn((sample,))
    assert "\n" not in text
    assert sample.subject.uuid in text
    assert estimator.refused[reason] == before.get(reason, 0) + 1


SUBJECT = Subject("gpt", "GPU-gpt-0", 0, "forward")


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample(SUBJECT, 1200, float("nan")), "not-a-number"),
        (Sample(SUBJECT, 1200, float("inf")), "not-a-number"),
        (Sample(SUBJECT, 1200, 0.0), "not-above-zero"),
        (Sample(SUBJECT, 1200, -0.05), "not-above-zero"),
        (Sample(SUBJECT, 1200, 0.06, float("nan")), "not-a-number"),
        (Sample(SUBJECT, 1200, 0.06, 0.0), "not-above-zero"),
        (Sample(SUBJECT, 1200, 0.06, weight=0.0), "weight"),
        (Sample(SUBJECT, 1200, 0.06, weight=float("nan")), "weight"),
        (Sample(SUBJECT, 1200, 1e308), "out-of-range"),
        (Sample(SUBJECT, 1200, 5e-324), "out-of-range"),
        (Sample(SUBJECT, 1200, 0.06, 1e308), "out-of-range"),
        (Sample(SUBJECT, 1200, 0.06, temperature_c=1e39), "out-of-range"),
        (Sample(SUBJECT, 1200, 0.06, shape=WorkShape(flops=float("nan"))), "out-of-range"),
        (Sample(SUBJECT, 1200, 0.06, shape=WorkShape(sequence=-1)), "out-of-range"),
        (Sample(SUBJECT, 0, 0.06), "clock"),
        (Sample(SUBJECT, 99_999, 0.06), "clock"),
        (Sample(SUBJECT, 1200, 0.06, at_s=float("nan")), "not-a-number"),
        (Sample(SUBJECT, 1200, 0.06, iteration=16, at_s=80.0), "duplicate"),
        (Sample(SUBJECT, 1200, 0.06, iteration=3, at_s=81.0), "reordered"),
        (Sample(SUBJECT, 1200, 0.06, at_s=79.0), "reordered"),
        (Sample(SUBJECT, 1200, 0.06, at_s=1.0), "stale"),
        (Sample(SUBJECT, 1200, 0.06, 5000.0), "jump"),
        (Sample(SUBJECT, 1410, 0.05, 60.0), "jump"),
        (Sample(SUBJECT, 1200, 0.6), "other-work"),
        (Sample(SUBJECT, 1200, 0.006), "other-work"),
    ],
)
def test_what_cannot_be_is_refused_counted_and_not_learnt(sample: Sample, reason: str) -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410, 1200))
    before = _predicted(estimator, SUBJECT)
    _refused_as(estimator, sample, reason)
    json.dumps(estimator.state(), allow_nan=False)  # or nothing could be stored any more
    assert _same(before, _predicted(estimator, SUBJECT))
    _fit(estimator)
    assert _same(before, _predicted(estimator, SUBJECT))


def test_a_cap_without_a_clock_asked_is_refused_on_an_unknown_card() -> None:
    estimator = OnlineEstimator()
    _refused_as(estimator, Sample(SUBJECT, 1300, 0.05, 290.0, event_reasons=CAP_REASONS), "capped")


def test_a_restarted_job_counts_from_the_start_again() -> None:
    estimator, job = OnlineEstimator(), Job(gpus=1)
    _teach(estimator, job, (1410,))
    at_s, job.iteration = 5.0 * job.iteration, 0
    taken = []
    for _ in range(5):
        samples = tuple(
            Sample(
                s.subject,
                s.clock_mhz,
                s.time_s,
                s.power_w,
                iteration=s.iteration,
                at_s=at_s + s.at_s,
            )
            for s in job.run(1410)
            if s.at_s is not None
        )
        taken.append(len(samples) - len(estimator.learn(samples)))
    assert taken == [0, 0, 2, 2, 2]  # two iterations of each kind until it is believed
    assert estimator.refused == {"reordered": 4}


def test_a_clock_that_was_not_reached_is_learnt_where_it_was() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410,))
    sample = Sample(SUBJECT, 1200, _time_s("forward", 1200), _power_w(1200), asked_mhz=1005)
    assert estimator.learn((sample,)) == ()
    assert estimator.known_clocks_mhz(SUBJECT) == (1200, 1410)
    assert estimator.separated == {"clock-not-reached": 1}


def test_a_capped_sample_belongs_to_the_clock_asked_and_not_to_the_curve_below() -> None:
    """A card held at 1275 MHz: whoever asks for more pays what 1275 costs."""
    estimator = OnlineEstimator()
    for clock in (1410, 1350, 1200, 1110, 990):
        held = min(clock, 1275)
        for _ in range(8):
            sample = Sample(
                SUBJECT,
                held,
                _time_s("forward", held),
                _power_w(held),
                asked_mhz=clock,
                event_reasons=CAP_REASONS if clock > held else 0,
                card=MODEL,
            )
            assert estimator.learn((sample,)) == ()
    _fit(estimator)
    predicted = _predicted(estimator, SUBJECT)
    for clock in (1410, 1350, 1290, 1245, 1200, 1050):
        expected = _time_s("forward", min(clock, 1275))
        assert predicted.time_s[GRID.index(clock)] == pytest.approx(expected, rel=0.01)


def test_work_that_says_it_has_another_shape_begins_anew() -> None:
    estimator = OnlineEstimator()
    for sequence in (512, 1024):
        for clock in (1410, 1200):
            time_s = _time_s("forward", clock) * sequence / 512
            sample = Sample(SUBJECT, clock, time_s, 300.0, shape=WorkShape(sequence=sequence))
            assert estimator.learn((sample,)) == ()
        _fit(estimator)
    assert estimator.separated == {"shape-changed": 1}
    assert _predicted(estimator, SUBJECT).time_s[-1] == pytest.approx(0.1, rel=0.01)


def test_work_that_stays_another_under_the_same_name_begins_anew() -> None:
    estimator, job = OnlineEstimator(), Job(gpus=1)
    _teach(estimator, job, (1410, 1200))
    job.offset = dict.fromkeys(job.uuids, 2.5)
    refusals = [reason for _ in range(10) for reason in estimator.learn(job.run(1200))]
    assert 0 < len(refusals) < 10
    assert estimator.separated["shape-changed"] >= 1
    _fit(estimator)
    assert estimator.known_clocks_mhz(SUBJECT) == (1200,)
    at = GRID.index(1200)
    expected = 2.5 * _time_s("forward", 1200)
    assert _predicted(estimator, SUBJECT).time_s[at] == pytest.approx(expected, rel=0.02)


def test_a_gpu_that_slows_a_little_is_followed_without_alarm() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410, 1200, 1050))
    job.offset[job.uuids[0]] *= 1.03
    for _ in range(40):
        estimator.learn(job.run(1200))
    assert estimator.drifts() == ()
    expected = _time_s("forward", 1200) * job.offset[job.uuids[0]]
    at = GRID.index(1200)
    assert _predicted(estimator, SUBJECT).time_s[at] == pytest.approx(expected, rel=0.01)


def test_a_gpu_its_model_does_not_describe_widens_its_band_and_asks_to_be_probed() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410, 1200, 1050))
    calm = estimator.band(SUBJECT)
    job.offset[job.uuids[0]] *= 1.2
    for _ in range(25):
        estimator.learn(job.run(1200))
    (drift,) = estimator.drifts()
    assert (drift.workload, drift.uuid) == ("gpt", job.uuids[0])
    assert "no longer describes" in drift.text
    assert "\n" not in drift.text
    wide = estimator.band(SUBJECT)
    assert calm is not None
    assert wide is not None
    assert wide.time > 2.0 * calm.time
    assert estimator.known_clocks_mhz(SUBJECT) == (1200,)  # what it was before counts no more
    other = Subject("gpt", job.uuids[1], 1, "forward")
    assert estimator.known_clocks_mhz(other) == (1050, 1200, 1410)
    for clock in (1410, 1050):
        for _ in range(20):
            estimator.learn(job.run(clock))
        _fit(estimator)
    for _ in range(20):
        estimator.learn(job.run(1050))
    _fit(estimator)
    assert estimator.drifts() == ()
    assert estimator.known_clocks_mhz(SUBJECT) == (1050, 1200, 1410)


def test_of_many_workloads_each_has_its_turn_and_keeps_its_curve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online, "WORKS_MAX", 8)  # two GPUs, each a stage, of two jobs
    estimator = OnlineEstimator()
    jobs = [Job(i, name=f"job{i}") for i in range(5)]
    for i, job in enumerate(jobs):
        job.start_s = 1000.0 * i
        for clock in (1410, 1200, 990):
            for _ in range(4):
                estimator.learn(job.run(clock))
    fits = 0
    while not all(_predicted_of(estimator, job) for job in jobs):
        assert fits < 3, "two jobs a fit"
        taken = estimator.snapshot()
        assert len(taken.workloads) <= 2
        before = {job.name: _predicted_of(estimator, job) for job in jobs}
        estimator.adopt(taken, refit(taken))
        for job in jobs:
            known = before[job.name]
            if job.name not in taken.workloads and known is not None:
                after = _predicted_of(estimator, job)
                assert after is not None
                assert _same(known, after), "a job out of its turn"
        fits += 1
    estimator.forget("job1")
    taken = estimator.snapshot()
    estimator.adopt(taken, refit(taken))
    assert _predicted_of(estimator, jobs[1]) is None


def _predicted_of(estimator: OnlineEstimator, job: Job) -> Prediction | None:
    return estimator.predict(Subject(job.name, job.uuids[0], 0, "forward"), GRID)


def _restored(estimator: OnlineEstimator) -> OnlineEstimator:
    other = OnlineEstimator()
    other.restore(json.loads(json.dumps(estimator.state(), allow_nan=False)))
    return other


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    cut=st.integers(0, 29),
    clocks=st.lists(st.sampled_from((1410, 1275, 1140, 990)), min_size=30, max_size=30),
)
def test_a_restart_in_the_middle_of_learning_loses_nothing(
    seed: int, cut: int, clocks: list[int]
) -> None:
    jobs = Job(seed), Job(seed)
    through, broken = OnlineEstimator(), OnlineEstimator()
    for i, clock in enumerate(clocks):
        if i == cut:
            broken = _restored(broken)
        for estimator, job in ((through, jobs[0]), (broken, jobs[1])):
            estimator.learn(job.run(clock))
            if i % 10 == 9:
                _fit(estimator)
        assert through.due() == broken.due()
        if through.predict(SUBJECT, GRID) is not None:
            assert _same(_predicted(through, SUBJECT), _predicted(broken, SUBJECT))
    assert json.dumps(through.state()) == json.dumps(broken.state())


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 1},
        {"window": None},
        {"window": [[["gpt"], []]]},
        {"biases": [["gpt", "GPU-a", [0.1], [0.0]]]},
        {"taken": {}},
        {"watch": 3},
        {"admission": {}},
    ],
)
def test_a_damaged_state_is_refused_whole(damage: dict[str, object]) -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410, 1200))
    before = json.dumps(estimator.state())
    with pytest.raises(ValueError, match="not the state of an estimator"):
        estimator.restore({**json.loads(before), **damage})
    assert json.dumps(estimator.state()) == before


def test_the_same_samples_give_the_same_bytes() -> None:
    one, two = OnlineEstimator(), OnlineEstimator()
    for estimator in (one, two):
        for name, start_s in (("gpt", 0.0), ("bloom", 1000.0)):
            job = Job(3, name=name)
            job.start_s = start_s
            _teach(estimator, job, (1410, 1275, 1140, 990))
    assert _same(_predicted(one, SUBJECT), _predicted(two, SUBJECT))


def test_many_subjects_in_one_call_say_the_same_as_one_by_one() -> None:
    estimator, job = OnlineEstimator(), Job()
    _teach(estimator, job, (1410, 1200, 990))
    subjects = [Subject("gpt", uuid, i, kind) for i, uuid in enumerate(job.uuids) for kind in TIMES]
    together = estimator.predict_many([*subjects, Subject("no", "a", 0, "forward")], GRID)
    assert together[-1] is None
    for subject, found in zip(subjects, together, strict=False):
        assert found is not None
        assert _same(_predicted(estimator, subject), found)


def test_times_without_power_borrow_it_from_the_same_job() -> None:
    estimator = OnlineEstimator()
    for clock in (1410, 1200, 990):
        for _ in range(4):
            estimator.learn(
                (
                    Sample(SUBJECT, clock, _time_s("forward", clock), _power_w(clock)),
                    Sample(
                        Subject("gpt", "GPU-gpt-0", 0, "backward"),
                        clock,
                        _time_s("backward", clock),
                    ),
                    Sample(
                        Subject("dark", "GPU-d", 0, "forward"), clock, _time_s("forward", clock)
                    ),
                )
            )
    _fit(estimator)
    borrowed = _predicted(estimator, Subject("gpt", "GPU-gpt-0", 0, "backward"))
    at = GRID.index(1200)
    assert borrowed.power_w[at] == pytest.approx(_power_w(1200), rel=0.02)
    assert estimator.predict(Subject("dark", "GPU-d", 0, "forward"), GRID) is None


def test_memory_is_bounded_though_gpus_and_workloads_keep_coming() -> None:
    """Steady work among 30,000 new subjects, more than are tracked: the state stops growing."""
    estimator = OnlineEstimator(cells_max=200)
    steady = tuple(
        Sample(
            Subject("steady", f"GPU-{i % 8}", i % 8, "forward"), 1410 - 15 * (i % 5), 0.05, 300.0
        )
        for i in range(10)
    )
    sizes = []
    for batch in range(800):
        new = tuple(
            Sample(Subject(f"job-{batch}", f"GPU-{batch}-{i}", 0, "forward"), 1410 - 15 * i, 0.05)
            for i in range(50)
        )
        assert estimator.learn(steady + new) == ()
        if batch in {399, 799}:
            sizes.append(len(json.dumps(estimator.state())))
    assert len(estimator.snapshot().cells) == 200
    assert sizes[1] < 1.1 * sizes[0]
