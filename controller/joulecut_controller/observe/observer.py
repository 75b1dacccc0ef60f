"""Builds views: of the cluster, and of one job with its agents, GPUs and the age of each part.

Pure: fleet state, reports and `now_s` in, a `View` out. Anything older than the staleness limit is
shown as unknown, so that no later step has to check ages. Which GPUs belong to which entry of the
policy is decided for all entries together; reports go to entries, and a job is looked at alone.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulecut_controller.observe.iteration_stats import Fresh, IterationStats, shape_in
from joulecut_controller.observe.job_matcher import JobMatch, Matches, match_jobs
from joulecut_controller.observe.phases import as_run
from joulecut_controller.observe.placement import Placements
from joulecut_controller.policy.owner import Instance, certain, foreign, instance_of
from joulecut_controller.policy.policy import JobPolicy, Policy
from joulecut_controller.ports import RETIRED_SOURCE, ArrivedReport, FleetState, RateSample
from joulecut_controller.view import GpuView, JobState, Placement, View
from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_wire.messages import IterationReport, PipelineShape

# A silent agent reports no change of owner either; the agent keeps a kubelet's last answer as long.
OWNER_AGE_S_MAX = 120.0
# A rate shows no stages. As one stage all GPUs share one clock, which fits every job.
ONE_STAGE = PipelineShape("", 1, 0)
# Schedules with one part of the model per GPU; of others the reports do not show the cut.
UNCHUNKED = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class JobObservation:
    """One job at one look. `shape` names pipeline, GPUs, profile and phase: a baseline measured in
    one shape does not hold in another.
    """

    job: JobState
    fresh: Fresh
    shape: str


class Observer:
    """Keeps placements from look to look."""

    def __init__(self, *, stale_s: float) -> None:
        self._placements = Placements()
        self._shapes: dict[str, _Shape] = {}
        self._policies: dict[str, JobPolicy] = {}
        self._matches = Matches()
        self._entry_of: dict[str, str] = {}  # of GPUs whose owners say which entry has them
        self._addresses: dict[str, str] = {}  # by GPU
        self._listed: dict[str, set[str]] = {}  # agents of entries with a list
        self._stale_s = stale_s

    def arrange(
        self, policy: Policy, state: FleetState, now_s: float, own: Container[str] | None = None
    ) -> tuple[View, set[str]]:
        """Gives every entry its GPUs. Returns the cluster as of now, without jobs, and the entries
        whose GPUs have changed. `own` are the entries that this controller commands (None: all);
        observations of others are dropped.
        """
        gpus = {gpu.uuid: self._fresh(gpu) for gpu in state.gpus}
        names = [job.name for job in policy.jobs if own is None or job.name in own]
        self._placements.keep_only(names)
        self._shapes = {name: self._shapes[name] for name in names if name in self._shapes}
        self._policies = {job.name: job for job in policy.jobs}
        before, self._matches = self._matches.entries, match_jobs(policy, gpus)
        self._entry_of = {
            uuid: job.name
            for job in policy.jobs
            if job.found_by_allocation
            for uuid in self._matches.of(job.name).uuids
        }
        self._addresses = {uuid: gpu.address for uuid, gpu in gpus.items()}
        listed = {job.name: self._matches.of(job.name).listed for job in policy.jobs if job.gpus}
        self._listed = {
            name: {gpus[uuid].address for uuid in uuids if uuid in gpus}
            for name, uuids in listed.items()
        }
        moved = {name for name, one in self._matches.entries.items() if one != before.get(name)}
        return View(now_s=now_s, nodes=state.nodes, gpus=gpus), moved

    def route(
        self, reports: Iterable[ArrivedReport], rates: Iterable[RateSample] = ()
    ) -> tuple[dict[str, list[ArrivedReport]], list[ArrivedReport]]:
        """Reports by entry of the policy, and those that belong to none. Where owners say which
        GPUs an entry has, the name that a job gives itself does not count, nor where the entry
        lists GPUs of other nodes; elsewhere it is all there is. Rates stand for reports of all GPUs
        of their jobs. What such a job sends itself does not count: two sources would number
        iterations twice.
        """
        by_job: dict[str, list[ArrivedReport]] = {}
        unclaimed: list[ArrivedReport] = []
        for arrived in reports:
            entry = self._entry_of.get(arrived.report.uuid, arrived.report.job)
            known = self._policies.get(entry)
            if known is None or self._is_elsewhere(entry, arrived.report.uuid):
                unclaimed.append(arrived)
            elif not known.rate:
                by_job.setdefault(entry, []).append(arrived)
        for one in rates:
            known = self._policies.get(one.job)
            for uuid in self._match(one.job).uuids if known and known.rate else ():
                report = IterationReport(
                    one.job, uuid, 0, one.number, one.duration_s, source=one.source, shape=ONE_STAGE
                )
                arrived = ArrivedReport(report, one.arrived_s, one.span_s)
                by_job.setdefault(one.job, []).append(arrived)
        return by_job, unclaimed

    def _is_elsewhere(self, entry: str, uuid: str) -> bool:
        """Whether the entry lists no GPU of that agent; the name of a node may be a lie."""
        listed, address = self._listed.get(entry), self._addresses.get(uuid)
        return listed is not None and address is not None and address not in listed

    def gpus_of(self, job: str, reports: Iterable[ArrivedReport]) -> frozenset[str]:
        """The GPUs that a look at the job needs, with those of its newest reports."""
        new = frozenset(arrived.report.uuid for arrived in reports)
        return self._match(job).uuids | self._placements.reporting(job) | new

    def agents_of(self, job: str, reports: Iterable[ArrivedReport]) -> frozenset[str]:
        """The addresses of the job's agents; empty text for one that is not known."""
        uuids = self.gpus_of(job, reports).union(self._match(job).listed)
        return frozenset(self._addresses.get(uuid, "") for uuid in uuids) or frozenset(("",))

    def observe(
        self,
        policy: JobPolicy,
        state: FleetState,
        reports: list[ArrivedReport],
        now_s: float,
        *,
        stats: IterationStats,
        loads: bool = True,
    ) -> tuple[JobObservation, View]:
        """A job as of now; `state` has its agents, `stats` its iterations. Without `loads` those of
        its GPUs stay as they are (see `fold`).
        """
        seen = View(
            now_s=now_s,
            nodes=state.nodes,
            gpus={gpu.uuid: self._fresh(gpu) for gpu in state.gpus},
        )
        gpus = seen.gpus
        reports = [one for one in reports if one.report.source != RETIRED_SOURCE]
        new = [arrived.report.uuid for arrived in reports if arrived.report.uuid in gpus]
        match = self._match(policy.name, new)
        self._placements.note(policy.name, reports, gpus)
        unknown = ""
        if policy.pipeline is None and not policy.is_order:
            shapes = self._placements.shapes(policy.name)
            policy, unknown = replace(policy, pipeline=pipeline_of(shapes)), missing(shapes)
        if policy.pipeline is not None:
            policy = replace(policy, pipeline=as_run(policy.pipeline, stats.phase))
            if stats.phase.kind == "evaluate":  # a profile is of training
                policy = replace(policy, profile=None)
        placement = self._placements.placement(policy, gpus, now_s, match)
        if unknown and not placement.complaint:
            placement = replace(placement, complaint=unknown)
        if stats.rate_alone:
            policy, placement = _as_one_stage(policy, placement)
        shape = self._shape(policy, placement)
        measured, fresh = stats.fold(
            placement.stages,
            reports,
            gpus,
            now_s,
            groups=placement.groups,
            shape=shape,
            loads=loads or policy.profile is None,
        )
        running = match.running or unanimous(placement, gpus)
        hindrance = ""
        if policy.mode != "off":
            hindrance = reservation_of(policy, placement, running, seen)
        reservation = hindrance if policy.mode == "enforce" else ""
        if reservation:
            policy = replace(policy, mode="recommend")
        job = JobState(
            policy=policy,
            placement=placement,
            measured=measured,
            generation_running=_generation(policy.name, placement, gpus),
            running=running,
            reservation=reservation,
            hindrance=hindrance,
        )
        return JobObservation(job, fresh, shape_in(shape, measured.phase)), seen

    def _match(self, job: str, reporting: Iterable[str] = ()) -> JobMatch:
        return self._matches.of(job, self._placements.reporting(job).union(reporting))

    def _fresh(self, gpu: GpuView) -> GpuView:
        if gpu.age_s <= self._stale_s + gpu.every_s:
            return gpu
        kept = gpu.allocation if gpu.age_s <= OWNER_AGE_S_MAX + gpu.every_s else None
        return replace(gpu, snapshot=None, allocation=kept)

    def _shape(self, policy: JobPolicy, placement: Placement) -> str:
        known = self._shapes.get(policy.name)
        if known is None or not known.is_of(policy, placement):
            digest = _digest(policy, placement)
            known = _Shape(policy.pipeline, policy.profile, placement.stages, digest)
            self._shapes[policy.name] = known
        return known.digest


