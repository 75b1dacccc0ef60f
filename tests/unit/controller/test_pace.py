"""Pace: model seconds become measured ones by slowdowns, and goals keep limits."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.plan.pace import DOUBT_STDERRS, FIRST_OVER, Pace
from joulecut_controller.reference.reference import Figure

slowdowns = st.floats(0.0, 0.2)
paces = st.builds(
    Pace,
    default_s=st.floats(0.1, 100.0),
    modelled_s=st.floats(0.1, 100.0),
    held=st.tuples(slowdowns, st.builds(Figure, slowdowns, st.floats(0.0, 0.02))),
    scale=st.builds(Figure, st.floats(0.1, 4.0), st.floats(0.0, 0.5)),
)


@given(paces, st.floats(0.0, 0.3), st.booleans())
def test_a_goal_keeps_its_limit_in_measured_seconds(
    pace: Pace, limit: float, careful: bool
) -> None:
    limit_s = pace.default_s * math.exp(limit)
    goal_s = pace.goal_s(limit_s, careful=careful)
    if goal_s != pace.modelled_s:
        assert pace.real_s(goal_s) <= limit_s * (1.0 + 1e-9) or pace.held[1].mean > limit


@given(paces, st.floats(0.0, 0.3))
def test_care_asks_for_no_longer_iterations(pace: Pace, limit: float) -> None:
    limit_s = pace.default_s * math.exp(limit)
    careless_s = pace.goal_s(limit_s, careful=False)
    assert pace.goal_s(limit_s, careful=True) <= careless_s * (1.0 + 1e-12)


@given(paces, st.floats(0.0, 0.3))
def test_clocks_that_are_late_ask_for_faster_ones(pace: Pace, limit: float) -> None:
    modelled, measured = pace.held
    goal_s = pace.goal_s(pace.default_s * math.exp(limit), careful=True)
    held_s = pace.modelled_s * math.exp(modelled)
    if measured.mean > limit:
        assert goal_s < held_s
    else:
        assert goal_s >= held_s * (1.0 - 1e-12)


@given(paces, st.floats(0.0, 0.3))
def test_luck_asks_for_no_longer_iterations_than_the_model_allows(pace: Pace, limit: float) -> None:
    """A job of varying work, whose plans looked faster than they were, stayed a point over."""
    modelled, measured = pace.held
    known = measured.mean + DOUBT_STDERRS * measured.sd <= modelled
    goal_s = pace.goal_s(pace.default_s * math.exp(limit), careful=True)
    if not known:
        assert goal_s <= pace.modelled_s * math.exp(max(modelled, limit)) * (1.0 + 1e-12)


@given(st.floats(1.0, 3.0), st.floats(0.0, 0.3))
def test_first_clocks_by_a_prediction_use_the_budget_and_miss_it_by_a_point_at_worst(
    worst: float, limit: float
) -> None:
    asked = math.log(Pace(1.0, 1.0, worst=worst).goal_s(math.exp(limit), careful=True))
    assert math.isclose(asked, min(limit, (limit + FIRST_OVER) / worst), abs_tol=1e-12)


def test_default_clocks_take_what_was_measured() -> None:
    pace = Pace(1.1, 1.0, (0.03, Figure(0.05, 0.0)), Figure(1.5, 0.1))
    assert pace.real_s(1.0) == 1.1
