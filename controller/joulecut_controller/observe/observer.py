"""Builds the one picture a pass reasons on: agents, GPUs and jobs, with the age of each part.

Pure: what the fleet said and `now_s` go in, a `View` comes out. What is older than the
staleness limit is shown as not known, so that nobody behind it has to remember to ask.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from joulecut_controller.observe.iteration_stats import Ledger, Measured
from joulecut_controller.observe.job_matcher import Claim, claims
from joulecut_controller.observe.placement import Layout, Roster
from joulecut_controller.observe.reserve import reservation_of, unanimous
from joulecut_controller.policy.policy import JobPolicy, Policy
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.view import GpuView, JobView, View, Window

# An agent that is not heard of does not say either who came and went; a kubelet's last word
# stands for as long on the node.
OWNER_AGE_S_MAX = 120.0

Recall = Callable[[str, str], Window | None]  # (job, shape) -> a baseline measured earlier


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen of one job, beside its `JobView`. `shape` names pipeline, GPUs and
    profile: a baseline measured in one shape says nothing about another.
    """

    view: JobView
    layout: Layout
    measured: Measured
    shape: str


class Observer:
    """Keeps roster and ledger from pass to pass."""

    def __init__(self, *, lag_s: float, stale_s: float) -> None:
        self._roster = Roster()
        self._ledger = Ledger(lag_s=lag_s)
        self._stale_s = stale_s

    def changed(self, job: str, locks: Mapping[str, int], now_s: float, shown_s: float) -> None:
        """Our own hand changed a job's clocks; agents show it from `shown_s` on."""
        self._ledger.changed(job, locks, now_s, shown_s)

    def look(
        self,
        policy: Policy,
        state: FleetState,
        reports: tuple[ArrivedReport, ...],
        now_s: float,
        recall: Recall,
    ) -> tuple[View, Mapping[str, Sighting]]:
        """One look. Reports of jobs that the policy does not name are dropped."""
        gpus = {gpu.uuid: self._fresh(gpu) for gpu in state.gpus}
        names = [job.name for job in policy.jobs]
        self._roster.keep_only(names)
        self._ledger.keep_only(names)
        claimed = self._claims(policy, gpus, reports)
        by_job = _routed(policy, claimed, reports)
        seen = View(now_s=now_s, nodes=state.nodes, gpus=gpus)
        sightings = {
            job.name: self._sight(job, by_job[job.name], seen, claimed[job.name], recall)
            for job in policy.jobs
        }
        jobs = tuple(sighting.view for sighting in sightings.values())
        return replace(seen, jobs=jobs), sightings

    def _fresh(self, gpu: GpuView) -> GpuView:
        if gpu.age_s <= self._stale_s:
            return gpu
        kept = gpu.allocation if gpu.age_s <= OWNER_AGE_S_MAX else None
        return replace(gpu, snapshot=None, allocation=kept)

    def _claims(
        self, policy: Policy, gpus: Mapping[str, GpuView], reports: tuple[ArrivedReport, ...]
    ) -> dict[str, Claim]:
        reporting = {job.name: set(self._roster.reporting(job.name)) for job in policy.jobs}
        for arrived in reports:
            if arrived.report.job in reporting and arrived.report.uuid in gpus:
                reporting[arrived.report.job].add(arrived.report.uuid)
        return claims(policy, gpus, reporting)

    def _sight(
        self,
        policy: JobPolicy,
        reports: list[ArrivedReport],
        seen: View,
        claim: Claim,
        recall: Recall,
    ) -> Sighting:
        gpus, now_s = seen.gpus, seen.now_s
        self._roster.note(policy.name, reports, gpus)
        layout = self._roster.layout(policy, gpus, now_s, claim)
        shape = _shape(policy, layout)
        measured = self._ledger.fold(
            policy.name,
            layout.stages,
            reports,
            gpus,
            now_s,
            shape=shape,
            recall=lambda: recall(policy.name, shape),
        )
        running = claim.running or unanimous(layout, gpus)
        reservation = ""
        if policy.mode == "enforce":
            reservation = reservation_of(policy, layout, running, seen)
        view = JobView(
            policy=replace(policy, mode="recommend") if reservation else policy,
            stages=layout.stages,
            loads=measured.loads,
            baseline=measured.baseline,
            current=measured.current,
            generation_running=_generation(policy.name, layout, gpus),
            peer_iteration_time_s=measured.peer_iteration_time_s,
            report_age_s=layout.report_age_s,
            complaint=layout.complaint,
            running=running,
            foreign=measured.foreign,
            reservation=reservation,
            reports_refused=measured.refused,
        )
        return Sighting(view, layout, measured, shape)


def _routed(
    policy: Policy, claimed: Mapping[str, Claim], reports: tuple[ArrivedReport, ...]
) -> dict[str, list[ArrivedReport]]:
    """Reports by entry. Where owners say which GPUs an entry has, the name that a job gives
    itself does not count; elsewhere it is all there is.
    """
    found = [job.name for job in policy.jobs if job.found_by_allocation]
    entry_of = {uuid: name for name in found for uuid in claimed[name].uuids}
    by_job: dict[str, list[ArrivedReport]] = {job.name: [] for job in policy.jobs}
    for arrived in reports:
        entry = entry_of.get(arrived.report.uuid, arrived.report.job)
        if entry in by_job:
            by_job[entry].append(arrived)
    return by_job


def _generation(job: str, layout: Layout, gpus: Mapping[str, GpuView]) -> int:
    """The one generation that all the job's leases carry; 0 at default or in between."""
    held = {
        gpu.snapshot.lease.generation
        for uuid in layout.uuids
        if (gpu := gpus.get(uuid)) and gpu.snapshot and gpu.snapshot.lease
        if gpu.snapshot.lease.job == job
    }
    return held.pop() if len(held) == 1 else 0


def _shape(policy: JobPolicy, layout: Layout) -> str:
    options = policy.profile.options if policy.profile else {}
    content = repr((policy.pipeline, layout.stages, sorted(options.items())))
    return hashlib.sha256(content.encode()).hexdigest()[:16]
