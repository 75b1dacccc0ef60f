"""Who holds a GPU, settled from what several sources say: pure, one answer a GPU.

The first source in order that knows anything decides alone, so that a pod seen by the kubelet
and by its own report is one owner and not two. Several owners of one GPU are "shared".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from joulecut_wire.messages import Allocation

KUBERNETES, SLURM, REPORT, PROCESS = "kubernetes", "slurm", "report", "process"
SOURCES = (KUBERNETES, SLURM, REPORT, PROCESS)  # the default order: who allocates comes first
BOUND = (KUBERNETES, SLURM)  # sources that say to whom a GPU was given, not who uses it
SHARED = "shared"
OWNERS_LABEL = "joulecut/owners"  # of a shared GPU: how many
JOB_CHARS_MAX = 253  # as in a job's own report

# Which label of a pod names its job: what a person created comes before what that created.
JOB_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "ray.io/originated-from-cr-name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "training.kubeflow.org/job-name",
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.k8s.io/group-name",
    "batch.kubernetes.io/job-name",
    "job-name",  # what batch Jobs carried before Kubernetes 1.27
)


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner, as one source names it. `uid` is the pod's, where it is known.

    `sliced` means that others may get a share of the same GPU at any time.
    """

    source: str
    job: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    sliced: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same while more becomes known of the same owner."""
        if self.source == KUBERNETES:
            return (self.source, self.namespace, self.pod)
        return (self.source, "", self.job)


Owners = tuple[Owner, ...]
Claims = Mapping[str, Owners]  # by the GPU's UUID


def settle(order: Iterable[str], claims: Mapping[str, Claims], uuid: str) -> Owners:
    """The owners of one GPU: what the first source that knows any says, each of them once."""
    for source in order:
        if found := claims.get(source, {}).get(uuid):
            return tuple({owner.key: owner for owner in found}.values())
    return ()


def allocation(uuid: str, owners: Owners) -> Allocation | None:
    """The one allocation of a GPU; None where nobody holds it."""
    if not owners:
        return None
    if len(owners) > 1:
        labels = {OWNERS_LABEL: str(len(owners))}
        return Allocation(uuid, SHARED, source=owners[0].source, labels=labels)
    one = owners[0]
    return Allocation(uuid, one.job, one.namespace, one.pod, one.source, one.labels)


def shared(owners: Owners) -> str:
    """Why a GPU with these owners is observed and not controlled; "" where it may be."""
    if len(owners) > 1:
        return f"shared by {len(owners)} owners"
    if any(owner.sliced for owner in owners):
        return "a slice of it was given away: others may get the rest"
    return ""


def changed(before: Owners, after: Owners) -> bool:
    """Whether the GPU went out of somebody's hands, or into other ones.

    A process that begins to report is still itself; its end is noticed by other means.
    """
    keys = {owner.key for owner in before}
    if keys == {owner.key for owner in after}:
        return False
    own_word = {REPORT, PROCESS}
    sources = {owner.source for owner in (*before, *after)}
    return not (before and after and sources == own_word)


def job_of(labels: Mapping[str, str], pod: str) -> str:
    """The name of a pod's job: its label, in the order of JOB_LABELS, else the pod's own."""
    for label in JOB_LABELS:
        if name := labels.get(label):
            return name[:JOB_CHARS_MAX]
    return pod[:JOB_CHARS_MAX]


def printable(names: Sequence[str]) -> tuple[str, ...]:
    """Those that can be a job's name, each once, in order."""
    good = (n for n in names if n.isprintable() and 0 < len(n) <= JOB_CHARS_MAX and " " not in n)
    return tuple(dict.fromkeys(good))
