"""What a profile adds to an audit: never more than there is, and unknown where it does not fit."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.solver import Solver
from joulecut_lab.audit.profile_estimate import MeasuredJob, ProfileEstimate

WORK_J = 3.6e6


def _problem() -> Problem:
    options = {
        (stage, kind): tuple(
            ClockOption(mhz, time_s, time_s * (90.0 + 290.0 * (mhz / 1410) ** 3))
            for mhz in range(900, 1411, 30)
            for time_s in [
                (0.01 + 0.01 * k) * (0.3 + 0.7 * 1410 / mhz) * (1.12 if stage == 3 else 1.0)
            ]
        )
        for stage in range(4)
        for k, kind in enumerate(KINDS)
    }
    return problem(Pipeline("1f1b", 4, 8), Profile(options), 80.0)


PROBLEM = _problem()


def ground(**now: float | None) -> ProfileEstimate:
    facts = {"clock_mhz": 1410.0, **now}
    return ProfileEstimate(PROBLEM, MeasuredJob(WORK_J, **facts), Solver, "p.csv")


def test_intrinsic_is_what_a_plan_saves_at_the_same_time() -> None:
    one = ground()
    found = one.intrinsic()
    assert found.basis == "predicted"
    assert 0.02 * WORK_J < found.joules < 0.4 * WORK_J
    [per_operation] = [s for s in one.savings(one.iteration_s) if s.granularity == "computation"]
    assert per_operation.joules == pytest.approx(found.joules, rel=1e-6)


def test_at_a_lower_clock_less_is_left() -> None:
    high, low = ground().intrinsic().joules, ground(clock_mhz=960.0).intrinsic().joules
    assert 0.0 <= low < high


def test_a_profile_of_another_job_says_nothing() -> None:
    one = ground(iteration_s=ground().iteration_s * 1.1)
    assert one.intrinsic().basis == "unknown"
    assert "does not fit this job" in one.intrinsic().text
    assert one.extrinsic().joules is None
    assert all(saving.ratio is None for saving in one.savings(1.0))


def test_without_siblings_times_extrinsic_is_unknown() -> None:
    assert "peer_iteration_time_s" in ground().extrinsic().text


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.floats(1.0, 1.5), st.floats(0.0, 1.0))
def test_waiting_longer_never_saves_less(slower: float, share: float) -> None:
    own_s = ground().iteration_s
    near, far = (
        ground(iteration_s=own_s, peer_s=own_s * times, waited_share=share).extrinsic().joules
        for times in (slower, slower + 0.1)
    )
    assert 0.0 <= near <= far + 0.02 * WORK_J  # plans are searched, so nearly monotone
    assert far <= share * WORK_J
