"""Owner of a GPU, decided from several sources. Pure.

The first source in order that knows an owner decides alone, so that a pod known from the kubelet
and from its own report is one owner and not two. A GPU with several owners is shared.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from joulecut_wire import slurm
from joulecut_wire.messages import JOB_LABELS, Allocation

KUBERNETES, SLURM, REPORT, PROCESS = "kubernetes", slurm.SOURCE, "report", "process"
SOURCES = (KUBERNETES, SLURM, REPORT, PROCESS)  # the default order: schedulers first
BOUND = (KUBERNETES, SLURM)  # sources that know allocations, not only use
SHARED = "shared"
OWNERS_LABEL = "joulecut/owners"  # number of owners of a shared GPU
JOB_CHARS_MAX = 253  # as in a job's own report


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner from one source. `uid` is the pod's, if known.

    `sliced`: it has a part of the GPU, and others may get the rest at any time.
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
        """Identity of an owner, stable while more becomes known of it."""
        if self.source == KUBERNETES:
            return (self.source, self.namespace, self.pod)
        return (self.source, "", self.job)


Owners = tuple[Owner, ...]
Claims = Mapping[str, Owners]  # by the GPU's UUID


def labels_of(claims: Claims) -> list[Mapping[str, str]]:
    """The labels of every owner, which no comparison of owners sees."""
    return [owner.labels for owners in claims.values() for owner in owners]


def settle(order: Iterable[str], claims: Mapping[str, Claims], uuid: str) -> Owners:
    """The owners of one GPU by the first source that knows any, without duplicates."""
    for source in order:
        if found := claims.get(source, {}).get(uuid):
            return tuple({owner.key: owner for owner in found}.values())
    return ()


def allocation(uuid: str, owners: Owners) -> Allocation | None:
    """The allocation of a GPU; None without an owner."""
    if not owners:
        return None
    if len(owners) > 1:
        labels = {OWNERS_LABEL: str(len(owners))}
        return Allocation(uuid, SHARED, source=owners[0].source, labels=labels)
    one = owners[0]
    return Allocation(uuid, one.job, one.namespace, one.pod, one.source, one.labels)


def others(owners: Owners, more: Owners) -> Owners:
    """Those of `more` whose job none of the owners has."""
    jobs = {one.job for one in owners}
    return tuple(one for one in more if one.job not in jobs)


def shared(owners: Owners) -> str:
    """Reason why a GPU with these owners is not controlled, or ""."""
    if len(owners) > 1:
        return f"shared by {len(owners)} owners"
    if any(owner.sliced for owner in owners):
        return "only a slice of it is allocated: others may get the rest"
    return ""


def changed(before: Owners, after: Owners) -> bool:
    """Whether the GPU has lost an owner, or got another one.

    A process that begins to report is the same owner; its exit is noticed elsewhere.
    """
    keys = {owner.key for owner in before}
    if keys == {owner.key for owner in after}:
        return False
    unscheduled = {REPORT, PROCESS}
    sources = {owner.source for owner in (*before, *after)}
    return not (before and after and sources == unscheduled)


def job_of(labels: Mapping[str, str], pod: str) -> str:
    """Name of a pod's job: the first of JOB_LABELS it has, or the pod's name."""
    for label in JOB_LABELS:
        if name := labels.get(label):
            return name[:JOB_CHARS_MAX]
    return pod[:JOB_CHARS_MAX]


def printable(names: Sequence[str]) -> tuple[str, ...]:
    """Those that are valid names of jobs, without duplicates, in order."""
    good = (n for n in names if n.isprintable() and 0 < len(n) <= JOB_CHARS_MAX and " " not in n)
    return tuple(dict.fromkeys(good))
