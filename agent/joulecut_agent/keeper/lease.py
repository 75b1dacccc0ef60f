"""Who may hold each GPU's clocks, and until when.

Pure: given an event and the time, it answers with the new state and the effects to
perform; the keeper performs them. Whatever goes wrong above us -- silence, a crash, a
stale controller -- the lease runs out, and the GPU is owed a restore that is asked for
again until it is done. Start-up, shutdown and expiry all take that one path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Meta, structs

APPLY, RENEW, CLEAR, STATUS, RELEASE, RESUME, YIELD, STEP = range(1, 9)
_ENDS = "lease_expired job_ended cleared reverted keeper_start shutdown agent_gone released"
CAUSES = (*_ENDS.split(), "stopped")
STUCK = "stuck_locked"  # what it was set to stands, without a lease, until it can be restored
RETRY_S, RETRY_S_MAX = 0.5, 30.0  # a busy driver answers soon; a lost GPU needs a person
EPOCH_MAX = 2**32  # a controller started every second for 136 years
EPOCH_STEP_MAX = 2**20  # one started each minute for two years in which this node was away
STEP_S = 0.1  # ten steps down in a second, half of what is known to stall NCCL (nccl #1551)
GPUS_MAX = 16  # the most that one machine is built with (DGX-2)
JOB_BYTES_MAX = 253  # a DNS name's length

# What a message may hold; what comes from inside is not checked against it.
U64 = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 2**64 - 1
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_U16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Clocks = tuple[_U16, _U16]
Program = Annotated[tuple[_U16, ...], Meta(max_length=32)]  # clocks, not steps: 1 % apart at 1 GHz
Job = Annotated[str, Meta(max_length=JOB_BYTES_MAX)]
Uuid = Annotated[str, Meta(max_length=96)]  # NVML's own buffer
_Op = Annotated[int, Meta(ge=1, le=STEP)]
_Cause = Annotated[str, Meta(pattern=rf"^({'|'.join(CAUSES)})\Z")]
_GPUS = Meta(max_length=GPUS_MAX)

Knobs = tuple[int, int, int]
NONE: Knobs = (0, 0, 0)


class Command(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`op` on the GPUs that `clocks_mhz` names; their (min, max) count for APPLY alone, as
    does `power_mw`; a knob with zeros is left alone. `programs` are the lower clocks to which
    STEP, of the same job and generation, may then set max, until it sets the first one again.

    RENEW and a CLEAR that names none concern all GPUs of `job`, or of any if that is "".
    Epoch 0 in CLEAR is the node's own word. YIELD ends leases of that generation (0: of any)
    without a write: somebody else has set these GPUs; but the knobs that it names are still
    ours, and are restored. CLEAR with a ttl restores what it names though no lease is left, if
    there ever was one: a lock that was yielded, and shows again.
    """

    op: _Op
    epoch: U64 = 0
    job: Job = ""
    generation: U64 = 0
    ttl_s: float = 0.0
    clocks_mhz: Annotated[Mapping[Uuid, Clocks], _GPUS] = msgspec.field(default_factory=dict)
    cause: _Cause = "cleared"
    power_mw: Annotated[Mapping[Uuid, U32], _GPUS] = msgspec.field(default_factory=dict)
    programs: Annotated[Mapping[Uuid, Program], _GPUS] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lock:
    """Knobs are (min, max, power): clocks in MHz, min 0 the device's lowest, max 0 default;
    power limit in mW, 0 not set by us.
    """

    uuid: str
    wanted: Knobs
    before: Knobs  # to go back to if the group fails


class Lease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    job: Job  # "" where an earlier keeper accepted it: its journal tells the rest
    epoch: U64
    generation: U64
    clocks_mhz: Clocks
    expires_s: float
    power_mw: U32 = 0
    program: Program = ()
    step_mhz: _U16 = 0  # the max in force, where a step was taken
    stepped_s: float = 0.0  # the last time down

    def is_of(self, event: Command) -> bool:
        return event.epoch in {0, self.epoch} and event.generation in {0, self.generation}

    def same(self, other: "Lease") -> bool:
        """Whether it is by the same command, as far as a journal tells."""
        numbers = (other.epoch, other.generation, other.knobs, other.program)
        return (self.epoch, self.generation, self.knobs, self.program) == numbers

    @property
    def knobs(self) -> Knobs:
        return (*self.clocks_mhz, self.power_mw)

    @property
    def in_force(self) -> Knobs:
        return (self.clocks_mhz[0], self.step_mhz or self.clocks_mhz[1], self.power_mw)


