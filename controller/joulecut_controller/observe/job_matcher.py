"""Matches policy entries to running jobs, in the file's order: the first match wins.

An entry matches one running job at most: two runs of one name have two rates, and one plan cannot
serve both. Pure: owners as agents report them, and the policy, go in.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from joulecut_controller.policy.owner import (
    KUBERNETES,
    SLURM,
    Instance,
    excludes,
    instance_of,
    matches,
    shared,
    wanted,
)
from joulecut_controller.policy.policy import JobPolicy, PodMatch, Policy
from joulecut_controller.view import GpuView
from joulecut_wire import slurm

NAMED_MAX = 3  # jobs named in one line
# The GPUs of each running job, in groups that all entries of the policy treat alike.
Owners = Mapping[Instance, Mapping[Hashable, list[str]]]


@dataclass(frozen=True, slots=True)
class JobMatch:
    """An entry's running job and its GPUs; none with a complaint."""

    uuids: frozenset[str] = frozenset()
    running: Instance | None = None
    complaint: str = ""
    listed: tuple[str, ...] = ()  # of an entry with a list: in its order, empty where not there


@dataclass(frozen=True, slots=True)
class Matches:
    """The entries with a list or a match, and the entry that each GPU of theirs belongs to."""

    entries: Mapping[str, JobMatch] = field(default_factory=dict)
    owned: Mapping[str, str] = field(default_factory=dict)

    def of(self, job: str, reporting: Iterable[str] = ()) -> JobMatch:
        """The entry's match. One without list and match has the GPUs `reporting` it that no entry
        with one has.
        """
        found = self.entries.get(job)
        return JobMatch(frozenset(reporting) - self.owned.keys()) if found is None else found


def match_jobs(policy: Policy, gpus: Mapping[str, GpuView]) -> Matches:
    """The match of every entry with a list or a match."""
    owned: dict[str, str] = {}
    found: dict[str, JobMatch] = {}
    places = {(gpu.node, gpu.description.index): uuid for uuid, gpu in gpus.items()}
    owners = _by_owner(policy, gpus)
    for job in policy.jobs:
        if job.found_by_allocation:
            groups = _groups(job, gpus, owners, owned)
            found[job.name] = _one(job, groups, gpus, owned)
            mine = {uuid for uuids in groups.values() for uuid in uuids}
        elif job.gpus:
            listed = tuple(places.get((ref.node, ref.index), "") for ref in job.gpus)
            mine = set(listed) - {""}
            complaint = _taken(mine, gpus, owned)
            found[job.name] = JobMatch(frozenset(mine), complaint=complaint, listed=listed)
        else:
            continue
        for uuid in mine:
            owned.setdefault(uuid, job.name)
    return Matches(found, owned)


def _by_owner(policy: Policy, gpus: Mapping[str, GpuView]) -> Owners:
    """The GPUs of every running job that an agent knows of. A hundred entries are compared with
    each group, not with each of ten thousand GPUs.
    """
    owners: dict[Instance, dict[Hashable, list[str]]] = {}
    if not any(job.found_by_allocation for job in policy.jobs):
        return owners
    pods = (one for job in policy.jobs for one in (job.pods, *job.excluded))
    keys = {key for one in pods if isinstance(one, PodMatch) for key, _ in one.labels}
    keys.update(slurm.LABELS.values())
    for uuid, gpu in gpus.items():
        given = gpu.allocation
        if given is not None:
            alike = (given.job, shared(given), *(given.labels.get(key) for key in keys))
            owners.setdefault(instance_of(given), {}).setdefault(alike, []).append(uuid)
    return owners


def _groups(
    job: JobPolicy,
    gpus: Mapping[str, GpuView],
    owners: Owners,
    owned: Mapping[str, str],
) -> dict[Instance, set[str]]:
    """The GPUs that the entry matches, by running job, without jobs of earlier entries."""
    groups: dict[Instance, set[str]] = {}
    for owner, alike in owners.items():
        found = [uuids for uuids in alike.values() if _matches(job, gpus[uuids[0]])]
        if any(_excludes(job, gpus[uuids[0]]) for uuids in alike.values()):
            continue
        if found and job.slurm is not None:  # the name may be known of some of a job's GPUs only
            found = list(alike.values())
        mine = set(chain.from_iterable(found))
        if mine and not mine <= owned.keys():
            groups[owner] = mine
    return groups


def _matches(job: JobPolicy, gpu: GpuView) -> bool:
    return gpu.allocation is not None and matches(job, gpu.allocation)


def _excludes(job: JobPolicy, gpu: GpuView) -> bool:
    return gpu.allocation is not None and excludes(job, gpu.allocation)


def _one(
    job: JobPolicy,
    groups: Mapping[Instance, set[str]],
    gpus: Mapping[str, GpuView],
    owned: Mapping[str, str],
) -> JobMatch:
    if not groups:
        return JobMatch(complaint=_absent(job, gpus))
    if len(groups) > 1:
        names = [one.name for one in sorted(groups)]
        more = ", ..." if len(names) > NAMED_MAX else ""
        return JobMatch(
            complaint=f"{len(names)} running jobs match ({', '.join(names[:NAMED_MAX])}{more}); "
            "an entry stands for one, and with each: true for every one"
        )
    running, uuids = next(iter(groups.items()))
    if taken := _taken(uuids, gpus, owned):
        return JobMatch(complaint=taken)
    return JobMatch(frozenset(uuids), running)


def _taken(uuids: Iterable[str], gpus: Mapping[str, GpuView], owned: Mapping[str, str]) -> str:
    """The first of these GPUs that an earlier entry has."""
    for uuid in sorted(uuids):
        if uuid in owned:
            where = gpus[uuid].place if uuid in gpus else uuid
            return f"GPU {where} belongs to {owned[uuid]}, an earlier entry of the policy"
    return ""


def _absent(job: JobPolicy, gpus: Mapping[str, GpuView]) -> str:
    """Nothing matches: the job does not run, or the agents do not know its owner."""
    source = KUBERNETES if job.pods is not None else SLURM
    reported = [
        gpu.allocation
        for gpu in gpus.values()
        if gpu.allocation is not None and gpu.allocation.source == source
    ]
    what = f"no GPU is given to {wanted(job)}"
    if not reported:
        return f"{what} (no agent knows of any owner by {source})"
    if job.pods is not None and job.pods.labels and not any(one.labels for one in reported):
        return f"{what} (the agents do not know labels: attribution.kubernetes.pods)"
    if job.slurm is not None and job.slurm.job_name:
        nameless = sum(slurm.LABELS["name"] not in one.labels for one in reported)
        if nameless:
            return f"{what} (of {nameless} GPUs given by Slurm the agents know ids, not names)"
    return what
