"""Sender of a TCP connection over loopback, from the kernel's tables.

`/proc/net/tcp` names the user of the client's end, and its inode. The process is the one with that
inode open, where the agent may read its descriptors (`CAP_SYS_PTRACE`, or the same user). Elsewhere
the process id that the sender states counts if that process belongs to the same user and to no pod:
processes of one user can impersonate each other anyway, pods cannot.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from joulecut_agent.jobs.binding import Sender
from joulecut_agent.jobs.processes import Processes

UNKNOWN_PEER = Sender(0, -1)
MAPPED = "0000000000000000FFFF0000"  # before an IPv4 address, in the table of IPv6
TABLE_BYTES_MAX = 8 << 20  # 50,000 connections
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
        uid, inode = self._socket(host, port, own_port)
        if uid < 0:
            return UNKNOWN_PEER
        if pid := self._holder(inode, [*([stated_pid] if stated_pid > 0 else []), *likely]):
            return Sender(pid, uid)
        belongs = self._processes.belonging(stated_pid)
        if belongs is not None and uid > 0 and belongs.uid == uid and not belongs.pod_uid:
            return Sender(stated_pid, uid)
        return Sender(0, uid)

    def _socket(self, host: str, port: int, own_port: int) -> tuple[int, int]:
        """User id and inode of the client's end; (-1, 0) without one."""
        try:
            address = _hex(host)
        except ValueError:
            return -1, 0
        # gRPC connects with IPv6 sockets to IPv4 addresses.
        for table, before in (("tcp", ""), ("tcp6", MAPPED)):
            client = f" {before}{address}:{port:04X} ".encode()
            ours = f":{own_port:04X}".encode()
            if found := _line(self._proc / "net" / table, client, ours):
                return found
        return -1, 0

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


def _line(table: Path, client: bytes, ours: bytes) -> tuple[int, int] | None:
    """User id and inode of the connection from `client`, in one of the kernel's tables."""
    try:
        with table.open("rb") as file:
            text = file.read(TABLE_BYTES_MAX)
    except OSError:
        return None
    at = text.find(client)
    while at >= 0:
        words = text[at : text.find(b"\n", at)].split()
        if len(words) > 8 and words[1].endswith(ours):
            return int(words[6]), int(words[8])
        at = text.find(client, at + 1)
    return None


def _hex(host: str) -> str:
    """An IPv4 address as the kernel prints it. Raises ValueError."""
    parts = [int(part) for part in host.split(".")]
    if len(parts) != 4 or not all(0 <= part < 256 for part in parts):
        raise ValueError(host)
    (native,) = struct.unpack("=I", bytes(parts))
    return f"{native:08X}"
