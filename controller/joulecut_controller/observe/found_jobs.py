"""Jobs that no entry of the policy names: found by their reports, and by the owner of their GPUs.

A running job with a pod or Slurm id whose reports belong to no entry gets an entry of its own, in
mode recommend: no command follows from it. It ends with the job, or with an entry that takes the
job. Pure: owners as agents report them, reports and policy go in.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from joulecut_controller.policy.job_classes import instance_name, match_of
from joulecut_controller.policy.owner import KUBERNETES, SLURM, Instance, instance_of, matches
from joulecut_controller.policy.owner import shared as has_several_owners
from joulecut_controller.policy.policy import JobPolicy, Policy, Slo
from joulecut_controller.view import GpuView

# Each is learnt and planned like a job of the policy. Half the jobs without a profile that one
# controller is known to follow (docs/scale.md).
FOUND_MAX = 50


class FoundJobs:
    """Remembers running jobs from pass to pass, with the names that their reports carry."""

    def __init__(self) -> None:
        self._names: dict[Instance, set[str]] = {}

    def note(self, unclaimed: Iterable[tuple[str, str]], gpus: Mapping[str, GpuView]) -> None:
        """Adds the jobs of reports that belong to no entry: the name in each, and its GPU."""
        for name, uuid in unclaimed:
            gpu = gpus.get(uuid)
            owner = gpu.allocation if gpu is not None else None
            if owner is None or owner.source not in (KUBERNETES, SLURM):
                continue
            if has_several_owners(owner):
                continue
            instance = instance_of(owner)
            if instance in self._names or len(self._names) < FOUND_MAX:
                self._names.setdefault(instance, set()).add(name)

    def with_found(self, policy: Policy, gpus: Mapping[str, GpuView]) -> Policy:
        """The policy with an entry for each job found, after all others."""
        if not self._names:
            return policy
        places: dict[Instance, list[GpuView]] = {}
        for gpu in gpus.values():
            if gpu.allocation is not None and instance_of(gpu.allocation) in self._names:
                places.setdefault(instance_of(gpu.allocation), []).append(gpu)
        self._names = {one: names for one, names in self._names.items() if one in places}
        if "off" in (policy.mode, policy.found_jobs.mode):
            return policy
        named = {job.name for job in policy.jobs}
        found = [
            entry
            for instance in sorted(places)
            if not self._taken(policy, instance, places[instance])
            and (entry := _entry(policy, instance)).name not in named
        ]
        return replace(policy, jobs=(*policy.jobs, *found)) if found else policy

    def _taken(self, policy: Policy, instance: Instance, gpus: list[GpuView]) -> bool:
        """Whether an entry takes the job: by its list, its match, or the name in the reports."""
        owner = gpus[0].allocation
        assert owner is not None
        at = {(gpu.node, gpu.description.index) for gpu in gpus}
        for job in policy.jobs:
            if job.gpus:
                taken = not at.isdisjoint((ref.node, ref.index) for ref in job.gpus)
            elif job.found_by_allocation:
                taken = matches(job, owner)
            else:
                taken = job.name in self._names[instance]
            if taken:
                return True
        return False


def _entry(policy: Policy, instance: Instance) -> JobPolicy:
    pods, slurm = match_of(instance)
    name, slo = instance_name(instance.source, instance), Slo(policy.found_jobs.max_slowdown)
    return JobPolicy(name, "recommend", slo, pods=pods, slurm=slurm, found=True)
