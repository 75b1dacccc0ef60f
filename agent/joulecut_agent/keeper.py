"""The only code of ours that writes to a GPU: small, local, and quick to give back.

It performs what the lease machine answers, in one thread: intent into the journal, then the
write. It has no network socket. Whoever speaks to it may die at any moment; its own death is
covered by the journal, which it reads back before anybody can connect.
"""

import contextlib
import fcntl
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joulecut_agent import keeper_protocol as wire
from joulecut_agent import limits
from joulecut_agent import state as leases
from joulecut_agent.journal import Journal
from joulecut_agent.limits import Asked, Bounds, Writes
from joulecut_agent.log import say
from joulecut_agent.ports.failure import DeviceError, NotPermitted
from joulecut_agent.ports.writer import ClockWriter
from joulecut_agent.state import Answer, Command, Lease, Lock, Restore, Written
from joulecut_wire.errors import Unavailable

LOCK_WAIT_S, LOCK_TRY_S = 5.0, 0.05  # a keeper that is just restoring and leaving needs less
LEAVE_WAIT_S = 3.0  # how long a leaving keeper retries; what is left stays in the journal
CLIENTS_MAX = 8  # an agent, a `restore`, and room for a few curious ones
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Settings:
    """`site_default` is (min, max) in MHz of a GPU without a lease; None is the driver's."""

    state_dir: str
    bounds: Bounds = field(default_factory=Bounds)
    site_default: tuple[int, int] | None = None