@dataclass(frozen=True, slots=True)
class _Shape:
    """A job's shape and its parts. The digest of a profile takes a millisecond."""

    pipeline: Pipeline | None
    profile: Profile | None
    stages: tuple[tuple[str, ...], ...]
    digest: str

    def is_of(self, policy: JobPolicy, placement: Placement) -> bool:
        return (
            policy.profile is self.profile
            and policy.pipeline == self.pipeline
            and placement.stages == self.stages
        )


def _as_one_stage(policy: JobPolicy, placement: Placement) -> tuple[JobPolicy, Placement]:
    """A job that reports its rate alone and has no profile: nothing says which GPU the others wait
    for, so that all have one clock.
    """
    if policy.pipeline is None or policy.profile is not None or placement.complaint:
        return policy, placement
    uuids = tuple(sorted(placement.uuids))
    pipeline = Pipeline("1f1b", stages=1, microbatches=1, data_parallel=len(uuids))
    clocks = replace(policy.clocks, granularity="gpu")
    policy = replace(policy, pipeline=pipeline, clocks=clocks)
    return policy, replace(placement, stages=(uuids,), groups=())


def _generation(job: str, placement: Placement, gpus: Mapping[str, GpuView]) -> int:
    """The one generation that all the job's leases carry; 0 at default or in between."""
    held = {
        gpu.snapshot.lease.generation
        for uuid in placement.uuids
        if (gpu := gpus.get(uuid)) and gpu.snapshot and gpu.snapshot.lease
        if gpu.snapshot.lease.job == job
    }
    return held.pop() if len(held) == 1 else 0


