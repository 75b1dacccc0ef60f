"""The plan of a job that never ran at lower clocks: predicted from other jobs, only recommended.

What the job shows at default clocks (times of its operations, or its rate; power and clocks of its
GPUs) is its work; other jobs say how time and power of such work follow the clock. The planner and
the solver answer as for a profile. The guard lets no such plan be enforced. Pure.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulecut_controller.learn.advice import Expected
from joulecut_controller.plan.costs import Costs, keys_of, price
from joulecut_controller.plan.evaluation import Clocks, at_default, evaluate
from joulecut_controller.plan.plan import Band
from joulecut_controller.plan.planner import Decision, decide, given_up, vetoes
from joulecut_controller.plan.planning_input import PlannerState, PlanningInput
from joulecut_controller.plan.solver_cache import Answers
from joulecut_controller.plan.veto import first
from joulecut_controller.plan.work import HALVES
from joulecut_controller.view import GpuView, JobState
from joulecut_engine.estimate.estimator import NOMINAL, Estimator, Subject
from joulecut_engine.estimate.other_jobs import FORM_HALF, DefaultWork
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile

# Of a rate alone: a backward computes two products for each of a forward, and its halves one each.
RELATIVE: Mapping[str, float] = {"forward": 1.0, "backward": 2.0, "input": 1.0, "weight": 1.0}
BLOCKING_UNKNOWN = 0.25  # of the mean power, where the policy does not give it
SLOPE_RATIO = 0.9  # of default clocks: about as far as a budget of some per cent lets them go
SLOPE_SD_MIN = 0.05  # few jobs may agree by chance; stages of one public job differ by 0.03
SOURCE = "predicted from other jobs"


@dataclass(frozen=True, slots=True)
class DefaultWorks:
    """What a job does at default clocks, by stage and kind, and what its GPUs draw while they wait.
    `detailed`: the job reports the times of its operations; else they are shares of its rate.
    """

    works: Mapping[tuple[int, Kind], DefaultWork]
    blocking_power_w: float
    detailed: bool


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one job: `possible` are estimators by the errors that predictions of other jobs had,
    `text` says what it rests on; `judged`: enough jobs of this cluster were measured for a band.
    """

    works: DefaultWorks
    estimator: Estimator
    possible: tuple[Estimator, ...]
    text: str
    judged: bool = False

    def expected(self, job: str) -> Expected | None:
        """Slopes of its operations; None where the job reports its rate alone, or too few jobs were
        measured to say how far off they are.
        """
        if not self.works.detailed or not self.judged:
            return None
        slopes = np.array([self._slopes(job, one) for one in (self.estimator, *self.possible)])
        sd = np.maximum(SLOPE_SD_MIN, slopes[1:].std(axis=0))
        time, power = slopes[0]
        return Expected(*(round(float(one), 2) for one in (time, sd[0], power, sd[1])))

    def _slopes(self, job: str, estimator: Estimator) -> tuple[float, float]:
        """Mean of all work, between default clocks and a tenth lower ones."""
        found = []
        for (stage, kind), work in self.works.works.items():
            pair = (int(SLOPE_RATIO * work.default_mhz), work.default_mhz)
            curve = estimator.predict(Subject(job, "", stage, kind), pair)
            assert curve is not None
            fall = math.log(pair[1] / pair[0])
            found.append(
                [math.log(each[0] / each[1]) / fall for each in (curve.time_s, curve.power_w)]
            )
        time, power = np.mean(found, axis=0)
        return float(time), float(power)

    def planned(self, job: JobState) -> JobState:
        """The job as the planner sees it."""
        options = {
            key: (ClockOption(one.default_mhz, one.time_s, one.time_s * one.power_w),)
            for key, one in self.works.works.items()
        }
        policy = replace(
            job.policy,
            profile=Profile(options, SOURCE),
            blocking_power_w=self.works.blocking_power_w,
        )
        return replace(job, policy=policy)


def default_works(job: JobState, gpus: Mapping[str, GpuView]) -> DefaultWorks | None:
    """None while the job is not known at default clocks: baseline, power or clocks are missing."""
    pipeline, baseline = job.policy.pipeline, job.measured.baseline
    loads = {load.uuid: load for load in job.measured.loads}
    if pipeline is None or baseline is None or not job.measured.at_default:
        return None
    placed = [[loads[u] for u in uuids if u in loads] for uuids in job.placement.stages]
    if len(placed) != pipeline.stages or not all(placed):
        return None
    drawn_w = [[one.power_w for one in loads_ if one.power_w is not None] for loads_ in placed]
    if not all(drawn_w) or any(not one.clock_mhz for loads_ in placed for one in loads_):
        return None
    power_w = [statistics.fmean(each) for each in drawn_w]
    blocking_w = job.policy.blocking_power_w or BLOCKING_UNKNOWN * statistics.fmean(power_w)
    shown = [_busiest([one.busy_s for one in loads_]) for loads_ in placed]
    times_s = _times_s(pipeline, shown)
    detailed = times_s is not None
    if times_s is None:
        times_s = _by_rate(pipeline, baseline.adjusted_mean_s)
    made: dict[tuple[int, Kind], DefaultWork] = {}
    for stage, own in enumerate(placed):
        gpu = gpus.get(own[0].uuid)
        if gpu is None or not gpu.description.clocks_mhz:
            return None
        table, seen = gpu.description.clocks_mhz, min(one.clock_mhz for one in own)
        clock_mhz = next((mhz for mhz in table if mhz >= seen), table[-1])
        keys = keys_of(pipeline, stage, by_part=False)
        count = pipeline.microbatches * pipeline.chunks
        busy_s = count * sum(times_s[key] for key in keys)
        whole_s = max(busy_s, baseline.adjusted_mean_s)
        working_w = (power_w[stage] * whole_s - blocking_w * (whole_s - busy_s)) / busy_s
        for key in keys:
            made[key] = DefaultWork(
                gpu.description.model,
                clock_mhz,
                table[-1],
                times_s[key],
                max(blocking_w, working_w),
            )
    return DefaultWorks(made, blocking_w, detailed)


