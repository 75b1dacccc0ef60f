"""The keeper: the only process that writes to a GPU.

It performs the effects of the lease state machine: first the journal, then the write, then the
lease is in force. Any client may die at any moment. The keeper's own death is covered by the
journal, which the next keeper restores before a client can connect.
"""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from joulecut_agent.keeper import bounds, evidence, lease, requests, unleased
from joulecut_agent.keeper.bounds import Change, WriteHistory
from joulecut_agent.keeper.device_limits import LIMIT_SLACK_MW, DeviceLimits, is_same_limit
from joulecut_agent.keeper.evidence import APART_S, READINGS, Reading, Verdict
from joulecut_agent.keeper.journal import UNKNOWN_LIMITS, Journal
from joulecut_agent.keeper.lease import (
    RETRY_S_MAX,
    STUCK,
    WHOLE,
    Gpu,
    Outcome,
    PendingRestore,
    Restore,
    State,
    Write,
)
from joulecut_agent.keeper.protocol import WRITTEN_MAX, Reply, Slot
from joulecut_agent.keeper.requests import NO_LIMITS, ClockLimits, Request
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.log import log
from joulecut_agent.ports.failure import DeviceError, NotPermitted, Unanswered

if TYPE_CHECKING:
    from joulecut_agent.ports.writer import DeviceWriter

