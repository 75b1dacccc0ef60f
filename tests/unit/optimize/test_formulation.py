"""From a profile to a problem: what is kept, what is shared, what is refused."""

import pytest

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.formulation import mismatch, problem

SLOW, FAST = ClockOption(900, 2.0, 10.0), ClockOption(1400, 1.0, 20.0)


def profile(stages: int) -> Profile:
    return Profile({(s, kind): (SLOW, FAST) for s in range(stages) for kind in KINDS})


def test_operations_that_cost_the_same_share_one_tuple() -> None:
    shared = problem(Pipeline("1f1b", 3, 4), profile(3), 1.0)
    assert len({id(options) for options in shared.options}) == 1
    assert len({id(options) for options in shared.measured}) == 1


def test_a_power_per_stage_or_one_for_all() -> None:
    pipeline = Pipeline("1f1b", 2, 1)
    assert problem(pipeline, profile(2), 3.0).blocking_power_w == (3.0, 3.0)
    assert problem(pipeline, profile(2), [3.0, 4.0]).blocking_power_w == (3.0, 4.0)
    assert problem(pipeline, profile(2), 3.0, 5.0).time_price_w == 11.0


@pytest.mark.parametrize(
    ("powers", "overhead", "complaint"),
    [
        ([1.0], 0.0, "1 blocking powers for 2 stages"),
        (-1.0, 0.0, "not negative"),
        (float("nan"), 0.0, "not negative"),
        (1.0, float("inf"), "finite"),
    ],
)
def test_powers_that_make_no_sense_are_refused(
    powers: float | list[float], overhead: float, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        problem(Pipeline("1f1b", 2, 1), profile(2), powers, overhead)


def test_a_profile_of_other_stages_is_refused() -> None:
    assert mismatch(Pipeline("1f1b", 2, 1), profile(2)) == ""
    assert "3 stages, pipeline has 2" in mismatch(Pipeline("1f1b", 2, 1), profile(3))
    holes = Profile({(0, "forward"): (FAST,), (1, "forward"): (FAST,), (1, "backward"): (FAST,)})
    assert "no backward of stage 0" in mismatch(Pipeline("1f1b", 2, 1), holes)
    with pytest.raises(ValueError, match="no backward of stage 0"):
        problem(Pipeline("1f1b", 2, 1), holes, 1.0)