def _busiest(reported: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By kind, the longest mean operation of some GPUs of one stage; kinds that all report."""
    kinds = set.intersection(*(set(one) for one in reported))
    return {kind: max(one[kind] for one in reported) for kind in kinds}


def _times_s(
    pipeline: Pipeline, shown: Sequence[Mapping[str, float]]
) -> dict[tuple[int, Kind], float] | None:
    """Seconds of each operation as reported; None where any is not."""
    found: dict[tuple[int, Kind], float] = {}
    for stage, reported in enumerate(shown):
        for key in keys_of(pipeline, stage, by_part=False):
            seconds = reported.get(key[1], 0.0)
            if key[1] in HALVES and not seconds:
                seconds = 0.5 * reported.get("backward", 0.0)
            if seconds <= 0.0:
                return None
            found[key] = seconds
    return found


def _by_rate(pipeline: Pipeline, iteration_s: float) -> dict[tuple[int, Kind], float]:
    """As if all stages did the same work, and nothing else took time."""
    graph = build(pipeline)
    starts = [0.0] * len(graph.operations)
    for before, after in graph.edges:
        ends = starts[before] + RELATIVE[graph.operations[before].kind]
        starts[after] = max(starts[after], ends)
    whole = max(s + RELATIVE[o.kind] for s, o in zip(starts, graph.operations, strict=True))
    return {
        key: RELATIVE[key[1]] * iteration_s / whole
        for stage in range(pipeline.stages)
        for key in keys_of(pipeline, stage, by_part=False)
    }


def predicted_decision(inputs: PlanningInput, state: PlannerState, solver: Answers) -> Decision:
    """The planner's decision, with the band of its forecast. Raises as `decide`."""
    known = inputs.predicted
    if known is None:
        against = first(veto for veto in vetoes(inputs) if veto.kind != "profile")
        waits = "no profile, and power and clocks of its GPUs at default clocks are not known yet"
        if against is not None:
            return given_up(state, against)
        return Decision("keep", "prediction", waits, state)
    inputs = replace(inputs, job=known.planned(inputs.job))
    decision = decide(inputs, state, known.estimator, solver)
    if decision.topic == "nothing":
        return replace(decision, reason=f"{known.text}: {decision.reason}")
    if decision.plan is None or decision.plan.forecast is None or decision.state.clocks is None:
        return decision
    band = _band(inputs, known, decision.state.clocks)
    reason = f"{known.text}: {decision.reason}"
    forecast = replace(decision.plan.forecast, band=band)
    plan = replace(decision.plan, forecast=forecast, predicted_from=known.text, reason=reason)
    return replace(decision, plan=plan, reason=reason)


def _band(inputs: PlanningInput, known: Prediction, clocks: Clocks) -> Band | None:
    """Slowdown and saving of these clocks, through the graph by each possible estimator."""
    slower, saved = [], []
    for estimator in known.possible:
        costs = price(inputs.job, inputs.view.gpus, estimator, inputs.host_power_w)
        found = _effect(costs, clocks) if isinstance(costs, Costs) else None
        if found is not None:
            slower.append(found[0])
            saved += [found[1] - FORM_HALF, found[1], found[1] + FORM_HALF]
    if not slower:
        return None
    outside = (1.0 - NOMINAL) / 2.0
    return Band(*_quantiles(slower, outside), *_quantiles(saved, outside))


def _effect(costs: Costs, clocks: Clocks) -> tuple[float, float] | None:
    """Slowdown and saving against default clocks, ratios."""
    made, default = evaluate(costs, clocks), at_default(costs)
    if made is None:
        return None
    time_s, base_s = made.iteration_time_s, default.iteration_time_s
    return time_s / base_s - 1.0, 1.0 - made.energy_j(time_s) / default.energy_j(base_s)


def _quantiles(values: Sequence[float], outside: float) -> tuple[float, float]:
    low, high = np.quantile(values, [outside, 1.0 - outside])
    return float(low), float(high)