@dataclass(frozen=True, slots=True)
class Owed:
    """A restore not yet done: why, how often it failed, when to try (again)."""

    cause: str
    failures: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Gpu:
    lease: Lease | None = None  # in force
    last: Lease | None = None  # the newest ever accepted: a number outlives its lease
    owed: Owed | None = None


@dataclass(frozen=True, slots=True)
class State:
    """After `spread_s` at the latest a lease that ran out is restored: a controller that dies
    must not raise the power of a whole cluster at once.
    """

    epoch_seen: int = 0
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    spread_s: float = 0.0

    def gpu(self, uuid: str) -> Gpu:
        return self.gpus.get(uuid, Gpu())

    def having(self, changed: Mapping[str, Gpu], epoch: int = 0) -> "State":
        return State(max(self.epoch_seen, epoch), {**self.gpus, **changed}, self.spread_s)

    def due_s(self) -> float:
        """When time alone has something to do; infinite where nothing is held or owed."""
        ends = [gpu.lease.expires_s for gpu in self.gpus.values() if gpu.lease]
        owed = [gpu.owed.due_s for gpu in self.gpus.values() if gpu.owed]
        return min([*ends, *owed], default=inf)


class Step(NamedTuple):
    """What became of an event, and what is to be done, in the order in which it stands here."""

    state: State
    reasons: Mapping[str, str]  # why each GPU concerned was refused; "" where it was accepted
    restores: tuple[tuple[str, str], ...] = ()  # which GPU, and its cause
    locks: tuple[Lock, ...] = ()


def step(state: State, event: Command | None, now_s: float, refused: Mapping[str, str]) -> Step:
    """One event, or None for time alone; `refused` is what bounds and device say to it."""
    over = [u for u, gpu in state.gpus.items() if gpu.lease and now_s >= gpu.lease.expires_s]
    done = Step(end(state, over, "lease_expired", now_s, state.spread_s), {})
    if event is not None:
        act = {APPLY: _apply, STEP: _apply, RENEW: _renew, CLEAR: _clear, YIELD: _yield}[event.op]
        done = act(done.state, event, now_s, refused)
    owed = [(uuid, gpu.owed) for uuid, gpu in done.state.gpus.items() if gpu.owed]
    return done._replace(restores=tuple((u, o.cause) for u, o in owed if now_s >= o.due_s))


def end(
    state: State, uuids: Iterable[str], cause: str, now_s: float, spread_s: float = 0.0
) -> State:
    """These GPUs are owed a restore, whether they were held or not."""
    ended = {}
    for uuid in uuids:
        gpu = state.gpu(uuid)
        failures = gpu.owed.failures if gpu.owed else 0
        due_s = now_s + spread_s * crc32(uuid.encode()) / 2**32
        ended[uuid] = replace(gpu, lease=None, owed=Owed(cause, failures, due_s))
    return state.having(ended)


def restored(state: State, uuid: str, done: bool, now_s: float) -> State:
    """How the restore of a GPU went."""
    gpu = state.gpu(uuid)
    if owed := gpu.owed:
        wait_s = min(RETRY_S * 2.0 ** min(owed.failures, 16), RETRY_S_MAX)
        owed = None if done else Owed(owed.cause, owed.failures + 1, now_s + wait_s)
    return state.having({uuid: replace(gpu, owed=owed)})


def _apply(state: State, event: Command, now_s: float, refused: Mapping[str, str]) -> Step:
    reasons: dict[str, str] = {}
    leases: dict[str, Gpu] = {}
    locks: list[Lock] = []
    for uuid, wanted in event.clocks_mhz.items():
        gpu, knobs = state.gpu(uuid), (event.power_mw.get(uuid, 0), event.programs.get(uuid, ()))
        lease = Lease(event.job, event.epoch, event.generation, wanted, now_s + event.ttl_s, *knobs)
        if event.op == STEP:
            lease, reasons[uuid] = _stepped(gpu.lease, event, wanted[1], now_s)
        else:
            reasons[uuid] = _outdated(state, gpu, event, lease)
        reasons[uuid] = reasons[uuid] or refused.get(uuid, "")
        if gpu.owed and not reasons[uuid] and (gpu.owed.failures or gpu.owed.due_s <= now_s):
            reasons[uuid] = f"its restore ({gpu.owed.cause}) is still owed"
        # A restore that is only spread out has not begun: the old knobs are still in force.
        held = gpu.lease or (gpu.last if gpu.owed else None)
        before = held.in_force if held else NONE
        leases[uuid] = Gpu(lease, last=lease)
        if lease.in_force != before:
            locks.append(Lock(uuid, lease.in_force, before))
    if bad := next((uuid for uuid, reason in reasons.items() if reason), ""):
        also = f"nothing was changed, because {bad} was refused"
        return Step(state, {uuid: why or also for uuid, why in reasons.items()})
    # Critical stages go up before others come down, or the job is slow for a moment.
    locks.sort(key=lambda lock: not lock.before[1] or 0 < lock.wanted[1] <= lock.before[1])
    return Step(state.having(leases, event.epoch), reasons, locks=tuple(locks))


