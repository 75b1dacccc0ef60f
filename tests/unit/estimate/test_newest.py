"""One broken clock must not make all who come after it stale, nor old samples fresh."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.watermark import RESTARTED, STALE_S, Newest

SUBJECTS = [Subject("gpt", f"GPU-{name}", 0, "forward") for name in "abcd"]


def _told(times_s: list[float]) -> tuple[Newest, list[bool]]:
    newest = Newest()
    return newest, [newest.age_s(at_s) == 0.0 for at_s in times_s]


def test_the_third_that_goes_on_where_time_stood_is_believed() -> None:
    newest, taken = _told([100.0, 105.0, 9e8, 110.0, 115.0, 120.0, 125.0])
    assert taken == [True, True, True, False, False, True, True]
    assert newest.at_s == 125.0


def test_who_comes_late_after_a_pause_stays_stale() -> None:
    _, taken = _told([100.0, 7200.0, 40.0, 45.0, 50.0, 55.0])
    assert taken == [True, True, False, False, False, False]


def test_what_goes_on_from_the_leap_proves_it() -> None:
    _, taken = _told([100.0, 7200.0, 110.0, 115.0, 7205.0, 120.0, 125.0, 7210.0])
    assert taken == [True, True, False, False, True, False, False, True]


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=60).map(sorted))
def test_times_in_order_are_never_stale(times_s: list[float]) -> None:
    assert all(_told(times_s)[1])


@given(
    st.lists(st.floats(0.0, STALE_S), min_size=2, max_size=30),
    st.lists(st.floats(1e6, 1e12), min_size=1, max_size=RESTARTED).map(sorted),
)
def test_lies_cost_two_true_samples(steps: list[float], lies: list[float]) -> None:
    truth, at_s = [], 0.0
    for step in steps:
        at_s += step
        truth.append(at_s)
    newest = Newest()
    assert newest.age_s(0.0) == 0.0
    assert [newest.age_s(lie) for lie in lies] == [0.0] * len(lies)
    refused = sum(newest.age_s(one) > 0.0 for one in truth)
    assert refused == min(RESTARTED - 1, len(truth))


def test_a_sample_from_far_ahead_does_not_end_learning() -> None:
    estimator = OnlineEstimator()
    for n in range(40):
        samples = tuple(
            Sample(who, 1410, 0.05, 250.0, iteration=n + 1, at_s=5.0 * n + k)
            for k, who in enumerate(SUBJECTS)
        )
        if n == 20:
            lie = Sample(SUBJECTS[0], 1410, 0.05, 250.0, iteration=n + 1, at_s=1e15)
            samples = (lie, *samples[1:])
        estimator.learn(samples)
        if n in (21, 30):  # a restart between keeps the doubt, or the answer
            restored = OnlineEstimator()
            restored.restore(estimator.state())
            assert restored.state() == estimator.state()
            estimator = restored
    assert estimator.refused == {"stale": RESTARTED - 1}
