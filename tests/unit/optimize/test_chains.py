"""Chains of events: never late, never worse, and where clocks are few better than annealing."""

import numpy as np
import pipelines
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.anneal import Annealer
from joulecut_engine.optimize.chains import Chains
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.rounding import Rounder

FACTORS = st.sampled_from([1.0, 1.01, 1.1, 1.4, 3.0])


def plan_j(computation: Computation, rounder: Rounder, option: np.ndarray) -> tuple[float, float]:
    """Costs and the end, recomputed from the options alone."""
    menu = rounder.menu
    end_s = float(computation.network.ends(menu.time[option]).max())
    price_w = computation.problem.time_price_w
    return float(menu.cost[option].sum()) + price_w * end_s, end_s


def started(problem: Problem) -> tuple[Computation, Rounder, Chains]:
    computation = Computation(problem, combinations_all=0)
    network = computation.network
    rounder = Rounder(network, np.zeros(network.size, dtype=np.int64))
    return computation, rounder, Chains(Annealer(network, rounder.menu))


@settings(max_examples=40, deadline=None)
@given(pipelines.problems(3, 4, 4), FACTORS, st.integers(1, 2**32))
def test_any_chains_leave_a_plan_in_time_and_no_dearer(
    problem: Problem, factor: float, seed: int
) -> None:
    computation, rounder, chains = started(problem)
    first, horizon_s = rounder.menu.first.copy(), computation.fastest_s * factor
    option = chains.drawn(first, horizon_s, problem.time_price_w, 1e5, seed)
    assert ((rounder.menu.first <= option) & (option < rounder.menu.last)).all()
    before_j, _ = plan_j(computation, rounder, first)
    after_j, end_s = plan_j(computation, rounder, option)
    assert end_s <= horizon_s * (1 + 1e-10)
    assert after_j <= before_j + 1e-9 * abs(before_j)


def few_clocks(microbatches: int) -> Problem:
    """Three clocks, four stages, the last the slowest."""
    menus = {
        (stage, kind): tuple(
            ClockOption(clock, base_s * scale * slow, base_s * scale * energy_j)
            for clock, slow, energy_j in ((1410, 1.0, 320.0), (1000, 1.3, 270.0), (600, 1.9, 240.0))
        )
        for stage, scale in enumerate((1.0, 1.0, 1.0, 1.1))
        for kind, base_s in zip(KINDS, (0.08, 0.16), strict=False)
    }
    return build(Pipeline("1f1b", 4, microbatches), Profile(menus), 75.0)


def test_they_go_on_where_small_moves_stall() -> None:
    problem = few_clocks(16)
    computation = Computation(problem)
    goal = Goal(computation.fastest_s * 1.02)
    relaxed = computation.relax(goal)
    moved = computation.solve(goal, relaxed, rolls=60, moves=1_000_000)
    drawn = computation.solve(goal, relaxed, (moved,), chains=1e7)
    assert check(problem, goal, drawn) == ()
    assert drawn.energy_j <= moved.energy_j
    assert drawn == computation.solve(goal, relaxed, (moved,), chains=1e7)
