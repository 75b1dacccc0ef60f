"""Leases on GPU clocks: the state machine of the keeper.

Pure: takes a request and the time, returns the new state and the effects for the keeper to perform.
On silence, a crash or a stale controller the lease runs out; the GPU then has a pending restore,
which is retried until it succeeds. Start-up, shutdown and expiry all take this one path.

Commands are ordered by epoch (the controller's term), then by generation (its number of the plan).
An older command is refused; the same one again is accepted and writes nothing.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from zlib import crc32

import msgspec
from msgspec import structs

from joulecut_agent.keeper.evidence import (
    APART_S,
    NO_EVIDENCE,
    SETTLE_S,
    Evidence,
    Verdict,
    none_until_settled,
)
from joulecut_agent.keeper.requests import (
    NO_LIMITS,
    U16,
    U64,
    Apply,
    Clear,
    ClockLimits,
    GpuSetting,
    Hold,
    Job,
    Renew,
    Schedule,
    Step,
    Yield,
)

CAUSES = (  # of a restore
    "lease_expired",
    "job_ended",
    "used",  # a GPU works again that had a clock for as long as nothing used it
    "cleared",
    "reverted",  # another GPU of its command could not be set
    "keeper_start",
    "shutdown",
    "agent_gone",
    "released",
    "stopped",
    "step_ended",  # a lowered step was not held, and its raise failed
    "lock_shows",  # readings show a lock of ours without a lease
    "lock_hidden",  # no reading can show whether a reset took effect: once more
    "clocks_left",  # readings show another writer's clocks: they were left as they are
    "limit_left",  # a power limit that another writer has lowered was left as it is
    "limit_ended",  # a power limit that outlived its lease has come to its end
)
STUCK = "stuck_locked"  # no lease, and a restore has failed, or has no effect
WHOLE = ""  # in place of a GPU: the reason concerns the request as a whole

RETRY_S, RETRY_S_MAX = 0.5, 30.0  # a busy driver answers soon; a lost GPU needs an operator
EPOCH_MAX = 2**32  # a controller started every second for 136 years
EPOCH_STEP_MAX = 2**20  # one started each minute for two years while this node was away
EPOCH_STEP_S = 3600.0  # within it, however many commands: EPOCH_MAX stays half a year away
STEP_S = 0.1  # ten steps down in a second, half of what is known to stall NCCL (nccl #1551)
HOLD_S_MAX = 1.0  # a lowered step without its agent; ten times what a busy node delays one
LATE_S = 60.0  # a driver has carried out a call 15 s after its caller was killed; four times that
LATE_AGAIN_S = 4.0  # between two resets meanwhile
RETAKES_MAX = 3  # resets of a lock that shows again before it is called stuck


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job's right to one GPU's limits until `expires_s`.

    `job` is "" for a lease read from an earlier keeper's journal.
    """

    job: Job
    epoch: U64
    generation: U64
    limits: ClockLimits  # as the command asked
    expires_s: float
    schedule_mhz: Schedule = ()
    keep_power_limit: bool = False
    step_mhz: U16 = 0  # max clock set by the last step; 0: no step was taken
    stepped_s: float = 0.0  # time of the last step down
    step_ends_s: float = inf  # a step below the highest clock ends then, unless it is held
    above_kept_limit: bool = False

    def is_named_by(self, request: Yield) -> bool:
        """Whether a request names this epoch and generation; 0 names any."""
        same_epoch = request.epoch in {0, self.epoch}
        return same_epoch and request.generation in {0, self.generation}

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """The max clocks that are set under it; none for a power limit alone."""
        return tuple(mhz for mhz in (self.limits.max_mhz, *self.schedule_mhz) if mhz)

    def same_content(self, other: "Lease") -> bool:
        """Whether both come from the same command, as far as a journal records."""
        return (
            (self.epoch, self.generation) == (other.epoch, other.generation)
            and self.limits == other.limits
            and self.schedule_mhz == other.schedule_mhz
            and self.keep_power_limit == other.keep_power_limit
        )

    @property
    def in_force(self) -> ClockLimits:
        """The limits set now, after the last step."""
        return self.limits._replace(max_mhz=self.step_mhz or self.limits.max_mhz)


