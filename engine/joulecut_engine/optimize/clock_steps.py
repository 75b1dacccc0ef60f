"""What one clock step of a GPU costs an iteration, exactly, for each stretch at one clock.

All operations of a stretch take the next clock that they were measured at; all others keep theirs.
The longest path says what becomes of the iteration, and the energy counts what the others wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.levels import Floats, levels_of
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import makespan


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The next clock, and what an iteration then takes more, in seconds and joules."""

    clock_mhz: int
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Operations of one stage at one clock, from `offset_s` into the iteration.

    Any one of them may take `slack_s` longer before the iteration does. `lower` and `higher` are
    None where no other clock was measured for all of them.
    """

    stage: int
    offset_s: float
    clock_mhz: int
    slack_s: float
    lower: ClockStep | None
    higher: ClockStep | None


def stretches_of(
    problem: Problem, clocks: Sequence[ClockOption], goal: Goal
) -> tuple[Stretch, ...]:
    """By stage, in the order of time."""
    time_s, start_s = makespan(problem, clocks)
    before_s, rest_s = levels_of(problem.graph).around(np.array([one.time_s for one in clocks]))
    float_s = (time_s - before_s - rest_s).tolist()
    orders = problem.graph.order
    parts = [part for order in orders for part in _parts(problem, order, clocks)]
    steps = [_stepped(problem, clocks, part, up=up) for part in parts for up in (False, True)]
    prices = _priced(problem, clocks, goal, time_s, steps)
    return tuple(
        Stretch(
            stage=problem.graph.operations[part[0]].stage,
            offset_s=start_s[part[0]],
            clock_mhz=clocks[part[0]].clock_mhz,
            slack_s=max(0.0, min(float_s[i] for i in part)),
            lower=prices[2 * k],
            higher=prices[2 * k + 1],
        )
        for k, part in enumerate(parts)
    )


def _parts(
    problem: Problem, order: Sequence[int], clocks: Sequence[ClockOption]
) -> list[list[int]]:
    """Operations whose clock the GPU sets, by stretch. Iterations repeat: the last stretch goes on
    with the first where both have one clock."""
    own = [
        i
        for i in order
        if clocks[i].clock_mhz != ANY_CLOCK_MHZ and problem.graph.operations[i].kind not in SENDS
    ]
    parts = [list(part) for _, part in groupby(own, key=lambda i: clocks[i].clock_mhz)]
    if len(parts) > 1 and clocks[parts[0][0]].clock_mhz == clocks[parts[-1][0]].clock_mhz:
        parts = [*parts[1:-1], parts[-1] + parts[0]]
    return parts


def _stepped(
    problem: Problem, clocks: Sequence[ClockOption], part: Sequence[int], *, up: bool
) -> dict[int, ClockOption]:
    """By operation, its option at the next clock; empty where there is none for all."""
    menus = problem.measured or problem.options
    now_mhz = clocks[part[0]].clock_mhz
    by_clock = {id(menus[i]): {one.clock_mhz: one for one in menus[i]} for i in part}
    shared = set.intersection(*(set(menu) for menu in by_clock.values()))
    others = [mhz for mhz in shared if (mhz > now_mhz if up else mhz < now_mhz)]
    if not others:
        return {}
    next_mhz = min(others) if up else max(others)
    return {i: by_clock[id(menus[i])][next_mhz] for i in part}


def _priced(
    problem: Problem,
    clocks: Sequence[ClockOption],
    goal: Goal,
    time_s: float,
    steps: Sequence[dict[int, ClockOption]],
) -> list[ClockStep | None]:
    seconds: Floats = np.repeat([[one.time_s] for one in clocks], len(steps), axis=1)
    for column, step in enumerate(steps):
        for i, option in step.items():
            seconds[i, column] = option.time_s
    times_s = levels_of(problem.graph).iteration_times(seconds)
    least_s = goal.deadline_s if goal.waits else 0.0
    found: list[ClockStep | None] = []
    for step, then_s in zip(steps, times_s.tolist(), strict=True):
        work_j = 0.0
        for i, option in step.items():
            power_w = problem.blocking_power_w[problem.graph.operations[i].stage]
            work_j += option.effective_cost_j(power_w) - clocks[i].effective_cost_j(power_w)
        waited_s = max(then_s, least_s) - max(time_s, least_s)
        energy_j = work_j + problem.time_price_w * waited_s
        mhz = next(iter(step.values())).clock_mhz if step else 0
        found.append(ClockStep(mhz, then_s - time_s, energy_j) if step else None)
    return found
