"""Who may hold each GPU's clocks, and until when.

Pure: given an event and the time, it answers with the new state and the effects to
perform; the keeper performs them. Whatever goes wrong above us -- silence, a crash, a
stale controller -- the lease runs out, and the GPU is owed a restore that is asked for
again until it is done. Start-up, shutdown and expiry all take that one path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from zlib import crc32

APPLY, RENEW, CLEAR, STATUS, RELEASE, RESUME, YIELD, END = range(1, 9)
_ENDS = "lease_expired job_ended cleared reverted keeper_start shutdown agent_gone released"
CAUSES = (*_ENDS.split(), "stopped")
STUCK = "stuck_locked"  # what it was set to stands, without a lease, until it can be restored
RETRY_S, RETRY_S_MAX = 0.5, 30.0  # a busy driver answers soon; a lost GPU needs a person


Knobs = tuple[int, int, int]
NONE: Knobs = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Command:
    """`op` on the GPUs that `clocks_mhz` names; their (min, max) count for APPLY alone, as
    does `power_mw`; a knob with zeros is left alone.

    RENEW and a CLEAR that names none concern all GPUs of `job`, or of any if that is "".
    Epoch 0 in CLEAR is the node's own word. YIELD ends leases of that generation (0: of any)
    without a write: somebody else has set these GPUs; but the knobs that it names are still
    ours, and are restored. CLEAR with a ttl restores what it names though no lease is left, if
    there ever was one: a lock that was yielded, and shows again. END restores GPUs whether held
    or not.
    """

    op: int
    epoch: int = 0
    job: str = ""
    generation: int = 0
    ttl_s: float = 0.0
    clocks_mhz: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cause: str = "cleared"
    power_mw: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """How the restore of a GPU went."""

    uuid: str
    done: bool


@dataclass(frozen=True, slots=True)
class Lock:
    """Knobs are (min, max, power): clocks in MHz, min 0 the device's lowest, max 0 default;
    power limit in mW, 0 not set by us.
    """

    uuid: str
    wanted: Knobs
    before: Knobs  # to go back to if the group fails


@dataclass(frozen=True, slots=True)
class Restore:
    uuid: str
    cause: str


@dataclass(frozen=True, slots=True)
class Answer:
    uuid: str
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    job: str  # "" where an earlier keeper accepted it: its journal tells the rest
    epoch: int
    generation: int
    clocks_mhz: tuple[int, int]
    expires_s: float
    power_mw: int = 0

    def is_of(self, event: Command) -> bool:
        return event.epoch in {0, self.epoch} and event.generation in {0, self.generation}

    @property
    def knobs(self) -> Knobs:
        return (*self.clocks_mhz, self.power_mw)


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


Event = Command | Written | None
Step = tuple[State, tuple[Lock | Restore | Answer, ...]]


def step(state: State, event: Event, now_s: float, refused: Mapping[str, str]) -> Step:
    """One event, or None for time alone; `refused` is what bounds and device say to it.

    Effects come in the order in which to perform them.
    """
    over = [u for u, gpu in state.gpus.items() if gpu.lease and now_s >= gpu.lease.expires_s]
    state = _end(state, over, "lease_expired", now_s, state.spread_s)
    effects: tuple[Lock | Restore | Answer, ...] = ()
    if isinstance(event, Written):
        state = _written(state, event, now_s)
    elif event is not None and event.op == END:
        state = _end(state, event.clocks_mhz, event.cause, now_s)
    elif event is not None:
        act = {APPLY: _apply, RENEW: _renew, CLEAR: _clear, YIELD: _yield}[event.op]
        state, effects = act(state, event, now_s, refused)
    owed = [(uuid, gpu.owed) for uuid, gpu in state.gpus.items() if gpu.owed]
    return state, (*(Restore(u, o.cause) for u, o in owed if now_s >= o.due_s), *effects)


def _end(
    state: State, uuids: Iterable[str], cause: str, now_s: float, spread_s: float = 0.0
) -> State:
    ended = {}
    for uuid in uuids:
        gpu = state.gpu(uuid)
        failures = gpu.owed.failures if gpu.owed else 0
        due_s = now_s + spread_s * crc32(uuid.encode()) / 2**32
        ended[uuid] = replace(gpu, lease=None, owed=Owed(cause, failures, due_s))
    return state.having(ended)


def _written(state: State, event: Written, now_s: float) -> State:
    gpu = state.gpu(event.uuid)
    if owed := gpu.owed:
        wait_s = min(RETRY_S * 2.0 ** min(owed.failures, 16), RETRY_S_MAX)
        owed = None if event.done else Owed(owed.cause, owed.failures + 1, now_s + wait_s)
    return state.having({event.uuid: replace(gpu, owed=owed)})


def _apply(state: State, event: Command, now_s: float, refused: Mapping[str, str]) -> Step:
    reasons: dict[str, str] = {}
    leases: dict[str, Gpu] = {}
    locks: list[Lock] = []
    for uuid, wanted in event.clocks_mhz.items():
        gpu, mw = state.gpu(uuid), event.power_mw.get(uuid, 0)
        lease = Lease(event.job, event.epoch, event.generation, wanted, now_s + event.ttl_s, mw)
        reasons[uuid] = _outdated(state, gpu, event, lease) or refused.get(uuid, "")
        if gpu.owed and not reasons[uuid] and (gpu.owed.failures or gpu.owed.due_s <= now_s):
            reasons[uuid] = f"its restore ({gpu.owed.cause}) is still owed"
        # A restore that is only spread out has not begun: the old knobs are still in force.
        held = gpu.lease or (gpu.last if gpu.owed else None)
        before = held.knobs if held else NONE
        leases[uuid] = Gpu(lease, last=lease)
        if lease.knobs != before:
            locks.append(Lock(uuid, lease.knobs, before))
    if bad := next((uuid for uuid, reason in reasons.items() if reason), ""):
        also = f"nothing was changed, because {bad} was refused"
        return state, tuple(Answer(uuid, False, why or also) for uuid, why in reasons.items())
    # Critical stages go up before others come down, or the job is slow for a moment.
    locks.sort(key=lambda lock: not lock.before[1] or 0 < lock.wanted[1] <= lock.before[1])
    return state.having(leases, event.epoch), (*locks, *(Answer(uuid, True) for uuid in reasons))


def _outdated(state: State, gpu: Gpu, event: Command, wanted: Lease) -> str:
    asked, last = (event.epoch, event.generation), gpu.last
    if event.epoch < state.epoch_seen:
        return f"epoch {event.epoch} is older than {state.epoch_seen}"
    if last is None or asked > (last.epoch, last.generation):
        return ""
    if asked < (last.epoch, last.generation):
        return f"generation {event.generation} is older than {last.generation}"
    if (event.job, wanted.knobs) != (last.job or event.job, last.knobs):
        return f"generation {event.generation} came before, with other content"
    return ""


def _renew(state: State, event: Command, now_s: float, refused: Mapping[str, str]) -> Step:
    leases: dict[str, Gpu] = {}
    answers: list[Answer] = []
    for uuid, gpu in state.gpus.items():
        if gpu.lease is None or gpu.lease.job != event.job:
            continue
        reason = refused.get("", "")
        if event.epoch < state.epoch_seen:
            reason = f"epoch {event.epoch} is older than {state.epoch_seen}"
        elif event.generation != gpu.lease.generation:
            reason = f"holds generation {gpu.lease.generation}, not {event.generation}"
        answers.append(Answer(uuid, not reason, reason))
        if not reason:
            lease = replace(gpu.lease, epoch=event.epoch, expires_s=now_s + event.ttl_s)
            leases[uuid] = Gpu(lease, last=lease)
    answers = answers or [Answer("", False, f"job {event.job} holds no lease here")]
    return state.having(leases, event.epoch if leases else 0), tuple(answers)


def _clear(state: State, event: Command, now_s: float, _: Mapping[str, str]) -> Step:
    answers: dict[str, Answer] = {}
    for uuid in event.clocks_mhz or state.gpus:
        gpu = state.gpu(uuid)
        held = gpu.lease.job if gpu.lease else event.job
        theirs = event.job not in {"", held}
        if event.clocks_mhz or (gpu.lease and not theirs) or (gpu.owed and not event.job):
            answers[uuid] = Answer(uuid, not theirs, f"held by job {held}" if theirs else "")
    if 0 < event.epoch < state.epoch_seen:
        reason = f"epoch {event.epoch} is older than {state.epoch_seen}"
        return state, tuple(Answer(uuid, False, reason) for uuid in answers or ("",))
    over = [u for u, answer in answers.items() if answer.accepted]
    over = [u for u in over if (g := state.gpu(u)).lease or g.owed or (event.ttl_s and g.last)]
    return _end(state.having({}, event.epoch), over, event.cause, now_s), tuple(answers.values())


def _yield(state: State, event: Command, _now_s: float, _: Mapping[str, str]) -> Step:
    gpus = {uuid: state.gpu(uuid) for uuid in event.clocks_mhz}
    # Not a newer order, which has been written over what was seen.
    held = {u: g for u, g in gpus.items() if g.lease and not g.owed and g.lease.is_of(event)}
    answers = [Answer(u, u in held, "" if u in held else "no lease to yield") for u in gpus]
    given = {uuid: replace(gpu, lease=None) for uuid, gpu in held.items()}
    return state.having(given), tuple(answers)
