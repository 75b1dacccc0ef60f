"""Entries that stand for a class of jobs: every running job that matches gets an entry of its own.

The first entry of the file that matches a running job takes it. An entry made for one running job
has the class's target, clocks and pipeline, and ends with the job. Pure.
"""

import hashlib
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace

from joulecut_controller.policy.owner import (
    KUBERNETES,
    SLURM,
    Instance,
    excludes,
    instance_of,
    matches,
)
from joulecut_controller.policy.owner import shared as has_several_owners
from joulecut_controller.policy.policy import JobPolicy, PodMatch, Policy, SlurmJobMatch
from joulecut_wire.messages import Allocation

INSTANCES_MAX = 1_000  # of all classes; each is a row of the page, and a job of every pass
NAME_MAX = 253


def with_instances(policy: Policy, allocations: Iterable[Allocation]) -> Policy:
    """The policy with the running jobs of each class in the place of the class, by name; beyond
    INSTANCES_MAX those of the last names are left out.
    """
    if not any(job.each for job in policy.jobs):
        return policy
    members = _members(policy, allocations)
    jobs: list[JobPolicy] = []
    names, room = {job.name for job in policy.jobs if not job.each}, INSTANCES_MAX
    for job in policy.jobs:
        if not job.each:
            jobs.append(job)
            continue
        made = [_instance(job, one) for one in sorted(members.get(job.name, ()))[:room]]
        kept = [one for one in made if one.name not in names]
        jobs += kept
        room -= len(kept)
        names.update(one.name for one in kept)
    return replace(policy, jobs=tuple(jobs))


def _members(policy: Policy, allocations: Iterable[Allocation]) -> dict[str, list[Instance]]:
    """The running jobs of each class, by the class's name. GPUs that look alike are asked about
    once: a job has hundreds, and a policy hundreds of entries.
    """
    owners: dict[Instance, dict[Hashable, Allocation]] = {}
    for one in allocations:
        if one.source in (KUBERNETES, SLURM) and not has_several_owners(one):
            alike = (one.job, frozenset(one.labels.items()))
            owners.setdefault(instance_of(one), {})[alike] = one
    found: dict[str, list[Instance]] = {}
    for instance, given in owners.items():
        taking = next((job for job in policy.jobs if _takes(job, given.values())), None)
        if taking is not None and taking.each:
            found.setdefault(taking.name, []).append(instance)
    return found


def _takes(job: JobPolicy, given: Collection[Allocation]) -> bool:
    """Whether the entry takes the running job of these GPUs. Some GPUs of a job may lack labels."""
    return any(matches(job, one) for one in given) and not any(excludes(job, one) for one in given)


def _instance(job: JobPolicy, instance: Instance) -> JobPolicy:
    pods, slurm = match_of(instance)
    name = instance_name(job.name, instance)
    return replace(job, name=name, pods=pods, slurm=slurm, each=False, excluded=())


def instance_name(entry: str, instance: Instance) -> str:
    """The name of an entry that was made for one running job: `two-stages:train.gpt`. What is too
    long ends with a digest, so that two jobs never share a name.
    """
    name = f"{entry}:{instance.name.replace('/', '.')}"
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name[: NAME_MAX - 1 - len(digest)]}-{digest}"


def match_of(instance: Instance) -> tuple[PodMatch | None, SlurmJobMatch | None]:
    """`pods` and `slurm` of an entry that stands for this one running job."""
    if instance.source == SLURM:
        return None, SlurmJobMatch(job_id=instance.job)
    return PodMatch(instance.namespace, job=instance.job), None
