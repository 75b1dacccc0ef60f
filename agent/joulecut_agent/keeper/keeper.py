"""The keeper: the only process that writes to a GPU.

One thread performs the effects of the lease state machine: first the journal, then the write. It
has no network socket. Any client may die at any moment. The keeper's own death is covered by the
journal, which the next keeper restores before a client can connect.
"""

import contextlib
import dataclasses
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
from typing import TYPE_CHECKING

from msgspec.structs import replace

from joulecut_agent.keeper import bounds
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds, Change, WriteHistory
from joulecut_agent.keeper.journal import UNKNOWN_LIMITS, Journal
from joulecut_agent.keeper.lease import (
    CAUSES,
    GPUS_MAX,
    NO_LIMITS,
    RETRY_S_MAX,
    STUCK,
    Command,
    Gpu,
    Op,
    State,
    Write,
    apply_event,
    end_leases,
    restore_finished,
)
from joulecut_agent.log import log
from joulecut_agent.ports.failure import DeviceError, NotPermitted
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import ClockLimits

if TYPE_CHECKING:
    from joulecut_agent.ports.writer import DeviceWriter

LOCK_WAIT_S, LOCK_TRY_S = 5.0, 0.05  # longer than a keeper needs to restore and leave
LEAVE_WAIT_S = 3.0  # how long a leaving keeper retries; the rest stays in the journal
CLIENTS_MAX = 8  # an agent, a `restore`, and some more
STOP_FILE_POLL_S = 1.0  # while a lease is in force
RELEASE_S_MAX = 3600.0  # a driver upgrade takes minutes; a forgotten window must end
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LIMIT_SLACK_MW = 1000  # limits are whole watts on some boards


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a keeper.

    `site_default` is (min, max) in MHz of a GPU without a lease; None: the driver's default.
    `journal_dir` may be lost at a reboot; "" is `state_dir`.
    `power_safe` is the power limit after a lease has expired: "recorded" (as found before the
    first write), "keep", or the site's cap in mW.
    """

    state_dir: str
    bounds: Bounds = field(default_factory=Bounds)
    site_default: tuple[int, int] | None = None
    power_safe: str | int = "recorded"
    restore_jitter_s: float = 0.0
    stop_file: str = ""
    journal_dir: str = ""


class Keeper:
    """Leases, bounds, journal and device together. Not thread-safe: one loop owns it."""

    def __init__(self, settings: Settings, writer: "DeviceWriter") -> None:
        """Restores every GPU that the journal names. Raises OSError without a boot id."""
        self._settings = settings
        self._writer = writer
        self._journal = journal(settings)
        self._clocks_mhz: dict[str, tuple[int, ...]] = {}
        self._writes: dict[str, WriteHistory] = {}
        self._restores: dict[tuple[str, str], int] = {}
        self._released_until_s = -math.inf
        self._clocks_written = False  # by the last `_set`, which then failed at the power limit
        self.trouble = writer.permission()
        if self.trouble:
            log("keeper", f"cannot set clocks: {self.trouble}")
        for remark in self._journal.remarks:
            log("keeper", f"journal: {remark}")
        ours, last = self._journal.ours, self._journal.last
        gpus = {uuid: Gpu(last=lease, may_be_ours=uuid in ours) for uuid, lease in last.items()}
        self.state = State(self._journal.epoch_seen, gpus, settings.restore_jitter_s)
        self._list_all_s = 0.0  # time of the next try to list the GPUs of a damaged journal
        self._end(sorted(self._journal.held), "keeper_start")
        self._reset_all()

    def tick(self) -> None:
        """Performs due restores; ends every lease if the stop file exists."""
        if self._held() and self.stopped():
            self._end(self._held(), "stopped")
        self._reset_all()
        self._advance(None)

    def due_s(self) -> float:
        """Time of the next `tick` if no message arrives before."""
        poll_s = time.monotonic() + STOP_FILE_POLL_S if self._held() else math.inf
        list_s = self._list_all_s if self._journal.damaged else math.inf
        return min(self.state.due_s(), poll_s, list_s)

    def _reset_all(self) -> None:
        """After damage to the journal: resets every GPU of the node once."""
        if not self._journal.damaged or time.monotonic() < self._list_all_s:
            return
        try:
            uuids = self._writer.uuids()
        except DeviceError as error:
            self._list_all_s = time.monotonic() + RETRY_S_MAX
            log("keeper", f"the journal is damaged, and no GPU can be listed: {error}; will retry")
            return
        log("keeper", f"the journal is damaged: {len(uuids)} GPUs are reset")
        self._journal.hold_all(uuids)
        self._end(sorted(self._journal.held), "keeper_start")

    def restore_all(self, cause: str) -> bool:
        """Restores every GPU under a lease, without jitter; whether all restores succeeded."""
        gpus = self.state.gpus.items()
        self._end([uuid for uuid, gpu in gpus if gpu.lease or gpu.pending_restore], cause)
        until_s = time.monotonic() + LEAVE_WAIT_S
        while (due_s := self.state.due_s()) < until_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._advance(None)
        return not any(gpu.pending_restore for gpu in self.state.gpus.values())

    def handle(self, serial: int, command: Command) -> wire.Reply:
        """Answers one message; every refusal is a value in the answer."""
        if command.op != Op.STEP:  # a step must not wait for restores
            self.tick()
        reasons = self._perform(command)
        slots = tuple(self._slot(u, reasons.get(u)) for u in reasons or command.clocks_mhz)
        return wire.Reply(
            serial,
            self.state.epoch_seen,
            self._settings.bounds,
            slots[:GPUS_MAX],
            self.stopped(),
            self._release_left_s(),
        )

    def stopped(self) -> str:
        """Reason why no GPU of this node takes commands now, or ""."""
        if left_s := self._release_left_s():
            return f"released for {math.ceil(left_s)} s more: every device handle is dropped"
        stop = self._settings.stop_file
        return f"the file {stop} stops all control" if stop and os.path.lexists(stop) else ""

    def _perform(self, command: Command) -> Mapping[str, str]:
        """Reason of refusal by GPU, "" for accepted; the GPU "" stands for the whole command."""
        match command.op:
            case Op.STATUS:
                return {}
            case Op.APPLY | Op.RENEW | Op.STEP:
                return self._set_leases(command)
            case Op.RELEASE:
                return {"": self._release(command.ttl_s)}
            case Op.RESUME:
                return {"": self._release(0.0)}
        refused = {}
        if command.op == Op.YIELD:
            refused = {uuid: self._refuse_yield(uuid, command) for uuid in command.clocks_mhz}
        reasons = self._advance(command, refused)
        if command.op == Op.YIELD:
            for uuid in [uuid for uuid, reason in reasons.items() if not reason]:
                self._forget_yielded(uuid, command.limits(uuid))
        with contextlib.suppress(OSError):  # an epoch that is not kept now is kept later
            self._journal.intend(self.state.epoch_seen, {})
        return reasons

    def _refuse_yield(self, uuid: str, command: Command) -> str:
        """Reason to keep a lease whose power limit is said to be another writer's, or ""."""
        lease = self.state.gpu(uuid).lease
        if not lease or not lease.power_mw or command.limits(uuid).power_mw:
            return ""
        now_mw = self._limit_mw(uuid)
        if now_mw and abs(now_mw - lease.power_mw) > LIMIT_SLACK_MW:
            return ""
        return "the power limit is still the lease's" if now_mw else "no power limit can be read"

    def _forget_yielded(self, uuid: str, ours: ClockLimits) -> None:
        """Limits of an external writer are not ours to undo; `ours` are restored."""
        done, forgotten = [] if ours != NO_LIMITS else [uuid], [] if ours.power_mw else [uuid]
        self._journal.restored(done, forgotten, [] if ours.max_mhz else [uuid])
        if ours != NO_LIMITS:
            self._journal.held[uuid] = ours
            self._end([uuid], "cleared")

    def _release_left_s(self) -> float:
        return max(0.0, self._released_until_s - time.monotonic())

    def _held(self) -> list[str]:
        return [uuid for uuid, gpu in self.state.gpus.items() if gpu.lease]

    def _end(self, uuids: list[str], cause: str) -> None:
        self.state = end_leases(self.state, uuids, cause, time.monotonic())
        self._advance(None)

    def _release(self, duration_s: float) -> str:
        """Restores every GPU and drops all handles for `duration_s`; 0 resumes."""
        if not 0.0 <= duration_s <= RELEASE_S_MAX:
            return f"{duration_s:g} s; allowed: up to {RELEASE_S_MAX:g} s"
        self._released_until_s = -math.inf
        if duration_s:
            if not self.restore_all("released"):
                return "not every GPU could be restored: nothing was released"
            self._writer.close()
            self._released_until_s = time.monotonic() + duration_s
        log("keeper", f"released for {duration_s:g} s" if duration_s else "resumed")
        return ""

    def _advance(
        self, event: Command | None, refused: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """Applies an event that writes nothing, and performs due restores."""
        now_s = time.monotonic()
        self.state, reasons, restores, _ = apply_event(self.state, event, now_s, refused or {})
        for uuid, cause in restores:
            self._restore(uuid, cause)
        return reasons

    def _restore(self, uuid: str, cause: str) -> None:
        pending = self.state.gpu(uuid).pending_restore
        held = self._journal.held.get(uuid, UNKNOWN_LIMITS)
        failure = ""
        try:
            if held.max_mhz:
                self._set_clocks(uuid, 0, 0)
            recorded = bool(held.power_mw) and self._set_power(uuid, 0, cause)
            self._journal.restored([uuid], [uuid] if recorded else ())
            self._count(uuid, cause)
            self._record(uuid, lowers=False)
        except DeviceError as error:
            failure = f"{error}; will retry"
        if not failure or (pending and not pending.failures):
            log("keeper", f"restore {uuid} cause={cause}: {failure or 'done'}")
        self.state = restore_finished(self.state, uuid, not failure, time.monotonic())

    def _count(self, uuid: str, cause: str) -> None:
        self._restores[uuid, cause] = self._restores.get((uuid, cause), 0) + 1

    def _set_clocks(self, uuid: str, min_mhz: int, max_mhz: int) -> None:
        """Locks the clocks; max 0 sets the site's default, or resets to the driver's."""
        default = self._settings.site_default
        if not max_mhz and default and {*default} <= {0, *self._supported_mhz(uuid)}:
            min_mhz, max_mhz = default
        if not max_mhz:
            self._writer.reset(uuid)
            return
        try:
            self._writer.lock(uuid, min_mhz, max_mhz)
        except NotPermitted:
            self._writer.reset(uuid)  # a driver may have done what it denies
            raise

    def _set_power(self, uuid: str, power_mw: int, cause: str = "cleared") -> bool:
        """Sets a power limit, or for 0 the safe one; whether the recorded limit is done with.

        It is once it is in force again, or once another writer has set a lower limit.
        """
        safe, recorded_mw = self._settings.power_safe, self._journal.recorded_mw.get(uuid, 0)
        undo = not power_mw
        to_recorded = undo and (cause == "cleared" or safe == "recorded")
        if to_recorded:
            power_mw = recorded_mw
        elif not power_mw and not isinstance(safe, str):
            power_mw = safe
        if undo and self._is_lowered_by_other(uuid, self._limit_mw(uuid), power_mw):
            log("keeper", f"{uuid}: another writer has lowered the power limit: it stays")
            self._count(uuid, "limit_left")
            return True
        try:
            if power_mw:
                self._writer.limit_power(uuid, power_mw)
        except NotPermitted:
            self._writer.limit_power(uuid, recorded_mw or power_mw)  # as with clocks
            raise
        return to_recorded

    def _limit_mw(self, uuid: str) -> int:
        """The power limit that is set, or 0 if it cannot be read."""
        with contextlib.suppress(DeviceError):
            return self._writer.power_limits_mw(uuid)[2]
        return 0

    def _is_lowered_by_other(self, uuid: str, now_mw: int, wanted_mw: int) -> bool:
        """Whether the limit that is set is below the wanted one and not from this keeper."""
        safe = self._settings.power_safe
        ours_mw = [*self._journal.written_mw.get(uuid, ()), self._journal.recorded_mw.get(uuid, 0)]
        if ours_mw[-1] and not isinstance(safe, str):
            ours_mw.append(safe)  # set when an earlier lease expired
        is_ours = any(abs(now_mw - mw) <= LIMIT_SLACK_MW for mw in ours_mw)
        return 0 < now_mw < wanted_mw - LIMIT_SLACK_MW and not is_ours

    def _set_leases(self, command: Command) -> Mapping[str, str]:
        """Sets or moves leases: journaled, then written, then in force; or nothing changes."""
        now_s, site = time.monotonic(), self._settings.bounds
        # The clocks of a step were judged with its schedule.
        named = command.clocks_mhz if command.op == Op.APPLY else ()
        changes = {uuid: self._change(uuid, command) for uuid in named}
        judged = bounds.judge(site, changes, self._writes, len(self._clocks_mhz), now_s)
        ttl = bounds.refuse_ttl(site, command.ttl_s)
        refused = {
            uuid: self._uncontrollable(uuid) or ttl or judged[uuid] or self._refuse_raise(uuid, one)
            for uuid, one in changes.items()
        }
        refused[""] = ttl
        after, reasons, _, writes = apply_event(self.state, command, now_s, refused)
        held = {u: g.lease for u, g in after.gpus.items() if g.lease and reasons.get(u) == ""}
        if not held:
            return reasons
        before_mw = {u: one.before.power_mw for u, one in changes.items() if one.wanted.power_mw}
        try:
            self._journal.intend(command.epoch, held, before_mw)
        except OSError as error:
            return dict.fromkeys(reasons, f"the journal cannot be written: {error.strerror}")
        if why := self._write(writes, changes):
            return dict.fromkeys(reasons, why)
        # A limit that this command no longer asks for is undone now.
        self._journal.held.update({uuid: lease.limits for uuid, lease in held.items()})
        undone = [w.uuid for w in writes if w.before.power_mw and not w.wanted.power_mw]
        self._journal.restored((), forget=undone)
        self.state = after
        return reasons

    def _refuse_raise(self, uuid: str, change: Change) -> str:
        """Reason to refuse a power limit above one that another writer has set, or ""."""
        now_mw, wanted_mw = change.before.power_mw, change.wanted.power_mw
        if not self._is_lowered_by_other(uuid, now_mw, wanted_mw):
            return ""
        return f"power limit {wanted_mw / 1000:g} W; another writer has set {now_mw / 1000:g} W"

    def _change(self, uuid: str, command: Command) -> Change:
        """The change that a command requests, with what is in force and what is possible."""
        wanted, lease = command.limits(uuid), self.state.gpu(uuid).lease
        supported_mhz = self._supported_mhz(uuid)
        low_mw = high_mw = now_mw = 0
        if wanted.power_mw and not self.stopped():
            with contextlib.suppress(DeviceError):
                low_mw, high_mw, now_mw = self._writer.power_limits_mw(uuid)
        min_mhz, max_mhz = self._settings.site_default or (0, max(supported_mhz, default=0))
        if lease and lease.limits.max_mhz:
            min_mhz, max_mhz, _ = lease.in_force
        before = ClockLimits(min_mhz, max_mhz, now_mw)
        schedule = command.schedules.get(uuid, ())
        return Change(wanted, before, supported_mhz, (low_mw, high_mw), schedule)

    def _write(self, writes: tuple[Write, ...], changes: Mapping[str, Change]) -> str:
        """Writes a group, or reverts it and returns the reason."""
        for n, write in enumerate(writes):
            if write.uuid in changes:
                self._record(write.uuid, lowers=changes[write.uuid].lowers)
            try:
                self._set(write.uuid, write.wanted, write.before)
            except DeviceError as error:
                denied = isinstance(error, NotPermitted)
                if denied and not self.trouble:
                    self.trouble = str(error)
                    log("keeper", f"cannot set clocks: {error}")
                # A GPU that denied its first write was not changed.
                touched = n if denied and not self._clocks_written else n + 1
                self._revert(writes, touched)
                return f"{write.uuid} was not set, the group was reverted: {error}"
        return ""

    def _set(self, uuid: str, wanted: ClockLimits, before: ClockLimits) -> None:
        """Writes what differs from `before`; a limit of 0 is set back."""
        self._clocks_written = False
        if wanted[:2] != before[:2]:
            self._set_clocks(uuid, wanted.min_mhz, wanted.max_mhz)
            self._clocks_written = True
        if wanted.power_mw != before.power_mw:
            self._set_power(uuid, wanted.power_mw)

    def _revert(self, writes: tuple[Write, ...], touched: int) -> None:
        # The others are in the journal and were never written.
        clean = [write.uuid for write in writes[touched:] if write.before == NO_LIMITS]
        recorded = clean if self._settings.power_safe == "recorded" else ()
        unset = [uuid for uuid in clean if not self.state.gpu(uuid).may_be_ours]
        self._journal.restored(clean, recorded, yielded=unset)
        for write in reversed(writes[:touched]):
            with contextlib.suppress(DeviceError):
                if write.before != NO_LIMITS:
                    self._set(write.uuid, write.before, write.wanted)
                    continue
            self._end([write.uuid], "reverted")
            if write.uuid in self._journal.ours:  # a write that failed may come late
                gpu = dataclasses.replace(self.state.gpu(write.uuid), may_be_ours=True)
                self.state = self.state.updated({write.uuid: gpu})

    def _record(self, uuid: str, *, lowers: bool) -> None:
        past = self._writes.get(uuid, WriteHistory())
        self._writes[uuid] = bounds.record(past, lowers, time.monotonic())

    def _supported_mhz(self, uuid: str) -> tuple[int, ...]:
        """Clocks of a GPU of this node: of the first GPUS_MAX that are asked for."""
        room = len(self._clocks_mhz) < GPUS_MAX and not self.stopped()
        if room and uuid not in self._clocks_mhz and (mhz := self._writer.clocks_mhz(uuid)):
            self._clocks_mhz[uuid] = mhz
        return self._clocks_mhz.get(uuid, ())

    def _stuck(self, uuid: str) -> str:
        pending = self.state.gpu(uuid).pending_restore
        if pending and pending.failures:
            return f"{STUCK}: restore pending ({pending.cause}), {pending.failures} failures"
        return ""

    def _uncontrollable(self, uuid: str) -> str:
        """Reason why this GPU takes no commands now, or ""."""
        why = self._stuck(uuid) or self.trouble or self.stopped()
        why = why or ("the journal is damaged" if self._journal.damaged else "")
        why = why or self._writer.uncontrollable(uuid)
        return why or ("" if self._supported_mhz(uuid) else "no clocks can be set on this GPU")

    def _slot(self, uuid: str, refusal: str | None) -> wire.Slot:
        """One GPU of a reply; `refusal` is None if the command did not concern it."""
        if lease := self.state.gpu(uuid).lease:
            lease = replace(lease, expires_s=max(0.0, lease.expires_s - time.monotonic()))
        reason = self._uncontrollable(uuid) if refusal is None else refusal
        reason = reason or self._stuck(uuid)
        restores = tuple(self._restores.get((uuid, cause), 0) for cause in CAUSES)
        return wire.Slot(uuid, not reason, reason, lease, restores)


def journal(settings: Settings) -> Journal:
    """The journal of an earlier keeper. Raises OSError without a boot id."""
    boot_id, lasting = BOOT_ID.read_text().strip(), Path(settings.state_dir) / "journal"
    if settings.journal_dir:
        return Journal(Path(settings.journal_dir) / "journal", boot_id, epochs=lasting)
    return Journal(lasting, boot_id)


def hold(lock: Path, wait_s: float) -> int:
    """Takes the lock that makes a process the only one of its kind; it ends with the process.

    Raises OSError, and Unavailable if another process holds it for longer than `wait_s`.
    """
    fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    for _ in range(round(wait_s / LOCK_TRY_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        time.sleep(LOCK_TRY_S)
    os.close(fd)
    raise Unavailable(f"another {lock.stem} holds {lock}")


def run(
    settings: Settings, writer: "DeviceWriter", agent_fd: int = -1,
    ready: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Serves until a signal, or until the agent at the other end of `agent_fd` is gone.

    `ready` is called once earlier settings are restored and the socket listens. Returns 0 if every
    GPU was restored. Raises Unavailable, OSError, DeviceError.
    """
    wakeup, signalled = socket.socketpair()
    signalled.setblocking(False)
    signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    path = Path(settings.state_dir) / "keeper.sock"
    hold(path.with_suffix(".lock"), LOCK_WAIT_S)
    keeper = Keeper(settings, writer)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.umask(0o117)  # owner and group, as of the state directory
    listener.bind(str(path))
    listener.listen(CLIENTS_MAX)
    ready()
    agent = socket.socket(fileno=agent_fd) if agent_fd >= 0 else None
    cause = _serve(keeper, wakeup, listener, agent)
    path.unlink(missing_ok=True)
    listener.close()
    log("keeper", f"leaving: {cause}")
    return 0 if keeper.restore_all(cause) else 1


def _serve(
    keeper: Keeper, wakeup: socket.socket, listener: socket.socket, agent: socket.socket | None
) -> str:
    """Answers messages and ends leases in time; returns the cause to leave with."""
    with selectors.DefaultSelector() as selector:
        for source in filter(None, (wakeup, listener, agent)):
            source.setblocking(False)
            selector.register(source, selectors.EVENT_READ, source)
        while True:
            wait_s = max(0.0, keeper.due_s() - time.monotonic())
            ready = selector.select(None if wait_s == math.inf else wait_s)
            for source in (key.data for key, _ in ready):
                if source is wakeup:
                    return "shutdown"
                if source is listener:
                    _accept(listener, selector)
                elif not _answer(keeper, source):
                    if source is agent:
                        return "agent_gone"
                    selector.unregister(source)
                    source.close()
            keeper.tick()  # after the answers, which do not wait for restores


def _accept(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(OSError):
        client, _ = listener.accept()
        if len(selector.get_map()) > CLIENTS_MAX:
            client.close()
            return
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ, client)


def _answer(keeper: Keeper, source: socket.socket) -> bool:
    """Reads and answers one message; False if the other end is gone or sent no message."""
    try:
        if raw := source.recv(wire.REQUEST_BYTES + 1):
            source.send(wire.encode_reply(keeper.handle(*wire.decode_request(raw))))
        return bool(raw)
    except (OSError, wire.ProtocolError) as error:
        log("keeper", f"a client was dropped: {error}")
        return False
