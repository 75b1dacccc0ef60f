"""Keeps the energy ledger in the store: the open sheet every SAVE_S, closed ones as records."""

import asyncio

from joulecut_controller.ports import Record, Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.trust.energy_ledger import TOPIC, EnergyLedger, continued

SAVE_S = 15.0  # what a report is behind; a killed controller loses no joule of it


class EnergyBook:
    """The ledger of one term."""

    def __init__(self, store: Store, audit: AuditLog) -> None:
        self._store, self._audit = store, audit
        self.ledger = EnergyLedger()
        self._saved_unix_s = 0.0
        self.begun = False

    def begin(self) -> None:
        """Continues what an earlier controller kept; call it in a thread. Raises Unavailable."""
        kept = self._store.learnt(TOPIC)
        self.begun = True
        try:
            self.ledger = continued(kept) if kept else self.ledger
        except ValueError as error:
            self._audit.note("learn", "", f"the energy of owners cannot be read: {error}")

    async def save(self, now_unix_s: float) -> None:
        """Stores the sheets once in a while. Raises Unavailable."""
        if abs(now_unix_s - self._saved_unix_s) >= SAVE_S:
            self._saved_unix_s = now_unix_s
            if self.ledger.is_full:
                until_s = self.ledger.until_unix_s
                record = Record(until_s, TOPIC, "", self.ledger.closed())
                await asyncio.to_thread(self._store.keep_record, record)
            await asyncio.to_thread(self._store.keep_learnt, TOPIC, self.ledger.text())
