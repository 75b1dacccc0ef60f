"""What a plan promises to save is what its clocks then save, on average over many plans."""

from dataclasses import replace

import numpy as np
import pytest
from worlds import World

from joulecut_controller.hardware import ClockOption
from joulecut_controller.plan.answers import Answers
from joulecut_controller.plan.appraisal import Appraisal, appraise, default_clocks
from joulecut_controller.plan.case import Case, Standing
from joulecut_controller.plan.costs import Costs, price
from joulecut_controller.plan.planner import decide
from joulecut_controller.policy.policy import Slo
from joulecut_controller.predict.profile_estimator import ProfileEstimator
from joulecut_controller.solve.solver import Solver
from joulecut_controller.view import JobView, View, Window
from joulecut_controller.workload import Profile

WORLD = World(stages=2, microbatches=6)
PLANS = 200
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


def _costs(job: JobView, view: View, estimator: ProfileEstimator) -> Costs:
    costs = price(job, view.gpus, estimator, 0.0)
    assert isinstance(costs, Costs)
    return costs


def _default(costs: Costs) -> Appraisal:
    made = appraise(costs, default_clocks(costs))
    assert made is not None
    return made


def _case(job: JobView, view: View) -> Case:
    return Case(
        view=replace(view, jobs=(job,)),
        job=job,
        mode="enforce",
        silent=False,
        baseline_progress=(64, 30),
        running=dict.fromkeys(WORLD.uuids, 0),
        measured_applied=False,
        stale_s=3.0,
    )


@pytest.mark.parametrize(("noise", "every"), [(0.04, 1), (0.02, 5)])
def test_over_many_plans_what_is_promised_is_what_is_saved(noise: float, every: int) -> None:
    """Profiles are noisy, so each plan is chosen partly for its luck; the true costs judge it."""
    state = WORLD.observe(WORLD.now_s)
    view = View(WORLD.now_s, state.nodes, {gpu.uuid: gpu for gpu in state.gpus})
    job = JobView(
        policy=WORLD.policy(slo=Slo(max_slowdown=SLOWDOWN)).jobs[0],
        stages=tuple((uuid,) for uuid in WORLD.uuids),
        loads=(),
        baseline=None,
        current=None,
        generation_running=0,
        peer_iteration_time_s=None,
        report_age_s=0.0,
    )
    truth = _costs(job, view, ProfileEstimator({WORLD.job: WORLD.profile()}))
    base = _default(truth)
    job = replace(job, baseline=Window(64, base.iteration_time_s, 0.0, None, None))
    luck, answers, off = np.random.default_rng(5), Answers(Solver), []
    for _ in range(PLANS):
        estimator = ProfileEstimator({WORLD.job: _noisy(WORLD.profile(), noise, every, luck)})
        choice = decide(_case(job, view), Standing(), estimator, answers).choice
        assert choice is not None
        after = appraise(truth, choice.clocks)
        assert after is not None
        saved = 1.0 - after.energy_j(after.iteration_time_s) / base.energy_j(base.iteration_time_s)
        off.append(choice.forecast.saved_ratio - saved)
    print(f"noise {noise:.0%}, every {every}: {np.mean(off):+.2%} ± {np.std(off) / PLANS**0.5:.2%}")
    assert abs(np.mean(off)) < BIAS_MAX