LEAVE_WAIT_S = 3.0  # how long a leaving keeper retries; the rest stays in the journal
STOP_FILE_POLL_S = 1.0  # while a lease is in force
BY_HAND = "locked-by-hand"  # in the state directory: UUIDs of GPUs that a person has locked
RELEASE_S_MAX = 3600.0  # a driver upgrade takes minutes; a forgotten window must end
LEFT_OVER_S = 86_400.0  # a kept limit of a configuration that had `power.keep_hours`: no surge
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Keeper:
    """Leases, bounds, journal and device together. Not thread-safe: one loop owns it."""

    def __init__(self, settings: Settings, writer: "DeviceWriter") -> None:
        """Restores every GPU that the journal names. Raises OSError without a boot id."""
        self._settings = settings
        self._writer = writer
        self._journal = journal(settings)
        self._limits = DeviceLimits(settings, writer, self._journal)
        self._writes: dict[str, WriteHistory] = {}
        self._restores: dict[str, dict[str, int]] = {}  # by GPU and cause
        self._released_until_s = -math.inf
        self.trouble = writer.permission()
        if self.trouble:
            log("keeper", f"cannot set clocks: {self.trouble}", "error")
        for remark in self._journal.remarks:
            log("keeper", f"journal: {remark}", "warning")
        self._keep_power_s = settings.bounds.keep_power_s or LEFT_OVER_S
        known = {*self._journal.last, *self._journal.kept_mw}
        gpus = {uuid: self._gpu_of_journal(uuid) for uuid in sorted(known)}
        self.state = State(
            self._journal.epoch_seen, gpus, settings.restore_jitter_s, self._keep_power_s
        )
        for uuid in self._journal.kept_mw:  # a keeper that starts again and again moves no end
            self._journal.keep_until(uuid, gpus[uuid].kept_until_s)
        self._list_all_s = 0.0  # time of the next try to list the GPUs of a damaged journal
        self._end(sorted(self._journal.held), "keeper_start")
        self._reset_all_after_damage()

    def _gpu_of_journal(self, uuid: str) -> Gpu:
        now_s = time.monotonic()
        pending = PendingRestore("keeper_start", 0, now_s, again=True)
        return Gpu(
            last=self._journal.last.get(uuid),
            written_mhz=self._journal.clocks_mhz.get(uuid, ()),
            written_s=now_s,  # by an earlier keeper, no later than now
            unshown_mhz=self._journal.clocks_mhz.get(uuid, ()),
            reset_s=now_s,
            left=uuid in self._journal.left,
            kept_power_mw=self._journal.kept_mw.get(uuid, 0),
            kept_until_s=min(
                self._journal.kept_until_s.get(uuid, math.inf), now_s + self._keep_power_s
            ),
            pending_restore=pending if uuid in self._journal.late else None,
        )

    # -- the passing of time -------------------------------------------------------------

    def tick(self) -> None:
        """Ends what is over, tries due restores, reads GPUs without a lease, looks for files."""
        if held := self._held():
            ends = set(held) if self.stopped() else self._by_hand().intersection(held)
            self._end(sorted(ends), "stopped")
        self._reset_all_after_damage()
        self._end_steps()
        self._read_unleased()
        if not self._release_left_s():
            self.state = lease.end_kept(self.state, time.monotonic())
        self._restore_due()

    def due_s(self) -> float:
        """Time of the next `tick` if no message arrives before."""
        poll_s = time.monotonic() + STOP_FILE_POLL_S if self._held() else math.inf
        list_s = self._list_all_s if self._journal.damaged else math.inf
        unleased_s = min(unleased.due_s(self.state), lease.kept_due_s(self.state))
        unleased_s = max(unleased_s, self._released_until_s)
        return min(self.state.due_s(), poll_s, list_s, unleased_s)

    def restore_all(self, cause: str) -> bool:
        """Restores every GPU under a lease, without jitter; whether all restores succeeded."""
        gpus = self.state.gpus.items()
        self._end([uuid for uuid, gpu in gpus if gpu.lease or gpu.pending_restore], cause)
        until_s = time.monotonic() + LEAVE_WAIT_S
        while (due_s := self.state.due_s()) < until_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._restore_due()
        return all(gpu.is_restored for gpu in self.state.gpus.values())

    def leave(self, cause: str) -> bool:
        """Restores every GPU and reads it back; whether each is restored, as far as readings show.

        A driver may answer "success" to a reset and do nothing, and no keeper reads the GPU from
        now on: where nothing shows whose clocks it has, it is reset once more.
        """
        gpus = self.state.gpus
        ended = [uuid for uuid, gpu in gpus.items() if gpu.lease or gpu.pending_restore]
        until_s = time.monotonic() + LEAVE_WAIT_S
        self.restore_all(cause)
        while (due_s := self._unproven_s()) < until_s and not self._release_left_s():
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._read_unleased(APART_S)
            self._restore_due()
        proven = {uuid: gpu.evidence.proves for uuid, gpu in self.state.gpus.items()}
        for uuid in ended:
            gpu = self.state.gpu(uuid)
            if proven[uuid] is Verdict.UNCLEAR and gpu.is_restored and not gpu.left:
                with contextlib.suppress(DeviceError):  # it was done once
                    self._limits.reset_clocks(uuid)
        is_restored = all(gpu.is_restored for gpu in self.state.gpus.values())
        return is_restored and Verdict.OURS not in proven.values()

    def _unproven_s(self) -> float:
        """Time of the next reading of a GPU that was not read often enough to know its clocks."""
        gpus = self.state.gpus.values()
        unproven = (gpu for gpu in gpus if gpu.is_watched and gpu.evidence.readings < READINGS)
        return min((gpu.reading_s for gpu in unproven), default=math.inf)

    def stopped(self) -> str:
        """Reason why no GPU of this node takes commands now, or ""."""
        if left_s := self._release_left_s():
            return f"released for {math.ceil(left_s)} s more: every device handle is dropped"
        stop = self._settings.stop_file
        return f"the file {stop} stops all control" if stop and os.path.lexists(stop) else ""

    def _by_hand(self) -> frozenset[str]:
        """The GPUs that a person has named as locked by hand."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return frozenset((Path(self._settings.state_dir) / BY_HAND).read_text().split())
        return frozenset()

    def _held(self) -> list[str]:
        return [uuid for uuid, gpu in self.state.gpus.items() if gpu.lease]

    def _end(self, uuids: list[str], cause: str) -> None:
        self.state = lease.end_leases(self.state, uuids, cause, time.monotonic())
        self._restore_due()

    def _end_steps(self) -> None:
        """Raises GPUs whose lowered step is not held any more: their agent is gone or hangs."""
        now_s = time.monotonic()
        for step in lease.ended_steps(self.state, now_s):
            what = f"its step was not held: raised to {step.clock_max_mhz} MHz"
            log("keeper", f"{step.uuid}: {what}", "warning")
            outcome = lease.step(self.state, step, now_s)
            if any(self._set_leases(outcome, self.state.epoch_seen, {}).values()):
                self._end([step.uuid], "step_ended")

    def _read_unleased(self, apart_s: float = unleased.READ_S) -> None:
        """Reads the GPUs that may not be as we left them; a lock of ours that shows is reset."""
        now_s = time.monotonic()
        for uuid in () if self._release_left_s() else unleased.due(self.state, now_s):
            before = self.state.gpu(uuid)
            seen, unshown_mhz = self._seen(uuid)
            seen = Verdict.UNCLEAR if uuid in self._by_hand() else seen
            self.state = unleased.read(
                self.state, uuid, seen, unshown_mhz, time.monotonic(), apart_s=apart_s
            )
            after = self.state.gpu(uuid)
            if after.written_mhz != before.written_mhz:
                self._journal.restored((), free={uuid: after.written_mhz})
            if after.lease and after.shown != before.shown:
                self._retake_under_limit(uuid)

    def _retake_under_limit(self, uuid: str) -> None:
        """Resets the clocks of a GPU whose lease is on power alone; a failure is tried again."""
        with contextlib.suppress(DeviceError):
            self._limits.reset_clocks(uuid)
            self._count(uuid, "lock_shows")
            log("keeper", f"restore {uuid} cause=lock_shows: done, its power limit stays")
        settling = dataclasses.replace(
            self.state.gpu(uuid), evidence=evidence.none_until_settled(time.monotonic())
        )
        self.state = self.state.updated({uuid: settling})

    def _seen(self, uuid: str) -> tuple[Verdict, tuple[int, ...]]:
        """Whose clocks one reading of a GPU shows; the clocks of ours that none has shown."""
        gpu, site = self.state.gpu(uuid), self._settings.site_default
        held = gpu.lease
        leased_mhz = (min(held.clocks_mhz, default=0), held.limits.max_mhz) if held else (0, 0)
        default_mhz = site[1] if site else max(self._limits.supported_mhz(uuid), default=0)
        try:
            reading = Reading(*self._writer.reading(uuid))
        except DeviceError:
            return Verdict.UNCLEAR, gpu.unshown_mhz
        unshown_mhz = evidence.unshown(reading, gpu.unshown_mhz, default_mhz)
        return evidence.verdict(reading, gpu.written_mhz, default_mhz, leased_mhz), unshown_mhz

    def _restore_due(self) -> None:
        now_s = time.monotonic()
        self.state = lease.end_expired(self.state, now_s)
        for restore in lease.due_restores(self.state, now_s):
            self._restore(restore)

    def _reset_all_after_damage(self) -> None:
        """A damaged journal may have named any GPU: resets every GPU of the node once."""
        if not self._journal.damaged or time.monotonic() < self._list_all_s:
            return
        try:
            uuids = self._writer.uuids()
        except DeviceError as error:
            self._list_all_s = time.monotonic() + RETRY_S_MAX
            what = f"the journal is damaged, and no GPU can be listed: {error}; will retry"
            log("keeper", what, "error")
            return
        log("keeper", f"the journal is damaged: {len(uuids)} GPUs are reset", "error")
        self._journal.hold_all(uuids)
        self._end(sorted(self._journal.held), "keeper_start")

    # -- requests ------------------------------------------------------------------------

    def handle(self, serial: int, request: Request) -> Reply:
        """Answers one message; every refusal is a value in the answer."""
        if isinstance(request, requests.Step | requests.Hold):  # a step must not wait for restores
            self.state = lease.end_expired(self.state, time.monotonic())
        else:
            self.tick()
        reasons = self._perform(request)
        named = request.uuids if isinstance(request, requests.Status) else tuple(reasons)
        return Reply(
            serial,
            self.state.epoch_seen,
            self._settings.bounds,
            tuple(self._slot(uuid, reasons.get(uuid)) for uuid in named[: requests.GPUS_MAX]),
            self.stopped(),
            self._release_left_s(),
        )

    def _perform(self, request: Request) -> Mapping[str, str]:
        """Reason of refusal by GPU, "" for accepted; WHOLE stands for the whole request."""
        match request:
            case requests.Status():
                reasons: Mapping[str, str] = {}
            case requests.Apply():
                reasons = self._apply(request)
            case requests.Step():
                outcome = lease.step(self.state, request, time.monotonic())
                reasons = self._set_leases(outcome, self.state.epoch_seen, {})
            case requests.Hold():
                outcome = lease.hold(self.state, request, time.monotonic())
                self.state, reasons = outcome.state, outcome.reasons
            case requests.Renew():
                reasons = self._renew(request)
            case requests.Clear():
                reasons = self._clear(request)
            case requests.Yield():
                reasons = self._yield(request)
            case requests.Release():
                reasons = {WHOLE: self._release(request.duration_s)}
            case requests.Resume():
                reasons = {WHOLE: self._resume()}
            case requests.ResetEpoch():
                reasons = {WHOLE: self._reset_epoch()}
        return reasons

    def _apply(self, request: requests.Apply) -> Mapping[str, str]:
        now_s, site = time.monotonic(), self._settings.bounds
        changes = {uuid: self._change(uuid, one) for uuid, one in request.settings.items()}
        self._forget_lost_limits(changes)
        ttl = bounds.refuse_ttl(site, request.ttl_s)
        judged = bounds.judge(site, changes, self._writes, self._limits.known, now_s)
        refused = {
            uuid: self._uncontrollable(uuid)
            or ttl
            or judged[uuid]
            or bounds.refuse_keep(site, request.settings[uuid].keep_power_limit)
            or self._refuse_raise(uuid, change)
            for uuid, change in changes.items()
        }
        outcome = lease.apply(self.state, request, now_s, refused)
        return self._set_leases(outcome, request.epoch, changes)

    def _renew(self, request: requests.Renew) -> Mapping[str, str]:
        outcome = lease.renew(self.state, request, time.monotonic())
        if ttl := bounds.refuse_ttl(self._settings.bounds, request.ttl_s):
            return {uuid: reason or ttl for uuid, reason in outcome.reasons.items()}
        return self._set_leases(outcome, request.epoch, {})

    def _clear(self, request: requests.Clear) -> Mapping[str, str]:
        outcome = lease.clear(self.state, request, time.monotonic(), self._by_hand())
        self.state = outcome.state
        self._restore_due()
        self._keep_epoch()
        return outcome.reasons

    def _yield(self, request: requests.Yield) -> Mapping[str, str]:
        """A lease ends by what this keeper reads itself."""
        uuid, held = request.uuid, self.state.gpu(request.uuid).lease
        if not held:
            return {uuid: "no lease to yield"}
        now_mw = self._limits.power_limits(uuid).now_mw if held.limits.power_mw else 0
        changed = now_mw > 0 and not is_same_limit(now_mw, held.limits.power_mw)
        theirs = changed and not self._limits.is_written(uuid, now_mw)
        # Of a lease on power alone no clocks are another writer's.
        seen = self._seen(uuid)[0] if held.limits.max_mhz else Verdict.UNCLEAR
        outcome = lease.yield_(
            self.state, request, seen, time.monotonic(),
            limit_changed=changed, limit_is_theirs=theirs,
        )  # fmt: skip
        self.state = outcome.state
        self._restore_due()
        return outcome.reasons

    def _release(self, duration_s: float) -> str:
        """Restores every GPU and drops all handles; reason of a refusal, or ""."""
        if not 0.0 < duration_s <= RELEASE_S_MAX:  # NaN is refused too
            return f"{duration_s:g} s; allowed: above 0 and up to {RELEASE_S_MAX:g} s"
        self._released_until_s = -math.inf
        if not self.restore_all("released"):
            return "not every GPU could be restored: nothing was released"
        self.state = lease.without_repetitions(self.state)
        self._writer.close()
        self._released_until_s = time.monotonic() + duration_s
        log("keeper", f"released for {duration_s:g} s")
        return ""

    def _resume(self) -> str:
        self._released_until_s = -math.inf
        log("keeper", "resumed")
        return ""

    def _reset_epoch(self) -> str:
        """Restores every GPU and forgets the epochs; reason of a refusal, or ""."""
        if not self.restore_all("cleared"):
            return "not every GPU could be restored: the epoch stays"
        try:
            self._journal.forget_epochs()
        except OSError as error:
            return f"the journal cannot be written: {error.strerror}"
        log("keeper", f"epoch {self.state.epoch_seen} forgotten; the next command sets one")
        self.state = self.state.without_epochs()
        return ""

    def _release_left_s(self) -> float:
        return max(0.0, self._released_until_s - time.monotonic())

    def _keep_epoch(self) -> None:
        with contextlib.suppress(OSError):  # an epoch that is not kept now is kept later
            self._journal.intend(self.state.epoch_seen, {})

    # -- judging a command ---------------------------------------------------------------

    def _change(self, uuid: str, setting: requests.GpuSetting) -> Change:
        """The change that a command requests, with what is in force and what is possible."""
        supported_mhz = self._supported_mhz(uuid)
        power = bounds.PowerLimits()
        if setting.limits.power_mw and not self.stopped():
            power = self._limits.power_limits(uuid)
        held = self.state.gpu(uuid).lease
        if held and held.limits.max_mhz:
            before = held.in_force._replace(power_mw=power.now_mw)
        else:
            min_mhz, max_mhz = self._settings.site_default or (0, max(supported_mhz, default=0))
            before = ClockLimits(min_mhz, max_mhz, power.now_mw)
        return Change(setting.limits, before, supported_mhz, power, setting.schedule_mhz)

    def _refuse_raise(self, uuid: str, change: Change) -> str:
        """Reason to refuse a power limit above one that another writer has set, or ""."""
        now_mw, wanted_mw = change.power.now_mw, change.wanted.power_mw
        theirs_mw = self._limits.highest_mw(uuid)
        if self._limits.is_lowered_by_other(uuid, now_mw, wanted_mw):
            theirs_mw = now_mw
        if not theirs_mw or wanted_mw <= theirs_mw + LIMIT_SLACK_MW:
            return ""
        return f"power limit {wanted_mw / 1000:g} W; another writer has set {theirs_mw / 1000:g} W"

    def _forget_lost_limits(self, changes: Mapping[str, Change]) -> None:
        """A kept limit that the device no longer has is not in force: the write is needed."""
        for uuid, change in changes.items():
            gpu = self.state.gpu(uuid)
            lost = not is_same_limit(change.power.now_mw, gpu.kept_power_mw)
            if gpu.kept_power_mw and change.power.now_mw and lost and not gpu.lease:
                gpu = dataclasses.replace(gpu, kept_power_mw=0)
                self.state = self.state.updated({uuid: gpu})

    def _supported_mhz(self, uuid: str) -> tuple[int, ...]:
        """A release window calls no device."""
        if self.stopped():
            return self._limits.known_mhz(uuid)
        return self._limits.supported_mhz(uuid)

    def _uncontrollable(self, uuid: str) -> str:
        """Reason why this GPU takes no commands now, or ""."""
        why = self._stuck(uuid) or self.trouble or self.stopped()
        why = why or (f"the file {BY_HAND} names it" if uuid in self._by_hand() else "")
        why = why or ("the journal is damaged" if self._journal.damaged else "")
        why = why or self._writer.uncontrollable(uuid)
        return why or ("" if self._supported_mhz(uuid) else "no clocks can be set on this GPU")

    def _stuck(self, uuid: str) -> str:
        gpu = self.state.gpu(uuid)
        pending = gpu.pending_restore
        if pending and pending.failures:
            return f"{STUCK}: restore pending ({pending.cause}), {pending.failures} failures"
        if gpu.is_stuck and gpu.shown and uuid not in self._by_hand():
            what = f"{STUCK}: a lock of ours shows after {gpu.shown.resets - 1} resets"
            return f"{what}; is it a person's? name the GPU in {BY_HAND}"
        return ""

    # -- writing -------------------------------------------------------------------------

    def _set_leases(
        self, outcome: Outcome, epoch: int, changes: Mapping[str, Change]
    ) -> Mapping[str, str]:
        """Sets or moves leases: journaled, then written, then in force; or nothing changes."""
        accepted = [uuid for uuid, reason in outcome.reasons.items() if not reason]
        after = {uuid: outcome.state.gpu(uuid) for uuid in accepted}
        leases = {uuid: gpu.lease for uuid, gpu in after.items() if gpu.lease}
        if not leases:
            return outcome.reasons
        found_mw = {u: one.power.now_mw for u, one in changes.items() if one.wanted.power_mw}
        for uuid, mw in found_mw.items():
            if self._limits.is_found_lower(uuid, mw):
                self._journal.found_other(uuid, mw)
        kept_mw = {uuid: after[uuid].kept_power_mw for uuid in leases}
        try:
            self._journal.intend(epoch, leases, found_mw, kept_mw)
        except OSError as error:
            why = f"the journal cannot be written: {error.strerror}"
            return dict.fromkeys(outcome.reasons, why)
        if why := self._write(outcome.writes, changes):
            return dict.fromkeys(outcome.reasons, why)
        self._journal.held.update({uuid: held.limits for uuid, held in leases.items()})
        # A limit that this command no longer asks for has been undone.
        undone = [w.uuid for w in outcome.writes if w.before.power_mw and not w.wanted.power_mw]
        self._journal.restored((), forget=[u for u in undone if not self._limits.may_come_late(u)])
        self.state = outcome.state
        return outcome.reasons

    def _write(self, writes: tuple[Write, ...], changes: Mapping[str, Change]) -> str:
        """Writes a group, or reverts it and returns the reason."""
        for n, write in enumerate(writes):
            if write.uuid in changes:
                self._record(write.uuid, lowers=changes[write.uuid].lowers)
            clocks_set = False
            try:
                self._set_clocks(write.uuid, write.wanted, write.before)
                clocks_set = write.wanted[:2] != write.before[:2]
                self._set_power(write.uuid, write.wanted, write.before)
            except DeviceError as error:
                self._note_failure(write.uuid, error)
                # A GPU that denied its first write was not changed.
                denied = isinstance(error, NotPermitted) and not clocks_set
                self._revert(writes, touched=n if denied else n + 1)
                return f"{write.uuid} was not set, the group was reverted: {error}"
        return ""

    def _set_clocks(self, uuid: str, wanted: ClockLimits, before: ClockLimits) -> None:
        """Writes the clocks if they differ from `before`. Raises DeviceError."""
        if (wanted.min_mhz, wanted.max_mhz) != (before.min_mhz, before.max_mhz):
            self._limits.set_clocks(uuid, wanted)

    def _set_power(self, uuid: str, wanted: ClockLimits, before: ClockLimits) -> None:
        """Writes the power limit if it differs from `before`. Raises DeviceError."""
        if wanted.power_mw == before.power_mw:
            return
        if wanted.power_mw:
            self._limits.set_power(uuid, wanted.power_mw)
        elif self._limits.undo_power(uuid, lease.PowerAfter.FOUND) == "left":
            self._count_left(uuid)

    def _note_failure(self, uuid: str, error: DeviceError) -> None:
        if isinstance(error, NotPermitted) and not self.trouble:
            self.trouble = str(error)
            log("keeper", f"cannot set clocks: {error}", "error")
        if isinstance(error, Unanswered):
            self.state = lease.write_unanswered(self.state, uuid, time.monotonic())

    def _revert(self, writes: tuple[Write, ...], touched: int) -> None:
        """Sets the first `touched` GPUs of a group back, and forgets the others."""
        self._forget_unwritten([write.uuid for write in writes[touched:]])
        for write in reversed(writes[:touched]):
            gpu = dataclasses.replace(  # a write that failed may have had effect
                self.state.gpu(write.uuid),
                written_mhz=self._journal.clocks_mhz.get(write.uuid, ()),
                written_s=time.monotonic(),
                unshown_mhz=self._journal.clocks_mhz.get(write.uuid, ()),
            )
            self.state = self.state.updated({write.uuid: gpu})
            if not self._is_set_back(write):
                self._end([write.uuid], "reverted")
        kept_mw = {w.uuid: self.state.gpu(w.uuid).kept_power_mw for w in writes}
        self._journal.restored((), kept_mw=kept_mw)
        for uuid in kept_mw:
            self._journal.keep_until(uuid, self.state.gpu(uuid).kept_until_s)

    def _forget_unwritten(self, uuids: list[str]) -> None:
        """GPUs that are in the journal and were never written."""
        gpus = {uuid: self.state.gpu(uuid) for uuid in uuids}
        free = [u for u, gpu in gpus.items() if not gpu.lease and not gpu.pending_restore]
        unlimited = [uuid for uuid in free if not gpus[uuid].kept_power_mw]
        forget = unlimited if self._settings.power_safe == "recorded" else ()
        unset: dict[str, tuple[int, ...]] = {u: () for u in free if not gpus[u].may_be_ours}
        left = [uuid for uuid in free if gpus[uuid].left]
        self._journal.restored(free, forget, unset, left=left)

    def _is_set_back(self, write: Write) -> bool:
        """Sets a GPU back to the lease that it has; False if it has none, or that fails."""
        gpu = self.state.gpu(write.uuid)
        if not gpu.lease and not gpu.pending_restore:
            return False
        try:
            self._set_clocks(write.uuid, write.before, write.wanted)
            self._set_power(write.uuid, write.before, write.wanted)
        except DeviceError as error:
            self._note_failure(write.uuid, error)
            return False
        return True

    def _restore(self, restore: Restore) -> None:
        uuid, gpu = restore.uuid, self.state.gpu(restore.uuid)
        pending = gpu.pending_restore
        # Its limit alone has ended: the clocks of a GPU that was restored are not ours to reset.
        unnamed = NO_LIMITS if restore.cause == "limit_ended" else UNKNOWN_LIMITS
        held = self._journal.held.get(uuid, unnamed)
        again = pending is not None and pending.again
        limited = held.power_mw > 0 or uuid in self._journal.kept_mw
        failure, power = "", ""

        def undo_limit() -> None:
            nonlocal power
            if limited or self._limits.may_come_late(uuid):
                power = self._limits.undo_power(
                    uuid, restore.power, gpu.kept_power_mw, only_late=again or not limited
                )

        def reset_clocks() -> None:
            if held.max_mhz and not gpu.left:
                self._limits.reset_clocks(uuid)

        # Default clocks draw more: a kept limit is in force before them. But a limit call that
        # hangs keeps a second call of this GPU waiting, so clocks come first after a failure.
        calls = (undo_limit, reset_clocks)
        first, second = reversed(calls) if pending and pending.failures else calls
        try:
            try:
                first()
            finally:
                second()
        except DeviceError as error:
            failure = f"{error}; will retry"
        self.state = lease.restore_finished(self.state, uuid, not failure, time.monotonic())
        is_news = pending is not None and not pending.failures and not again
        if failure:
            if is_news:
                log("keeper", f"restore {uuid} cause={restore.cause}: {failure}", "error")
            return
        if power == "left" and not again:
            self._count_left(uuid)
        after = self.state.gpu(uuid)
        if after.pending_restore is None:
            forget = [uuid] if power in {"found", "left"} else []
            self._journal.restored(
                [uuid], forget, kept_mw={uuid: after.kept_power_mw}, left=[uuid] * gpu.left
            )
            self._limits.forget_late(uuid)
        else:  # it is repeated, by the next keeper if this one ends
            self._journal.restored_until_late(uuid, after.late_until_s, after.kept_power_mw)
        self._journal.keep_until(uuid, after.kept_until_s)
        self._record(uuid, lowers=False)
        if not again:
            self._count(uuid, restore.cause)
            log("keeper", f"restore {uuid} cause={restore.cause}: done")

    def _count_left(self, uuid: str) -> None:
        log("keeper", f"{uuid}: another writer has lowered the power limit: it stays", "warning")
        self._count(uuid, "limit_left")

    def _count(self, uuid: str, cause: str) -> None:
        counts = self._restores.setdefault(uuid, {})
        counts[cause] = counts.get(cause, 0) + 1

    def _record(self, uuid: str, *, lowers: bool) -> None:
        past = self._writes.get(uuid, WriteHistory())
        self._writes[uuid] = bounds.record(past, lowers, time.monotonic())

    # -- answering -----------------------------------------------------------------------

    def _slot(self, uuid: str, refusal: str | None) -> Slot:
        """One GPU of a reply; `refusal` is None if the command did not concern it."""
        gpu = self.state.gpu(uuid)
        held = gpu.lease
        if held:
            held = replace(held, expires_s=max(0.0, held.expires_s - time.monotonic()))
        reason = self._uncontrollable(uuid) if refusal is None else refusal
        reason = reason or self._stuck(uuid)
        left_s = max(0.0, gpu.kept_until_s - time.monotonic()) if gpu.kept_power_mw else 0.0
        return Slot(
            uuid, not reason, reason, held, self._restores.get(uuid, {}), gpu.kept_power_mw,
            left_s, gpu.written_mhz[-WRITTEN_MAX:],
        )  # fmt: skip


def journal(settings: Settings) -> Journal:
    """The journal of an earlier keeper. Raises OSError without a boot id."""
    boot_id, lasting = BOOT_ID.read_text().strip(), Path(settings.state_dir) / "journal"
    now_s = time.monotonic()
    epochs = lasting if settings.journal_dir else None
    return Journal(settings.journal_file, boot_id, epochs, now_s)
