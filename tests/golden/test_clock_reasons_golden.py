"""The reasons for clocks that plans of the planner give, as operators read them."""

from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import same_as_golden
from job_states import changed
from planning import case_of, costs_of, decided, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.plan import Binding
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_controller.policy.policy import ClockPolicy
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.optimize.solver import Solver

KEPT = Path(__file__).parent / "clock_reasons"
# No two stages alike: which of two equal ones is lowered further is a matter of the last bit, which
# differs from processor to processor.
WORK = (1.0, 0.985, 0.97, 0.99)


def uneven(profile: Profile) -> Profile:
    options = {
        (stage, kind): tuple(
            replace(one, time_s=one.time_s * WORK[stage], energy_j=one.energy_j * WORK[stage])
            for one in menu
        )
        for (stage, kind), menu in profile.options.items()
    }
    return Profile(options, profile.source)


@pytest.mark.parametrize(
    ("name", "slowdown", "clocks", "sibling", "binds"),
    [
        ("no-slowdown", 0.0, ClockPolicy("gpu"), 1.0, {"deadline"}),
        ("changes", 0.0, ClockPolicy("changes"), 1.0, {"deadline", "floor"}),
        ("two-percent", 0.02, ClockPolicy("gpu"), 1.0, {"deadline"}),
        ("any-slowdown", 2.0, ClockPolicy("gpu"), 1.0, {"energy"}),
        ("floor", 0.5, ClockPolicy("gpu", min_mhz=1290), 1.0, {"floor"}),
        ("straggler", 0.0, ClockPolicy("gpu"), 1.1, {"deadline"}),
    ],
)
def test_reasons_of(
    name: str, slowdown: float, clocks: ClockPolicy, sibling: float, binds: set[Binding]
) -> None:
    timed = name == "changes"
    stages, microbatches = (3, 4) if timed else (4, 24)  # a search of changes that ends in one plan
    world = World(stages=stages, microbatches=microbatches, scale=1.0, timed=timed)
    world.history = [(float(n), 1.0, {}) for n in range(4)]
    view = view_of(world, world.now_s)
    job = seen(world, slowdown)
    profile = uneven(world.profile())
    job = changed(job, policy=replace(job.policy, clocks=clocks, profile=profile))
    estimator = OnlineEstimator({world.job: profile})
    job = with_baseline(job, costs_of(job, view, estimator))
    assert job.measured.baseline is not None
    if sibling > 1.0:
        job = changed(job, peer_iteration_time_s=sibling * job.measured.baseline.time_mean_s)
    inputs = case_of(job, view)
    decision = decided(inputs, PlannerState(), estimator, SolverCache(Solver))
    plan = decision.plan
    assert plan is not None, decision.reason
    assert {one.binds for one in plan.clock_reasons} == binds
    lines = (f"{one.stage} {one.verb} {one.clock_mhz}: {one.reason}" for one in plan.actions)
    same_as_golden(KEPT / f"{name}.txt", "\n".join([decision.reason, *lines]))
