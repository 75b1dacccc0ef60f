"""One bogus timestamp must not make later samples stale, nor old samples fresh."""

from hypothesis import example, given
from hypothesis import strategies as st

from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.watermark import CONFIRMED, STALE_S, Watermark

SUBJECTS = [Subject("gpt", f"GPU-{name}", 0, "forward") for name in "abcd"]
TICK_S = 0.125  # exact in binary: sums of steps within STALE_S must not round beyond it


def _accepted(times_s: list[float]) -> tuple[Watermark, list[bool]]:
    watermark = Watermark()
    return watermark, [watermark.lateness_s(at_s) == 0.0 for at_s in times_s]


def test_the_third_sample_that_continues_from_before_a_jump_revokes_it() -> None:
    watermark, accepted = _accepted([100.0, 105.0, 9e8, 110.0, 115.0, 120.0, 125.0])
    assert accepted == [True, True, True, False, False, True, True]
    assert watermark.at_s == 125.0


def test_samples_from_before_a_pause_stay_stale() -> None:
    _, accepted = _accepted([100.0, 7200.0, 40.0, 45.0, 50.0, 55.0])
    assert accepted == [True, True, False, False, False, False]


def test_samples_after_the_jump_confirm_it() -> None:
    _, accepted = _accepted([100.0, 7200.0, 110.0, 115.0, 7205.0, 120.0, 125.0, 7210.0])
    assert accepted == [True, True, False, False, True, False, False, True]


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=60).map(sorted))
def test_times_in_order_are_never_stale(times_s: list[float]) -> None:
    assert all(_accepted(times_s)[1])


@given(
    st.lists(st.integers(0, int(STALE_S / TICK_S)), min_size=2, max_size=30),
    st.lists(st.floats(1e6, 1e12), min_size=1, max_size=CONFIRMED).map(sorted),
)
@example(steps=[256, 480, 480, 0], bogus=[1e12])
def test_bogus_times_cost_two_true_samples(steps: list[int], bogus: list[float]) -> None:
    truth, at_s = [], 0.0
    for step in steps:
        at_s += step * TICK_S
        truth.append(at_s)
    watermark = Watermark()
    assert watermark.lateness_s(0.0) == 0.0
    assert [watermark.lateness_s(one) for one in bogus] == [0.0] * len(bogus)
    refused = sum(watermark.lateness_s(one) > 0.0 for one in truth)
    assert refused == min(CONFIRMED - 1, len(truth))


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
    assert estimator.refused == {"stale": CONFIRMED - 1}
