"""Keeps an eye on each GPU between orders, and keeps off those that somebody else sets.

`drift` judges; this asks the keeper to give up or to restore what it judged, remembers for
how long no order is passed on, and tells watchers, scrapes and health checks about it.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from joulecut_agent.control import drift
from joulecut_agent.control.drift import Memory, Order, Stand
from joulecut_agent.control.reasons import Purposes
from joulecut_agent.control.slowdown_notice import Intent, intent_of
from joulecut_agent.counters import Tally
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import MW_PER_W, KeeperClient, KeeperGone, Status
from joulecut_agent.keeper.lease import Command
from joulecut_agent.keeper.protocol import Slot
from joulecut_agent.log import say
from joulecut_wire.messages import GpuDescription, GpuSnapshot, Lease, NodeSnapshot
from joulecut_wire.metrics import CONTROL_DRIFT

NO_MHZ = (0, 0)
SHOWN_S = 60.0  # for controllers that look each few seconds, and scrapes each half minute
UNABLE_S = 5.0  # a driver that is busy once is left alone for two
_Knobs = tuple[int, float | None]


@dataclass(slots=True)
class _Gpu:
    """What is known of one GPU; the thread that looks alone writes it."""

    default_mhz: int  # what it may reach without us
    no_default: str = ""  # why it cannot be given back to the site's own clock
    memory: Memory = field(default_factory=Memory)
    stand: Stand = field(default_factory=Stand)
    knobs: _Knobs = (0, None)
    since_s: float = 0.0
    fresh: bool = True  # nothing of ours was ever written here
    drift: str = ""
    shown_s: float = 0.0  # until when drift is told that ended a lease
    slow: str = ""
    # A lock of ours that may be there still: beneath somebody else's, or because a driver took
    # the reset and did nothing.
    left_mhz: int = 0
    left_ticks: int = 0  # readings in a row that showed it
    yielded: bool = False  # the lease was given up without a write
    unable_s: float | None = None  # since when it is held and cannot be controlled
    lease: tuple[int, int] = (0, 0)  # epoch and generation of the lease that `drift` is about


class Oversight:
    """`look` is for one thread; everything else may be asked from any."""

    def __init__(
        self, gpus: Callable[[], Iterable[GpuDescription]], keeper: KeeperClient, tally: Tally,
        site_default: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """`gpus` tells the GPUs of this node; one may be found late."""
        self._site = site_default
        self._found = gpus
        self._gpus: dict[str, _Gpu] = {}
        self._meet()
        self._keeper = keeper
        self._tally = tally
        self.purposes = Purposes()
        self.barred: Callable[[str], str] = lambda _: ""  # why a GPU is nobody's to control
        self._sequence = 0

    def look(self, snapshot: NodeSnapshot) -> None:
        """Judges a picture that was not judged yet, and acts on it."""
        status = self._keeper.status
        if status is None or snapshot.sequence <= self._sequence:
            return
        self._sequence = snapshot.sequence
        if any(gpu.uuid not in self._gpus for gpu in snapshot.gpus):
            self._meet()
        for gpu in snapshot.gpus:
            known, ordered_s = self._gpus.get(gpu.uuid), self.purposes.shows_s(gpu.uuid)
            # What was read before the newest order was written and noticed tells nothing of it.
            if known and snapshot.taken_at_s >= max(known.since_s, ordered_s):
                known.since_s = max(known.since_s, ordered_s)
                self._judge(gpu, status, snapshot.taken_at_s)

    def refusal(self, uuid: str) -> str:
        """Why no order for this GPU is passed on now, or ""."""
        known = self._gpus.get(uuid)
        if known is None:
            return ""
        if barred := known.no_default or self.barred(uuid):
            return barred
        left_s = known.stand.until_s - time.monotonic()
        if left_s > 0.0:
            cause = known.drift or drift.EXTERNAL
            return f"stands back for {left_s:.0f} s more: {cause}, {known.stand.strikes} times"
        if known.memory.site_mhz:
            return (
                f"ran at {known.memory.site_mhz} MHz under load for no reason told, before anything"
                " was written here: tell by site_default which clock the site locks"
            )
        return ""

    def seen(self, gpus: tuple[GpuSnapshot, ...]) -> tuple[GpuSnapshot, ...]:
        """The GPUs with their leases, and what became of them."""
        status, now_s = self._keeper.status, time.monotonic()
        return tuple(self._seen(gpu, status, now_s) for gpu in gpus)

    def described(self, gpus: Iterable[GpuDescription]) -> tuple[GpuDescription, ...]:
        """The GPUs as keeper and site leave them."""
        return tuple(
            replace(gpu, controllable=False, power_controllable=False, reason=locked)
            if (locked := self._site_locked(gpu.uuid)) and gpu.controllable
            else gpu
            for gpu in self._keeper.described(gpus)
        )

    def intents(self) -> dict[str, Intent]:
        """Every GPU under a lease: why, until when, and how slow it may be."""
        status, now_s, unix_s = self._keeper.status, time.monotonic(), time.time()
        found = {}
        for uuid, gpu in self._gpus.items():
            lease = status.lease(uuid, now_s) if status else None
            if lease is not None:
                reason = self.purposes.of(uuid, lease)
                found[uuid] = intent_of(lease, reason, gpu.default_mhz, unix_s)
        return found

    def _meet(self) -> None:
        found = {}
        for gpu in self._found():
            highest_mhz = max(gpu.clocks_mhz, default=0)
            site_mhz = self._site[1] if self._site else highest_mhz
            found[gpu.uuid] = _Gpu(min(site_mhz, highest_mhz), _no_default(self._site, gpu))
        self._gpus = {**found, **self._gpus}  # at once: others are reading

    def _seen(self, gpu: GpuSnapshot, status: Status | None, now_s: float) -> GpuSnapshot:
        known = self._gpus.get(gpu.uuid)
        if known is None or status is None:
            return gpu
        return replace(
            gpu,
            lease=status.lease(gpu.uuid, now_s),
            drift=known.drift,
            stands_back_s=max(0.0, known.stand.until_s - now_s),
            slow_reason=known.slow,
        )

    def _site_locked(self, uuid: str) -> str:
        known = self._gpus.get(uuid)
        barred = known is not None and (known.no_default or self.barred(uuid))
        return self.refusal(uuid) if known and (known.memory.site_mhz or barred) else ""

    def _judge(self, gpu: GpuSnapshot, status: Status, now_s: float) -> None:
        known = self._gpus[gpu.uuid]
        lease = status.lease(gpu.uuid, now_s)
        slot = status.slots.get(gpu.uuid)
        ours = slot is not None and (any(slot.restores) or slot.reason.startswith(leases.STUCK))
        known.fresh = known.fresh and lease is None and not ours
        knobs = (lease.clock_max_mhz, lease.power_limit_w) if lease else (0, None)
        if knobs != known.knobs:
            if lease is None and not known.yielded:
                known.left_mhz = known.knobs[0] if _tells_apart(known) else 0
            known.yielded = False
            known.knobs, known.since_s = knobs, time.monotonic()
        if lease and slot and self._unable(known, slot, status):
            say("agent", f"{gpu.uuid} is given back, it cannot be controlled: {slot.reason}")
            self._end(Command(leases.CLEAR, clocks_mhz={gpu.uuid: NO_MHZ}))
            return
        order = drift.order_of(lease, known.default_mhz, since_s=known.since_s, fresh=known.fresh)
        known.memory, cause = drift.look(known.memory, gpu, order, now_s)
        known.slow = drift.slow_reason(gpu, order, known.memory.site_mhz)
        self._clear_left(known, gpu, lease)
        self._note(known, gpu, lease, order, cause)

    def _clear_left(self, known: _Gpu, gpu: GpuSnapshot, lease: Lease | None) -> None:
        """Takes our own lock back once it shows: who set a lower one has gone, or a driver lied."""
        if lease is not None:
            known.left_mhz = 0
        shows = known.left_mhz > 0 and drift.surfaced(gpu, known.left_mhz)
        known.left_ticks = known.left_ticks + 1 if shows else 0
        if known.left_ticks < drift.TICKS:
            return
        with contextlib.suppress(KeeperGone):
            self._keeper.ask(Command(leases.CLEAR, ttl_s=1.0, clocks_mhz={gpu.uuid: NO_MHZ}))
            say("agent", f"{gpu.uuid}: our lock at {known.left_mhz} MHz showed, and was taken back")
            known.left_mhz = known.left_ticks = 0

    def _unable(self, known: _Gpu, slot: Slot, status: Status) -> bool:
        """Whether a GPU became one to be observed only, while it was held: MIG is on, say.

        Heartbeats would hold it for ever. One that is lost is not seen, and comes not here.
        """
        if slot.accepted or not slot.reason or status.stopped:
            known.unable_s = None
        elif known.unable_s is None:
            known.unable_s = status.taken_at_s
        elif status.taken_at_s - known.unable_s >= UNABLE_S:
            known.unable_s = None
            return True
        return False

    def _note(
        self, known: _Gpu, gpu: GpuSnapshot, lease: Lease | None, order: Order, cause: str
    ) -> None:
        numbers = (lease.epoch, lease.generation) if lease else known.lease
        if not cause:
            # What ended a lease is told for a while, or until the next one; a limit while it lasts.
            over = not known.memory.suspect if lease else time.monotonic() >= known.shown_s
            if over or numbers != known.lease:
                known.drift = ""
            known.lease = numbers
            return
        known.lease = numbers
        if cause in drift.YIELDED | drift.CLEARED:
            if lease is None or not self._give_up(gpu, lease, order, cause):
                return
            known.stand = drift.struck(known.stand, cause, time.monotonic())
        elif cause == known.drift:
            return
        known.drift = cause
        known.shown_s = max(known.stand.until_s, time.monotonic() + SHOWN_S)
        self._tally.count(CONTROL_DRIFT.name, gpu.uuid, cause)
        left_s = max(0.0, known.stand.until_s - time.monotonic())
        then = f"; standing back for {left_s:.0f} s" if left_s else ""
        say("agent", f"drift {gpu.uuid} cause={cause} job={lease.job if lease else '-'}{then}")

    def _give_up(self, gpu: GpuSnapshot, lease: Lease, order: Order, cause: str) -> bool:
        """Ends the lease, with a write or without; whether the keeper did."""
        if cause in drift.YIELDED:
            clocks, limit = drift.kept_knobs(gpu, order)
            clocks_mhz = {
                gpu.uuid: (lease.clock_min_mhz, lease.clock_max_mhz) if clocks else NO_MHZ
            }
            power_mw = {gpu.uuid: round((lease.power_limit_w or 0.0) * MW_PER_W)} if limit else {}
            known = self._gpus[gpu.uuid]
            beneath = cause == drift.EXTERNAL and drift.beneath(gpu, order)
            # A driver that said "done" and is late may still do it.
            late = cause == drift.RESET and _tells_apart(known)
            known.left_mhz = order.clock_max_mhz if beneath or late else 0
            known.yielded = True
            command = Command(
                leases.YIELD, lease.epoch, lease.job, lease.generation,
                clocks_mhz=clocks_mhz, power_mw=power_mw,
            )  # fmt: skip
        else:
            clocks_mhz = {gpu.uuid: NO_MHZ}
            command = Command(leases.CLEAR, 0, lease.job, clocks_mhz=clocks_mhz)
        return self._end(command)

    def _end(self, command: Command) -> bool:
        try:
            reply = self._keeper.ask(command)
            self._keeper.refresh()
        except KeeperGone:
            return False
        return all(slot.accepted for slot in reply.slots)


def _tells_apart(known: _Gpu) -> bool:
    """Whether a GPU that runs at the clock of its last lease is not just at its default."""
    return 0 < known.knobs[0] < known.default_mhz - 2 * drift.CLOCK_SLACK_MHZ


def _no_default(site: tuple[int, int] | None, gpu: GpuDescription) -> str:
    """Why a GPU cannot be given back to the clocks that the site locks, or "".

    It would go to the driver's default instead, and nobody would have asked for that.
    """
    for clock_mhz in filter(None, site or ()):
        if gpu.clocks_mhz and clock_mhz not in gpu.clocks_mhz:
            nearest = " or ".join(map(str, _around(clock_mhz, gpu.clocks_mhz)))
            return f"site_default: {clock_mhz} MHz is no clock of this GPU; it has {nearest} MHz"
    return ""


def _around(clock_mhz: int, clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """The next one below, and the next above, as far as there is one."""
    below = [mhz for mhz in clocks_mhz if mhz < clock_mhz][-1:]
    return (*below, *[mhz for mhz in clocks_mhz if mhz > clock_mhz][:1])
