"""An independent check of any plan, whatever found it.

Plain loops over the problem's own data; nothing of the solver is imported, so a fault there
cannot hide itself here.
"""

import itertools
import math

from joulecut_engine.optimize.problem import Goal, Problem, Solution

TOLERANCE = 1e-9  # relative: times and energies of a plan must be right to this


def check(problem: Problem, goal: Goal, solution: Solution) -> tuple[str, ...]:
    """Faults of a solution, one sentence each; empty when it is right."""
    count = len(problem.graph.operations)
    clocks, starts = len(solution.clocks), len(solution.start_s)
    if clocks != count or starts != count:
        return (f"{count} operations, but {clocks} clocks and {starts} starts",)
    return (
        *_options(problem, solution),
        *_granularity(problem, solution),
        *_times(problem, goal, solution),
        *_energy(problem, goal, solution),
    )


def _options(problem: Problem, solution: Solution) -> list[str]:
    offered = problem.measured or problem.options
    return [
        f"{operation} has no option {option}"
        for operation, option, options, swept in zip(
            problem.graph.operations, solution.clocks, problem.options, offered, strict=True
        )
        if option not in options and option not in swept
    ]


def _granularity(problem: Problem, solution: Solution) -> list[str]:
    if solution.granularity == "computation":
        return []
    if solution.granularity == "changes":
        return _changes(problem, solution)
    if solution.granularity != "gpu":
        return [f"unknown granularity {solution.granularity}"]
    clocks = [
        sorted({solution.clocks[i].clock_mhz for i in order}) for order in problem.graph.order
    ]
    return [
        f"stage {stage} runs at {mine} MHz, granularity gpu means one"
        for stage, mine in enumerate(clocks)
        if len(mine) > 1
    ]


def _changes(problem: Problem, solution: Solution) -> list[str]:
    """Whether each GPU changes its clock only so often, and keeps it so long."""
    limits, complaints = solution.limits, []
    if limits is None:
        return ["granularity changes without its limits"]
    for stage, indices in enumerate(problem.graph.order):
        changed = _changed(problem, solution, indices)
        if len(changed) > limits.per_iteration:
            complaints.append(
                f"stage {stage} changes its clock {len(changed)} times, "
                f"at most {limits.per_iteration} are allowed"
            )
        at_s = [solution.start_s[i] for i in changed]
        again_s = [*at_s[1:], at_s[0] + solution.iteration_time_s] if at_s else []
        dwell_s = min((b - a for a, b in zip(at_s, again_s, strict=True)), default=math.inf)
        if dwell_s < limits.min_dwell_s * (1 - TOLERANCE):
            complaints.append(
                f"stage {stage} keeps a clock for {dwell_s!r} s, "
                f"at least {limits.min_dwell_s!r} s are asked for"
            )
    return complaints


def _changed(problem: Problem, solution: Solution, indices: tuple[int, ...]) -> list[int]:
    """Operations before which a GPU changes its clock; the first one's is compared with the
    last one's, since iterations repeat."""
    operations, clocks = problem.graph.operations, solution.clocks
    work = [
        i for i in indices if clocks[i].clock_mhz and not operations[i].kind.startswith("send-")
    ]
    before = [work[-1], *work[:-1]] if work else []
    return [
        i for k, i in zip(before, work, strict=True) if clocks[k].clock_mhz != clocks[i].clock_mhz
    ]


def _times(problem: Problem, goal: Goal, solution: Solution) -> list[str]:
    complaints = _one_at_a_time(problem, solution)
    longest_s = [0.0] * len(solution.clocks)  # earliest end of each operation
    before: list[list[int]] = [[] for _ in solution.clocks]
    for first, second in problem.graph.edges:
        before[second].append(first)
    end_s = [
        start + option.time_s
        for start, option in zip(solution.start_s, solution.clocks, strict=True)
    ]
    stop_s = _stops_s(problem, solution)
    for i, option in enumerate(solution.clocks):
        longest_s[i] = (
            option.time_s + stop_s[i] + max((longest_s[j] for j in before[i]), default=0.0)
        )
    time_s = max(longest_s)
    slack_s = TOLERANCE * time_s
    if not _near(solution.iteration_time_s, time_s):
        complaints.append(
            f"iteration time {solution.iteration_time_s!r} s, longest path {time_s!r} s"
        )
    if not all(start >= -slack_s for start in solution.start_s):
        complaints.append("an operation starts before the iteration")
    if not max(end_s) <= solution.iteration_time_s + slack_s:
        complaints.append("an operation ends after the iteration")
    for first, second in problem.graph.edges:
        if not solution.start_s[second] - stop_s[second] >= end_s[first] - slack_s:
            early, late = problem.graph.operations[second], problem.graph.operations[first]
            complaints.append(f"{early} starts before {late} has ended")
    if not solution.iteration_time_s <= goal.deadline_s * (1 + TOLERANCE):
        complaints.append(
            f"iteration time {solution.iteration_time_s!r} s misses {goal.deadline_s!r} s"
        )
    return complaints


def _stops_s(problem: Problem, solution: Solution) -> list[float]:
    """By operation, how long the change before it stops its GPU."""
    stop_s = [0.0] * len(solution.clocks)
    if solution.limits is not None:
        for indices in problem.graph.order:
            for i in _changed(problem, solution, indices):
                stop_s[i] = solution.limits.cost_s
    return stop_s


def _one_at_a_time(problem: Problem, solution: Solution) -> list[str]:
    """Sends run beside a GPU's work; everything else has the GPU for itself."""
    complaints = []
    operations = problem.graph.operations
    for indices in problem.graph.order:
        work = [i for i in indices if not operations[i].kind.startswith("send-")]
        work.sort(key=lambda i: (solution.start_s[i], i))
        for k, i in itertools.pairwise(work):
            end_s = solution.start_s[k] + solution.clocks[k].time_s
            if solution.start_s[i] < end_s - TOLERANCE * solution.iteration_time_s:
                complaints.append(f"{operations[i]} and {operations[k]} share a GPU at one time")
    return complaints


def _energy(problem: Problem, goal: Goal, solution: Solution) -> list[str]:
    charged_s = goal.deadline_s if goal.waits else solution.iteration_time_s
    energy_j = problem.overhead_power_w * charged_s
    for stage, indices in enumerate(problem.graph.order):
        options = [solution.clocks[i] for i in indices]
        waiting_s = charged_s - math.fsum(option.time_s for option in options)
        energy_j += math.fsum(option.energy_j for option in options)
        energy_j += problem.blocking_power_w[stage] * waiting_s
        if solution.limits is not None:
            changes = len(_changed(problem, solution, indices))
            energy_j += solution.limits.cost_j * changes
    complaints = []
    if not _near(solution.energy_j, energy_j):
        complaints.append(f"energy {solution.energy_j!r} J, adds up to {energy_j!r} J")
    if not 0.0 < solution.lower_bound_j <= solution.energy_j * (1 + TOLERANCE):
        complaints.append(
            f"lower bound {solution.lower_bound_j!r} J, energy {solution.energy_j!r} J"
        )
    return complaints


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
