"""Which GPU works which stage of which job, as the job reports or its operator lists.

A wrong placement would slow the wrong GPU: any mismatch is a complaint, and a job with a complaint
keeps default clocks. Pure, and bounded by the GPUs that agents describe.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from joulecut_controller.observe.job_matcher import JobMatch
from joulecut_controller.observe.ranks import Seat, by_completion, seats
from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import NOT_REPORTED, GpuView, Placement
from joulecut_wire.messages import PipelineShape

# A checkpoint or an evaluation holds up a few iterations; more is not working any more.
SILENCE_ITERATIONS = 8
# Reports come in batches, one a watch interval (at most 1 s), through two processes.
SILENCE_S_MIN = 5.0
SILENCE_SPANS = 3  # of a rate: one answer lost, and the next one late
UNMATCHED = JobMatch()  # owners are unknown
STAGES_IN_DOUBT = 2  # with one stage there is nothing to mistake


@dataclass(slots=True)
class _Reporter:
    stage: int
    seen_s: float
    duration_s: float
    since_s: float
    late_s: float = 0.0  # of the report: its source sends in batches
    span_s: float = 0.0  # of a rate: the time to the next one
    replica: int | None = None
    source: str = ""
    shape: PipelineShape | None = None  # that it reported last
    worked: bool = True  # no reading of it was without work throughout


class Placements:
    """Remembers the reporting GPUs per job of the policy."""

    def __init__(self) -> None:
        self._reporters: dict[str, dict[str, _Reporter]] = {}
        self._jobs_of: dict[str, set[str]] = {}  # by GPU: the jobs that remember it
        self._stranger: dict[str, str] = {}

    def note(
        self, job: str, reports: Iterable[ArrivedReport], known: Mapping[str, GpuView]
    ) -> None:
        """Adds a job's reports. UUIDs that no agent describes are not kept."""
        reporters = self._reporters.setdefault(job, {})
        for arrived in reports:
            report = arrived.report
            if report.uuid not in known:
                self._stranger[job] = report.uuid
                continue
            before = reporters.get(report.uuid)
            reporters[report.uuid] = _Reporter(
                report.stage,
                arrived.arrived_s,
                report.duration_s,
                before.since_s if before else arrived.arrived_s,
                report.age_s,
                arrived.span_s,
                report.replica,
                report.source,
                report.shape or (before.shape if before else None),
                _works(known[report.uuid]) or (before is not None and before.worked),
            )
            self._jobs_of.setdefault(report.uuid, set()).add(job)
            self._follow(job, report.uuid, arrived.arrived_s)

    def _follow(self, job: str, uuid: str, at_s: float) -> None:
        """A GPU that another job left in silence is not that job's any more."""
        for other in self._jobs_of[uuid] - {job}:
            reporters = self._reporters[other]
            if at_s - reporters[uuid].seen_s > _silence_limit_s(reporters.values()):
                self._forget(other, uuid)

    def _forget(self, job: str, uuid: str) -> None:
        del self._reporters[job][uuid]
        jobs = self._jobs_of[uuid]
        jobs.discard(job)
        if not jobs:
            del self._jobs_of[uuid]

    def reporting(self, job: str) -> frozenset[str]:
        """The GPUs that reported a job, as far as they are remembered."""
        return frozenset(self._reporters.get(job, ()))

    def shapes(self, job: str) -> tuple[PipelineShape, ...]:
        """What these GPUs say of the job's pipeline."""
        reporters = self._reporters.get(job, {}).values()
        return tuple(one.shape for one in reporters if one.shape is not None)

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        wanted = set(jobs)
        for job in [job for job in self._reporters if job not in wanted]:
            for uuid in tuple(self._reporters[job]):
                self._forget(job, uuid)
            del self._reporters[job]
            self._stranger.pop(job, None)

    def placement(
        self,
        policy: JobPolicy,
        gpus: Mapping[str, GpuView],
        now_s: float,
        match: JobMatch = UNMATCHED,
    ) -> Placement:
        """The job's GPUs by stage as of now, or a complaint."""
        reporters = self._reporters.get(policy.name, {})
        for uuid in [uuid for uuid in reporters if _left(uuid, policy, gpus, match)]:
            self._forget(policy.name, uuid)
        ranked, complaint = _ranked(policy, gpus, match)
        if policy.is_order:  # it rests on no report
            complaint = match.complaint or complaint or ("" if ranked else "no GPU matches")
            mine = () if complaint else (tuple(sorted(ranked)),)
            return Placement(mine, 0.0, SILENCE_S_MIN, complaint)
        newest_s = max((reporter.seen_s for reporter in reporters.values()), default=-math.inf)
        # By the job's own reporters: a stray one does not change the limit.
        limit_s = _silence_limit_s(_placed(policy, reporters, ranked)[0].values())
        for uuid in [
            uuid for uuid, reporter in reporters.items() if reporter.seen_s < newest_s - limit_s
        ]:
            self._forget(policy.name, uuid)  # the job went on without it
        reporters, ignored = _placed(policy, reporters, ranked)
        last_s = max((reporter.seen_s for reporter in reporters.values()), default=-math.inf)
        limit_s, age_s = _silence_limit_s(reporters.values()), now_s - last_s
        if policy.ranks == "hook":
            stages = _by_report(policy, reporters)
            replica_of = {uuid: one.replica for uuid, one in reporters.items()}
        else:
            seated = seats(ranked, policy.rank_order, policy.pipeline) if policy.pipeline else {}
            stages = _by_rank(policy, seated)
            replica_of = {uuid: seat.replica for uuid, seat in seated.items()}
        if match.complaint:
            stages, complaint = (), match.complaint
        if not reporters:
            stranger = self._stranger.get(policy.name)
            complaint = complaint or (
                f"reports name GPU {stranger}, which no agent describes"
                if stranger
                else NOT_REPORTED
            )
        complaint = complaint or _misfit(policy, stages)
        if complaint and ignored:
            complaint, ignored = f"{complaint}; {ignored}", ""
        return Placement(
            stages=stages,
            report_age_s=age_s,
            silence_limit_s=limit_s,
            complaint=complaint,
            doubt=_doubt(policy, stages, reporters, gpus),
            groups=_groups(policy, stages, replica_of),
            source=next((one.source for one in reporters.values() if one.seen_s == last_s), ""),
            ignored=ignored,
        )


