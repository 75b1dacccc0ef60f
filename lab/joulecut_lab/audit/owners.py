"""Owner of a GPU, from the labels of its series.

A scrape without honor_labels moves the labels of the workload to `exported_...` and leaves those of
the exporter's own pod in their place; these must not be taken for an owner. Data of ours that is
older than 0.1.0 has the label `job` instead of `workload`.
"""

import re
from collections.abc import Iterable, Mapping

from joulecut_lab.audit.reading import NO_OWNER, SHARED

# What makes one pod of a job differ from its siblings: a random ending behind an index (Indexed
# Job: name-3-x7k2p), an index (StatefulSet, JobSet, Ray), and the roles of Kubeflow's jobs.
_RANDOM = re.compile(r"(?<=-\d)-[a-z0-9]{5}$|(?<=-\d\d)-[a-z0-9]{5}$|(?<=-\d\d\d)-[a-z0-9]{5}$")
_INDEX = re.compile(r"(-\d+)+$")
_ROLE = re.compile(r"-(master|worker|launcher)$")
_EXPORTER = re.compile(r"exporter|dcgm|joulecut-agent")


def stem(pod: str) -> str:
    """The job in a pod's name: `gpt3-worker-12` belongs to `gpt3`."""
    name = _INDEX.sub("", _RANDOM.sub("", pod))
    return _ROLE.sub("", name) or pod


def of_dcgm(labels: Mapping[str, str], job_label: str = "") -> str:
    """The job of a series of dcgm-exporter: by `job_label` where given, else its HPC job,
    else namespace and pod.
    """
    if job_label:
        return labels.get(job_label, NO_OWNER)
    if hpc := labels.get("hpc_job"):
        return hpc
    pod, namespace = labels.get("exported_pod", ""), labels.get("exported_namespace", "")
    if not pod and not _EXPORTER.search(labels.get("pod", "") + labels.get("container", "")):
        pod, namespace = labels.get("pod", ""), labels.get("namespace", "")
    if not pod:
        return NO_OWNER
    return f"{namespace}/{stem(pod)}" if namespace else stem(pod)


def workload(labels: Mapping[str, str]) -> str:
    """The training job that a series of ours names."""
    return labels.get("workload") or labels.get("exported_job") or labels.get("job", "")


def of_ours(labels: Mapping[str, str], job_label: str = "") -> str:
    """The job of an allocation series of our agents."""
    if job_label:
        return labels.get(job_label, NO_OWNER)
    source = labels.get("source", "none")
    if source == "none":  # its job is empty, and Prometheus then shows that of the scrape
        return NO_OWNER
    job = workload(labels)
    if job == "shared":
        return SHARED
    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
    if source != "kubernetes":
        return job
    return f"{namespace}/{stem(job)}" if namespace else stem(job)


class OwnerHistory:
    """Owner of each GPU from step to step, where several owners appear in one step.

    At a reassignment both owners have samples within one step; the new one counts. Two owners that
    stay share the GPU.
    """

    def __init__(self) -> None:
        self._before: dict[str, frozenset[str]] = {}

    def owner(self, uuid: str, owners: Iterable[str]) -> str:
        """The owner of a step with these owners."""
        all_owners = frozenset(owners)
        named = all_owners - {NO_OWNER}
        before = self._before.get(uuid, frozenset())
        self._before[uuid] = all_owners
        if SHARED in named:
            return SHARED
        if len(named) <= 1:
            return next(iter(named), NO_OWNER)
        new = named - before
        return next(iter(new)) if len(new) == 1 else SHARED