class PowerAfter(Enum):
    """The power limit that a restore sets."""

    SAFE = "safe"  # the site's `power.safe`
    FOUND = "found"  # as before our first write
    KEPT = "kept"  # none: the limit stays


@dataclass(frozen=True, slots=True)
class PendingRestore:
    """A restore that is not done: its cause, failures so far and since when, and the next try.

    `again`: it was done before, and is repeated because an unanswered write may come late.
    """

    cause: str
    failures: int
    due_s: float
    power: PowerAfter = PowerAfter.SAFE
    again: bool = False
    failing_since_s: float = inf


@dataclass(frozen=True, slots=True)
class ShownLock:
    """A lock of ours that shows without a lease, or may be hidden: resets so far, the next one."""

    resets: int
    next_s: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `kept_power_mw` is a power limit that outlives its lease; 0: none."""

    lease: Lease | None = None  # in force
    last: Lease | None = None  # the newest ever accepted: its number outlives it
    pending_restore: PendingRestore | None = None
    # Max clocks that keepers of this boot wrote, newest last; () once readings showed it free.
    written_mhz: tuple[int, ...] = ()
    written_s: float = -inf  # time of the newest of these writes
    # Of these, those that no reading has shown since: a driver may yet carry them out.
    unshown_mhz: tuple[int, ...] = ()
    look_s: float = -inf  # the next reading under a lease, for them
    reset_s: float = -inf  # time of its last reset
    evidence: Evidence = NO_EVIDENCE  # of the keeper's readings since the lease began or ended
    left: bool = False  # its lease ended because another writer's clocks were seen: they stay
    kept_power_mw: int = 0
    kept_until_s: float = inf  # its end; none while a lease is in force
    late_until_s: float = -inf  # until then an unanswered write may still take effect
    shown: ShownLock | None = None

    @property
    def in_force(self) -> ClockLimits:
        """The limits of ours that are set now.

        A restore that only waits for its jitter has not begun: the last lease's are in force.
        """
        pending = self.pending_restore
        held = self.last if pending and not pending.again else self.lease
        limits = held.in_force if held else NO_LIMITS
        return limits._replace(power_mw=limits.power_mw or self.kept_power_mw)

    @property
    def may_be_ours(self) -> bool:
        """Whether its clocks may still be as this boot's keepers set them."""
        return bool(self.written_mhz)

    @property
    def is_watched(self) -> bool:
        """Whether the keeper reads it: a lock of ours may show, and no reset is under way.

        A lease on power alone asks for no clocks, so a lock beneath it is one without a lease.
        """
        pending = self.pending_restore
        resets = pending is not None and not (pending.again and self.left)
        locked = self.lease is not None and bool(self.lease.clocks_mhz)
        return self.may_be_ours and not locked and not resets

    @property
    def reading_s(self) -> float:
        """Time of the keeper's next reading; infinite without a reason to read."""
        if self.is_watched:
            return self.evidence.next_s
        wanted = self.lease is not None and set(self.lease.clocks_mhz) & set(self.unshown_mhz)
        return self.look_s if wanted else inf

    @property
    def is_restored(self) -> bool:
        """Whether no restore is to be done; one that was done may be repeated."""
        pending = self.pending_restore
        return pending is None or (pending.again and not pending.failures)

    @property
    def kept_ends_s(self) -> float:
        """When a kept limit is to be undone: after a restore that is under way."""
        stays = self.lease or self.pending_restore or not self.kept_power_mw
        return inf if stays else self.kept_until_s

    @property
    def is_stuck(self) -> bool:
        pending = self.pending_restore
        failed = pending is not None and pending.failures > 0
        return failed or (self.shown is not None and self.shown.resets > RETAKES_MAX)


