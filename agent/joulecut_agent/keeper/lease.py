"""Leases on GPU clocks: the state machine of the keeper.

Pure: takes an event and the time, returns the new state and the effects for the keeper to perform.
On silence, a crash or a stale controller the lease runs out; the GPU then has a pending restore,
which is retried until it succeeds. Start-up, shutdown and expiry all take this one path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import inf
from typing import Annotated, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Meta, structs

from joulecut_wire.messages import ClockLimits


class Op(IntEnum):
    """Operation of a `Command`; the numbers are the keeper's protocol."""

    APPLY = 1
    RENEW = 2
    CLEAR = 3
    STATUS = 4
    RELEASE = 5
    RESUME = 6
    YIELD = 7
    STEP = 8


_ENDS = "lease_expired job_ended cleared reverted keeper_start shutdown agent_gone released"
# "limit_left": a power limit that another writer has lowered was left as it is.
CAUSES = (*_ENDS.split(), "stopped", "limit_left")
STUCK = "stuck_locked"  # no lease, and the restore has failed at least once
RETRY_S, RETRY_S_MAX = 0.5, 30.0  # a busy driver answers soon; a lost GPU needs an operator
EPOCH_MAX = 2**32  # a controller started every second for 136 years
EPOCH_STEP_MAX = 2**20  # one started each minute for two years while this node was away
STEP_S = 0.1  # ten steps down in a second, half of what is known to stall NCCL (nccl #1551)
GPUS_MAX = 16  # the largest machines (DGX-2)
JOB_BYTES_MAX = 253  # a DNS name's length

# Bounds on the fields of a message. Values made inside the process are not checked.
U64 = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 2**64 - 1
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_U16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Clocks = tuple[_U16, _U16]
Schedule = Annotated[tuple[_U16, ...], Meta(max_length=32)]  # distinct clocks, not steps
Job = Annotated[str, Meta(max_length=JOB_BYTES_MAX)]
Uuid = Annotated[str, Meta(max_length=96)]  # NVML's own buffer
_Cause = Annotated[str, Meta(pattern=rf"^({'|'.join(CAUSES)})\Z")]
_GPUS = Meta(max_length=GPUS_MAX)

NO_LIMITS = ClockLimits(0, 0, 0)


