"""What every estimator must do, whatever it is made of. One suite for all of them."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.estimate.estimator import Estimator, Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.sample_window import CELLS_MAX
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

Make = Callable[[Mapping[str, Profile]], Estimator]

CLOCKS = tuple(range(855, 1411, 15))
TIMES: dict[Kind, float] = {"forward": 0.05, "backward": 0.09}
SUBJECT = Subject("gpt", "GPU-a", 0, "forward")


def _time_s(kind: Kind, clock_mhz: int) -> float:
    return TIMES[kind] * (0.2 + 0.8 * 1410.0 / clock_mhz)


def _power_w(clock_mhz: int) -> float:
    voltage = 1.0 + 0.76 * max(0.0, clock_mhz - 1107.0) / 1000.0
    return 52.0 + 200.0 * clock_mhz / 1000.0 * voltage**2


def profile(stages: int = 2, clocks: tuple[int, ...] = CLOCKS) -> Profile:
    return Profile(
        {
            (stage, kind): tuple(
                ClockOption(c, _time_s(kind, c), _time_s(kind, c) * _power_w(c)) for c in clocks
            )
            for stage in range(stages)
            for kind in TIMES
        },
        source="made up",
    )


def fitted(profiles: Mapping[str, Profile]) -> OnlineEstimator:
    """One that was fitted to running work of another GPU."""
    estimator = OnlineEstimator(profiles)
    for workload, shown in profiles.items():
        for (stage, kind), options in shown.options.items():
            subject = Subject(workload, "GPU-before", stage, kind)
            for option in options:
                sample = Sample(subject, option.clock_mhz, option.time_s, option.power_w)
                assert estimator.learn((sample,)) == ()
    for _ in profiles:
        estimator.fit()
    return estimator


@pytest.fixture(params=[OnlineEstimator, fitted], ids=lambda made: made.__name__)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def _samples(
    factor: float, n: int, uuid: str = "GPU-a", power: float | None = None
) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            Subject("gpt", uuid, i % 2, kind),
            clock,
            _time_s(kind, clock) * factor,
            None if power is None else _power_w(clock) * power,
        )
        for i in range(n)
        for kind, clock in (("forward", 1410), ("backward", 1200))
    )


def test_a_clean_profile_is_predicted_as_it_is(make: Make) -> None:
    predicted = make({"gpt": profile()}).predict(SUBJECT, CLOCKS)
    assert predicted.time_s == pytest.approx([_time_s("forward", c) for c in CLOCKS], rel=0.005)
    assert predicted.power_w == pytest.approx([_power_w(c) for c in CLOCKS], rel=0.01)


def test_five_clocks_tell_the_others(make: Make) -> None:
    estimator = make({"gpt": profile(clocks=(855, 990, 1140, 1275, 1410))})
    predicted = estimator.predict(SUBJECT, CLOCKS)
    assert predicted.time_s == pytest.approx([_time_s("forward", c) for c in CLOCKS], rel=0.01)
    assert predicted.power_w == pytest.approx([_power_w(c) for c in CLOCKS], rel=0.03)


@pytest.mark.parametrize(
    "subject",
    [
        Subject("unknown", "GPU-a", 0, "forward"),
        Subject("gpt", "GPU-a", 2, "forward"),
    ],
)
def test_no_evidence_no_prediction(make: Make, subject: Subject) -> None:
    estimator = make({"gpt": profile()})
    assert estimator.predict(subject, CLOCKS) is None
    assert estimator.known_clocks_mhz(subject) == ()


def test_known_clocks_are_those_of_the_evidence(make: Make) -> None:
    assert make({"gpt": profile()}).known_clocks_mhz(SUBJECT) == CLOCKS


def test_a_whole_grid_says_the_same_as_clock_by_clock(make: Make) -> None:
    estimator = make({"gpt": profile()})
    estimator.learn(_samples(1.05, 5))
    grid = estimator.predict(SUBJECT, CLOCKS)
    for i, clock in enumerate(CLOCKS):
        one = estimator.predict(SUBJECT, (clock,))
        assert one.time_s[0] == pytest.approx(grid.time_s[i], rel=1e-12)


@pytest.mark.parametrize("factor", [0.9, 1.07, 1.3])
def test_a_gpu_that_differs_from_the_profile_is_learnt(make: Make, factor: float) -> None:
    estimator = make({"gpt": profile()})
    assert estimator.learn(_samples(factor, 20, power=1.1)) == ()
    predicted = estimator.predict(SUBJECT, CLOCKS)
    expected = [_time_s("forward", c) * factor for c in CLOCKS]
    assert predicted.time_s == pytest.approx(expected, rel=0.02)
    assert predicted.power_w == pytest.approx([_power_w(c) * 1.1 for c in CLOCKS], rel=0.03)


def test_what_one_gpu_does_says_nothing_of_another_or_of_other_work(make: Make) -> None:
    estimator = make({"gpt": profile(), "other": profile()})
    others = (Subject("gpt", "GPU-b", 0, "forward"), Subject("other", "GPU-a", 0, "forward"))
    before = [estimator.predict(other, CLOCKS) for other in others]
    estimator.learn(_samples(1.2, 20))
    after = [estimator.predict(other, CLOCKS) for other in others]
    for one, two in zip(before, after, strict=True):
        assert (one.time_s == two.time_s).all()


def test_samples_without_power_leave_power_alone(make: Make) -> None:
    estimator = make({"gpt": profile()})
    before = estimator.predict(SUBJECT, CLOCKS)
    estimator.learn(_samples(1.1, 10))
    after = estimator.predict(SUBJECT, CLOCKS)
    assert (before.power_w == after.power_w).all()


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (Sample(SUBJECT, 1200, float("nan")), "above 0"),
        (Sample(SUBJECT, 1200, float("inf")), "above 0"),
        (Sample(SUBJECT, 1200, 0.0), "above 0"),
        (Sample(SUBJECT, 1200, -0.05), "above 0"),
        (Sample(SUBJECT, 1200, 0.056, float("nan")), "above 0"),
        (Sample(SUBJECT, 1200, 0.056, -1.0), "above 0"),
        (Sample(SUBJECT, 1200, 0.056, weight=float("nan")), "weight"),
        (Sample(SUBJECT, 1200, 0.056, weight=0.0), "weight"),
        (Sample(SUBJECT, 1200, 0.056, weight=1e9), "weight"),
        (Sample(SUBJECT, 840, 0.08), "855-1410"),
        (Sample(SUBJECT, 1980, 0.05), "855-1410"),
        (Sample(SUBJECT, 0, 0.05), "855-1410"),
        (Sample(SUBJECT, 1200, 0.56), "times the profile"),
        (Sample(SUBJECT, 1200, 1e-300), "times the profile"),
        (Sample(SUBJECT, 1200, 1e300), "times the profile"),
        (Sample(SUBJECT, 1200, 0.056, 3000.0), "times the profile"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason_and_changes_nothing(
    make: Make, sample: Sample, why: str
) -> None:
    estimator = make({"gpt": profile()})
    before = estimator.predict(SUBJECT, CLOCKS)
    (reason,) = estimator.learn((sample,))
    assert why in reason
    assert "gpt" in reason
    after = estimator.predict(SUBJECT, CLOCKS)
    assert (before.time_s == after.time_s).all()
    assert (before.power_w == after.power_w).all()


def test_one_bad_sample_does_not_cost_the_good_ones(make: Make) -> None:
    estimator, same = make({"gpt": profile()}), make({"gpt": profile()})
    good = _samples(1.1, 3)
    bad = Sample(SUBJECT, 1200, float("nan"))
    assert len(estimator.learn((good[0], bad, *good[1:], bad))) == 2
    same.learn(good)
    one, two = estimator.predict(SUBJECT, CLOCKS), same.predict(SUBJECT, CLOCKS)
    assert (one.time_s == two.time_s).all()


@settings(max_examples=25)
@given(
    stream=st.lists(
        st.tuples(
            st.integers(0, 2500),
            st.floats(allow_nan=True, allow_infinity=True),
            st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=30,
    )
)
def test_no_stream_of_samples_makes_it_say_nonsense(
    stream: list[tuple[int, float, float | None, float]],
) -> None:
    estimator = OnlineEstimator({"gpt": profile()})
    estimator.learn(tuple(Sample(SUBJECT, *row) for row in stream))
    predicted = estimator.predict(SUBJECT, CLOCKS)
    exact = np.array([_time_s("forward", c) for c in CLOCKS])
    assert (predicted.time_s > exact / 2.1).all()
    assert (predicted.time_s < exact * 2.1).all()


def test_memory_is_bounded_over_samples_of_ever_new_gpus() -> None:
    estimator = OnlineEstimator({"gpt": profile()})
    samples = tuple(
        Sample(Subject("gpt", f"GPU-{i}", 0, "forward"), 1200, 0.056) for i in range(CELLS_MAX + 9)
    )
    assert estimator.learn(samples) == ()
    assert len(tuple(estimator._window.cells())) == CELLS_MAX


def test_a_changed_profile_starts_without_bias_and_an_unchanged_one_keeps_it() -> None:
    estimator = OnlineEstimator({"gpt": profile(), "other": profile()})
    clean = estimator.predict(SUBJECT, CLOCKS[:1])
    estimator.learn(_samples(1.2, 9))
    moved = estimator.predict(SUBJECT, CLOCKS[:1])
    estimator.set_profiles({"gpt": profile(), "new": profile()})
    kept = estimator.predict(SUBJECT, CLOCKS[:1])
    estimator.set_profiles({"gpt": profile(clocks=CLOCKS[:-1])})
    dropped = estimator.predict(SUBJECT, CLOCKS[:1])
    assert kept.time_s[0] == moved.time_s[0] > 1.1 * clean.time_s[0]
    assert dropped.time_s[0] == pytest.approx(clean.time_s[0], rel=0.005)