def _works(gpu: GpuView) -> bool:
    """Whether the GPU is at work, as far as a reading says."""
    return gpu.snapshot is None or gpu.snapshot.utilization_gpu_ratio != 0.0


def _silence_limit_s(reporters: Iterable[_Reporter]) -> float:
    """By what most of them say: all GPUs of a job share its iterations, one that lies does not."""
    known = tuple(reporters)
    if not known:
        return SILENCE_S_MIN
    usual_s = median_low(one.duration_s for one in known)
    late_s = median_low(one.late_s for one in known)
    least_s = max(SILENCE_S_MIN, SILENCE_SPANS * median_low(one.span_s for one in known))
    return max(least_s, SILENCE_ITERATIONS * usual_s) + 2.0 * late_s


def _listed(policy: JobPolicy, match: JobMatch) -> tuple[tuple[str, ...], str]:
    """The UUIDs of `match.gpus` in the operator's order, and the first that is not there."""
    for i, (ref, uuid) in enumerate(zip(policy.gpus, match.listed, strict=True)):
        if not uuid:
            return match.listed[:i], f"no agent describes GPU {ref.node}/{ref.index}"
    return match.listed, ""


def _left(uuid: str, policy: JobPolicy, gpus: Mapping[str, GpuView], match: JobMatch) -> bool:
    """Whether a GPU that once reported the job is known to work for another one now."""
    if uuid in match.uuids or policy.gpus or match is UNMATCHED:
        return False
    if not policy.found_by_allocation:
        return True  # an entry with a match has it
    gpu = gpus.get(uuid)
    return not match.uuids or gpu is None or gpu.allocation is not None


def _ranked(
    policy: JobPolicy, gpus: Mapping[str, GpuView], match: JobMatch
) -> tuple[tuple[str, ...], str]:
    """The GPUs that the policy lists or matches, in rank order, and a complaint."""
    if not policy.found_by_allocation:
        return _listed(policy, match)
    mine = [gpus[uuid] for uuid in sorted(match.uuids) if uuid in gpus]
    if policy.ranks == "completion-index":
        return by_completion(mine)
    return tuple(gpu.uuid for gpu in mine), ""