class Keeper:
    """Leases, bounds, journal and device together. Not thread-safe: one loop owns it."""

    def __init__(self, settings: Settings, writer: ClockWriter) -> None:
        """Restores what the journal names, before anybody can ask. Raises OSError."""
        self._settings = settings
        self._writer = writer
        self._journal = Journal(Path(settings.state_dir) / "journal", _BOOT_ID.read_text().strip())
        self._clocks_mhz: dict[str, tuple[int, ...]] = {}
        self._writes: dict[str, Writes] = {}
        self._restores: dict[tuple[str, str], int] = {}
        self.trouble = writer.permission()
        if self.trouble:
            say("keeper", f"cannot set clocks: {self.trouble}")
        for remark in self._journal.remarks:
            say("keeper", f"journal: {remark}")
        gpus = {uuid: leases.Gpu(last=lease) for uuid, lease in self._journal.last.items()}
        self.state = leases.State(self._journal.epoch_seen, gpus)
        self.found = dict(self._journal.held)  # what an earlier keeper left
        self._step(Command(leases.END, clocks_mhz=self.found, cause="keeper_start"))

    def tick(self) -> None:
        """Restores whatever is due."""
        self._step(None)

    def give_back(self, cause: str) -> bool:
        """Restores every GPU under a lease; whether nothing is owed in the end."""
        held = {uuid: (0, 0) for uuid, gpu in self.state.gpus.items() if gpu.lease}
        self._step(Command(leases.END, clocks_mhz=held, cause=cause))
        until_s = time.monotonic() + LEAVE_WAIT_S
        while (due_s := self.state.due_s()) < until_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            self.tick()
        return not any(gpu.owed for gpu in self.state.gpus.values())

    def handle(self, serial: int, command: Command) -> wire.Reply:
        """Answers one message; every refusal is a value in it."""
        self.tick()
        answers: dict[str, Answer] = {}
        if command.op == leases.APPLY:
            answers = self._apply(command)
        elif command.op != leases.STATUS:
            ttl = limits.refuse_ttl(self._settings.bounds, command.ttl_s)
            answers = self._step(command, {"": ttl if command.op == leases.RENEW else ""})
            with contextlib.suppress(OSError):  # an epoch not kept is tried with the next command
                self._journal.intend(self.state.epoch_seen, {})
        bounds = self._settings.bounds
        slots = tuple(self._slot(u, answers.get(u)) for u in answers or command.clocks_mhz)
        site = (bounds.clock_min_mhz, bounds.clock_max_mhz)
        times_s = (bounds.ttl_s_max, bounds.min_dwell_s)
        return wire.Reply(serial, self.state.epoch_seen, *times_s, site, slots[: wire.GPUS_MAX])

    def _step(
        self, event: Command | Written | None, refused: Mapping[str, str] | None = None
    ) -> dict[str, Answer]:
        self.state, effects = leases.step(self.state, event, time.monotonic(), refused or {})
        restores = [effect for effect in effects if isinstance(effect, Restore)]
        self._journal.restored([r.uuid for r in restores if self._restore(r.uuid, r.cause)])
        failed = {uuid for uuid, gpu in self.state.gpus.items() if gpu.owed}
        sorry = "the restore failed; it is tried again until it is done"
        answers = [effect for effect in effects if isinstance(effect, Answer)]
        return {a.uuid: Answer(a.uuid, False, sorry) if a.uuid in failed else a for a in answers}

    def _restore(self, uuid: str, cause: str) -> bool:
        default, owed = self._settings.site_default, self.state.gpu(uuid).owed
        done = True
        try:
            if default and default[1] in self._supported_mhz(uuid):
                self._writer.lock(uuid, *default)
            else:
                self._writer.reset(uuid)
        except DeviceError as error:
            done = False
            if owed and not owed.failures:
                say("keeper", f"restore {uuid} cause={cause}: {error}; trying again")
        if done:
            say("keeper", f"restore {uuid} cause={cause}: done")
            self._restores[uuid, cause] = self._restores.get((uuid, cause), 0) + 1
            self._record(uuid, lowers=False)
        # What this step says is due besides stays owed: the next tick says it again.
        self.state, _ = leases.step(self.state, Written(uuid, done), time.monotonic(), {})
        return done

    def _apply(self, command: Command) -> dict[str, Answer]:
        now_s, bounds, wanted = time.monotonic(), self._settings.bounds, command.clocks_mhz
        asked = {u: Asked(m, self._before(u), self._supported_mhz(u)) for u, m in wanted.items()}
        judged = limits.judge(bounds, asked, self._writes, len(self._clocks_mhz), now_s)
        ttl = limits.refuse_ttl(bounds, command.ttl_s)
        refused = {uuid: self._barred(uuid) or ttl or judged[uuid] for uuid in asked}
        after, effects = leases.step(self.state, command, now_s, refused)
        answers = {effect.uuid: effect for effect in effects if isinstance(effect, Answer)}
        if all(answer.accepted for answer in answers.values()):
            locks = [effect for effect in effects if isinstance(effect, Lock)]
            if reason := self._write(command, locks, asked):
                return {uuid: Answer(uuid, False, reason) for uuid in asked}
            self.state = after
        return answers

    def _write(self, command: Command, locks: list[Lock], asked: Mapping[str, Asked]) -> str:
        """Writes a group or reverts it; why it did, or ""."""
        try:
            self._journal.intend(command.epoch, command.clocks_mhz, command.generation)
        except OSError as error:
            return f"the journal cannot be written: {error.strerror}"
        for n, lock in enumerate(locks):
            self._record(lock.uuid, lowers=asked[lock.uuid].lowers)
            try:
                self._writer.lock(lock.uuid, *lock.clocks_mhz)
            except DeviceError as error:
                denied = isinstance(error, NotPermitted)
                if denied and not self.trouble:
                    self.trouble = str(error)
                    say("keeper", f"cannot set clocks: {error}")
                self._revert(locks, n if denied else n + 1)
                return f"{lock.uuid} was not set, the group was reverted: {error}"
        return ""

    def _revert(self, locks: list[Lock], touched: int) -> None:
        # The rest was intended, and never written.
        self._journal.restored([lock.uuid for lock in locks[touched:] if not lock.before_mhz])
        for lock in reversed(locks[:touched]):
            with contextlib.suppress(DeviceError):
                if lock.before_mhz is not None:
                    self._writer.lock(lock.uuid, *lock.before_mhz)
                    continue
            self._step(Command(leases.END, clocks_mhz={lock.uuid: (0, 0)}, cause="reverted"))

    def _record(self, uuid: str, *, lowers: bool) -> None:
        past = self._writes.get(uuid, Writes())
        self._writes[uuid] = limits.record(past, lowers, time.monotonic())

    def _supported_mhz(self, uuid: str) -> tuple[int, ...]:
        """Of a GPU of this node; the first ones asked for are the node, as far as we hold."""
        known = self._clocks_mhz
        if uuid in known or len(known) == wire.GPUS_MAX:
            return known.get(uuid, ())
        if clocks_mhz := self._writer.clocks_mhz(uuid):
            known[uuid] = clocks_mhz
        return clocks_mhz

    def _before(self, uuid: str) -> tuple[int, int]:
        lease = self.state.gpu(uuid).lease
        fallback = self._settings.site_default or (0, max(self._supported_mhz(uuid), default=0))
        return lease.clocks_mhz if lease else fallback

    def _barred(self, uuid: str) -> str:
        if reason := self.trouble or self._writer.uncontrollable(uuid):
            return reason
        return "" if self._supported_mhz(uuid) else "no clocks can be set on this GPU"

    def _slot(self, uuid: str, answer: Answer | None) -> wire.Slot:
        lease = self.state.gpu(uuid).lease or Lease("", 0, 0, (0, 0), 0.0)
        barred = "" if answer else self._barred(uuid)
        answer = answer or Answer(uuid, not barred, barred)
        counts = tuple(self._restores.get((uuid, cause), 0) for cause in leases.CAUSES)
        held = (lease.job, lease.epoch, lease.generation, lease.clocks_mhz)
        ends_s = max(0.0, lease.expires_s - time.monotonic())
        return wire.Slot(uuid, answer.accepted, answer.reason, *held, ends_s, counts)


