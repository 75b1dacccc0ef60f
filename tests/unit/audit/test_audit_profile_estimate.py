"""What a profile adds to an audit: never more than there is."""

import pytest

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.solver import Solver
from joulecut_lab.audit.profile_estimate import ProfileEstimate

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


def ground(clock_mhz: float = 1410.0) -> ProfileEstimate:
    return ProfileEstimate(PROBLEM, Solver, "p.csv", work_j=WORK_J, clock_mhz=clock_mhz)


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
