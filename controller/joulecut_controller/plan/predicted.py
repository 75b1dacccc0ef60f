"""The profile of a job that has none: predicted from other jobs, and corrected as the job runs.

What the job shows at default clocks (times of its operations, or its rate; power and clocks of its
GPUs) is its work; other jobs say how time and power of such work follow the clock. Planner and
solver answer as for a measured profile. Pure.
"""

import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from joulecut_controller.plan.costs import Costs, keys_of, price
from joulecut_controller.plan.evaluation import Clocks, at_default, evaluate
from joulecut_controller.plan.plan import Band
from joulecut_controller.plan.planner import Decision
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.view import GpuView, JobState
from joulecut_engine.estimate.estimator import NOMINAL, Estimator, Subject
from joulecut_engine.estimate.other_jobs import FORM_HALF, DefaultWork
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile

# Of a rate alone: a backward computes two products for each of a forward, and its halves one each.
RELATIVE: Mapping[str, float] = {"forward": 1.0, "backward": 2.0, "input": 1.0, "weight": 1.0}
BLOCKING_UNKNOWN = 0.25  # of the mean power, where the policy does not give it
PROFILE_CLOCKS = 9  # one every twentieth of the clock, so that measured ones soon outweigh it
SOURCE = "predicted from other jobs"
HALVES = ("input", "weight")  # of a backward


def covered(kind: str, reported: Set[str]) -> tuple[str, ...]:
    """The kinds of operation that a reported kind stands for. A job that does not tell the halves
    of a backward apart reports them as one.
    """
    return (kind, *HALVES) if kind == "backward" and reported.isdisjoint(HALVES) else (kind,)


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
    """Of one job: `possible` are estimators by the errors that predictions of other jobs had, the
    likely one first. `sure` has times that four such jobs in five stay below. `text` says what it
    rests on.
    """

    works: DefaultWorks
    sure: Estimator
    possible: tuple[Estimator, ...]
    text: str

    def profile(self, *, sure: bool) -> Profile:
        """The likely one, or one for clocks that run. Raises ValueError for work that no curve
        fits.
        """
        options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
        estimator = self.sure if sure else self.possible[0]
        for (stage, kind), work in self.works.works.items():
            subject = Subject("", "", stage, kind)
            known = [mhz for mhz in estimator.known_clocks_mhz(subject) if mhz <= work.default_mhz]
            places = np.linspace(0, len(known) - 1, min(len(known), PROFILE_CLOCKS)).round()
            clocks = tuple(known[int(at)] for at in places)
            curve = estimator.predict(subject, clocks)
            if curve is None or len(clocks) < 2:
                raise ValueError(f"nothing is predicted of {kind} of stage {stage}")
            rows = zip(clocks, curve.time_s.tolist(), curve.power_w.tolist(), strict=True)
            options[stage, kind] = tuple(ClockOption(m, s, s * w) for m, s, w in rows)
        blocking_w = self.works.blocking_power_w
        return Profile(options, SOURCE, predicted=True, blocking_power_w=blocking_w)


def default_works(job: JobState, gpus: Mapping[str, GpuView]) -> DefaultWorks | None:
    """None while the job is not known at default clocks: baseline, power or clocks are missing, or
    a GPU works at another pace since.
    """
    pipeline, baseline = job.policy.pipeline, job.measured.baseline
    loads = {load.uuid: load for load in job.measured.loads}
    if pipeline is None or baseline is None or not job.measured.at_default:
        return None
    if job.measured.drift.gpu_shift is not None:  # default clocks were not measured since
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
        times_s = _by_rate(pipeline, baseline.time_mean_s)
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
        whole_s = max(busy_s, baseline.time_mean_s)
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


def as_predicted(decision: Decision, inputs: PlanningInput) -> Decision:
    """A decision for a job that never ran at lower clocks, with the band of its forecast."""
    known, made = inputs.predicted, decision.plan
    if known is None:
        return decision
    if decision.topic == "nothing":
        return replace(decision, reason=f"{known.text}: {decision.reason}")
    if made is None or made.forecast is None or decision.state.clocks is None:
        return decision
    band = _band(inputs, known, decision.state.clocks)
    reason = f"{known.text}: {decision.reason}"
    forecast = replace(made.forecast, band=band)
    plan = replace(made, forecast=forecast, predicted_from=known.text, reason=reason)
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