def _digest(policy: JobPolicy, placement: Placement) -> str:
    options = policy.profile.options if policy.profile else {}
    # Keys that a job does not use leave the baselines valid that were kept before they existed.
    pipeline = repr(policy.pipeline).replace("context_parallel=1, expert_parallel=1, ", "")
    content = f"({pipeline}, {placement.stages!r}, {sorted(options.items())!r})"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def pipeline_of(shapes: Sequence[PipelineShape]) -> Pipeline | None:
    """The pipeline that these GPUs report; None where it is not known, or they disagree."""
    stages = {shape.stages for shape in shapes}
    tensor = {shape.tensor_parallel for shape in shapes}
    schedules = {shape.schedule for shape in shapes} - {""}
    microbatches = {shape.microbatches for shape in shapes} - {0}
    if len(stages) != 1 or len(tensor) != 1:
        return None
    if stages == {1}:
        schedules, microbatches = {"1f1b"}, {1}
    if len(schedules) != 1 or len(microbatches) != 1:
        return None
    schedule, count, width = schedules.pop(), stages.pop(), tensor.pop()
    if schedule not in UNCHUNKED:
        return None
    replicas = -(-len(shapes) // (count * width))
    return Pipeline(
        schedule="gpipe" if schedule == "gpipe" else "1f1b",
        stages=count,
        microbatches=microbatches.pop(),
        tensor_parallel=width,
        data_parallel=max(1, replicas),
    )


def missing(shapes: Sequence[PipelineShape]) -> str:
    """Why reported shapes are no pipeline yet; empty where nothing is reported."""
    if not shapes or pipeline_of(shapes) is not None:
        return ""
    stages = sorted({shape.stages for shape in shapes})
    names = sorted({shape.schedule for shape in shapes} - {""})
    counts = sorted({shape.microbatches for shape in shapes} - {0})
    return (
        "the job's processes do not show its whole pipeline: "
        f"stages {_listed(stages)}, schedule {_listed(names)}, microbatches {_listed(counts)}; "
        "name it: pipeline: {schedule: ..., stages: ..., microbatches: ...}"
    )


def _listed(values: list[str] | list[int]) -> str:
    return " and ".join(map(str, values)) or "unknown"


def unanimous(placement: Placement, gpus: Mapping[str, GpuView]) -> Instance | None:
    """The running job of the first GPU of which that is sure; all others have to agree."""
    for uuid in (uuid for stage in placement.stages for uuid in stage):
        gpu = gpus.get(uuid)
        if gpu is not None and gpu.allocation is not None and certain(gpu.allocation):
            return instance_of(gpu.allocation)
    return None


def reservation_of(
    policy: JobPolicy, placement: Placement, running: Instance | None, view: View
) -> str:
    """Why no command should be sent for the job; empty where one may be."""
    if placement.doubt:
        return placement.doubt
    for uuid in (uuid for stage in placement.stages for uuid in stage):
        gpu = view.gpus.get(uuid)
        if gpu is None:
            continue  # the layout's own complaint
        node = view.node_at.get(gpu.address)
        why = (
            foreign(policy, running, gpu.allocation)
            or (node.hindrance if node else "")
            or gpu.hindrance
        )
        if why:
            return f"GPU {gpu.place}: {why}"
    return ""
