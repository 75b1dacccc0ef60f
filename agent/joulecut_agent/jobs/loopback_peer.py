"""Sender of a TCP connection over loopback, from the kernel's tables.

`/proc/net/tcp` names the user of the client's end, and its inode. The process is the one with that
inode open, where the agent may read its descriptors (`CAP_SYS_PTRACE`, or the same user). Elsewhere
the process id that the sender states counts if that process belongs to the same user and to no pod:
processes of one user can impersonate each other anyway, pods cannot.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.processes import Processes
from joulecut_wire.loopback_socket import client_of

UNKNOWN_PEER = Sender(0, -1)
PROCESSES_MAX = 65_536  # looked through for one inode


class LoopbackPeers:
    """The senders on one host. `likely` are processes to look at first: those on GPUs."""

    def __init__(self, proc: Path, processes: Processes) -> None:
        self._proc = proc
        self._processes = processes

    def sender(
        self, host: str, port: int, own_port: int, likely: Iterable[int] = (), stated_pid: int = 0
    ) -> Sender:
        """UNKNOWN_PEER without such a connection; pid 0 where the process is not visible."""
        uid, inode = client_of(host, port, own_port, self._proc)
        if uid < 0:
            return UNKNOWN_PEER
        if pid := self._holder(inode, [*([stated_pid] if stated_pid > 0 else []), *likely]):
            return Sender(pid, uid)
        belongs = self._processes.belonging(stated_pid)
        if belongs is not None and uid > 0 and belongs.uid == uid and not belongs.pod_uid:
            return Sender(stated_pid, uid)
        return Sender(0, uid)

    def _holder(self, inode: int, first: Iterable[int]) -> int:
        """The process that has the socket open, 0 if none is seen."""
        target = f"socket:[{inode}]"
        found = next((pid for pid in first if self._holds(pid, target)), 0)
        # Without the right to read any process's descriptors a search of all would be in vain.
        if not found and os.access(self._proc / "1" / "fd", os.R_OK):
            found = next((pid for pid in self._all_pids() if self._holds(pid, target)), 0)
        return found

    def _all_pids(self) -> list[int]:
        try:
            names = os.listdir(self._proc)[:PROCESSES_MAX]
        except OSError:
            return []
        return [int(name) for name in names if name.isascii() and name.isdigit()]

    def _holds(self, pid: int, target: str) -> bool:
        folder = f"{self._proc}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        for name in names:
            try:
                if os.readlink(f"{folder}/{name}") == target:
                    return True
            except OSError:
                continue
        return False
