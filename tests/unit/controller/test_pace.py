"""How measured windows move the correction between model and reality."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.plan.pace import (
    CAUTION_DWELLS,
    OVERRUN_RATIO_MAX,
    TRUST_ITERATIONS_MIN,
    Pace,
    learn,
    surely_above,
)
from joulecut_controller.view import Window


def window(mean_s: float, iterations: int = 64, sd_s: float = 0.0) -> Window:
    return Window(iterations, mean_s, sd_s, None, None)


def after(pace: Pace, seen: Window, limit_s: float, now_s: float = 0.0) -> tuple[Pace, bool]:
    return learn(
        pace,
        measured_s=seen.adjusted_mean_s,
        iterations=seen.iterations,
        doubt=seen.stderr_ratio,
        modelled_s=1.0,
        limit_s=limit_s,
        at_default=1.0,
        now_s=now_s,
        dwell_s=10.0,
    )


def test_a_late_plan_tightens_at_once() -> None:
    pace, late = after(Pace(), window(1.03), limit_s=1.02)
    assert late
    assert pace.ratio(1.0) == 1.03


def test_chance_is_no_lateness() -> None:
    noisy = window(1.03, iterations=9, sd_s=0.06)
    assert not surely_above(noisy.adjusted_mean_s, noisy.stderr_ratio, 1.02)
    assert after(Pace(), noisy, limit_s=1.02) == (Pace(), False)


def test_few_iterations_teach_nothing_good() -> None:
    few = window(0.9, iterations=TRUST_ITERATIONS_MIN - 1)
    assert after(Pace(), few, limit_s=1.0) == (Pace(), False)
    assert after(Pace(), window(0.9), limit_s=1.0)[0].learned == 0.9


def test_after_a_late_plan_the_correction_is_not_relaxed_for_long() -> None:
    pace, _ = after(Pace(), window(1.03), limit_s=1.02, now_s=0.0)
    assert after(pace, window(1.0), limit_s=1.02, now_s=10.0 * CAUTION_DWELLS - 1)[0] == pace
    relaxed, _ = after(pace, window(1.0), limit_s=1.02, now_s=10.0 * CAUTION_DWELLS + 1)
    assert relaxed.learned == 1.0
    assert relaxed.late == 1
    assert after(relaxed, window(1.0), limit_s=1.02, now_s=1e6)[0].late == 0


def test_plans_that_are_late_again_and_again_are_tried_less_and_less_often() -> None:
    pace, now_s, waits_s = Pace(), 0.0, []
    for _ in range(4):
        pace, _ = after(pace, window(1.03), limit_s=1.02, now_s=now_s)
        waits_s.append(pace.cautious_until_s - now_s)
        now_s = pace.cautious_until_s + 1.0
        pace, _ = after(pace, window(1.0), limit_s=1.02, now_s=now_s)
    assert waits_s == [10.0 * CAUTION_DWELLS * 2.0**k for k in range(4)]


@given(
    ratio=st.floats(0.9, 1.1),
    mean_s=st.floats(0.5, 2.0),
    limit_s=st.floats(0.5, 2.0),
    iterations=st.integers(2, 600),
)
def test_being_late_always_tightens_and_never_without_bound(
    ratio: float, mean_s: float, limit_s: float, iterations: int
) -> None:
    pace, late = after(Pace(learned=ratio), window(mean_s, iterations), limit_s)
    before = Pace(learned=ratio).ratio(1.0)
    if late:
        assert mean_s > limit_s
        assert pace.ratio(1.0) > before
        assert pace.ratio(1.0) <= max(mean_s, before * OVERRUN_RATIO_MAX)


def test_what_was_learned_from_a_faster_job_does_not_outlive_it() -> None:
    """Otherwise every plan after a phase of shorter iterations is refused: its forecast is shorter
    than its pipeline."""
    assert Pace(learned=0.8).ratio(1.0) == 0.99
    assert Pace(learned=0.995).ratio(1.0) == 0.995
    assert Pace(learned=1.05).ratio(1.0) == 1.05
