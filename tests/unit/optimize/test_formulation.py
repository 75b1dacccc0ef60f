"""From a profile to a problem: what is kept, what is shared, what is refused."""

import pipelines
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption, undominated
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.formulation import mismatch, problem, worthwhile

SLOW, FAST = ClockOption(900, 2.0, 10.0), ClockOption(1400, 1.0, 20.0)
POWERS = st.sampled_from([0.0, 5.0, 30.0])


def profile(stages: int) -> Profile:
    return Profile({(s, kind): (SLOW, FAST) for s in range(stages) for kind in KINDS})


@given(pipelines.options(8), POWERS)
def test_kept_options_buy_effective_cost_with_time(
    options: tuple[ClockOption, ...], power_w: float
) -> None:
    kept = worthwhile(options, power_w)
    times = [o.time_s for o in kept]
    costs = [o.effective_cost_j(power_w) for o in kept]
    assert times == sorted(set(times))
    assert costs == sorted(set(costs), reverse=True)
    for option in options:
        assert any(
            o.time_s <= option.time_s
            and o.effective_cost_j(power_w) <= option.effective_cost_j(power_w)
            for o in kept
        )


@given(pipelines.options(8), POWERS)
def test_what_no_option_beats_on_raw_energy_is_kept(
    options: tuple[ClockOption, ...], power_w: float
) -> None:
    kept = {(o.time_s, o.energy_j) for o in worthwhile(options, power_w)}
    assert {(o.time_s, o.energy_j) for o in undominated(options)} <= kept


def test_a_slower_option_of_more_energy_is_kept_where_waiting_costs_more() -> None:
    slower = ClockOption(800, 3.0, 11.0)
    assert slower not in worthwhile((SLOW, FAST, slower), 0.0)
    assert slower in worthwhile((SLOW, FAST, slower), 5.0)


def test_of_equal_options_the_lower_clock_stays() -> None:
    assert worthwhile((ClockOption(1400, 1.0, 1.0), ClockOption(1300, 1.0, 1.0)), 0.0) == (
        ClockOption(1300, 1.0, 1.0),
    )


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
