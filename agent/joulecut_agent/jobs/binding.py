"""Who may speak for a GPU: its owner's processes, as the kernel knows them.

A datagram claims a job and a GPU; the kernel says which process sent it, and that process's
control group says which pod or Slurm job it belongs to. Where nobody gave the GPU to anybody,
the user id is the boundary: within one user every process can pose as any other anyway.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from joulecut_agent.jobs.owner import BOUND, KUBERNETES, SLURM, Owner, Owners
from joulecut_agent.jobs.processes import Belonging, Processes

NOT_OWNER, UNVERIFIED, TAKEN = "not_owner", "unverified", "taken"


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a datagram, in the kernel's words; `pid` 0 where we cannot see the process."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a word is not taken: `code` for the counter, `text` for a person."""

    code: str
    text: str


class Binding:
    """`owners` tells who was given a GPU, `users` which processes have it open."""

    def __init__(
        self, processes: Processes, owners: Callable[[str], Owners],
        users: Callable[[str], Collection[int]], doubt: Callable[[], None],
    ) -> None:  # fmt: skip
        """`doubt` is called when somebody speaks for a GPU that he is not known to hold."""
        self._processes = processes
        self._owners = owners
        self._users = users
        self._doubt = doubt

    def refusal(
        self, uuid: str, sender: Sender, belongs: Belonging | None, speakers: Collection[int]
    ) -> Refusal | None:
        """None where `sender` may speak for this GPU. `speakers` are the user ids of living
        processes that speak for it already.
        """
        if owners := self.bound(uuid):
            refused = _stranger(uuid, owners, belongs)
            if refused:
                self._doubt()
            return refused
        if belongs and belongs.pod_uid and self._pods_known():
            self._doubt()  # perhaps it was given the GPU a moment ago
            return Refusal(NOT_OWNER, f"GPU {uuid} was not given to the pod of that process")
        return self._plain(uuid, sender, belongs, speakers)

    def bound(self, uuid: str) -> Owners:
        """To whom a GPU was given by somebody else than itself."""
        return tuple([owner for owner in self._owners(uuid) if owner.source in BOUND])

    def belonging(self, sender: Sender) -> Belonging | None:
        return self._processes.belonging(sender.pid)

    def _plain(
        self, uuid: str, sender: Sender, belongs: Belonging | None, speakers: Collection[int]
    ) -> Refusal | None:
        uids, cgroups = set(), set()
        for pid in self._users(uuid):
            if (user := self._processes.belonging(pid)) is not None:
                uids.add(user.uid)
                cgroups.add(user.cgroup)
        same_group = belongs is not None and belongs.cgroup in cgroups - {"", "/"}
        if uids and sender.uid not in uids and not same_group:
            return Refusal(NOT_OWNER, f"GPU {uuid} is used by user {min(uids)}, not {sender.uid}")
        if speakers and sender.uid not in speakers and not same_group:
            return Refusal(TAKEN, f"user {min(speakers)} speaks for GPU {uuid}, not {sender.uid}")
        return None

    def _pods_known(self) -> bool:
        return self.pods_known()

    pods_known: Callable[[], bool] = staticmethod(lambda: False)


def _stranger(uuid: str, owners: Collection[Owner], belongs: Belonging | None) -> Refusal | None:
    """Why a process is none of those to whom the GPU was given."""
    names = ", ".join(
        f"pod {owner.namespace}/{owner.pod}" if owner.source == KUBERNETES else f"job {owner.job}"
        for owner in owners
    )
    if belongs is None:
        return Refusal(UNVERIFIED, f"GPU {uuid} is of {names}, and the sender cannot be seen")
    pods = [owner for owner in owners if owner.source == KUBERNETES]
    if belongs.pod_uid and any(belongs.pod_uid == owner.uid for owner in pods):
        return None
    if belongs.slurm_job and any(
        owner.source == SLURM and belongs.slurm_job == plain_job(owner.job) for owner in owners
    ):
        return None
    if belongs.pod_uid and any(not owner.uid for owner in pods):
        return Refusal(UNVERIFIED, f"GPU {uuid} is of {names}, whose uid is not known")
    return Refusal(NOT_OWNER, f"GPU {uuid} is of {names}")


def plain_job(job: str) -> str:
    """A Slurm job id without what arrays and components add to it in files: `12_3`, `12+1`.

    The control group carries the plain id of the very task, so only equal ones match.
    """
    return job.partition("+")[0].partition(".")[0]
