"""What a plan promises to save is what its clocks then save, on average over many plans."""

import numpy as np
import pytest
from planning import at_default, case_of, costs_of, decided, seen, view_of, with_baseline
from worlds import World

from joulecut_controller.plan.evaluation import evaluate
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.plan.solver_cache import SolverCache
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.optimize.solver import Solver

WORLD = World(stages=2, microbatches=6)
PLANS = 100
BIAS_MAX = 0.005  # half a point
SLOWDOWN = 0.05


def _noisy(truth: Profile, sd: float, every: int, luck: np.random.Generator) -> Profile:
    """Every so many clocks from the highest, as counters would have told them: time and energy off,
    each by itself.
    """
    return Profile(
        {
            key: tuple(
                ClockOption(
                    one.clock_mhz,
                    one.time_s * float(np.exp(luck.normal(0.0, sd / 4.0))),
                    one.energy_j * float(np.exp(luck.normal(0.0, sd))),
                )
                for one in sorted(options, reverse=True)[::every]
            )
            for key, options in truth.options.items()
        },
        source="noisy",
    )


@pytest.mark.parametrize(
    ("noise", "every"), [pytest.param(0.04, 1, marks=pytest.mark.nightly), (0.02, 5)]
)
def test_over_many_plans_what_is_promised_is_what_is_saved(noise: float, every: int) -> None:
    """Profiles are noisy, so each plan is chosen partly for its luck; the true costs judge it."""
    view = view_of(WORLD, WORLD.now_s)
    job = seen(WORLD, SLOWDOWN)
    truth = costs_of(job, view, OnlineEstimator({WORLD.job: WORLD.profile()}))
    job, base = with_baseline(job, truth), at_default(truth)
    luck, solver, off = np.random.default_rng(5), SolverCache(Solver), []
    for _ in range(PLANS):
        estimator = OnlineEstimator({WORLD.job: _noisy(WORLD.profile(), noise, every, luck)})
        made = decided(case_of(job, view), PlannerState(), estimator, solver)
        after = evaluate(truth, made.state.clocks or ())
        saved = 1.0 - after.energy_j(after.iteration_time_s) / base.energy_j(base.iteration_time_s)
        off.append(made.plan.forecast.saved_ratio - saved)
    print(f"noise {noise:.0%}, every {every}: {np.mean(off):+.2%} ± {np.std(off) / PLANS**0.5:.2%}")
    assert abs(np.mean(off)) < BIAS_MAX
