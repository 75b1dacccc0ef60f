"""Whose a GPU is, and whether that is the job which a policy entry means.

Agents tell one owner for each GPU; a name in a policy may stand for a run of last week, for two
runs at once, or for somebody else's. A clock set on the wrong answer slows a stranger, so what
cannot be told apart here is left alone. Pure.
"""

from dataclasses import dataclass

from joulecut_controller.policy.policy import JobPolicy
from joulecut_wire.messages import Allocation

KUBERNETES, SLURM, REPORT = "kubernetes", "slurm", "report"  # as agents name their sources
SHARED = "shared"  # the job of a GPU with several owners
SLURM_ID, SLURM_NAME = "slurm_job_id", "slurm_job_name"  # labels of a Slurm job's GPU
# What pods of one StatefulSet, DaemonSet or Deployment have in common, where no label names a job.
REVISIONS = ("controller-revision-hash", "pod-template-hash")


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One running job, as those who gave it its GPUs call it."""

    source: str
    namespace: str
    job: str

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.job}" if self.namespace else self.job


def shared(allocation: Allocation) -> bool:
    """Several owners have no namespace, no pod and no labels of their own."""
    return allocation.job == SHARED and not allocation.pod and SLURM_ID not in allocation.labels


def instance_of(allocation: Allocation) -> Instance:
    """The running job that an allocation belongs to: where no label names a pod's job, the
    workload that made the pod, else the pod itself.
    """
    job = allocation.job
    if allocation.source == KUBERNETES and job == allocation.pod:
        job = next((allocation.labels[key] for key in REVISIONS if key in allocation.labels), job)
    return Instance(allocation.source, allocation.namespace, job)


def certain(allocation: Allocation) -> bool:
    """Whether two such GPUs of different instances surely work for different jobs: a pod that
    nothing but its own name is known of may be one of many of a job.
    """
    if shared(allocation) or allocation.source not in {KUBERNETES, SLURM}:
        return False
    return allocation.source == SLURM or instance_of(allocation).job != allocation.pod


def matches(job: JobPolicy, allocation: Allocation) -> bool:
    """Whether an entry's `match.kubernetes` or `match.slurm` means this GPU."""
    if shared(allocation):
        return False
    if job.pods is not None:
        return (
            allocation.source == KUBERNETES
            and allocation.namespace == job.pods.namespace
            and all(allocation.labels.get(key) == value for key, value in job.pods.labels)
        )
    if job.slurm is None or allocation.source != SLURM:
        return False
    if job.slurm.job_id:
        return allocation.job == job.slurm.job_id
    return allocation.labels.get(SLURM_NAME) == job.slurm.job_name


def foreign(job: JobPolicy, running: Instance | None, allocation: Allocation | None) -> str:
    """Why a GPU is not the job's to set; empty where it is, or nothing speaks against it."""
    if allocation is None:
        return "its agent names no owner" if job.found_by_allocation else ""
    if shared(allocation):
        return "it has several owners"
    if not job.found_by_allocation and allocation.source == REPORT:
        return "" if allocation.job == job.name else f"job {allocation.job} reports from it"
    owner = instance_of(allocation)
    told = job.found_by_allocation or certain(allocation)
    if told and running is not None and owner != running:
        return f"it belongs to {owner.name} ({owner.source}), not to {running.name}"
    return ""


def wanted(job: JobPolicy) -> str:
    """What the entry looks for, as its file has it."""
    if job.pods is not None:
        labels = ", ".join(f"{key}={value}" for key, value in job.pods.labels)
        return f"pods in namespace {job.pods.namespace}" + (f" with {labels}" if labels else "")
    if job.slurm is not None and job.slurm.job_id:
        return f"Slurm job {job.slurm.job_id}"
    return f"Slurm jobs named {job.slurm.job_name}" if job.slurm else "its own reports"
