"""The policy in force; a newer one is taken whole or refused with a reason.

An invalid file leaves the policy before in force and is reported once. A valid one is in force at
once, even where the store fails to log it: it may be there to end control of a job, and no clock
follows from it before the store has numbered a plan.
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
    """Reads the policy when it changed or a reload was requested. `policy` is in force, and `error`
    why a newer one was refused.
    """

    def __init__(self, source: PolicySource, policy: Policy, audit: AuditLog) -> None:
        self._source, self._audit = source, audit
        self.policy = policy
        self.error = ""
        self._asked = False

    def ask(self) -> None:
        """The next refresh reads it, changed or not."""
        self._asked = True

    async def refresh(self) -> bool:
        """Whether a new policy is in force. Reads in a thread: profiles are megabytes, and the
        disk may be a network's.
        """
        asked, self._asked = self._asked, False
        found = await asyncio.to_thread(self._read, asked=asked)
        if isinstance(found, BadInput):
            said, self.error = self.error, str(found)
            if self.error != said:
                text = f"refused, the one before stays in force: {found}"
                self._audit.post("policy", "", text)
        if not isinstance(found, Policy):
            return False
        if found.digest != self.policy.digest:
            self._audit.post("policy", "", f"in force: {found.digest}")
        self.error, self.policy = "", found
        return True

    def _read(self, *, asked: bool) -> Policy | BadInput | None:
        """None where nothing is new."""
        if not (asked or self._source.changed()):
            return None
        try:
            return self._source.load()
        except BadInput as error:
            return error