@dataclass(frozen=True, slots=True)
class State:
    """All GPUs of the node.

    An expired lease is restored within `restore_jitter_s`, at a time that differs by GPU: a
    controller that dies must not raise the power of a whole cluster at once. A power limit outlives
    its lease by `keep_power_s` at most.
    """

    epoch_seen: int = 0
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    restore_jitter_s: float = 0.0
    keep_power_s: float = inf
    epoch_before: int = 0  # the first rise within EPOCH_STEP_S: the epoch before it, and its time
    epoch_rose_s: float = -inf

    def gpu(self, uuid: str) -> Gpu:
        return self.gpus.get(uuid, Gpu())

    def updated(self, changed: Mapping[str, Gpu]) -> "State":
        """This state with `changed` GPUs."""
        return replace(self, gpus={**self.gpus, **changed})

    def with_epoch(self, epoch: int, now_s: float) -> "State":
        """This state with `epoch` as the largest seen; it never falls."""
        if epoch <= self.epoch_seen:
            return self
        if now_s - self.epoch_rose_s < EPOCH_STEP_S:
            return replace(self, epoch_seen=epoch)
        return replace(self, epoch_seen=epoch, epoch_before=self.epoch_seen, epoch_rose_s=now_s)

    def without_epochs(self) -> "State":
        """This state as if no epoch had been seen; the next command sets one."""
        gpus = {
            uuid: replace(gpu, last=gpu.last and structs.replace(gpu.last, epoch=0, generation=0))
            for uuid, gpu in self.gpus.items()
        }
        return replace(self, epoch_seen=0, gpus=gpus, epoch_before=0, epoch_rose_s=-inf)

    def due_s(self) -> float:
        """Time of the next end of a lease or step, or restore; infinite without any."""
        ends = [gpu.lease.expires_s for gpu in self.gpus.values() if gpu.lease]
        steps = [gpu.lease.step_ends_s for gpu in self.gpus.values() if gpu.lease]
        restores = [g.pending_restore.due_s for g in self.gpus.values() if g.pending_restore]
        return min([*ends, *steps, *restores], default=inf)


@dataclass(frozen=True, slots=True)
class Write:
    """Effect: change one GPU's limits; `before` is set again if its group fails."""

    uuid: str
    wanted: ClockLimits
    before: ClockLimits

    @property
    def may_slow(self) -> bool:
        """Whether it may slow the GPU; a max of 0 is the device's default."""
        before_mhz, wanted_mhz = self.before.max_mhz, self.wanted.max_mhz
        return not before_mhz or 0 < wanted_mhz <= before_mhz


