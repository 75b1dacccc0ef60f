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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from joulecut_agent.keeper import bounds
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Asked, Bounds, Writes
from joulecut_agent.keeper.journal import Journal
from joulecut_agent.keeper.lease import GPUS_MAX, NONE, Command, Knobs, Lock
from joulecut_agent.log import say
from joulecut_agent.ports.failure import DeviceError, NotPermitted
from joulecut_wire.errors import Unavailable

if TYPE_CHECKING:
    from joulecut_agent.ports.writer import DeviceWriter

LOCK_WAIT_S, LOCK_TRY_S = 5.0, 0.05  # a keeper that is just restoring and leaving needs less
LEAVE_WAIT_S = 3.0  # how long a leaving keeper retries; what is left stays in the journal
CLIENTS_MAX = 8  # an agent, a `restore`, and room for a few curious ones
STOP_LOOK_S = 1.0  # how soon the stop file is seen while something is held
RELEASE_S_MAX = 3600.0  # a driver upgrade takes minutes; a forgotten window must end
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Settings:
    """`site_default` is (min, max) in MHz of a GPU without a lease; None is the driver's.

    `journal_dir` is where the journal lies, "" for `state_dir`; it need not outlive a boot.
    `power_safe` is what a power limit of ours falls to when nobody renews it: "recorded" (as
    it was before), "keep", or the site's cap in mW. `restore_spread_s`: see `state.State`.
    """

    state_dir: str
    bounds: Bounds = field(default_factory=Bounds)
    site_default: tuple[int, int] | None = None
    power_safe: str | int = "recorded"
    restore_spread_s: float = 0.0
    stop_file: str = ""
    journal_dir: str = ""


