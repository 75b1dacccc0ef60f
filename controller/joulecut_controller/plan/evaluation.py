"""Predicted time and energy of given clocks, without a solver.

Running, default and planned clocks are evaluated alike: the exact longest path through the graph
at predicted costs, and the energy of section 4 of the Perseus paper (SOSP'24): operations, plus
blocking power for the rest of the time. Model seconds become real ones by the measured ratio, so
that a forecast can be compared with a measurement.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.jitter import STILL
from joulecut_controller.plan.pace import EXPLAINED_RATIO, Pace
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.solver_cache import Asking, Question, SolverCache, Times
from joulecut_controller.view import GpuView, JobState
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.jitter import Noise, Spread
from joulecut_engine.optimize.problem import (
    TWO_CHANGES,
    ChangeLimits,
    Goal,
    Infeasible,
    Problem,
    Solution,
)
from joulecut_engine.optimize.schedule import makespan

Clocks = tuple[int, ...]  # one clock in MHz per operation, in the graph's order


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Time and energy of one pipeline under one choice of clocks, in model seconds and joules.

    Energies are of one GPU per stage; `Costs.width` GPUs do the same work side by side.
    """

    options: tuple[ClockOption, ...]
    start_s: tuple[float, ...]
    iteration_time_s: float
    operations_j: float
    busy_s: tuple[float, ...]  # by stage
    problem: Problem
    mean_s: float  # with jitter, what the deadline applies to; the other is of mean times

    def energy_j(self, time_s: float) -> float:
        """Energy of an iteration that lasts `time_s`, waiting included, in joules."""
        waiting_j = sum(
            power_w * (time_s - busy_s)
            for power_w, busy_s in zip(self.problem.blocking_power_w, self.busy_s, strict=True)
        )
        return self.operations_j + waiting_j + self.problem.overhead_power_w * time_s


def default_clocks(costs: Costs) -> Clocks:
    """The clocks without any lock."""
    return tuple(costs.default_mhz[o.stage] for o in costs.problem.graph.operations)


def at_default(costs: Costs) -> Evaluation:
    """Default clocks for all GPUs."""
    made = evaluate(costs, default_clocks(costs), uniform=True)
    assert made is not None  # costs cover the default clock of every stage
    return made


def without_limits(job: JobState, gpus: Mapping[str, GpuView], costs: Costs | None) -> JobState:
    """The job with the baseline that it would have without power limits, for planning.

    Default clocks under a limit are slower than any plan for a job's own target assumes. Where
    a limit is in force and the measured baseline is slower than the pipeline graph explains, the
    predicted time takes its place; plans under the limit are still verified against measurements.
    A predicted profile is of operations under the limit, and what they leave is network.
    """
    baseline, profile = job.measured.baseline, job.policy.profile
    predicted = profile is not None and profile.predicted
    if costs is None or baseline is None or predicted or not _limited(job, gpus):
        return job
    default = at_default(costs)
    if baseline.time_mean_s <= default.iteration_time_s * (1.0 + EXPLAINED_RATIO):
        return job
    unlimited = replace(baseline, time_mean_s=default.iteration_time_s)
    return replace(job, measured=replace(job.measured, baseline=unlimited, reference=None))


def _limited(job: JobState, gpus: Mapping[str, GpuView]) -> bool:
    return any(uuid in gpus and gpus[uuid].power_limited for uuid in job.placement.uuids)


def evaluate(costs: Costs, clocks: Clocks, *, uniform: bool = False) -> Evaluation | None:
    """None where a clock has no predicted cost, or the clocks are of another graph. Faster GPUs
    have clocks of their own, unless `uniform`.
    """
    problem = costs.problem
    operations = problem.graph.operations
    if len(clocks) != len(operations):
        return None
    options = []
    for operation, clock_mhz in zip(operations, clocks, strict=True):
        option = costs.option(operation, clock_mhz, uniform=uniform)
        if option is None:
            return None
        options.append(option)
    time_s, start_s = makespan(problem, options)
    return Evaluation(
        options=tuple(options),
        start_s=start_s,
        iteration_time_s=time_s,
        mean_s=time_s,
        operations_j=sum(option.energy_j for option in options),
        busy_s=tuple(sum(options[i].time_s for i in order) for order in problem.graph.order),
        problem=problem,
    )