@dataclass(frozen=True, slots=True)
class Restore:
    """Effect: reset one GPU's clocks, and set its power limit as `power` says."""

    uuid: str
    cause: str
    power: PowerAfter


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one request: the new state, and effects to perform in the order given.

    `reasons` has the reason of refusal by GPU, "" if accepted; WHOLE stands for the request.
    """

    state: State
    reasons: Mapping[str, str]
    writes: tuple[Write, ...] = ()


Refused = Mapping[str, str]  # reasons of bounds and device to refuse a GPU


# -- the passing of time -----------------------------------------------------------------


def end_expired(state: State, now_s: float) -> State:
    """Ends the leases whose time is over."""
    over = [u for u, gpu in state.gpus.items() if gpu.lease and now_s >= gpu.lease.expires_s]
    return end_leases(state, over, "lease_expired", now_s, jitter_s=state.restore_jitter_s)


def kept_due_s(state: State) -> float:
    """Time of the next end of a kept power limit; infinite without any."""
    return min((gpu.kept_ends_s for gpu in state.gpus.values()), default=inf)


def end_kept(state: State, now_s: float) -> State:
    """Ends the power limits that have outlived their leases for long enough."""
    over = {u: gpu for u, gpu in state.gpus.items() if now_s >= gpu.kept_ends_s}
    state = state.updated({uuid: replace(gpu, kept_power_mw=0) for uuid, gpu in over.items()})
    spread_s = state.restore_jitter_s
    return end_leases(state, over, "limit_ended", now_s, jitter_s=spread_s)


def ended_steps(state: State, now_s: float) -> tuple[Step, ...]:
    """The steps up of GPUs whose lowered step has ended."""
    leases = {uuid: gpu.lease for uuid, gpu in state.gpus.items() if gpu.lease}
    return tuple(
        Step(held.job, held.generation, uuid, held.limits.max_mhz)
        for uuid, held in leases.items()
        if now_s >= held.step_ends_s
    )


def due_restores(state: State, now_s: float) -> tuple[Restore, ...]:
    """The restores to try now."""
    return tuple(
        Restore(uuid, gpu.pending_restore.cause, gpu.pending_restore.power)
        for uuid, gpu in state.gpus.items()
        if gpu.pending_restore and now_s >= gpu.pending_restore.due_s
    )


def end_leases(
    state: State, uuids: Iterable[str], cause: str, now_s: float, *, jitter_s: float = 0.0,
    lift_power_limit: bool = False,
) -> State:  # fmt: skip
    """Ends leases; each GPU gets a pending restore, with a lease before or without.

    At a keeper's start the last write of an earlier one may be unanswered. `clocks_left` leaves
    the clocks as they are.
    """
    is_asked = cause in {"cleared", "clocks_left"}
    late_until_s = now_s + LATE_S if cause == "keeper_start" else -inf
    ended = {}
    for uuid in uuids:
        gpu = state.gpu(uuid)
        pending = gpu.pending_restore
        lifted = lift_power_limit or (pending is not None and pending.power is PowerAfter.FOUND)
        if gpu.kept_power_mw and not lift_power_limit:
            power = PowerAfter.KEPT
        else:
            power = PowerAfter.FOUND if lifted or is_asked else PowerAfter.SAFE
        due_s = now_s + jitter_s * crc32(uuid.encode()) / 2**32
        failures, since_s = (pending.failures, pending.failing_since_s) if pending else (0, inf)
        # After a command that failed, what it wrote is undone, and not only what came late.
        repeated = pending is not None and pending.again and pending.power is power
        again = repeated and cause != "reverted"
        ended[uuid] = replace(
            gpu,
            lease=None,
            pending_restore=PendingRestore(cause, failures, due_s, power, again, since_s),
            kept_power_mw=0 if lift_power_limit else gpu.kept_power_mw,
            kept_until_s=min(gpu.kept_until_s, now_s + state.keep_power_s),
            unshown_mhz=_with_step(gpu),
            left=cause == "clocks_left" or (cause == "limit_ended" and gpu.left),
            late_until_s=max(gpu.late_until_s, late_until_s),
        )
    return state.updated(ended)


def restore_finished(state: State, uuid: str, done: bool, now_s: float) -> State:
    """Records the result of a restore.

    A failed one is due again after as long as it has failed: commands that ask for it sooner do
    not lengthen the wait. One that followed an unanswered write is
    repeated until that write can no longer take effect.
    """
    gpu = state.gpu(uuid)
    pending = gpu.pending_restore
    if pending is None:
        return state
    if not done:
        since_s = min(pending.failing_since_s, now_s)
        wait_s = min(max(RETRY_S, now_s - since_s), RETRY_S_MAX)
        again = replace(
            pending,
            failures=pending.failures + 1,
            due_s=now_s + wait_s,
            failing_since_s=since_s,
        )
    elif now_s < gpu.late_until_s:
        again = PendingRestore(pending.cause, 0, now_s + LATE_AGAIN_S, pending.power, again=True)
    else:
        again = None
    return state.updated(
        {
            uuid: replace(
                gpu,
                pending_restore=again,
                evidence=none_until_settled(now_s),
                reset_s=now_s if done else gpu.reset_s,
            )
        }
    )


def without_repetitions(state: State) -> State:
    """Restores that were done are not repeated: the driver is being released."""
    done = {u: g for u, g in state.gpus.items() if g.pending_restore and g.pending_restore.again}
    return state.updated({u: replace(gpu, pending_restore=None) for u, gpu in done.items()})


def write_unanswered(state: State, uuid: str, now_s: float) -> State:
    """A write that was sent and not answered: it may still take effect."""
    gpu = replace(state.gpu(uuid), late_until_s=now_s + LATE_S)
    return state.updated({uuid: gpu})


# -- requests ----------------------------------------------------------------------------


def apply(state: State, request: Apply, now_s: float, refused: Refused) -> Outcome:
    """Sets every GPU of the command, or none."""
    reasons: dict[str, str] = {}
    after: dict[str, Gpu] = {}
    writes: list[Write] = []
    for uuid, setting in request.settings.items():
        before = state.gpu(uuid)
        lease = _lease(request, setting, now_s)
        reasons[uuid] = (
            _refuse_generation(state, before, request, lease, now_s)
            or refused.get(uuid, "")
            or _refuse_pending(before, now_s)
            or _refuse_above_kept(before, lease)
        )
        after[uuid] = _with_lease(before, lease, now_s)
        if after[uuid].in_force != before.in_force:
            writes.append(Write(uuid, after[uuid].in_force, before.in_force))
    if bad := next((uuid for uuid, reason in reasons.items() if reason), ""):
        also = f"nothing was changed, because {bad} was refused"
        return Outcome(state, {uuid: why or also for uuid, why in reasons.items()})
    # Critical stages are raised before others are lowered, or the job is slow for a moment.
    writes.sort(key=lambda write: write.may_slow)
    after_all = state.updated(after).with_epoch(request.epoch, now_s)
    return Outcome(after_all, reasons, tuple(writes))


def step(state: State, request: Step, now_s: float) -> Outcome:
    """Moves one GPU to another clock of the schedule under its lease."""
    uuid, mhz = request.uuid, request.clock_max_mhz
    gpu = state.gpu(uuid)
    lease = gpu.lease
    mine = lease and (lease.job, lease.generation) == (request.job, request.generation)
    if not lease or not mine or mhz not in (lease.limits.max_mhz, *lease.schedule_mhz):
        return Outcome(state, {uuid: f"{mhz} MHz is not in a clock schedule in force"})
    ends_s, stepped_s = inf, lease.stepped_s
    if mhz < lease.limits.max_mhz:
        if why := _refuse_hold(request.hold_s):
            return Outcome(state, {uuid: why})
        ends_s = now_s + request.hold_s
    if mhz < lease.in_force.max_mhz:  # a step up never waits
        if now_s - lease.stepped_s < STEP_S:
            return Outcome(state, {uuid: f"two steps down within {STEP_S:g} s"})
        stepped_s = now_s
    stepped = structs.replace(lease, step_mhz=mhz, stepped_s=stepped_s, step_ends_s=ends_s)
    after = replace(gpu, lease=stepped, last=stepped, written_s=now_s)
    write = Write(uuid, after.in_force, gpu.in_force)
    writes = (write,) if write.wanted != write.before else ()
    return Outcome(state.updated({uuid: after}), {uuid: ""}, writes)


def renew(state: State, request: Renew, now_s: float) -> Outcome:
    """Moves the end of the job's leases with this generation."""
    renewed: dict[str, Gpu] = {}
    reasons: dict[str, str] = {}
    for uuid, gpu in state.gpus.items():
        if gpu.lease is None or gpu.lease.job != request.job:
            continue
        reasons[uuid] = _refuse_epoch(state, request.epoch, now_s)
        if not reasons[uuid] and request.generation != gpu.lease.generation:
            reasons[uuid] = f"holds generation {gpu.lease.generation}, not {request.generation}"
        if not reasons[uuid]:
            lease = structs.replace(gpu.lease, epoch=request.epoch, expires_s=now_s + request.ttl_s)
            renewed[uuid] = replace(gpu, lease=lease, last=lease)
    reasons = reasons or {WHOLE: f"job {request.job} holds no lease here"}
    after = state.updated(renewed)
    return Outcome(after.with_epoch(request.epoch, now_s) if renewed else after, reasons)


