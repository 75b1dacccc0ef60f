"""An independent check of plans under switching, whatever found them.

Runs the clocks that are asked for event by event, in plain loops over the problem's own data, and
compares times, clocks, energy and every limit. Nothing that searches is imported.
"""

import math
from collections import deque

from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS
from joulecut_engine.optimize.clock_changes import Switched, Switching
from joulecut_engine.optimize.problem import Goal, Problem

TOLERANCE = 1e-9  # relative: as for any other plan


def check(
    problem: Problem, goal: Goal, switching: Switching, switched: Switched
) -> tuple[str, ...]:
    """Faults of a plan, one sentence each; empty when it is right."""
    plan, count = switched.plan, len(problem.graph.operations)
    sizes = (len(plan.clocks), len(plan.start_s), len(switched.asked_mhz))
    if sizes != (count,) * 3:
        return (f"{count} operations, but {sizes} clocks, starts and asked clocks",)
    try:
        really = _Timeline(problem, switching, switched.asked_mhz)
    except LookupError as error:
        return (str(error),)
    return (
        *_limits(switching, really),
        *_times(problem, goal, switched, really),
        *_energy(problem, goal, switching, switched, really),
    )


class _Timeline:
    """The timeline that is run. Raises LookupError where an operation runs at a clock without a
    measurement."""

    def __init__(self, problem: Problem, switching: Switching, asked_mhz: tuple[int, ...]) -> None:
        operations = problem.graph.operations
        waits_for: list[set[int]] = [set() for _ in operations]
        for first, second in problem.graph.edges:
            waits_for[second].add(first)
        before: dict[int, int] = {}
        now: dict[int, int] = {}  # by stage: the clock it has; at first the one asked for last
        for stage, indices in enumerate(problem.graph.order):
            line = [i for i in indices if operations[i].kind not in SENDS]
            before.update(zip(line[1:], line, strict=False))
            for i in line:
                if _clocked(problem, i):
                    now[stage] = asked_mhz[i]
        wanted = dict(now)
        coming: dict[int, deque[tuple[float, int]]] = {stage: deque() for stage in now}
        self.asked_s: dict[int, list[float]] = {stage: [] for stage in now}
        self.asked_at: list[tuple[int, int, int]] = []  # operation, from, to
        self.start_s: list[float] = []
        self.options: list[ClockOption] = []
        end_s: list[float] = []
        for i, operation in enumerate(operations):
            stage = operation.stage
            mark_s = end_s[before[i]] if i in before else 0.0
            start_s = max([mark_s, *(end_s[j] for j in waits_for[i])])
            option = problem.options[i][0]
            if _clocked(problem, i):
                if asked_mhz[i] != wanted[stage]:
                    self.asked_at.append((i, wanted[stage], asked_mhz[i]))
                    self.asked_s[stage].append(mark_s)
                    wanted[stage] = asked_mhz[i]
                    coming[stage].append((mark_s + switching.latency_s, asked_mhz[i]))
                    start_s = max(start_s, mark_s + switching.cost_s)
                while coming[stage] and coming[stage][0][0] <= start_s:
                    now[stage] = coming[stage].popleft()[1]
                option = _at(problem, i, now[stage])
                if switching.late == "within":
                    option, now[stage] = _mixed(problem, i, start_s, option, coming[stage])
            self.start_s.append(start_s)
            self.options.append(option)
            end_s.append(start_s + option.time_s)
        self.iteration_s = max(end_s)
        self.unarrived = [
            stage
            for stage, queue in coming.items()
            if any(lands_s > self.iteration_s for lands_s, _ in queue)
        ]


def _clocked(problem: Problem, i: int) -> bool:
    offered = (problem.measured or problem.options)[i]
    return offered[0].clock_mhz != ANY_CLOCK_MHZ and problem.graph.operations[i].kind not in SENDS


def _at(problem: Problem, i: int, clock_mhz: int) -> ClockOption:
    offered = [o for o in (problem.measured or problem.options)[i] if o.clock_mhz == clock_mhz]
    if not offered:
        raise LookupError(f"{problem.graph.operations[i]} was never measured at {clock_mhz} MHz")
    return min(offered, key=lambda o: (o.time_s, o.energy_j))