class Keeper:
    """Leases, bounds, journal and device together. Not thread-safe: one loop owns it."""

    def __init__(self, settings: Settings, writer: "DeviceWriter") -> None:
        """Restores what the journal names, before anybody can ask. Raises OSError."""
        self._settings = settings
        self._writer = writer
        self._journal = journal(settings)
        self._clocks_mhz: dict[str, tuple[int, ...]] = {}
        self._writes: dict[str, Writes] = {}
        self._restores: dict[tuple[str, str], int] = {}
        self._released_s = -math.inf
        self.trouble = writer.permission()
        if self.trouble:
            say("keeper", f"cannot set clocks: {self.trouble}")
        for remark in self._journal.remarks:
            say("keeper", f"journal: {remark}")
        gpus = {uuid: leases.Gpu(last=lease) for uuid, lease in self._journal.last.items()}
        self.state = leases.State(self._journal.epoch_seen, gpus, settings.restore_spread_s)
        self._end(sorted(self._journal.held), "keeper_start")

    def tick(self) -> None:
        """Restores whatever is due, and everything where the stop file is seen."""
        if self._held() and self.stopped():
            self._end(self._held(), "stopped")
        self._step(None)  # inside of a release window nothing is held or owed

    def due_s(self) -> float:
        """When `tick` has something to do, if nobody asks before."""
        return min(self.state.due_s(), time.monotonic() + STOP_LOOK_S if self._held() else math.inf)

    def give_back(self, cause: str) -> bool:
        """Restores every GPU under a lease; whether nothing is owed in the end."""
        # A spread-out restore is due now.
        self._end([u for u, gpu in self.state.gpus.items() if gpu.lease or gpu.owed], cause)
        until_s = time.monotonic() + LEAVE_WAIT_S
        while (due_s := self.state.due_s()) < until_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._step(None)
        return not any(gpu.owed for gpu in self.state.gpus.values())

    def handle(self, serial: int, command: Command) -> wire.Reply:
        """Answers one message; every refusal is a value in it."""
        if command.op != leases.STEP:  # which cannot wait, and asks of time what it needs itself
            self.tick()
        reasons: Mapping[str, str] = {}
        if command.op in {leases.APPLY, leases.RENEW, leases.STEP}:
            reasons = self._order(command)
        elif command.op in {leases.RELEASE, leases.RESUME}:
            reasons = {"": self._release(command.ttl_s * (command.op == leases.RELEASE))}
        elif command.op != leases.STATUS:
            reasons = self._step(command)
            for uuid in [u for u in reasons if not reasons[u] and command.op == leases.YIELD]:
                # What stands there now is not ours to undo; a knob that is still ours is.
                rest = (*command.clocks_mhz[uuid], command.power_mw.get(uuid, 0))
                self._journal.restored([uuid] * (not any(rest)), [uuid] * (not rest[2]))
                if any(rest):
                    self._journal.held[uuid] = rest
                    self._end([uuid], "cleared")
            with contextlib.suppress(OSError):  # an epoch not kept is tried with the next command
                self._journal.intend(self.state.epoch_seen, {})
        slots = tuple(self._slot(u, reasons.get(u)) for u in reasons or command.clocks_mhz)
        site = (self.state.epoch_seen, self._settings.bounds)
        return wire.Reply(serial, *site, slots[:GPUS_MAX], self.stopped(), self._left_s())

    def stopped(self) -> str:
        """Why no GPU of this node takes commands now, or ""."""
        if left_s := self._left_s():
            return f"released for {math.ceil(left_s)} s more: every device handle is dropped"
        stop = self._settings.stop_file
        return f"the file {stop} stops all control" if stop and os.path.lexists(stop) else ""

    def _left_s(self) -> float:
        return max(0.0, self._released_s - time.monotonic())

    def _held(self) -> list[str]:
        return [uuid for uuid, gpu in self.state.gpus.items() if gpu.lease]

    def _end(self, uuids: list[str], cause: str) -> None:
        self.state = leases.end(self.state, uuids, cause, time.monotonic())
        self._step(None)

    def _release(self, duration_s: float) -> str:
        """Gives everything back and drops all handles until `duration_s` are over; 0 resumes."""
        if not 0.0 <= duration_s <= RELEASE_S_MAX:
            return f"{duration_s:g} s; allowed: up to {RELEASE_S_MAX:g} s"
        self._released_s = -math.inf
        if duration_s:
            if not self.give_back("released"):
                return "not every GPU could be given back: nothing was released"
            self._writer.close()
            self._released_s = time.monotonic() + duration_s
        say("keeper", f"released for {duration_s:g} s" if duration_s else "resumed")
        return ""

    def _step(self, event: Command | None) -> Mapping[str, str]:
        self.state, reasons, restores, _ = leases.step(self.state, event, time.monotonic(), {})
        for uuid, cause in restores:
            self._restore(uuid, cause)
        return reasons

    def _restore(self, uuid: str, cause: str) -> None:
        owed, knobs = self.state.gpu(uuid).owed, self._journal.held.get(uuid, (0, 1, 0))
        how = "done"
        try:
            if knobs[1]:
                self._set_clocks(uuid, (0, 0))
            recorded = bool(knobs[2]) and self._set_power(uuid, 0, cause)
            self._journal.restored([uuid], [uuid] if recorded else ())
            self._restores[uuid, cause] = self._restores.get((uuid, cause), 0) + 1
            self._record(uuid, lowers=False)
        except DeviceError as error:
            how = f"{error}; trying again"
        if how == "done" or (owed and not owed.failures):
            say("keeper", f"restore {uuid} cause={cause}: {how}")
        self.state = leases.restored(self.state, uuid, how == "done", time.monotonic())

    def _set_clocks(self, uuid: str, mhz: tuple[int, int]) -> None:
        default = self._settings.site_default
        if not mhz[1] and default and {*default} <= {0, *self._supported_mhz(uuid)}:
            mhz = default
        if not mhz[1]:
            return self._writer.reset(uuid)
        try:
            self._writer.lock(uuid, *mhz)
        except NotPermitted:
            self._writer.reset(uuid)  # a driver may have done what it denies
            raise

    def _set_power(self, uuid: str, power_mw: int, cause: str = "cleared") -> bool:
        """Sets a limit, or for 0 the safe one; whether that is the one that stood before ours."""
        safe, recorded_mw = self._settings.power_safe, self._journal.limits_mw.get(uuid, 0)
        back = not power_mw and (cause == "cleared" or safe == "recorded")
        power_mw = power_mw or (recorded_mw if back else 0 if isinstance(safe, str) else safe)
        try:
            if power_mw:
                self._writer.limit_power(uuid, power_mw)
        except NotPermitted:
            self._writer.limit_power(uuid, recorded_mw or power_mw)  # as with clocks
            raise
        return back

    def _order(self, command: Command) -> Mapping[str, str]:
        """Takes or moves leases: journaled, then written, then in force; or nothing changed."""
        now_s, site = time.monotonic(), self._settings.bounds
        # The steps of a program were judged with it.
        named = command.clocks_mhz if command.op == leases.APPLY else ()
        asked = {uuid: self._asked(uuid, command) for uuid in named}
        judged = bounds.judge(site, asked, self._writes, len(self._clocks_mhz), now_s)
        ttl = bounds.refuse_ttl(site, command.ttl_s)
        refused = {"": ttl} | {uuid: self._barred(uuid) or ttl or judged[uuid] for uuid in asked}
        after, reasons, _, locks = leases.step(self.state, command, now_s, refused)
        held = {u: g.lease for u, g in after.gpus.items() if g.lease and reasons.get(u) == ""}
        if not held:
            return reasons
        before_mw = {uuid: one.before[2] for uuid, one in asked.items() if one.wanted[2]}
        try:
            self._journal.intend(command.epoch, held, before_mw)
        except OSError as error:
            return dict.fromkeys(reasons, f"the journal cannot be written: {error.strerror}")
        if why := self._write(locks, asked):
            return dict.fromkeys(reasons, why)
        # What was given back on the way is no longer ours.
        self._journal.held.update({uuid: lease.knobs for uuid, lease in held.items()})
        self.state = after
        return reasons

    def _asked(self, uuid: str, command: Command) -> Asked:
        """What a command asks of a GPU, beside what it has and can do."""
        lease, power_mw = self.state.gpu(uuid).lease, command.power_mw.get(uuid, 0)
        supported_mhz = self._supported_mhz(uuid)
        power = (0, 0, 0)
        if power_mw and not self.stopped():
            with contextlib.suppress(DeviceError):
                power = self._writer.power_limits_mw(uuid)
        mhz = self._settings.site_default or (0, max(supported_mhz, default=0))
        before = lease.in_force[:2] if lease and lease.clocks_mhz[1] else mhz
        wanted, program = (*command.clocks_mhz[uuid], power_mw), command.programs.get(uuid, ())
        return Asked(wanted, (*before, power[2]), supported_mhz, power[:2], program)

    def _write(self, locks: tuple[Lock, ...], asked: Mapping[str, Asked]) -> str:
        """Writes a group or reverts it; why it did, or ""."""
        for n, lock in enumerate(locks):
            if lock.uuid in asked:
                self._record(lock.uuid, lowers=asked[lock.uuid].lowers)
            try:
                self._set(lock.uuid, lock.wanted, lock.before)
            except DeviceError as error:
                denied = isinstance(error, NotPermitted)
                if denied and not self.trouble:
                    self.trouble = str(error)
                    say("keeper", f"cannot set clocks: {error}")
                # Of two knobs the first may have been allowed; denied at once is not touched.
                self._revert(locks, n if denied and not self._half else n + 1)
                return f"{lock.uuid} was not set, the group was reverted: {error}"
        return ""

    def _set(self, uuid: str, wanted: Knobs, before: Knobs) -> None:
        """Writes what differs; a knob that is no longer asked for goes back."""
        self._half = False
        if wanted[:2] != before[:2]:
            self._set_clocks(uuid, wanted[:2])
            self._half = True
        if wanted[2] != before[2]:
            self._set_power(uuid, wanted[2])

    def _revert(self, locks: tuple[Lock, ...], touched: int) -> None:
        # The rest was intended, and never written.
        clean = [lock.uuid for lock in locks[touched:] if lock.before == NONE]
        self._journal.restored(clean, clean if self._settings.power_safe == "recorded" else ())
        for lock in reversed(locks[:touched]):
            with contextlib.suppress(DeviceError):
                if lock.before != NONE:
                    self._set(lock.uuid, lock.before, lock.wanted)
                    continue
            self._end([lock.uuid], "reverted")

    def _record(self, uuid: str, *, lowers: bool) -> None:
        past = self._writes.get(uuid, Writes())
        self._writes[uuid] = bounds.record(past, lowers, time.monotonic())

    def _supported_mhz(self, uuid: str) -> tuple[int, ...]:
        """Of a GPU of this node; the first ones asked for are the node, as far as we hold."""
        room = len(self._clocks_mhz) < GPUS_MAX and not self.stopped()
        if room and uuid not in self._clocks_mhz and (mhz := self._writer.clocks_mhz(uuid)):
            self._clocks_mhz[uuid] = mhz
        return self._clocks_mhz.get(uuid, ())

    def _stuck(self, uuid: str) -> str:
        if (owed := self.state.gpu(uuid).owed) and owed.failures:
            return f"{leases.STUCK}: its restore ({owed.cause}) is owed: {owed.failures} failures"
        return ""

    def _barred(self, uuid: str) -> str:
        why = self._stuck(uuid) or self.trouble or self.stopped()
        why = why or self._writer.uncontrollable(uuid)
        return why or ("" if self._supported_mhz(uuid) else "no clocks can be set on this GPU")

    def _slot(self, uuid: str, reason: str | None) -> wire.Slot:
        if lease := self.state.gpu(uuid).lease:
            lease = replace(lease, expires_s=max(0.0, lease.expires_s - time.monotonic()))
        reason = (self._barred(uuid) if reason is None else reason) or self._stuck(uuid)
        done = tuple(self._restores.get((uuid, cause), 0) for cause in leases.CAUSES)
        return wire.Slot(uuid, not reason, reason, lease, done)