def hold(state_dir: str, wait_s: float = LOCK_WAIT_S) -> int:
    """Takes the lock that makes a keeper the only one; it ends with the process.

    Raises Unavailable where another keeper holds it for longer than `wait_s`.
    """
    fd = os.open(Path(state_dir) / "keeper.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    for _ in range(round(wait_s / LOCK_TRY_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        time.sleep(LOCK_TRY_S)
    os.close(fd)
    raise Unavailable(f"another keeper holds {state_dir}/keeper.lock")


def run(settings: Settings, open_writer: Callable[[], ClockWriter], agent_fd: int = -1) -> int:
    """Serves until a signal, or until the agent at the other end of `agent_fd` is gone.

    Returns 0 when every GPU was given back. Raises Unavailable, OSError, DeviceError.
    """
    bell, ringer = socket.socketpair()
    ringer.setblocking(False)
    signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    hold(settings.state_dir)
    keeper = Keeper(settings, open_writer())
    path = Path(settings.state_dir) / "keeper.sock"
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.umask(0o117)  # owner and group, as the state directory names them
    door.bind(str(path))
    door.listen(CLIENTS_MAX)
    cause = _serve(keeper, bell, door, socket.socket(fileno=agent_fd) if agent_fd >= 0 else None)
    path.unlink(missing_ok=True)
    door.close()
    say("keeper", f"leaving: {cause}")
    return 0 if keeper.give_back(cause) else 1


def _serve(
    keeper: Keeper, bell: socket.socket, door: socket.socket, agent: socket.socket | None
) -> str:
    """Answers messages and lets leases run out; returns the cause to leave with."""
    with selectors.DefaultSelector() as selector:
        for source in filter(None, (bell, door, agent)):
            source.setblocking(False)
            selector.register(source, selectors.EVENT_READ, source)
        while True:
            wait_s = max(0.0, keeper.state.due_s() - time.monotonic())
            ready = selector.select(None if wait_s == math.inf else wait_s)
            keeper.tick()
            for source in (key.data for key, _ in ready):
                if source is bell:
                    return "shutdown"
                if source is door:
                    _admit(door, selector)
                elif not _answer(keeper, source):
                    if source is agent:
                        return "agent_gone"
                    selector.unregister(source)
                    source.close()


def _admit(door: socket.socket, selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(OSError):
        client, _ = door.accept()
        if len(selector.get_map()) > CLIENTS_MAX:
            client.close()
            return
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ, client)


def _answer(keeper: Keeper, source: socket.socket) -> bool:
    """Reads and answers one message; False where the other end is gone or talks nonsense."""
    try:
        if raw := source.recv(wire.REQUEST_BYTES + 1):
            source.send(wire.encode_reply(keeper.handle(*wire.decode_request(raw))))
        return bool(raw)
    except (OSError, wire.ProtocolError) as error:
        say("keeper", f"a client was dropped: {error}")
        return False
