"""Iterations of a job whose single operations were timed, beside its pipeline graph."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from joulecut_controller.view import GpuView, JobState, PipelineTrace
from joulecut_engine.graph import Graph
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.levels import Floats, levels_of
from joulecut_engine.optimize.recorded import (
    Recorded,
    by_operation,
    misfit,
    recorded,
)
from joulecut_engine.optimize.slow_part import Cause, SlowPart, slow_part

# With fewer the spread of a whole job is as good: of 16, the slowest tenth is two.
TRACES_MIN = 16
# Every change means another solve: new iterations count when they are as many as those held, or
# after this many.
RENEW_ITERATIONS = 512
# Operations that vary less are alike: a distribution describes them, and needs fewer iterations.
UNEVEN_RATIO_MIN = 0.05
PLACES_MAX = 4  # GPUs named in a sentence


@dataclass(frozen=True, slots=True)
class MeasuredGraph:
    """How a graph describes measured iterations, each with the times of its own operations.

    `ratio` is measured over modelled time, the median over iterations. With a `complaint` other
    operations ran than the graph has. Plans are judged on `recorded` where operations differ.
    """

    pipeline: Pipeline
    pipelines: int
    newest: int  # number of the newest iteration
    ratio: float = 1.0
    complaint: str = ""
    recorded: Recorded | None = None


def measured_graph(job: JobState, graph: Graph, held: MeasuredGraph | None) -> MeasuredGraph | None:
    """None where too few iterations were timed; `held` while little is new."""
    if len(job.measured.traces) < TRACES_MIN:
        return None
    newest = job.measured.traces[-1].iteration
    pipeline = job.policy.pipeline
    assert pipeline is not None
    if held is not None and held.pipeline == pipeline:
        grown = len(job.measured.traces) >= 2 * held.pipelines
        if not grown and 0 <= newest - held.newest < RENEW_ITERATIONS:
            return held
    made = MeasuredGraph(pipeline, len(job.measured.traces), newest)
    wrong = misfit(graph, job.measured.traces[-1].stages, job.measured.traces[-1].orders)
    if wrong:
        return replace(made, complaint=wrong)
    seconds = _seconds(job.measured.traces, graph)
    modelled_s = levels_of(graph).iteration_times(seconds.T)
    ratio = float(np.median(_over_pipelines(job.measured.traces, modelled_s.tolist())))
    found = recorded(graph, seconds)
    uneven = float(found.factors.std()) >= UNEVEN_RATIO_MIN
    return replace(made, ratio=ratio, recorded=found if uneven else None)


def _over_pipelines(traces: tuple[PipelineTrace, ...], modelled_s: list[float]) -> list[float]:
    """Measured over modelled time by iteration: the slowest pipeline sets both."""
    slowest: dict[int, tuple[float, float]] = {}
    for trace, seconds in zip(traces, modelled_s, strict=True):
        known = slowest.get(trace.iteration, (0.0, 0.0))
        slowest[trace.iteration] = max(known[0], trace.measured_s), max(known[1], seconds)
    return [measured_s / modelled for measured_s, modelled in slowest.values()]


@dataclass(frozen=True, slots=True)
class Delay:
    """The part that delays an iteration of a job, and the places of its GPUs. `cause` is
    "throttle" where the GPUs say themselves why they are slow (`reason`).
    """

    iteration: int
    part: SlowPart
    places: tuple[str, ...]
    cause: Cause | Literal["throttle"]
    reason: str = ""

    @property
    def text(self) -> str:
        """One sentence, without its full stop."""
        named = self.part.is_gpu and self.places
        where = f" (GPU {', '.join(self.places[:PLACES_MAX])})" if named else ""
        why = {
            "compute": f"its operations take {self.part.factor:.2f} x those of its peers",
            "data": "its microbatches take longer than those of its peers",
            "network": "longer than its operations explain: communication or input",
            "throttle": f"throttled: {self.reason}",
        }[self.cause]
        return f"{self.part.name}{where} delays iterations by {self.part.delay_ratio:.0%}: {why}"


def delay_of(
    job: JobState, graph: Graph, gpus: Mapping[str, GpuView], held: Delay | None
) -> Delay | None:
    """What delays the newest iteration, if anything does, or the newest at default clocks: under a
    plan the others are as slow as the slowest on purpose. `held` while it is of that iteration.
    """
    newest = _delay_of(job.measured.newest, graph, gpus, held)
    if newest is not None and newest.part.pipeline is not None:
        return newest
    at_default = _delay_of(job.measured.newest_at_default, graph, gpus, held)
    slow = at_default is not None and at_default.part.pipeline is not None
    return at_default if slow else newest


def _delay_of(
    traces: tuple[PipelineTrace, ...], graph: Graph, gpus: Mapping[str, GpuView], held: Delay | None
) -> Delay | None:
    if not traces or misfit(graph, traces[0].stages, ()):
        return None
    if held is not None and held.iteration == traces[0].iteration:
        return held
    measured_s = [trace.measured_s for trace in traces]
    part = slow_part(graph, _seconds(traces, graph), measured_s)
    if part is None:
        return None
    rows = traces if part.pipeline is None else (traces[part.pipeline],)
    stages = [trace.uuids if part.stage is None else (trace.uuids[part.stage],) for trace in rows]
    uuids = tuple(uuid for one in stages for stage in one for uuid in stage)
    placed = [gpus[uuid] for uuid in uuids if uuid in gpus]
    shown = [gpu.snapshot for gpu in placed if gpu.snapshot]
    reason = next((one.slow_reason for one in shown if one.slow_reason), "")
    cause = "throttle" if part.cause == "compute" and reason else part.cause
    places = tuple(gpu.place for gpu in placed)
    return Delay(traces[0].iteration, part, places, cause, reason)


def _seconds(traces: tuple[PipelineTrace, ...], graph: Graph) -> Floats:
    return by_operation(graph, [trace.stages for trace in traces])
