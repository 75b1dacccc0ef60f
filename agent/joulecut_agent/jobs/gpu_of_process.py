"""GPU that a process computes on, without being asked for.

In this order: the UUID that the process states, the one GPU that the device shows it on, its
`CUDA_VISIBLE_DEVICES`, and its local rank among the GPUs of its owner. The answer gives no right:
the binding still decides whether the process may report for that GPU.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.processes import Processes

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuOfProcess:
    """`users` returns the processes on a GPU, `same_owner` the GPUs of a sender's pod or job."""

    processes: Processes
    inventory: Callable[[], Inventory]
    users: Callable[[str], Collection[int]]
    same_owner: Callable[[Sender], Collection[str]]

    def find(self, sender: Sender, stated_uuid: str = "", local_rank: int | None = None) -> str:
        """The UUID, or "" if nothing points at exactly one GPU of this node."""
        inventory = self.inventory()
        if stated_uuid in inventory.uuids:
            return stated_uuid
        on = [uuid for uuid in inventory.uuids if sender.pid and sender.pid in self.users(uuid)]
        if len(on) == 1:
            return on[0]
        visible = [
            found[0]
            for name in self.processes.variable(sender.pid, VISIBLE).split(",")
            if name.strip() and (found := inventory.device(name.strip()))
        ]
        if len(visible) == 1:
            return visible[0]
        index = {uuid: i for i, uuid in inventory.by_index.items()}
        mine = visible or sorted(self.same_owner(sender), key=lambda uuid: index.get(uuid, 0))
        if local_rank is not None and 0 <= local_rank < len(mine):
            return mine[local_rank]
        return mine[0] if len(mine) == 1 else ""