def journal(settings: Settings) -> Journal:
    """What an earlier keeper left. Raises OSError where it cannot be read."""
    lasting, apart = Path(settings.state_dir) / "journal", settings.journal_dir
    files = (Path(apart) / "journal", lasting) if apart else (lasting, None)
    return Journal(files[0], BOOT_ID.read_text().strip(), files[1])


def hold(lock: Path, wait_s: float) -> int:
    """Takes the lock that makes a process the only one of its kind; it ends with the process.

    Raises OSError, and Unavailable where another one holds it for longer than `wait_s`.
    """
    fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    for _ in range(round(wait_s / LOCK_TRY_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        time.sleep(LOCK_TRY_S)
    os.close(fd)
    raise Unavailable(f"another {lock.stem} holds {lock}")


def run(settings: Settings, writer: "DeviceWriter", agent_fd: int = -1) -> int:
    """Serves until a signal, or until the agent at the other end of `agent_fd` is gone.

    Returns 0 when every GPU was given back. Raises Unavailable, OSError, DeviceError.
    """
    bell, ringer = socket.socketpair()
    ringer.setblocking(False)
    signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    path = Path(settings.state_dir) / "keeper.sock"
    hold(path.with_suffix(".lock"), LOCK_WAIT_S)
    keeper = Keeper(settings, writer)
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
            wait_s = max(0.0, keeper.due_s() - time.monotonic())
            ready = selector.select(None if wait_s == math.inf else wait_s)
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
            keeper.tick()  # who was answered did not wait for it


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
