"""What a given set of clocks is predicted to give, without any solver.

The running clocks, the default clocks and a plan's clocks are compared on the same ground:
the exact longest path through the graph at predicted costs, and the energy of section 4 of
the Perseus paper (SOSP'24): operations, plus blocking power for the rest of the time.
"""

from dataclasses import dataclass, replace

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.jitter import Jitter
from joulecut_controller.plan.solver_cache import Answers
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.jitter_margin import of
from joulecut_engine.optimize.problem import Problem

Clocks = tuple[int, ...]  # one clock in MHz per operation, in the graph's order


@dataclass(frozen=True, slots=True)
class Appraisal:
    """One pipeline under one choice of clocks, by the model's own seconds and joules.

    Energies are of one GPU per stage; `Costs.width` GPUs do the same work side by side.
    """

    options: tuple[ClockOption, ...]
    start_s: tuple[float, ...]
    iteration_time_s: float
    operations_j: float
    busy_s: tuple[float, ...]  # by stage
    problem: Problem
    mean_s: float  # of iterations that jitter; `iteration_time_s` is on mean times
    held_s: float  # the statistic of them that is held to the target

    def energy_j(self, time_s: float) -> float:
        """Energy of an iteration that lasts `time_s`, waiting included, in joules."""
        waiting_j = sum(
            power_w * (time_s - busy_s)
            for power_w, busy_s in zip(self.problem.blocking_power_w, self.busy_s, strict=True)
        )
        return self.operations_j + waiting_j + self.problem.overhead_power_w * time_s


def default_clocks(costs: Costs) -> Clocks:
    """What runs without any lock."""
    return tuple(costs.default_mhz[o.stage] for o in costs.problem.graph.operations)


def appraise(costs: Costs, clocks: Clocks) -> Appraisal | None:
    """None where a clock has no predicted cost, or the clocks are of another graph."""
    problem = costs.problem
    operations = problem.graph.operations
    if len(clocks) != len(operations):
        return None
    options = []
    for operation, clock_mhz in zip(operations, clocks, strict=True):
        option = costs.option(operation, clock_mhz)
        if option is None:
            return None
        options.append(option)
    start_s = _starts_s(problem, options)
    time_s = max(s + o.time_s for s, o in zip(start_s, options, strict=True))
    return Appraisal(
        options=tuple(options),
        start_s=start_s,
        iteration_time_s=time_s,
        mean_s=time_s,
        held_s=time_s,
        operations_j=sum(option.energy_j for option in options),
        busy_s=tuple(sum(options[i].time_s for i in order) for order in problem.graph.order),
        problem=problem,
    )


def shaken(made: Appraisal, costs: Costs, jitter: Jitter, answers: Answers) -> Appraisal:
    """The appraisal with what iterations really take under the job's jitter."""
    if jitter.still:
        return made
    spread = answers.spread(costs, jitter, made.options)
    # A mean of draws may be a hair below the time on mean times; the plan's word is no less.
    mean_s = max(made.iteration_time_s, spread.mean_s)
    return replace(made, mean_s=mean_s, held_s=max(mean_s, of(spread, jitter.statistic)))


def _starts_s(problem: Problem, options: list[ClockOption]) -> tuple[float, ...]:
    """Earliest start of every operation, in seconds after the iteration begins."""
    starts = [0.0] * len(options)
    # Edges are sorted by their first end, and operations stand in topological order: when an
    # edge is reached, every edge into its first end has been taken.
    for before, after in problem.graph.edges:
        starts[after] = max(starts[after], starts[before] + options[before].time_s)
    return tuple(starts)
