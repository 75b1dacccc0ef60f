"""Watches every GPU between commands, and backs off from those that an external writer sets.

`drift` judges the readings. This module ends or restores the lease through the keeper, refuses
commands while it backs off, and shows both to watchers, scrapes and health checks.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from joulecut_agent.control import drift
from joulecut_agent.control.drift import Backoff, Memory
from joulecut_agent.counters import Counters
from joulecut_agent.keeper.client import KeeperClient, KeeperGone, Status
from joulecut_agent.keeper.lease import STUCK
from joulecut_agent.keeper.protocol import Slot
from joulecut_agent.keeper.requests import Clear, Yield
from joulecut_agent.log import log
from joulecut_wire.messages import GpuDescription, GpuSnapshot, Lease, NodeSnapshot
from joulecut_wire.metrics import CONTROL_DRIFT

SHOWN_S = 60.0  # long enough for a controller's pass and a scrape
UNCONTROLLABLE_S = 5.0  # one refusal of a busy driver lasts two


@dataclass(slots=True)
class _Gpu:
    """One GPU; only the thread of `look` writes it."""

    default_mhz: int  # the clock it reaches without a lease
    no_default: str = ""  # why the site's default clock cannot be set on it
    memory: Memory = field(default_factory=Memory)
    backoff: Backoff = field(default_factory=Backoff)
    clock_max_mhz: int = 0  # of the newest lease
    power_limit_w: float | None = None
    since_s: float = 0.0  # when these limits were set
    fresh: bool = True  # the keeper has never written to it
    drift: str = ""
    drift_until_s: float = 0.0  # how long drift that ended a lease is shown
    slow: str = ""
    uncontrollable_s: float | None = None  # since when it is under a lease and uncontrollable
    enforced_w: float | None = None  # the power limit at the last drift
    drift_of: tuple[int, int] = (0, 0)  # epoch and generation of the lease that drifted


class DriftWatch:
    """`look` is for one thread, everything else for any."""

    def __init__(
        self, gpus: Callable[[], Iterable[GpuDescription]], keeper: KeeperClient,
        counters: Counters, site_default: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """`gpus` returns the GPUs of this node; one may be found late."""
        self._site = site_default
        self._described = gpus
        self._gpus: dict[str, _Gpu] = {}
        self._add_found()
        self._keeper = keeper
        self._counters = counters
        self._answered_s: dict[str, float] = {}  # infinite while a command is under way
        self.not_controlled: Callable[[str], str] = lambda _: ""  # a reason by UUID, or ""
        self._sequence = 0

    def check(self, snapshot: NodeSnapshot) -> None:
        """Judges a snapshot once, and acts on it."""
        status = self._keeper.status
        if status is None or snapshot.sequence <= self._sequence:
            return
        self._sequence = snapshot.sequence
        if any(gpu.uuid not in self._gpus for gpu in snapshot.gpus):
            self._add_found()
        for gpu in snapshot.gpus:
            known, answered_s = self._gpus.get(gpu.uuid), self._answered_s.get(gpu.uuid, 0.0)
            # A reading from before the newest command was answered proves nothing about it.
            if known and snapshot.taken_at_s >= max(known.since_s, answered_s):
                known.since_s = max(known.since_s, answered_s)
                self._judge(gpu, status, snapshot.taken_at_s)

    def refusal(self, uuid: str) -> str:
        """Reason why commands for this GPU are refused now, or ""."""
        known = self._gpus.get(uuid)
        if known is None:
            return ""
        if reason := known.no_default or self.not_controlled(uuid):
            return reason
        left_s = known.backoff.until_s - time.monotonic()
        if left_s > 0.0:
            cause = known.drift or drift.EXTERNAL
            return f"backs off for {left_s:.0f} s more: {cause}, {known.backoff.failures} times"
        if known.memory.site_mhz:
            return (
                f"ran at {known.memory.site_mhz} MHz under load without an event reason before the"
                " first write: set site_default to the clock that the site locks"
            )
        return ""

    def seen(self, gpus: tuple[GpuSnapshot, ...]) -> tuple[GpuSnapshot, ...]:
        """The GPUs with lease, drift and backoff."""
        status, now_s = self._keeper.status, time.monotonic()
        return tuple(self._seen(gpu, status, now_s) for gpu in gpus)

    def described(self, gpus: Iterable[GpuDescription]) -> tuple[GpuDescription, ...]:
        """The GPUs, with `controllable` judged by keeper, site and owners."""
        return tuple(
            replace(gpu, controllable=False, power_controllable=False, reason=reason)
            if (reason := self._lasting_refusal(gpu.uuid)) and gpu.controllable
            else gpu
            for gpu in self._keeper.described(gpus)
        )

    def sent(self, uuids: Iterable[str]) -> None:
        """A command is about to be sent: until `answered` no reading of these is judged, since one
        with the limits of the command before shows in nothing else.
        """
        self._answered_s.update(dict.fromkeys(uuids, math.inf))

    def answered(self, uuids: Iterable[str]) -> None:
        """Readings from now on show the command, accepted or not."""
        self._answered_s.update(dict.fromkeys(uuids, time.monotonic()))

    def slowed(self) -> dict[str, tuple[str, float | None]]:
        """Each GPU under a lease: its job, and by how much it is slower at most. No kernel is
        slowed by more than its clock; None under a power limit, which bounds no time.
        """
        status, now_s = self._keeper.status, time.monotonic()
        leases = {uuid: status.lease(uuid, now_s) for uuid in self._gpus} if status else {}
        return {
            uuid: (lease.job, slowdown(lease, self._gpus[uuid].default_mhz))
            for uuid, lease in leases.items()
            if lease is not None
        }

    def _add_found(self) -> None:
        found = {}
        for gpu in self._described():
            highest_mhz = max(gpu.clocks_mhz, default=0)
            site_mhz = self._site[1] if self._site else highest_mhz
            found[gpu.uuid] = _Gpu(min(site_mhz, highest_mhz), _no_default(self._site, gpu))
        self._gpus = {**found, **self._gpus}  # replaced as a whole: other threads read it

    def _seen(self, gpu: GpuSnapshot, status: Status | None, now_s: float) -> GpuSnapshot:
        known = self._gpus.get(gpu.uuid)
        if known is None or status is None:
            return gpu
        return replace(
            gpu,
            lease=status.lease(gpu.uuid, now_s),
            drift=known.drift,
            backoff_s=max(0.0, known.backoff.until_s - now_s),
            slow_reason=known.slow,
            power_limit_kept_w=status.power_limit_kept_w(gpu.uuid),
        )

    def _lasting_refusal(self, uuid: str) -> str:
        """`refusal`, without a backoff, which ends by itself."""
        known = self._gpus.get(uuid)
        reason = known is not None and (known.no_default or self.not_controlled(uuid))
        return self.refusal(uuid) if known and (known.memory.site_mhz or reason) else ""

    def _judge(self, gpu: GpuSnapshot, status: Status, now_s: float) -> None:
        known = self._gpus[gpu.uuid]
        lease = status.lease(gpu.uuid, now_s)
        slot = status.slots.get(gpu.uuid)
        ours = slot is not None and (any(slot.restores) or slot.reason.startswith(STUCK))
        known.fresh = known.fresh and lease is None and not ours
        limits = (lease.clock_max_mhz, lease.power_limit_w) if lease else (0, None)
        if limits != (known.clock_max_mhz, known.power_limit_w):
            known.clock_max_mhz, known.power_limit_w = limits
            known.since_s = time.monotonic()
        if lease and slot and self._is_uncontrollable(known, slot, status):
            what = f"{gpu.uuid} cannot be controlled: {slot.reason}; its lease ends"
            log("agent", what, "warning", lease.job)
            self._end(Clear(uuids=(gpu.uuid,)))
            return
        order = drift.order_of(
            lease, known.default_mhz, since_s=known.since_s, fresh=known.fresh,
            written_mhz=slot.written_mhz if slot else (),
        )  # fmt: skip
        known.memory, cause = drift.check(known.memory, gpu, order, now_s)
        known.slow = drift.slow_reason(gpu, order, known.memory.site_mhz)
        self._note(known, gpu, lease, cause)

    def _is_uncontrollable(self, known: _Gpu, slot: Slot, status: Status) -> bool:
        """Whether a GPU became uncontrollable under its lease: MIG was switched on, for example.

        Heartbeats would renew that lease for ever. A lost GPU has no snapshot, and is not judged.
        """
        if slot.accepted or not slot.reason or status.stopped:
            known.uncontrollable_s = None
        elif known.uncontrollable_s is None:
            known.uncontrollable_s = status.taken_at_s
        elif status.taken_at_s - known.uncontrollable_s >= UNCONTROLLABLE_S:
            known.uncontrollable_s = None
            return True
        return False

    def _note(self, known: _Gpu, gpu: GpuSnapshot, lease: Lease | None, cause: str) -> None:
        numbers = (lease.epoch, lease.generation) if lease else known.drift_of
        if not cause:
            # Drift that ended a lease is shown until `drift_until_s` or the next lease.
            over = not known.memory.suspect if lease else time.monotonic() >= known.drift_until_s
            if over or numbers != known.drift_of:
                known.drift, known.enforced_w = "", None
            known.drift_of = numbers
            return
        known.drift_of = numbers
        enforced_w, known.enforced_w = known.enforced_w, gpu.power_limit_enforced_w
        # Less may be enforced than is set. Only the keeper reads what is set: it refuses to end
        # a lease whose limit is still set, and is asked again when the enforced limit changes.
        ends = cause != drift.LIMIT or enforced_w != known.enforced_w
        if ends and lease is not None and self._end_lease(gpu, lease, cause):
            cause = drift.EXTERNAL if cause == drift.LIMIT else cause
            known.backoff = drift.extended(known.backoff, cause, time.monotonic())
        elif cause in (known.drift, *drift.CONFIRMED, *drift.CLEARED):
            return
        known.drift = cause
        known.drift_until_s = max(known.backoff.until_s, time.monotonic() + SHOWN_S)
        self._counters.count(CONTROL_DRIFT.name, gpu.uuid, cause)
        left_s = max(0.0, known.backoff.until_s - time.monotonic())
        then = f"; backing off for {left_s:.0f} s" if left_s else ""
        job = lease.job if lease else ""
        log("agent", f"drift {gpu.uuid} cause={cause} job={job or '-'}{then}", "warning", job)

    def _end_lease(self, gpu: GpuSnapshot, lease: Lease, cause: str) -> bool:
        """Whether the keeper ended a lease; about another writer it goes by its own readings."""
        if cause in drift.CONFIRMED or cause == drift.LIMIT:
            return self._end(Yield(gpu.uuid, lease.epoch, lease.generation))
        return self._end(Clear(job=lease.job, uuids=(gpu.uuid,)))

    def _end(self, request: Clear | Yield) -> bool:
        try:
            reply = self._keeper.ask(request)
            self._keeper.refresh()
        except KeeperGone:
            return False
        return all(slot.accepted for slot in reply.slots)


def _no_default(site: tuple[int, int] | None, gpu: GpuDescription) -> str:
    """Reason why the site's default clocks cannot be set on a GPU, or "".

    A restore would set the driver's default instead, which the site did not choose.
    """
    for clock_mhz in filter(None, site or ()):
        if gpu.clocks_mhz and clock_mhz not in gpu.clocks_mhz:
            nearest = " or ".join(map(str, _neighbours(clock_mhz, gpu.clocks_mhz)))
            return f"site_default: {clock_mhz} MHz is no clock of this GPU; it has {nearest} MHz"
    return ""


def _neighbours(clock_mhz: int, clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """The next clock below and the next above, if any."""
    below = [mhz for mhz in clocks_mhz if mhz < clock_mhz][-1:]
    return (*below, *[mhz for mhz in clocks_mhz if mhz > clock_mhz][:1])


def slowdown(lease: Lease, default_mhz: int) -> float | None:
    """Of the lowest clock of a lease against the one that the GPU reaches without it."""
    if lease.power_limit_w is not None or lease.clock_max_mhz <= 0 or not default_mhz:
        return None
    lowest_mhz = lease.clock_lowest_mhz or lease.clock_max_mhz
    return round(max(0.0, default_mhz / lowest_mhz - 1.0), 4)
