"""The part of a job that delays its newest iteration, by the times of its operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from joulecut_controller.plan.slow_part import Cause, SlowPart, by_operation, misfit, slow_part
from joulecut_controller.view import GpuView, JobState, PipelineTrace
from joulecut_engine.graph import Graph

PLACES_MAX = 4  # GPUs named in a sentence


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
    if not traces or misfit(graph, traces[0].stages):
        return None
    if held is not None and held.iteration == traces[0].iteration:
        return held
    measured_s = [trace.measured_s for trace in traces]
    seconds = by_operation(graph, [trace.stages for trace in traces])
    part = slow_part(graph, seconds, measured_s)
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
