"""Which GPU works which stage of which job, as the job itself or its operator says.

Everything after it (windows, samples, plans) needs the answer first, and a wrong one would
slow the wrong GPU: whatever does not fit is a complaint, and a job with a complaint keeps
its default clocks. Pure, and bounded by the GPUs that agents describe.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView

# A checkpoint or an evaluation holds up a few iterations; more is not working any more.
SILENCE_ITERATIONS = 8
# Reports come in batches, one a watch interval (at most 1 s), through two processes.
SILENCE_S_MIN = 5.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a job runs. `stages[s]` are the UUIDs of stage s, sorted; empty with a complaint
    that keeps even that from being known.
    """

    stages: tuple[tuple[str, ...], ...]
    report_age_s: float
    silence_limit_s: float
    complaint: str = ""

    @property
    def silent(self) -> bool:
        return self.report_age_s > self.silence_limit_s

    @property
    def uuids(self) -> frozenset[str]:
        return frozenset(uuid for stage in self.stages for uuid in stage)


@dataclass(slots=True)
class _Seat:
    stage: int
    seen_s: float
    duration_s: float


class Roster:
    """Remembers who reported what, per job of the policy."""

    def __init__(self) -> None:
        self._seats: dict[str, dict[str, _Seat]] = {}
        self._stranger: dict[str, str] = {}

    def note(
        self, job: str, reports: Iterable[ArrivedReport], known: Mapping[str, GpuView]
    ) -> None:
        """Takes in a job's reports. UUIDs no agent describes take no memory."""
        seats = self._seats.setdefault(job, {})
        for arrived in reports:
            report = arrived.report
            if report.uuid not in known:
                self._stranger[job] = report.uuid
                continue
            seats[report.uuid] = _Seat(report.stage, arrived.arrived_s, report.duration_s)

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        wanted = set(jobs)
        for job in [job for job in self._seats if job not in wanted]:
            del self._seats[job]
            self._stranger.pop(job, None)

    def layout(self, policy: JobPolicy, gpus: Mapping[str, GpuView], now_s: float) -> Layout:
        """The job's GPUs by stage as of now, or what is wrong with them."""
        seats = self._seats.get(policy.name, {})
        last_s = max((seat.seen_s for seat in seats.values()), default=-math.inf)
        limit_s = _silence_limit_s(seats.values())
        for uuid in [uuid for uuid, seat in seats.items() if seat.seen_s < last_s - limit_s]:
            del seats[uuid]  # the job went on without it
        age_s = now_s - last_s
        listed, complaint = _listed(policy, gpus)
        if policy.ranks == "list":
            stages = _by_rank(policy, listed)
        else:
            stages = _by_report(policy, seats)
            outside = [uuid for uuid in seats if policy.gpus and uuid not in listed]
            if outside and not complaint:
                complaint = f"GPU {outside[0]} reports this job but is not in its match.gpus"
        if not seats:
            stranger = self._stranger.get(policy.name)
            complaint = complaint or (
                f"reports name GPU {stranger}, which no agent describes"
                if stranger
                else "the job has not reported yet"
            )
        return Layout(
            stages=stages,
            report_age_s=age_s,
            silence_limit_s=limit_s,
            complaint=complaint or _misfit(policy, stages),
        )


def _silence_limit_s(seats: Iterable[_Seat]) -> float:
    longest_s = max((seat.duration_s for seat in seats), default=0.0)
    return max(SILENCE_S_MIN, SILENCE_ITERATIONS * longest_s)


def _listed(policy: JobPolicy, gpus: Mapping[str, GpuView]) -> tuple[tuple[str, ...], str]:
    """The UUIDs of `match.gpus` in the operator's order, and the first that is not there."""
    by_place = {(gpu.node, gpu.description.index): uuid for uuid, gpu in gpus.items()}
    listed: list[str] = []
    for ref in policy.gpus:
        uuid = by_place.get((ref.node, ref.index))
        if uuid is None:
            return tuple(listed), f"no agent describes GPU {ref.node}/{ref.index}"
        listed.append(uuid)
    return tuple(listed), ""


def _by_rank(policy: JobPolicy, listed: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Pipeline rank is the outermost of the rank order (Megatron-LM: tp-cp-ep-dp-pp)."""
    pipeline = policy.pipeline
    if pipeline is None or not listed or len(listed) % pipeline.stages:
        return ()
    width = len(listed) // pipeline.stages
    return tuple(
        tuple(sorted(listed[stage * width : (stage + 1) * width]))
        for stage in range(pipeline.stages)
    )


def _by_report(policy: JobPolicy, seats: Mapping[str, _Seat]) -> tuple[tuple[str, ...], ...]:
    if not seats:
        return ()
    planned = policy.pipeline.stages if policy.pipeline else 0
    count = max(planned, 1 + max(seat.stage for seat in seats.values()))
    if count > planned + len(seats):  # a stray stage number must not make a huge tuple
        return ()
    return tuple(
        tuple(sorted(uuid for uuid, seat in seats.items() if seat.stage == stage))
        for stage in range(count)
    )


def _misfit(policy: JobPolicy, stages: tuple[tuple[str, ...], ...]) -> str:
    """Why these stages are not the pipeline of the policy; empty where they are."""
    pipeline = policy.pipeline
    if pipeline is None:
        return ""  # without a pipeline nothing is planned, which is its own reason
    if len(stages) != pipeline.stages:
        return f"the pipeline has {pipeline.stages} stages, but the job's GPUs show {len(stages)}"
    empty = [stage for stage, uuids in enumerate(stages) if not uuids]
    if empty:
        return f"no GPU reports stage {empty[0]} of {pipeline.stages}"
    widths = {len(uuids) for uuids in stages}
    if len(widths) > 1:
        return f"stages have {min(widths)} to {max(widths)} GPUs; all need the same number"
    width, group = widths.pop(), pipeline.tensor_parallel
    if width % group or width > group * pipeline.data_parallel:
        return (
            f"{width} GPUs a stage do not make whole groups of tensor_parallel {group} "
            f"x data_parallel {pipeline.data_parallel}"
        )
    return ""