def _placed(
    policy: JobPolicy, reporters: Mapping[str, _Reporter], matched: tuple[str, ...]
) -> tuple[dict[str, _Reporter], str]:
    """The reporters that are the job's own, and which GPU is none of them and why. Where reports
    alone say where the job runs, a GPU that comes to a stage that has long been whole is none, nor
    one of a stage beyond the pipeline that comes to a job whose stages have long been there. A GPU
    that does no work yields to those that do, whichever came first.
    """
    why = " but is not in its match.gpus"
    if policy.gpus or policy.found_by_allocation:
        placed = {uuid: one for uuid, one in reporters.items() if uuid in matched}
        if not policy.gpus:
            why = ", but its agent does not say whose it is"
    else:
        stages, width = math.inf, len(reporters)
        if policy.pipeline:
            stages, width = policy.pipeline.stages, policy.pipeline.width
        seats: dict[int, list[_Reporter]] = {}
        placed, limit_s = {}, 0.0
        for uuid, one in sorted(
            reporters.items(), key=lambda item: (not item[1].worked, item[1].since_s)
        ):
            seated = seats.setdefault(one.stage, []) if one.stage < stages else []
            whole_s = math.inf
            if one.stage >= stages and len(seats) == stages:
                whole_s = max(first.since_s for first, *_ in seats.values())
            elif len(seated) >= width:
                whole_s = seated[width - 1].since_s
            if whole_s < math.inf and not one.worked and all(o.worked for o in placed.values()):
                whole_s = -math.inf
            if not limit_s and one.since_s > whole_s:
                limit_s = _silence_limit_s(placed.values())  # by those that were there first
            if one.since_s <= whole_s + limit_s:
                seated.append(one)
                placed[uuid] = one
        why = " beside those that work its stages"
    outside = next((uuid for uuid in reporters if uuid not in placed), "")
    return placed, f"GPU {outside} reports this job{why}" if outside else ""


def _by_rank(policy: JobPolicy, seated: Mapping[str, Seat]) -> tuple[tuple[str, ...], ...]:
    if policy.pipeline is None or not seated:
        return ()
    return tuple(
        tuple(sorted(uuid for uuid, seat in seated.items() if seat.stage == stage))
        for stage in range(policy.pipeline.stages)
    )


def _groups(
    policy: JobPolicy, stages: tuple[tuple[str, ...], ...], replica_of: Mapping[str, int | None]
) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The lock-step groups of every stage; empty where the replica of a GPU is unknown."""
    size = policy.pipeline.lockstep if policy.pipeline else 0
    if size == 1:
        return tuple(tuple((uuid,) for uuid in uuids) for uuids in stages)
    made = []
    for uuids in stages:
        by_replica: dict[int | None, list[str]] = {}
        for uuid in uuids:
            by_replica.setdefault(replica_of.get(uuid), []).append(uuid)
        whole = None not in by_replica and all(len(one) == size for one in by_replica.values())
        if not whole:
            return ()
        made.append(tuple(tuple(group) for group in by_replica.values()))
    return tuple(made)


def _doubt(
    policy: JobPolicy,
    stages: tuple[tuple[str, ...], ...],
    reporters: Mapping[str, _Reporter],
    gpus: Mapping[str, GpuView],
) -> str:
    """Why counted ranks are not trusted yet: the job's reports have to confirm them."""
    if policy.ranks == "hook" or len(stages) < STAGES_IN_DOUBT:
        return ""
    if len({reporter.stage for reporter in reporters.values()}) < STAGES_IN_DOUBT:
        return f"ranks by {policy.ranks} are not verified: the job's reports tell no stages"
    for stage, uuids in enumerate(stages):
        for uuid in uuids:
            where = gpus[uuid].place if uuid in gpus else uuid
            if uuid not in reporters:
                return f"ranks by {policy.ranks} are not verified: GPU {where} does not report"
            if reporters[uuid].stage != stage:
                return (
                    f"GPU {where} works stage {stage} by {policy.ranks}, "
                    f"but stage {reporters[uuid].stage} by its reports"
                )
    return ""


def _by_report(
    policy: JobPolicy, reporters: Mapping[str, _Reporter]
) -> tuple[tuple[str, ...], ...]:
    if not reporters:
        return ()
    planned = policy.pipeline.stages if policy.pipeline else 0
    count = max(planned, 1 + max(reporter.stage for reporter in reporters.values()))
    if count > planned + len(reporters):  # a stray stage number must not make a huge tuple
        return ()
    return tuple(
        tuple(sorted(uuid for uuid, reporter in reporters.items() if reporter.stage == stage))
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
    width, group, whole = widths.pop(), pipeline.lockstep, pipeline.width
    # Half of two groups would count as one: with groups, all GPUs have to be there.
    if width > whole or (group > 1 and width < whole):
        return (
            f"{width} GPUs a stage do not make whole groups of tensor_parallel "
            f"{pipeline.tensor_parallel} x context_parallel {pipeline.context_parallel} "
            f"x data_parallel {pipeline.data_parallel}"
        )
    return ""
