"""The agent's connection to its keeper: one request, one reply, from any thread.

The keeper is a child at the other end of a socket pair, or a service behind a path. A connection
that breaks raises `KeeperGone`; measuring goes on without the keeper.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from joulecut_agent.keeper import protocol, requests
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.protocol import ProtocolError, Reply, Slot
from joulecut_agent.keeper.requests import GPUS_MAX, Request
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuDescription, Lease

MW_PER_W = 1000.0
ANSWER_WAIT_S = 5.0  # 16 writes of 20 ms and a slow fsync fit ten times
GLANCE_S = 0.5  # how long a request waits before it finds that its keeper is stopped
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred


class KeeperGone(Unavailable):
    """The keeper does not answer; leases expire without it."""


@dataclass(frozen=True, slots=True)
class Status:
    """The keeper's answer about every GPU, at the agent's monotonic `taken_at_s`."""

    taken_at_s: float
    epoch_seen: int
    bounds: Bounds
    slots: dict[str, Slot]
    stopped: str = ""  # why no GPU of this node takes commands now

    def lease(self, uuid: str, now_s: float) -> Lease | None:
        """The lease of a GPU, with the time left at `now_s`; None without one."""
        slot = self.slots.get(uuid)
        if slot is None or slot.lease is None:
            return None
        held = slot.lease
        min_mhz, max_mhz, power_mw = held.limits
        left_s = max(0.0, held.expires_s - (now_s - self.taken_at_s))
        power_w = power_mw / MW_PER_W if power_mw else None
        lowest_mhz = min(held.schedule_mhz, default=0)
        return Lease(
            held.job, held.epoch, held.generation, min_mhz, max_mhz, left_s, power_w, lowest_mhz
        )

    def power_limit_kept_w(self, uuid: str) -> float:
        """The power limit of a GPU that outlives its lease; 0 without one."""
        slot = self.slots.get(uuid)
        return slot.kept_power_mw / MW_PER_W if slot else 0.0


class KeeperClient:
    """`status` is the keeper's newest answer, None while no keeper answers."""

    def __init__(self, absent: str) -> None:
        """`absent`: reason why no GPU can be controlled while no keeper answers."""
        self._uuids: Callable[[], Iterable[str]] = tuple
        self._absent = absent
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0  # of the keeper, 0 where it is not visible
        self._serial = 0
        self.status: Status | None = None
        self.mismatch = ""  # why the keeper of another version is not understood
        self.connections = 0  # so far: each may be to another keeper
        self.epoch_seen = 0  # kept without a keeper: a controller that starts now must know it

    def watch(self, uuids: Callable[[], Iterable[str]]) -> None:
        """Sets the GPUs that `refresh` asks for, up to GPUS_MAX; one may be found late."""
        self._uuids = uuids

    def attach(self, line: socket.socket, pid: int = 0) -> None:
        """Uses the connection `line` from now on; `pid` is the keeper's, where it is known."""
        with self._lock:
            self._drop()
            self.connections += 1
            line.settimeout(GLANCE_S)
            self._socket, self._pid = line, pid

    def detach(self) -> None:
        with self._lock:
            self._drop()

    def connect(self, path: str) -> None:
        """Connects to a keeper's socket. Raises KeeperGone."""
        with contextlib.ExitStack() as undo:
            try:
                line = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                line.settimeout(ANSWER_WAIT_S)
                line.connect(path)
                peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError as error:  # no descriptor left, or no keeper
                raise KeeperGone(f"no keeper at {path}: {error.strerror or error}") from None
            undo.pop_all()
        self.attach(line, _CREDENTIALS.unpack(peer)[0])

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def ask(self, request: Request) -> Reply:
        """Raises KeeperGone, and ProtocolError if the request does not fit into a message."""
        with self._lock:
            return self._ask(request)

    def refresh(self) -> Status:
        """Requests the state of every GPU. Raises KeeperGone."""
        request = requests.Status(tuple(islice(self._uuids(), GPUS_MAX)))
        with self._lock:
            reply = self._ask(request)
            slots = {slot.uuid: slot for slot in reply.slots}
            now_s = time.monotonic()
            self.status = Status(now_s, reply.epoch_seen, reply.bounds, slots, reply.stopped)
            self.mismatch = ""
            self.epoch_seen = reply.epoch_seen  # it falls after `reset-epoch`
            return self.status

    def described(self, gpus: Iterable[GpuDescription]) -> tuple[GpuDescription, ...]:
        """The GPUs with the keeper's bounds, and whether it can control them."""
        return tuple(map(self._described, gpus))

    def _described(self, gpu: GpuDescription) -> GpuDescription:
        status = self.status
        if status is None:
            return replace(
                gpu, controllable=False, reason=gpu.reason or self.mismatch or self._absent
            )
        slot = status.slots.get(gpu.uuid)
        absent = f"a keeper holds at most {GPUS_MAX} GPUs"
        reason = gpu.reason or (absent if slot is None else slot.reason)
        controllable = gpu.controllable and not reason
        return replace(
            gpu,
            clock_min_mhz=status.bounds.clock_min_mhz,
            clock_max_mhz=status.bounds.clock_max_mhz,
            min_dwell_s=status.bounds.min_dwell_s,
            controllable=controllable,
            reason=reason,
            power_controllable=controllable and gpu.power_limit_max_w > 0.0,
        )

    def _ask(self, request: Request) -> Reply:
        if self._socket is None:
            raise KeeperGone("no keeper is running")
        if self.status is None and is_stopped(self._pid):  # a request was in vain already
            raise KeeperGone(f"keeper {self._pid} is stopped")
        self._serial = self._serial % (2**32 - 1) + 1  # 0 answers what is no message
        raw = protocol.encode_request(self._serial, request)
        try:
            self._socket.send(raw)
            while True:  # late answers to requests that timed out come first
                reply = protocol.decode_reply(self._receive(self._socket))
                if reply.serial == self._serial:
                    return reply
                if reply.serial == 0:
                    raise ProtocolError(reply.stopped)
        except TimeoutError:
            self.status = None
            if is_stopped(self._pid):
                raise KeeperGone(f"keeper {self._pid} is stopped") from None
            raise KeeperGone(f"the keeper has not answered within {ANSWER_WAIT_S:g} s") from None
        except OSError as error:
            self._drop()
            raise KeeperGone(f"the keeper is gone: {error}") from None
        except ProtocolError as error:
            self._drop()
            self.mismatch = str(error) if isinstance(error, protocol.OtherVersion) else ""
            raise KeeperGone(f"the keeper does not understand: {error}") from None

    def _receive(self, line: socket.socket) -> bytes:
        """The next message, within ANSWER_WAIT_S of a keeper that runs. Raises OSError."""
        until_s = time.monotonic() + ANSWER_WAIT_S
        while True:
            try:
                raw = line.recv(protocol.REPLY_BYTES + 1)
                if not raw:
                    raise ConnectionResetError("it has closed the connection")
                return raw
            except TimeoutError:
                if time.monotonic() >= until_s or is_stopped(self._pid):
                    raise

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.status = None


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process (proc(5), stat)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    return False
