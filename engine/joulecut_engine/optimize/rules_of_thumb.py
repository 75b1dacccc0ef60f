"""Plans that rules of thumb make: starts of a search, which so is never below such a rule."""

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.change_schedules import Lines
from joulecut_engine.optimize.levels import levels_of
from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.schedule import makespan

EXACT = 1e-12  # float sums in another order must not undo an option that fits
BUDGETS_MAX = 96  # times tried; with more, neighbours hardly differ


def off_path(problem: Problem) -> tuple[ClockOption, ...]:
    """Like EnvPipe (ATC'23): the critical path keeps its clocks, the rest is slowed into bubbles.

    In the order of the schedule each operation takes the option of least effective cost that
    leaves the fastest end reachable with everything after it at full speed. Own reading of the
    rule; the original also moves microbatches, which this does not.
    """
    menus = problem.measured or problem.options
    clocks = [min(menu, key=lambda o: (o.time_s, o.energy_j)) for menu in menus]
    limit_s, _ = makespan(problem, clocks)
    seconds = np.array([one.time_s for one in clocks])
    after_s = (levels_of(problem.graph).around(seconds)[1] - seconds).tolist()  # from its end on
    before: list[list[int]] = [[] for _ in clocks]
    for first, second in problem.graph.edges:
        before[second].append(first)
    end_s: list[float] = []
    for i, (operation, menu) in enumerate(zip(problem.graph.operations, menus, strict=True)):
        start_s = max((end_s[j] for j in before[i]), default=0.0)
        room_s = limit_s * (1 + EXACT) - after_s[i] - start_s
        power_w = problem.blocking_power_w[operation.stage]
        fitting = [option for option in menu if option.time_s <= room_s]
        clocks[i] = min(fitting, key=lambda o: o.effective_cost_j(power_w), default=clocks[i])
        end_s.append(start_s + clocks[i].time_s)
    return tuple(clocks)


def between(lines: Lines, deadline_s: float, price_w: float) -> tuple[ClockOption, ...]:
    """Each GPU's first and last operation, which fill and drain the pipeline, at its fastest clock,
    and all between at one, at which GPUs work about equally long.

    For each time that some GPU works at some clock every GPU takes the slowest that keeps within
    it; of these the plan of least cost + price x time within the deadline. Empty without one.
    """
    tables, size = [], lines.levels.size
    for line in lines.lines:
        asked, width = np.unique(line.asks), line.seconds.shape[1]
        keys = np.tile(np.arange(width), (len(line.asks), 1))
        keys[asked[[0, -1]]] = int(np.argmin(line.seconds.sum(axis=0)))
        keys = keys[line.asks]
        seconds, cost_j = (np.take_along_axis(t, keys, 1) for t in (line.seconds, line.cost_j))
        tables.append((keys, seconds, cost_j))
    busy_s = [seconds.sum(axis=0) for _, seconds, _ in tables]
    budgets_s = np.unique(np.concatenate(busy_s))
    budgets_s = budgets_s[np.isfinite(budgets_s)]
    budgets_s = budgets_s[:: max(1, len(budgets_s) // BUDGETS_MAX)]
    duration_s, value_j = np.empty((size, len(budgets_s))), np.zeros(len(budgets_s))
    chosen = []
    for line, (_, seconds, cost_j), mine_s in zip(lines.lines, tables, busy_s, strict=True):
        within = np.where(mine_s <= budgets_s[:, None], mine_s, -1.0)
        column = np.where(within.max(axis=1) > 0.0, within.argmax(axis=1), mine_s.argmin())
        duration_s[line.operation] = seconds[:, column]
        value_j += cost_j.sum(axis=0)[column]
        chosen.append(column)
    times_s = lines.levels.iteration_times(duration_s)
    on_time = np.isfinite(times_s) & (times_s <= deadline_s * (1 + EXACT))
    value_j = np.where(on_time, value_j + price_w * np.where(on_time, times_s, 0.0), np.inf)
    if not len(value_j) or not np.isfinite(value_j).any():
        return ()
    best = int(np.argmin(value_j))
    found: dict[int, ClockOption] = {}
    for line, (keys, _, _), column in zip(lines.lines, tables, chosen, strict=True):
        own = zip(line.operation.tolist(), line.option, keys[:, column[best]].tolist(), strict=True)
        found |= {i: option for i, options, k in own if (option := options[k]) is not None}
    return tuple(found[i] for i in range(size))
