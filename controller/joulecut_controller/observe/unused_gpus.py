"""GPUs that a job holds and does not use, where the policy lowers their clocks (`idle.mode`).

An entry whose GPUs are all unused asks for a fixed clock in place of its plan. Unused GPUs of other
owners get an entry for each running job. Both end at the first work. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from joulecut_controller.observe.job_matcher import Matches, match_jobs
from joulecut_controller.policy.job_classes import INSTANCES_MAX, instance_name
from joulecut_controller.policy.owner import REPORT, Instance, instance_of, shared
from joulecut_controller.policy.policy import Fixed, GpuRef, JobPolicy, Policy, Slo
from joulecut_controller.view import GpuView, JobState


def with_unused(
    policy: Policy, unused: Collection[str], gpus: Mapping[str, GpuView], jobs: Iterable[JobState]
) -> Policy:
    """The policy with the fixed clock of unused GPUs. A job whose iterations are reported works,
    whatever its GPUs show.
    """
    if policy.idle.mode != "enforce" or policy.mode == "off" or not unused:
        return policy
    working = {
        uuid
        for job in jobs
        if not (job.policy.parked or job.placement.silent)
        for uuid in job.placement.uuids
    }
    free, matches = set(unused) - working, match_jobs(policy, gpus)
    parked = Fixed(policy.idle.lock_mhz, unused=True)
    entries = [
        replace(job, parked=parked, mode="enforce" if job.found else job.mode)
        if _is_unused(job, matches, free)
        else job
        for job in policy.jobs
    ]
    places: dict[Instance, list[GpuRef]] = {}
    for gpu in (gpus[uuid] for uuid in sorted(free - matches.owned.keys()) if uuid in gpus):
        owner = gpu.allocation
        if owner is not None and owner.source != REPORT and not shared(owner):
            places.setdefault(instance_of(owner), []).append(
                GpuRef(gpu.node, gpu.description.index)
            )
    names = {job.name for job in policy.jobs}
    entries += [
        JobPolicy(name, "enforce", Slo(0.0, given_as=""), tuple(refs), parked=parked, found=True)
        for instance, refs in sorted(places.items())[:INSTANCES_MAX]
        if (name := instance_name("idle", instance)) not in names
    ]
    return replace(policy, jobs=tuple(entries))


def _is_unused(job: JobPolicy, matches: Matches, free: set[str]) -> bool:
    """Whether all GPUs of an entry are; one that reports alone give GPUs to has none then."""
    match = matches.entries.get(job.name)
    if match is None or match.complaint or job.mode == "off" or job.fixed:
        return False
    return bool(match.uuids) and match.uuids <= free
