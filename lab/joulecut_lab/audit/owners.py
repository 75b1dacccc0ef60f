"""Owner of a GPU, from the labels of its series.

A scrape without honor_labels moves the labels of the workload to `exported_...` and leaves those of
the exporter's own pod in their place; these must not be taken for an owner.
"""

import re
from collections.abc import Iterable, Mapping

from joulecut_lab.audit.reading import NO_OWNER, SHARED
from joulecut_wire.messages import JOB_LABELS

# How operators name the pods of one job: a role with an index (Kubeflow's jobs, Volcano, Spark),
# a role with a random ending (MPI's launcher, KubeRay, where a group's name stands before or behind
# it). An index before a random ending is an Indexed Job's, or the end of a Job's own name.
_ROLES = r"master|worker|workers|launcher|chief|ps|evaluator|server|node|task|trainer|exec|driver"
_NAMED = (
    re.compile(
        r"(?P<job>.+?)(?:-raycluster-[a-z0-9]{5}(?:-[a-z0-9]+)*?|-[a-z0-9]*group)?"
        r"-(?:head|worker)-[a-z0-9]{5}"
    ),
    re.compile(rf"(?P<job>.+?)-(?:{_ROLES})(?:-\d+)*(?:-[a-z0-9]{{5}})?"),
)
_INDEXED = re.compile(r"(?P<job>.+?)(?:-\d{1,4})+-[a-z0-9]{5}")
_INDEX = re.compile(r"(-\d+)+$")
_EXPORTER = re.compile(r"exporter|dcgm|joulecut-agent")
# A pod's labels as exporters write them: other letters become "_", behind a prefix of their own.
_JOB_LABELS = tuple(re.sub(r"\W", "_", label) for label in JOB_LABELS)
_STATEFUL = ("statefulset_kubernetes_io_pod_name", "apps_kubernetes_io_pod_index")


def stem(pod: str) -> str:
    """The job in a pod's name: `gpt3-worker-12` belongs to `gpt3`."""
    for form in (*_NAMED, _INDEXED):
        if match := form.fullmatch(pod):
            return match["job"]
    return _INDEX.sub("", pod) or pod


def joined_by_number(labels: Mapping[str, str]) -> str:
    """The pod of a series whose job is its name without the number at its end; else ""."""
    pod = labels.get("exported_pod") or labels.get("pod", "")
    signs = [key for key in labels if key.endswith((*_STATEFUL, *_JOB_LABELS))]
    named = any(form.fullmatch(pod) for form in _NAMED)
    numbered = _INDEX.search(pod) or _INDEXED.fullmatch(pod)
    return pod if numbered and not named and not signs else ""


def _labelled(labels: Mapping[str, str]) -> str:
    """The job that a label of the pod names."""
    for wanted in _JOB_LABELS:
        for key, value in labels.items():
            # A scrape has a job_name of its own, or none: the bare word needs a prefix.
            if value and key.endswith(wanted) and (key != wanted or wanted != "job_name"):
                return value
    return ""


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
    job = _labelled(labels) or stem(pod)
    return f"{namespace}/{job}" if namespace else job


def of_ours(labels: Mapping[str, str], job_label: str = "") -> str:
    """The job of an allocation series of our agents."""
    if job_label:
        return labels.get(job_label, NO_OWNER)
    source = labels.get("source", "none")
    if source == "none":
        return NO_OWNER
    job = labels.get("workload", "")
    if job == "shared":
        return SHARED
    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
    if source != "kubernetes":
        return job
    if job == (labels.get("exported_pod") or labels.get("pod") or job):  # no label named its job
        job = stem(job)
    return f"{namespace}/{job}" if namespace else job


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
