"""What every steward works with: the same for all jobs, and for one leadership term."""

from collections.abc import Callable
from dataclasses import dataclass

from joulecut_controller.observe.observer import Observer
from joulecut_controller.plan.guard import Check
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit import Audit
from joulecut_controller.reconcile.leases import Leases


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """Instruments and limits; `interval_s` from pass to pass, `stale_s` until a look is old."""

    store: Store
    audit: Audit
    leases: Leases
    observer: Observer
    check: Check
    epoch: int
    interval_s: float
    stale_s: float
    now_s: Callable[[], float]
    unix_s: Callable[[], float]