def slower(costs: Costs, clocks: Clocks) -> Sequence[Clocks]:
    """The same clocks under falling common tops. Below the plan of least energy they draw ever less
    power, at more energy an iteration.
    """
    operations, allowed = costs.problem.graph.operations, costs.allowed_mhz
    tops = sorted({mhz for own in allowed for mhz in own if mhz < max(clocks)}, reverse=True)
    return [
        tuple(
            min(clock_mhz, max((mhz for mhz in allowed[o.stage] if mhz <= top), default=clock_mhz))
            for o, clock_mhz in zip(operations, clocks, strict=True)
        )
        for top in tops
    ]


def slowest_within(costs: Costs, clocks: Clocks, deadline_s: float) -> Clocks:
    """The lowest of these that keep a deadline, in model seconds."""

    def is_late(other: Clocks) -> bool:
        made = evaluate(costs, other)
        return made is None or made.iteration_time_s > deadline_s

    found = slower(costs, clocks)
    late = bisect_left(found, 1, key=is_late)
    return found[late - 1] if late else clocks


def with_jitter(made: Evaluation, costs: Costs, jitter: Noise) -> Asking[Evaluation]:
    """The evaluation with iteration times under the job's jitter."""
    if jitter.still:
        return made
    spread: Spread = yield Times(costs, jitter, made.options)
    # A mean of draws may be slightly below the time on mean times; it counts no less than that.
    return replace(made, mean_s=max(made.iteration_time_s, spread.mean_s))


# By name, from what needs no change to a job to what needs most; with how many changes.
COMPARED: dict[str, tuple[Granularity, int]] = {
    "gpu": ("gpu", 2),
    "changes": ("changes", 2),
    "changes:4": ("changes", 4),
    "computation": ("computation", 2),
}
ROUNDING = 1e-9  # a frontier point at the very time a plan has must not fail by an ulp


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares plans of one pass: same costs, goal, jitter and baseline.

    `pace` makes model seconds real ones; `promised_s` is the real deadline, or the straggler's time
    where the goal waits.
    """

    costs: Costs
    goal: Goal
    default: Evaluation
    pace: Pace
    promised_s: float
    jitter: Noise = STILL
    granularity: Granularity = "gpu"
    limits: ChangeLimits = TWO_CHANGES  # where clocks change within an iteration

    def appraised(self, clocks: Clocks) -> Asking[Evaluation | None]:
        """These clocks under the job's jitter; None as `evaluate`."""
        made = evaluate(self.costs, clocks)
        return (yield from with_jitter(made, self.costs, self.jitter)) if made else None

    def cost_j(self, evaluation: Evaluation) -> float:
        """Energy as the goal counts it, by model seconds, of one GPU per stage."""
        return evaluation.energy_j(self.charged_s(evaluation))

    def charged_s(self, evaluation: Evaluation) -> float:
        """Model seconds that energy is counted for."""
        time_s = evaluation.iteration_time_s
        return max(time_s, self.goal.deadline_s) if self.goal.waits else time_s

    def as_solution(self, answer: Solution, after: Evaluation) -> Solution:
        """Other clocks with the solver's bound, which holds for every plan of this goal."""
        return replace(
            answer,
            clocks=after.options,
            start_s=after.start_s,
            iteration_time_s=after.iteration_time_s,
            energy_j=after.energy_j(self.charged_s(after)),
        )

    @property
    def baseline_j(self) -> float:
        return self.cost_j(self.default)

    @property
    def ratio(self) -> float:
        """Real seconds over model seconds, at default clocks."""
        return self.pace.default_s / self.pace.modelled_s

    def real_s(self, evaluation: Evaluation) -> float:
        own_s = self.pace.real_s(evaluation.mean_s)
        return max(own_s, self.promised_s) if self.goal.waits else own_s