class Command(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One request. `op` concerns the GPUs in `clocks_mhz`.

    APPLY sets (min, max) and `power_mw`; a limit of zero is left alone. `schedules` are the lower
    clocks that STEP of the same job and generation may set as max later.
    RENEW, and CLEAR without GPUs, concern every GPU of `job`, or of any job if it is "".
    Epoch 0 in CLEAR is a request of this node. CLEAR of named GPUs for no job also restores one
    whose lock may still be ours; with a ttl, any that had a lease: a yielded lock shows again.
    YIELD ends the leases of that generation (0: any) without a write, because an external writer
    has set these GPUs. The limits it names are still in force and are restored. A power limit that
    it does not name must differ from the lease's.
    """

    op: Op
    epoch: U64 = 0
    job: Job = ""
    generation: U64 = 0
    ttl_s: float = 0.0
    clocks_mhz: Annotated[Mapping[Uuid, Clocks], _GPUS] = msgspec.field(default_factory=dict)
    cause: _Cause = "cleared"
    power_mw: Annotated[Mapping[Uuid, U32], _GPUS] = msgspec.field(default_factory=dict)
    schedules: Annotated[Mapping[Uuid, Schedule], _GPUS] = msgspec.field(default_factory=dict)

    def limits(self, uuid: str) -> ClockLimits:
        """The limits this command names for a GPU."""
        return ClockLimits(*self.clocks_mhz[uuid], self.power_mw.get(uuid, 0))


@dataclass(frozen=True, slots=True)
class Write:
    """A change of one GPU's limits; `before` is set again if its group fails."""

    uuid: str
    wanted: ClockLimits
    before: ClockLimits


class Lease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A job's right to one GPU's clocks until `expires_s`.

    `job` is "" for a lease read from an earlier keeper's journal.
    """

    job: Job
    epoch: U64
    generation: U64
    clocks_mhz: Clocks
    expires_s: float
    power_mw: U32 = 0
    schedule: Schedule = ()
    step_mhz: _U16 = 0  # max clock set by the last step; 0: no step was taken
    stepped_s: float = 0.0  # time of the last step down

    def matches(self, event: Command) -> bool:
        """Whether `event` names the epoch and generation of this lease; 0 names any."""
        return event.epoch in {0, self.epoch} and event.generation in {0, self.generation}

    def same_content(self, other: "Lease") -> bool:
        """Whether both come from the same command, as far as a journal records."""
        numbers = (other.epoch, other.generation, other.limits, other.schedule)
        return (self.epoch, self.generation, self.limits, self.schedule) == numbers

    @property
    def limits(self) -> ClockLimits:
        """The limits the command asked for."""
        return ClockLimits(*self.clocks_mhz, self.power_mw)

    @property
    def in_force(self) -> ClockLimits:
        """The limits set now, after the last step."""
        return self.limits._replace(max_mhz=self.step_mhz or self.clocks_mhz[1])


@dataclass(frozen=True, slots=True)
class PendingRestore:
    """A restore that is not done: its cause, failures so far, and the time of the next try."""

    cause: str
    failures: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Gpu:
    lease: Lease | None = None  # in force
    last: Lease | None = None  # the newest ever accepted: its number outlives it
    pending_restore: PendingRestore | None = None
    # We set its clocks in this boot, and no other writer since: a reset may have had no effect.
    may_be_ours: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """All GPUs of the node.

    An expired lease is restored within `restore_jitter_s`, at a time that differs by GPU: a
    controller that dies must not raise the power of a whole cluster at once.
    """

    epoch_seen: int = 0
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    restore_jitter_s: float = 0.0

    def gpu(self, uuid: str) -> Gpu:
        return self.gpus.get(uuid, Gpu())

    def updated(self, changed: Mapping[str, Gpu], epoch: int = 0) -> "State":
        """This state with `changed` GPUs; `epoch_seen` never falls."""
        return State(max(self.epoch_seen, epoch), {**self.gpus, **changed}, self.restore_jitter_s)

    def due_s(self) -> float:
        """Time of the next expiry or restore; infinite without any."""
        ends = [gpu.lease.expires_s for gpu in self.gpus.values() if gpu.lease]
        restores = [g.pending_restore.due_s for g in self.gpus.values() if g.pending_restore]
        return min([*ends, *restores], default=inf)


class Outcome(NamedTuple):
    """Result of one event: the new state, and effects to perform in the order given."""

    state: State
    reasons: Mapping[str, str]  # by GPU: the reason of its refusal, "" if accepted
    restores: tuple[tuple[str, str], ...] = ()  # (GPU, cause)
    writes: tuple[Write, ...] = ()


def apply_event(
    state: State, event: Command | None, now_s: float, refused: Mapping[str, str]
) -> Outcome:
    """One command, or None for the passing of time. `refused`: refusals by bounds and device."""
    over = [u for u, gpu in state.gpus.items() if gpu.lease and now_s >= gpu.lease.expires_s]
    expired = end_leases(state, over, "lease_expired", now_s, state.restore_jitter_s)
    outcome = Outcome(expired, {})
    if event is not None:
        apply = _HANDLERS[event.op]
        outcome = apply(outcome.state, event, now_s, refused)
    pending = [(u, g.pending_restore) for u, g in outcome.state.gpus.items() if g.pending_restore]
    return outcome._replace(restores=tuple((u, p.cause) for u, p in pending if now_s >= p.due_s))


def end_leases(
    state: State, uuids: Iterable[str], cause: str, now_s: float, jitter_s: float = 0.0
) -> State:
    """Ends leases; each GPU gets a pending restore, with a lease before or without."""
    ended = {}
    for uuid in uuids:
        gpu = state.gpu(uuid)
        failures = gpu.pending_restore.failures if gpu.pending_restore else 0
        due_s = now_s + jitter_s * crc32(uuid.encode()) / 2**32
        ended[uuid] = replace(
            gpu, lease=None, pending_restore=PendingRestore(cause, failures, due_s)
        )
    return state.updated(ended)


def restore_finished(state: State, uuid: str, done: bool, now_s: float) -> State:
    """Records the result of a restore; a failed one is due again after a growing wait."""
    gpu = state.gpu(uuid)
    if pending := gpu.pending_restore:
        wait_s = min(RETRY_S * 2.0 ** min(pending.failures, 16), RETRY_S_MAX)
        retry = PendingRestore(pending.cause, pending.failures + 1, now_s + wait_s)
        pending = None if done else retry
    return state.updated({uuid: replace(gpu, pending_restore=pending)})


def _apply(state: State, event: Command, now_s: float, refused: Mapping[str, str]) -> Outcome:
    reasons: dict[str, str] = {}
    leases: dict[str, Gpu] = {}
    writes: list[Write] = []
    for uuid, clocks_mhz in event.clocks_mhz.items():
        gpu = state.gpu(uuid)
        if event.op == Op.STEP:
            lease, reasons[uuid] = _step(gpu.lease, event, clocks_mhz[1], now_s)
        else:
            lease = Lease(
                event.job,
                event.epoch,
                event.generation,
                clocks_mhz,
                now_s + event.ttl_s,
                event.power_mw.get(uuid, 0),
                event.schedules.get(uuid, ()),
            )
            reasons[uuid] = _refuse_generation(state, gpu, event, lease)
        reasons[uuid] = reasons[uuid] or refused.get(uuid, "")
        pending = gpu.pending_restore
        if pending and not reasons[uuid] and (pending.failures or pending.due_s <= now_s):
            reasons[uuid] = f"its restore ({pending.cause}) is still pending"
        # A restore that only waits for its jitter has not begun: the old limits are in force.
        held = gpu.lease or (gpu.last if pending else None)
        before = held.in_force if held else NO_LIMITS
        may_be_ours = gpu.may_be_ours or lease.limits.max_mhz > 0
        leases[uuid] = Gpu(lease, last=lease, may_be_ours=may_be_ours)
        if lease.in_force != before:
            writes.append(Write(uuid, lease.in_force, before))
    if bad := next((uuid for uuid, reason in reasons.items() if reason), ""):
        also = f"nothing was changed, because {bad} was refused"
        return Outcome(state, {uuid: why or also for uuid, why in reasons.items()})
    # Critical stages are raised before others are lowered, or the job is slow for a moment.
    writes.sort(key=_lowers)
    return Outcome(state.updated(leases, event.epoch), reasons, writes=tuple(writes))


def _lowers(write: Write) -> bool:
    """Whether a write may slow the GPU; a max of 0 is the device's default."""
    return not write.before.max_mhz or 0 < write.wanted.max_mhz <= write.before.max_mhz


def _refuse_generation(state: State, gpu: Gpu, event: Command, wanted: Lease) -> str:
    asked, last = (event.epoch, event.generation), gpu.last
    if reason := _refuse_epoch(state, event):
        return reason
    if last is None or asked > (last.epoch, last.generation):
        return ""
    if asked < (last.epoch, last.generation):
        return f"generation {event.generation} is older than {last.generation}"
    if event.job != (last.job or event.job) or not wanted.same_content(last):
        return f"generation {event.generation} came before, with other content"
    return ""


def _step(lease: Lease | None, event: Command, mhz: int, now_s: float) -> tuple[Lease, str]:
    """The lease after a step, and the reason of a refusal or ""."""
    mine = lease and (lease.job, lease.generation) == (event.job, event.generation)
    if not lease or not mine or mhz not in (lease.clocks_mhz[1], *lease.schedule):
        return Lease("", 0, 0, (0, 0), 0.0), f"{mhz} MHz is not in a clock schedule in force"
    if mhz >= lease.in_force.max_mhz:  # a step up never waits
        return structs.replace(lease, step_mhz=mhz), ""
    why = f"two steps down within {STEP_S:g} s" if now_s - lease.stepped_s < STEP_S else ""
    return structs.replace(lease, step_mhz=mhz, stepped_s=now_s), why


def _refuse_epoch(state: State, event: Command) -> str:
    """Reason to refuse the epoch, or "".

    An epoch that no controller can have reached would shut out every later one.
    """
    seen = state.epoch_seen
    if event.epoch < seen:
        return f"epoch {event.epoch} is older than {seen}"
    highest = max(seen, min(seen + EPOCH_STEP_MAX, EPOCH_MAX))
    return f"epoch {event.epoch}; allowed: {seen} to {highest}" if event.epoch > highest else ""


def _renew(state: State, event: Command, now_s: float, refused: Mapping[str, str]) -> Outcome:
    leases: dict[str, Gpu] = {}
    reasons: dict[str, str] = {}
    for uuid, gpu in state.gpus.items():
        if gpu.lease is None or gpu.lease.job != event.job:
            continue
        reason = _refuse_epoch(state, event) or refused.get("", "")
        if not reason and event.generation != gpu.lease.generation:
            reason = f"holds generation {gpu.lease.generation}, not {event.generation}"
        reasons[uuid] = reason
        if not reason:
            lease = structs.replace(gpu.lease, epoch=event.epoch, expires_s=now_s + event.ttl_s)
            leases[uuid] = replace(gpu, lease=lease, last=lease)
    reasons = reasons or {"": f"job {event.job} holds no lease here"}
    return Outcome(state.updated(leases, event.epoch if leases else 0), reasons)


def _clear(state: State, event: Command, now_s: float, _: Mapping[str, str]) -> Outcome:
    reasons: dict[str, str] = {}
    for uuid in event.clocks_mhz or state.gpus:
        gpu = state.gpu(uuid)
        held = gpu.lease.job if gpu.lease else event.job
        foreign = event.job not in {"", held}
        named = bool(event.clocks_mhz)
        if named or (gpu.lease and not foreign) or (gpu.pending_restore and not event.job):
            reasons[uuid] = f"held by job {held}" if foreign else ""
    if event.epoch and (reason := _refuse_epoch(state, event)):
        return Outcome(state, dict.fromkeys(reasons or ("",), reason))
    cleared = [
        uuid
        for uuid, reason in reasons.items()
        if not reason and _has_to_restore(state.gpu(uuid), event)
    ]
    return Outcome(end_leases(state.updated({}, event.epoch), cleared, event.cause, now_s), reasons)


def _has_to_restore(gpu: Gpu, event: Command) -> bool:
    doubtful = gpu.may_be_ours and event.clocks_mhz and not event.job
    return bool(gpu.lease or gpu.pending_restore or doubtful or (event.ttl_s and gpu.last))


def _yield(state: State, event: Command, _now_s: float, refused: Mapping[str, str]) -> Outcome:
    yielded, reasons = {}, dict.fromkeys(event.clocks_mhz, "no lease to yield")
    for uuid in reasons:
        gpu = state.gpu(uuid)
        # A newer lease is not yielded: its write replaced the one that was observed.
        if gpu.lease and not gpu.pending_restore and gpu.lease.matches(event):
            reasons[uuid] = refused.get(uuid, "")
            if not reasons[uuid]:
                clocks_are_ours = event.limits(uuid).max_mhz > 0
                yielded[uuid] = replace(gpu, lease=None, may_be_ours=clocks_are_ours)
    return Outcome(state.updated(yielded), reasons)


_HANDLERS = {
    Op.APPLY: _apply,
    Op.STEP: _apply,
    Op.RENEW: _renew,
    Op.CLEAR: _clear,
    Op.YIELD: _yield,
}