def clear(state: State, request: Clear, now_s: float, by_hand: Container[str] = ()) -> Outcome:
    """Ends what the request names; a GPU that another job holds is refused.

    `by_hand`: GPUs whose clocks a person has locked.
    """
    reasons: dict[str, str] = {}
    for uuid in request.uuids or state.gpus:
        gpu = state.gpu(uuid)
        holder = gpu.lease.job if gpu.lease else request.job
        foreign = request.job not in {"", holder}
        if request.uuids or (_is_concerned(gpu, request) and not foreign):
            reasons[uuid] = f"held by job {holder}" if foreign else ""
    if request.epoch and (reason := _refuse_epoch(state, request.epoch, now_s)):
        return Outcome(state, dict.fromkeys(reasons or (WHOLE,), reason))
    cleared = [
        uuid
        for uuid, reason in reasons.items()
        if not reason and _has_to_restore(state.gpu(uuid), request, uuid in by_hand)
    ]
    ended = end_leases(
        state.with_epoch(request.epoch, now_s),
        cleared,
        request.cause,
        now_s,
        lift_power_limit=request.lift_power_limit,
    )
    return Outcome(ended, reasons)


def yield_(
    state: State, request: Yield, seen: Verdict, now_s: float, *,
    limit_changed: bool = False, limit_is_theirs: bool = False,
) -> Outcome:  # fmt: skip
    """Ends a lease that the keeper's own readings show not to be in force.

    Clocks that are another writer's stay; everything else is restored. `limit_changed`: the power
    limit that is set is not the lease's; `limit_is_theirs`: nor any other of ours.
    """
    gpu = state.gpu(request.uuid)
    # A newer lease is not yielded: its write replaced the one that was observed.
    if not gpu.lease or not gpu.lease.is_named_by(request):
        return Outcome(state, {request.uuid: "no lease to yield"})
    gpu = replace(gpu, evidence=gpu.evidence.after(seen, now_s, APART_S))
    proven = gpu.evidence.proves
    is_open = proven is Verdict.UNCLEAR and (seen is not proven or not limit_changed)
    if is_open:
        read = state.updated({request.uuid: gpu})
        return Outcome(read, {request.uuid: "the keeper has not seen another writer's setting"})
    cause = "clocks_left" if proven in {Verdict.FREE, Verdict.OTHER} else "cleared"
    gpu = replace(gpu, kept_power_mw=0 if limit_is_theirs else gpu.kept_power_mw)
    ended = end_leases(state.updated({request.uuid: gpu}), [request.uuid], cause, now_s)
    return Outcome(ended, {request.uuid: ""})


