"""The policy in force, and what becomes of a newer one: taken whole, or refused with a reason.

A broken file leaves the one before in force and is said once. A newer one is in force at once,
whether or not the store takes the line that says so: it may be there to end something, it lies
on the disk in any case, and no clock follows from it before the plan has a number of that store.
"""

import asyncio
from typing import Protocol

from joulecut_controller.policy.policy import Policy
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_wire.errors import BadInput


class PolicySource(Protocol):
    """Where the policy comes from. `load` raises BadInput and then changes nothing."""

    def load(self) -> Policy: ...

    def changed(self) -> bool: ...


class PolicyWatcher:
    """What a person asks of this controller, from pass to pass."""

    def __init__(self, source: PolicySource, policy: Policy, audit: AuditLog) -> None:
        self._source = source
        self._policy = policy
        self._audit = audit
        self._error = ""
        self._asked = False

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self._policy

    @property
    def error(self) -> str:
        """Why a newer one is not in force; empty where none was refused."""
        return self._error

    def ask(self) -> None:
        """It is read again, changed or not."""
        self._asked = True

    async def refresh(self) -> bool:
        """Reads the policy where that is due; whether it is in force anew.

        In a thread: its profiles are megabytes, and its disk may be a network's.
        """
        asked, self._asked = self._asked, False
        found = await asyncio.to_thread(self._read, asked=asked)
        if isinstance(found, BadInput):
            said, self._error = self._error, str(found)
            if self._error != said:
                text = f"refused, the one before stays in force: {found}"
                self._audit.tell("policy", "", text)
        if not isinstance(found, Policy):
            return False
        if found.digest != self._policy.digest:
            self._audit.tell("policy", "", f"in force: {found.digest}")
        self._error, self._policy = "", found
        return True

    def _read(self, *, asked: bool) -> Policy | BadInput | None:
        """None where nothing is new."""
        if not (asked or self._source.changed()):
            return None
        try:
            return self._source.load()
        except BadInput as error:
            return error
