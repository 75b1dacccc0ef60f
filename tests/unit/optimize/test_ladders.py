"""Ladders: the walk against all combinations of cells, and what they prove beyond strips."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.formulation import problem as build
from joulecut_engine.optimize.ladders import meetings, walked
from joulecut_engine.optimize.problem import Goal

STEPS = 2
LOSS = st.integers(0, 9).map(float)
ONE = st.tuples(st.integers(0, 3), st.lists(LOSS, min_size=1, max_size=2), LOSS)
SIDE = st.tuples(st.integers(0, 6), st.lists(LOSS, min_size=1, max_size=3), LOSS)


def beside(side: tuple[int, list[float], float], cell: int | None) -> float:
    """The least in two cells; nothing where one of the two that it runs beside is beyond."""
    if cell is None:
        return 0.0
    base, value, _ = side
    least = math.inf
    for k in (cell - base, cell + 1 - base):
        if k >= len(value):
            return 0.0
        if k >= 0:
            least = min(least, value[k])
    return least


def every(spines: list, sides: list) -> float:
    """Written without looking at the walk: all cells of all rows."""
    best = math.inf
    for cells in itertools.product(*([*range(len(one[1])), None] for one in spines)):
        total = 0.0
        at = []
        for (base, value, beyond), cell in zip(spines, cells, strict=True):
            total += beyond if cell is None else value[cell]
            at.append(None if cell is None else base + cell)
        for k in range(STEPS):
            for arrives, leaves, side in (
                (at[4 * k], at[4 * k + 2], sides[2 * k]),
                (at[4 * k + 1], at[4 * k + 3], sides[2 * k + 1]),
            ):
                both = None if arrives is None or leaves is None else arrives + leaves
                total += beside(side, both)
        for k in range(STEPS - 1):
            x, y, p, q = at[4 * k + 2 : 4 * k + 6]
            if None not in (x, y, p, q) and abs((x + p) - (y + q)) > 1:
                total = math.inf
        best = min(best, total)
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ONE, min_size=4 * STEPS, max_size=4 * STEPS),
    st.lists(SIDE, min_size=2 * STEPS, max_size=2 * STEPS),
)
def test_the_walk_finds_the_least_of_all_combinations(spines: list, sides: list) -> None:
    tables = [*spines, *sides]
    value = np.full((len(tables), max(len(one[1]) for one in tables)), np.inf)
    for row, one in zip(value, tables, strict=True):
        row[: len(one[1])] = one[1]
    count = np.array([len(one[1]) for one in tables])
    found, work = walked(
        np.array([one[0] for one in tables]),
        value,
        count,
        np.array([one[2] for one in tables]),
        STEPS,
        int(count[: 4 * STEPS].max()),
    )
    assert found == every(spines, sides)
    assert work >= 0


def test_meetings_are_two_apart_on_both_sides() -> None:
    assert meetings([0, 1, 2, 3, 4, 5], [9, 1, 8, 3, 7, 5]) == [[(1, 1), (3, 3), (5, 5)]]
    assert meetings([0, 1, 2, 3, 4], [1, 8, 7, 3]) == []
    assert meetings([0, 1], [2, 3]) == []


def coarse(stages: int, microbatches: int) -> Computation:
    """Five clocks, stages up to a fifth apart: nothing fits anything."""
    clocks = (600, 900, 1200, 1500, 1800)
    menus = {}
    for stage in range(stages):
        for kind, base_s in zip(KINDS, (0.08, 0.17), strict=False):
            scale = base_s * (0.9 + 0.07 * ((stage * 5) % 4))
            times = [scale * (0.25 + 0.75 * 1800 / clock) for clock in clocks]
            powers = [80 + 60 * (c / 1800) + 220 * (c / 1800) ** 3 for c in clocks]
            menus[stage, kind] = tuple(
                ClockOption(c, t, t * p) for c, t, p in zip(clocks, times, powers, strict=True)
            )
    shape = Pipeline("1f1b", stages, microbatches)
    return Computation(build(shape, Profile(menus), 75.0))


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.05])
def test_four_stages_of_few_clocks_are_half_explained(factor: float) -> None:
    """Plans stay above it, and most of what the relaxation leaves open is shown to be due."""
    computation = coarse(4, 24)
    goal = Goal(computation.fastest_s * factor)
    relaxed = computation.relax(goal)
    raised = computation.raised(goal, relaxed)
    plan = computation.solve(goal, raised, rolls=100, moves=200_000)
    assert raised.bound_j <= plan.energy_j
    assert raised.bound_j - relaxed.bound_j > 0.4 * (plan.energy_j - relaxed.bound_j)
