"""Keeps the energy ledger in the store: the open sheet every SAVE_S, closed ones as records."""

import asyncio
import math
from collections.abc import Iterable

from joulecut_controller.policy.policy import IdlePolicy
from joulecut_controller.ports import Record, Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.trust.energy_ledger import TOPIC, EnergyLedger, continued
from joulecut_controller.view import View

SAVE_S = 15.0  # what a report is behind; a killed controller loses no joule of it


class EnergyBook:
    """One ledger of one term."""

    def __init__(self, store: Store, audit: AuditLog) -> None:
        self._store, self._audit = store, audit
        self._ledger = EnergyLedger()
        self._saved_unix_s = 0.0
        self.begun = False

    def begin(self) -> None:
        """Continues what an earlier controller kept; call it in a thread. Raises Unavailable."""
        kept = self._store.learnt(TOPIC)
        self.begun = True
        try:
            self._ledger = continued(kept) if kept else self._ledger
        except ValueError as error:
            self._audit.note("learn", "", f"the energy of owners cannot be read: {error}")

    def look(self, view: View, now_unix_s: float, idle: IdlePolicy) -> None:
        after_s = idle.after_s if idle.mode != "off" else math.inf
        self._ledger.look(view.gpus, now_unix_s, after_s)

    def unused_s(self, now_unix_s: float) -> dict[str, float]:
        """GPUs that are held and not used, by UUID, and for how long."""
        return self._ledger.unused_s(now_unix_s)

    def note_used(self, uuids: Iterable[str], now_unix_s: float) -> None:
        """GPUs that an agent saw at work, perhaps between two looks."""
        self._ledger.note_used(uuids, now_unix_s)

    def is_unused(self, uuid: str) -> bool:
        return self._ledger.is_unused(uuid)

    async def save(self, now_unix_s: float) -> None:
        """Stores the sheets once in a while. Raises Unavailable."""
        if abs(now_unix_s - self._saved_unix_s) >= SAVE_S:
            self._saved_unix_s = now_unix_s
            if self._ledger.is_full:
                until_s = self._ledger.until_unix_s
                record = Record(until_s, TOPIC, "", self._ledger.closed())
                await asyncio.to_thread(self._store.keep_record, record)
            await asyncio.to_thread(self._store.keep_learnt, TOPIC, self._ledger.text())
