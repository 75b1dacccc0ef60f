"""Plans on the public GPT-3 175B profile beside the published frontiers (SOSP'24 artifact)."""

import pipelines
import pytest

from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve

# Saved without slowdown by the published frontiers: 8 stages, A100.
PUBLISHED_SAVING = {12: 0.152, 24: 0.142, 48: 0.136, 96: 0.133}


@pytest.mark.parametrize("microbatches", PUBLISHED_SAVING)
def test_no_less_is_saved_than_the_published_frontiers_save(microbatches: int) -> None:
    problem = pipelines.profiled("a100", microbatches)
    fastest = baseline(problem)
    goal = Goal(fastest.iteration_time_s)
    plan = solve(problem, goal, "computation")
    assert check(problem, goal, plan) == ()
    assert plan.gap <= 0.01
    assert 1 - plan.energy_j / fastest.energy_j >= PUBLISHED_SAVING[microbatches]