def hold(state: State, request: Hold, now_s: float) -> Outcome:
    """Moves the ends of lowered steps; one that has ended is not held any more."""
    why = _refuse_hold(request.hold_s)
    reasons: dict[str, str] = {}
    held: dict[str, Gpu] = {}
    for uuid in request.uuids:
        gpu = state.gpu(uuid)
        lowered = gpu.lease is not None and now_s < gpu.lease.step_ends_s < inf
        reasons[uuid] = why or ("" if lowered else "no lowered step to hold")
        if gpu.lease and not reasons[uuid]:
            lease = structs.replace(gpu.lease, step_ends_s=now_s + request.hold_s)
            held[uuid] = replace(gpu, lease=lease, last=lease)
    return Outcome(state.updated(held), reasons)


# -- rules -------------------------------------------------------------------------------


def _lease(request: Apply, setting: GpuSetting, now_s: float) -> Lease:
    return Lease(
        request.job,
        request.epoch,
        request.generation,
        setting.limits,
        now_s + request.ttl_s,
        setting.schedule_mhz,
        setting.keep_power_limit,
        above_kept_limit=setting.above_kept_limit,
    )


def _with_lease(gpu: Gpu, lease: Lease, now_s: float) -> Gpu:
    """The GPU under a new lease. A kept power limit is left alone by a lease without one, and by
    one that stands above it."""
    kept_power_mw = gpu.kept_power_mw
    if lease.limits.power_mw and not lease.above_kept_limit:
        kept_power_mw = lease.limits.power_mw if lease.keep_power_limit else 0
    asked_mhz = lease.clocks_mhz
    before_mhz = (mhz for mhz in gpu.written_mhz if mhz not in asked_mhz)
    unshown_mhz = (mhz for mhz in _with_step(gpu) if mhz not in asked_mhz)
    return Gpu(
        lease,
        last=lease,
        written_mhz=(*before_mhz, *asked_mhz),  # no longer than the GPU's clock list
        written_s=now_s if asked_mhz else gpu.written_s,
        unshown_mhz=(*unshown_mhz, *asked_mhz),
        look_s=now_s + SETTLE_S,
        evidence=none_until_settled(now_s),
        kept_power_mw=kept_power_mw,
        late_until_s=gpu.late_until_s,
    )