def forecast(comparison: Comparison, answer: Solution, after: Evaluation) -> Forecast:
    """The forecast of the plan (`after`). Other granularities are left to `completed`. The bound is
    of the same iteration: what it lasts beyond the model is waited by any plan.
    """
    width, problem = comparison.costs.width, comparison.costs.problem
    beyond_s = comparison.real_s(after) - comparison.charged_s(after)
    waited_s = comparison.promised_s if comparison.goal.waits else 0.0
    baseline_s = max(comparison.pace.default_s, waited_s)
    own_saved = 1.0 - comparison.cost_j(after) / comparison.baseline_j
    return Forecast(
        iteration_time_s=comparison.real_s(after),
        energy_j=width * after.energy_j(comparison.real_s(after)),
        baseline_time_s=baseline_s,
        baseline_energy_j=width * comparison.default.energy_j(baseline_s),
        lower_bound_j=width * (answer.lower_bound_j + problem.time_price_w * beyond_s),
        gap_ratio=answer.gap,
        saved_by_granularity=((answer.granularity, own_saved),),
        modelled=math.log(after.mean_s / comparison.pace.modelled_s),
        operations=math.log(
            statistics.median(
                busy_s / default_s
                for busy_s, default_s in zip(after.busy_s, comparison.default.busy_s, strict=True)
            )
        ),
    )


def completed(
    made: Forecast, comparison: Comparison, before: Evaluation, solver: SolverCache
) -> Forecast:
    """The forecast with the saving of every granularity at the same deadline, and with the bloat
    of the clocks `before` the plan. Several solves: takes a second.

    A search under jitter takes seconds for each granularity. Others are therefore priced by the
    difference that they make without jitter, beside what the plan itself saves.
    """
    width = comparison.costs.width
    lean = evaluate(comparison.costs, tuple(option.clock_mhz for option in before.options))
    assert lean is not None  # the same clocks, with faster GPUs at clocks of their own
    intrinsic_w, extrinsic_w = _bloat_w(comparison, lean, solver)
    variability_j = before.operations_j - lean.operations_j
    return replace(
        made,
        saved_by_granularity=_saved_by_granularity(made, comparison, solver),
        intrinsic_bloat_w=width * intrinsic_w,
        extrinsic_bloat_w=width * extrinsic_w,
        variability_bloat_w=width * variability_j / comparison.real_s(before)
        if comparison.costs.ratios
        else None,
    )


def _saved_by_granularity(
    made: Forecast, comparison: Comparison, solver: SolverCache
) -> tuple[tuple[str, float], ...]:
    own, planned = comparison.granularity, made.saved_by_granularity[0][1]
    own_saved = _saved_ratio(comparison, own, comparison.limits, solver) or 0.0
    found = []
    for name, (granularity, count) in COMPARED.items():
        limits = ChangeLimits(count, min_dwell_s=comparison.limits.min_dwell_s)
        is_own = granularity == own and (own != "changes" or limits == comparison.limits)
        saved = own_saved if is_own else _saved_ratio(comparison, granularity, limits, solver)
        if saved is not None:
            found.append((name, planned + saved - own_saved))
    return tuple(found)


def _saved_ratio(
    comparison: Comparison, granularity: Granularity, limits: ChangeLimits, solver: SolverCache
) -> float | None:
    """Without jitter, as a share of the baseline."""
    used = limits if granularity == "changes" else TWO_CHANGES
    answer = solver.ask(Question(comparison.costs, comparison.goal, granularity, limits=used))
    if isinstance(answer, Infeasible):
        return None
    return 1.0 - answer.energy_j / comparison.baseline_j


def _bloat_w(
    comparison: Comparison, before: Evaluation, solver: SolverCache
) -> tuple[float, float]:
    """Intrinsic bloat, and extrinsic bloat while a straggler is waited for (Perseus, SOSP'24,
    section 2): power above the frontier. Of one GPU per stage, in model seconds.
    """
    own_s = before.iteration_time_s
    costs = comparison.costs
    now = solver.ask(Question(costs, Goal(own_s * (1.0 + ROUNDING)), "computation"))
    if isinstance(now, Infeasible):
        return 0.0, 0.0
    saved_j = max(0.0, before.energy_j(own_s) - now.energy_j)
    if not comparison.goal.waits:
        return saved_j / own_s, 0.0
    waited_s = max(own_s, comparison.goal.deadline_s)
    slow = solver.ask(Question(costs, comparison.goal, "computation"))
    if isinstance(slow, Infeasible):
        return saved_j / waited_s, 0.0
    all_j = max(0.0, before.energy_j(waited_s) - slow.energy_j)
    return saved_j / waited_s, max(0.0, all_j - saved_j) / waited_s