def _mixed(
    problem: Problem,
    i: int,
    start_s: float,
    option: ClockOption,
    coming: deque[tuple[float, int]],
) -> tuple[ClockOption, int]:
    """An operation during which changes arrive, and the clock that it ends at."""
    done, at_s, seconds, joules = 0.0, start_s, 0.0, 0.0
    while coming:
        share = (coming[0][0] - at_s) / option.time_s
        if done + share >= 1.0:
            break
        seconds += coming[0][0] - at_s
        joules += share * option.energy_j
        done += share
        at_s, clock_mhz = coming.popleft()
        option = _at(problem, i, clock_mhz)
    seconds += (1.0 - done) * option.time_s
    joules += (1.0 - done) * option.energy_j
    return ClockOption(option.clock_mhz, seconds, joules), option.clock_mhz


def _limits(switching: Switching, really: _Timeline) -> list[str]:
    complaints = [
        f"a change on stage {stage} has not come by the end of the iteration"
        for stage in really.unarrived
    ]
    for stage, asked_s in really.asked_s.items():
        if len(asked_s) > switching.max_per_iteration:
            complaints.append(
                f"stage {stage} changes its clock {len(asked_s)} times, "
                f"at most {switching.max_per_iteration} are allowed"
            )
        again_s = [*asked_s[1:], asked_s[0] + really.iteration_s] if asked_s else []
        dwell_s = min((b - a for a, b in zip(asked_s, again_s, strict=True)), default=math.inf)
        if dwell_s < switching.min_dwell_s * (1 - TOLERANCE):
            complaints.append(
                f"stage {stage} keeps a clock for {dwell_s!r} s, "
                f"at least {switching.min_dwell_s!r} s are asked for"
            )
    return complaints


def _times(problem: Problem, goal: Goal, switched: Switched, really: _Timeline) -> list[str]:
    plan, complaints = switched.plan, []
    rows = zip(problem.graph.operations, plan.clocks, really.options, strict=True)
    for operation, option, true in rows:
        same = option.clock_mhz == true.clock_mhz and _near(option.energy_j, true.energy_j)
        if not (same and _near(option.time_s, true.time_s)):
            complaints.append(f"{operation} is said to run as {option}, but runs as {true}")
    slack_s = TOLERANCE * really.iteration_s
    starts = zip(problem.graph.operations, plan.start_s, really.start_s, strict=True)
    for operation, start_s, true_s in starts:
        if abs(start_s - true_s) > slack_s:
            complaints.append(f"{operation} starts at {true_s!r} s, not at {start_s!r} s")
    if not _near(plan.iteration_time_s, really.iteration_s):
        complaints.append(
            f"iteration time {plan.iteration_time_s!r} s, really {really.iteration_s!r} s"
        )
    if not really.iteration_s <= goal.deadline_s * (1 + TOLERANCE):
        complaints.append(f"iteration time {really.iteration_s!r} s misses {goal.deadline_s!r} s")
    named = [(c.operation, c.from_mhz, c.to_mhz) for stage in switched.changes for c in stage]
    if sorted(named) != sorted(really.asked_at):
        complaints.append(f"{len(named)} changes are named, {len(really.asked_at)} are asked for")
    return complaints


def _energy(
    problem: Problem, goal: Goal, switching: Switching, switched: Switched, really: _Timeline
) -> list[str]:
    charged_s = goal.deadline_s if goal.waits else really.iteration_s
    energy_j = problem.overhead_power_w * charged_s + switching.cost_j * len(really.asked_at)
    for stage, indices in enumerate(problem.graph.order):
        options = [really.options[i] for i in indices]
        energy_j += math.fsum(option.energy_j for option in options)
        waiting_s = charged_s - math.fsum(option.time_s for option in options)
        energy_j += problem.blocking_power_w[stage] * waiting_s
    plan, complaints = switched.plan, []
    if not _near(plan.energy_j, energy_j):
        complaints.append(f"energy {plan.energy_j!r} J, adds up to {energy_j!r} J")
    if not 0.0 < plan.lower_bound_j <= plan.energy_j * (1 + TOLERANCE):
        complaints.append(f"lower bound {plan.lower_bound_j!r} J, energy {plan.energy_j!r} J")
    return complaints


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
