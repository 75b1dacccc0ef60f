"""Owner of a GPU, and whether it is the job of a policy entry.

Agents report one owner per GPU. A name in a policy may match an old run, two runs at once, or a job
of another team. A wrong match would slow a job that nobody entered, so ambiguous GPUs are left
alone. Pure.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from joulecut_controller.policy.policy import JobPolicy, PodMatch, SlurmJobMatch
from joulecut_wire import slurm
from joulecut_wire.messages import Allocation

KUBERNETES, SLURM, REPORT = "kubernetes", slurm.SOURCE, "report"  # as agents name their sources
SHARED = "shared"  # the job of a GPU with several owners
# What pods of one StatefulSet, DaemonSet or Deployment have in common, where no label names a job.
REVISIONS = ("controller-revision-hash", "pod-template-hash")


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One running job, named by the system that allocated its GPUs."""

    source: str
    namespace: str
    job: str

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.job}" if self.namespace else self.job


def shared(allocation: Allocation) -> bool:
    """Whether the GPU has several owners: then no namespace, pod or labels are set."""
    return (
        allocation.job == SHARED
        and not allocation.pod
        and slurm.LABELS["id"] not in allocation.labels
    )


def instance_of(allocation: Allocation) -> Instance:
    """The running job that an allocation belongs to: where no label names a pod's job, the
    workload that made the pod, else the pod itself.
    """
    job = allocation.job
    if allocation.source == KUBERNETES and job == allocation.pod:
        job = next((allocation.labels[key] for key in REVISIONS if key in allocation.labels), job)
    return Instance(allocation.source, allocation.namespace, job)


def certain(allocation: Allocation) -> bool:
    """Whether two such GPUs of different instances certainly work for different jobs: a pod known
    only by its own name may be one of several of a job.
    """
    if shared(allocation) or allocation.source not in {KUBERNETES, SLURM}:
        return False
    return allocation.source == SLURM or instance_of(allocation).job != allocation.pod


@lru_cache(maxsize=4096)
def _pattern(written: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(one, re.escape(one)) for one in written), re.DOTALL)


def fits(written: str, word: str) -> bool:
    """Whether a word is the one of a policy, or of its pattern: `*` fits any letters, `?` one."""
    if "*" not in written and "?" not in written:
        return written == word
    return bool(word) and _pattern(written).fullmatch(word) is not None


def matches(job: JobPolicy, allocation: Allocation) -> bool:
    """Whether an entry's `match.kubernetes` or `match.slurm` matches this GPU, and no `except`."""
    wanted = job.pods or job.slurm
    if wanted is None or shared(allocation) or excludes(job, allocation):
        return False
    return _matches(wanted, allocation)


def excludes(job: JobPolicy, allocation: Allocation) -> bool:
    """Whether one of the entry's `except` matches this GPU."""
    return any(_matches(one, allocation) for one in job.excluded)


def _matches(wanted: PodMatch | SlurmJobMatch, allocation: Allocation) -> bool:
    if isinstance(wanted, SlurmJobMatch):
        return _matches_slurm(wanted, allocation)
    return (
        allocation.source == KUBERNETES
        and fits(wanted.namespace, allocation.namespace)
        and wanted.job in ("", instance_of(allocation).job)
        and all(
            key in allocation.labels and fits(value, allocation.labels[key])
            for key, value in wanted.labels
        )
    )


def _matches_slurm(wanted: SlurmJobMatch, allocation: Allocation) -> bool:
    running = slurm.of_labels(allocation.labels)
    pairs = (
        (wanted.job_id, allocation.job),
        (wanted.job_name, running.name),
        (wanted.user, running.user),
        (wanted.account, running.account),
        (wanted.partition, running.partition),
    )
    return allocation.source == SLURM and all(
        not word or fits(word, known) for word, known in pairs
    )


def foreign(job: JobPolicy, running: Instance | None, allocation: Allocation | None) -> str:
    """Why this job must not set the GPU; empty where it may."""
    if allocation is None:
        return "its agent reports no owner" if job.found_by_allocation else ""
    if shared(allocation):
        return "it has several owners"
    if not job.found_by_allocation and allocation.source == REPORT:
        return "" if allocation.job == job.name else f"job {allocation.job} reports from it"
    owner = instance_of(allocation)
    reliable = job.found_by_allocation or certain(allocation)
    if reliable and running is not None and owner != running:
        return f"it belongs to {owner.name} ({owner.source}), not to {running.name}"
    return ""


def wanted(job: JobPolicy) -> str:
    """The entry's match, as written in its file."""
    match = job.pods or job.slurm
    if match is None:
        return "its own reports"
    but = f", except {'; '.join(map(_shown, job.excluded))}" if job.excluded else ""
    return _shown(match) + but


def _shown(match: PodMatch | SlurmJobMatch) -> str:
    if isinstance(match, SlurmJobMatch):
        single = f"Slurm job {match.job_id}" if match.job_id else ""
        return single or f"Slurm jobs with {match.shown}"
    if match.job:
        return f"job {match.job} in namespace {match.namespace}"
    labels = ", ".join(f"{key}={value}" for key, value in match.labels)
    return f"pods in namespace {match.namespace}" + (f" with {labels}" if labels else "")
