"""Which process may report for a GPU: only one of its owner, as identified by the kernel.

A datagram claims a job and a GPU. The kernel names the sending process, and its control group names
the pod or Slurm job. A GPU without such an owner is bound to a user id: processes of one user can
impersonate each other anyway. That is the user of the processes on it; before the first of them,
the first user to report for it, and under a lease no user that comes new.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from joulecut_agent.jobs.owner import BOUND, KUBERNETES, SLURM, Owner, Owners
from joulecut_agent.jobs.processes import Belonging, Processes

# They need no report to end a lease, so a report of theirs proves as much as any evidence.
ENTITLED_UIDS = frozenset((0, os.getuid()))
NOT_OWNER, UNVERIFIED, TAKEN = "not_owner", "unverified", "taken"


@dataclass(frozen=True, slots=True)
class Sender:
    """Sender of a datagram by the kernel; `pid` 0 if the process is not visible."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a report is refused: `code` for the counter, `text` for the log."""

    code: str
    text: str


@dataclass
class Binding:
    """`owners` returns the owners of a GPU, `users` the processes that have it open. `doubt` is
    called at a report that contradicts the known owner. `leased` returns whether a GPU is under a
    lease, `pods_known` whether the kubelet answers.
    """

    processes: Processes
    owners: Callable[[str], Owners]
    users: Callable[[str], Collection[int]]
    doubt: Callable[[], None]
    leased: Callable[[str], bool]
    pods_known: Callable[[], bool] = lambda: False

    def refusal(
        self, uuid: str, sender: Sender, belongs: Belonging | None, reporters: Collection[int]
    ) -> Refusal | None:
        """None if `sender` may report for this GPU.

        `reporters`: user ids of the live processes that report for it already.
        """
        if owners := self.bound(uuid):
            refused = _stranger(uuid, owners, belongs)
            if refused:
                self.doubt()
            return refused
        if belongs and belongs.pod_uid and self.pods_known():
            self.doubt()  # the GPU may have been allocated to it just now
            return Refusal(NOT_OWNER, f"GPU {uuid} is not allocated to the pod of that process")
        return self._plain(uuid, sender, belongs, reporters)

    def bound(self, uuid: str) -> Owners:
        """The owners of a GPU by a scheduler, not by their own reports."""
        return tuple([owner for owner in self.owners(uuid) if owner.source in BOUND])

    def belonging(self, sender: Sender) -> Belonging | None:
        return self.processes.belonging(sender.pid)

    def gpus_of(self, sender: Sender, uuids: Collection[str]) -> tuple[str, ...]:
        """The GPUs of a sender's pod or job, or those that its processes or user compute on."""
        belongs = self.belonging(sender)
        return tuple([uuid for uuid in uuids if self._owns(uuid, sender, belongs)])

    def _owns(self, uuid: str, sender: Sender, belongs: Belonging | None) -> bool:
        if owners := self.bound(uuid):
            return _stranger(uuid, owners, belongs) is None
        return _is_among(sender, belongs, *self._computing(uuid))

    def proves(self, uuid: str, sender: Sender, belongs: Belonging | None) -> bool:
        """Whether a sender that is not refused has more than its own word for its claim."""
        uids, cgroups = self._computing(uuid)
        return bool(self.bound(uuid)) or _is_among(sender, belongs, uids, cgroups)

    def _plain(
        self, uuid: str, sender: Sender, belongs: Belonging | None, reporters: Collection[int]
    ) -> Refusal | None:
        uids, cgroups = self._computing(uuid)
        if uids:
            if _is_among(sender, belongs, uids, cgroups):
                return None
            return Refusal(NOT_OWNER, f"GPU {uuid} is used by user {min(uids)}, not {sender.uid}")
        if reporters and sender.uid not in reporters:
            return Refusal(TAKEN, f"user {min(reporters)} reports for GPU {uuid}, not {sender.uid}")
        if not reporters and sender.uid not in ENTITLED_UIDS and self.leased(uuid):
            what = f"GPU {uuid} is under a lease, and no process of user {sender.uid} is seen on it"
            return Refusal(UNVERIFIED, what)
        return None

    def _computing(self, uuid: str) -> tuple[set[int], set[str]]:
        """User ids and control groups of the live processes on a GPU."""
        users = [self.processes.belonging(pid) for pid in self.users(uuid)]
        live = [user for user in users if user is not None]
        return {user.uid for user in live}, {user.cgroup for user in live} - {"", "/"}


def _is_among(sender: Sender, belongs: Belonging | None, uids: set[int], cgroups: set[str]) -> bool:
    return sender.uid in uids or (belongs is not None and belongs.cgroup in cgroups)


def _stranger(uuid: str, owners: Collection[Owner], belongs: Belonging | None) -> Refusal | None:
    """Refusal of a process that belongs to none of the owners."""
    names = ", ".join(
        f"pod {owner.namespace}/{owner.pod}" if owner.source == KUBERNETES else f"job {owner.job}"
        for owner in owners
    )
    if belongs is None:
        return Refusal(
            UNVERIFIED, f"GPU {uuid} belongs to {names}, and the sending process is not visible"
        )
    pods = [owner for owner in owners if owner.source == KUBERNETES]
    if belongs.pod_uid and any(belongs.pod_uid == owner.uid for owner in pods):
        return None
    if belongs.slurm_job and any(
        owner.source == SLURM and belongs.slurm_job == plain_job(owner.job) for owner in owners
    ):
        return None
    if belongs.pod_uid and any(not owner.uid for owner in pods):
        return Refusal(UNVERIFIED, f"GPU {uuid} belongs to {names}, whose uid is not known")
    return Refusal(
        NOT_OWNER, f"GPU {uuid} belongs to {names}, and the sending process is not in its cgroup"
    )


def plain_job(job: str) -> str:
    """A Slurm job id without the suffix of a component (`12+1`) or step (`12.0`).

    The control group has the plain id of the task, so only equal ids match.
    """
    return job.partition("+")[0].partition(".")[0]