def _with_step(gpu: Gpu) -> tuple[int, ...]:
    """The clocks that no reading has shown; of a schedule the last step is one of them."""
    step_mhz = gpu.lease.step_mhz if gpu.lease else 0
    last_mhz = (step_mhz,) if step_mhz and step_mhz not in gpu.unshown_mhz else ()
    return (*gpu.unshown_mhz, *last_mhz)


def _refuse_hold(hold_s: float) -> str:
    if 0.0 < hold_s <= HOLD_S_MAX:  # NaN is refused too
        return ""
    return f"held for {hold_s:g} s; allowed: above 0 and up to {HOLD_S_MAX:g} s"


def _refuse_pending(gpu: Gpu, now_s: float) -> str:
    """Reason to refuse a lease because of a restore under way, or "".

    A restore that only waits for its jitter, or is a repetition, does not stand in the way.
    """
    pending = gpu.pending_restore
    if gpu.is_stuck and not pending:
        return "a lock of ours shows, and resets have no effect"
    if pending and (pending.failures or (not pending.again and pending.due_s <= now_s)):
        return f"its restore ({pending.cause}) is still pending"
    return ""


def _refuse_above_kept(gpu: Gpu, wanted: Lease) -> str:
    """Without a kept limit the end of the lease would raise the power."""
    if not wanted.above_kept_limit or 0 < gpu.kept_power_mw <= wanted.limits.power_mw:
        return ""
    return "above_kept_limit without a kept power limit that is lower"


def _refuse_generation(state: State, gpu: Gpu, request: Apply, wanted: Lease, now_s: float) -> str:
    asked, last = (request.epoch, request.generation), gpu.last
    if reason := _refuse_epoch(state, request.epoch, now_s):
        return reason
    if last is None or asked > (last.epoch, last.generation):
        return ""
    if asked < (last.epoch, last.generation):
        return f"generation {request.generation} is older than {last.generation}"
    if request.job != (last.job or request.job) or not wanted.same_content(last):
        return f"generation {request.generation} came before, with other content"
    return ""


def _refuse_epoch(state: State, epoch: int, now_s: float) -> str:
    """Reason to refuse the epoch, or "".

    An epoch that no controller can have reached would shut out every later one. The next one is
    always accepted: it is that of a new controller that knows this node.
    """
    seen = state.epoch_seen
    if epoch < seen:
        return f"epoch {epoch} is older than {seen}"
    before = state.epoch_before if now_s - state.epoch_rose_s < EPOCH_STEP_S else seen
    highest = max(seen, min(max(before + EPOCH_STEP_MAX, seen + 1), EPOCH_MAX))
    return f"epoch {epoch}; allowed: {seen} to {highest}" if epoch > highest else ""


def _is_concerned(gpu: Gpu, request: Clear) -> bool:
    """Whether a request that names no GPU is about this one."""
    if gpu.lease:
        return True
    if request.lift_power_limit and gpu.kept_power_mw:
        return request.job in {"", gpu.last.job if gpu.last else ""}
    return gpu.pending_restore is not None and not request.job


def _has_to_restore(gpu: Gpu, request: Clear, by_hand: bool) -> bool:
    by_name = bool(request.uuids) and not request.job and not (gpu.left or by_hand)
    return bool(
        gpu.lease
        or gpu.pending_restore
        or (by_name and gpu.may_be_ours)
        or (request.lift_power_limit and gpu.kept_power_mw)
    )