def _outdated(state: State, gpu: Gpu, event: Command, wanted: Lease) -> str:
    asked, last = (event.epoch, event.generation), gpu.last
    if reason := _off_term(state, event):
        return reason
    if last is None or asked > (last.epoch, last.generation):
        return ""
    if asked < (last.epoch, last.generation):
        return f"generation {event.generation} is older than {last.generation}"
    if event.job != (last.job or event.job) or not wanted.same(last):
        return f"generation {event.generation} came before, with other content"
    return ""


def _stepped(lease: Lease | None, event: Command, mhz: int, now_s: float) -> tuple[Lease, str]:
    """The lease after a step, or why there is none."""
    mine = lease and (lease.job, lease.generation) == (event.job, event.generation)
    if not lease or not mine or mhz not in (lease.clocks_mhz[1], *lease.program):
        return Lease("", 0, 0, (0, 0), 0.0), f"{mhz} MHz is no step of a program in force"
    if mhz >= lease.in_force[1]:  # the way up never waits
        return structs.replace(lease, step_mhz=mhz), ""
    why = f"two steps down within {STEP_S:g} s" if now_s - lease.stepped_s < STEP_S else ""
    return structs.replace(lease, step_mhz=mhz, stepped_s=now_s), why


def _off_term(state: State, event: Command) -> str:
    """Why no controller of its term may command here, or "".

    A term that none can have reached would shut out every controller after it.
    """
    seen = state.epoch_seen
    if event.epoch < seen:
        return f"epoch {event.epoch} is older than {seen}"
    highest = max(seen, min(seen + EPOCH_STEP_MAX, EPOCH_MAX))
    return f"epoch {event.epoch}; allowed: {seen} to {highest}" if event.epoch > highest else ""


def _renew(state: State, event: Command, now_s: float, refused: Mapping[str, str]) -> Step:
    leases: dict[str, Gpu] = {}
    reasons: dict[str, str] = {}
    for uuid, gpu in state.gpus.items():
        if gpu.lease is None or gpu.lease.job != event.job:
            continue
        reason = _off_term(state, event) or refused.get("", "")
        if not reason and event.generation != gpu.lease.generation:
            reason = f"holds generation {gpu.lease.generation}, not {event.generation}"
        reasons[uuid] = reason
        if not reason:
            lease = structs.replace(gpu.lease, epoch=event.epoch, expires_s=now_s + event.ttl_s)
            leases[uuid] = Gpu(lease, last=lease)
    reasons = reasons or {"": f"job {event.job} holds no lease here"}
    return Step(state.having(leases, event.epoch if leases else 0), reasons)


def _clear(state: State, event: Command, now_s: float, _: Mapping[str, str]) -> Step:
    reasons: dict[str, str] = {}
    for uuid in event.clocks_mhz or state.gpus:
        gpu = state.gpu(uuid)
        held = gpu.lease.job if gpu.lease else event.job
        theirs = event.job not in {"", held}
        if event.clocks_mhz or (gpu.lease and not theirs) or (gpu.owed and not event.job):
            reasons[uuid] = f"held by job {held}" if theirs else ""
    if event.epoch and (reason := _off_term(state, event)):
        return Step(state, dict.fromkeys(reasons or ("",), reason))
    over = [u for u, reason in reasons.items() if not reason]
    over = [u for u in over if (g := state.gpu(u)).lease or g.owed or (event.ttl_s and g.last)]
    return Step(end(state.having({}, event.epoch), over, event.cause, now_s), reasons)


def _yield(state: State, event: Command, _now_s: float, _: Mapping[str, str]) -> Step:
    given, reasons = {}, dict.fromkeys(event.clocks_mhz, "no lease to yield")
    for uuid in reasons:
        gpu = state.gpu(uuid)
        # Not a newer order, which has been written over what was seen.
        if gpu.lease and not gpu.owed and gpu.lease.is_of(event):
            given[uuid], reasons[uuid] = replace(gpu, lease=None), ""
    return Step(state.having(given), reasons)
