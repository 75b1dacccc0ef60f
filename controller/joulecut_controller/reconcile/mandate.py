"""The policy in force, and what becomes of a newer one: taken whole, or refused with a reason.

A broken file leaves the one before in force and is said once. What could not be written into
the trail is tried again in the next pass: a change of policy must not get lost with a line.
"""

from contextlib import suppress
from typing import Protocol

from joulecut_controller.policy.policy import Policy
from joulecut_controller.reconcile.audit import Audit
from joulecut_wire.errors import BadInput, Unavailable


class PolicySource(Protocol):
    """Where the policy comes from. `load` raises BadInput and then changes nothing."""

    def load(self) -> Policy: ...

    def changed(self) -> bool: ...


class Mandate:
    """What a person asks of this controller, from pass to pass."""

    def __init__(self, source: PolicySource, policy: Policy, audit: Audit) -> None:
        self._source = source
        self._policy = policy
        self._audit = audit
        self._error = ""
        self._noted = ""  # the error that stands in the trail
        self._due = False

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
        self._due = True

    def refresh(self) -> bool:
        """Reads the policy where that is due; whether it is in force anew.

        Raises Unavailable where the trail does not take it: neither may be acted on then, since
        a person wanted the one before to end.
        """
        if not (self._due or self._source.changed()):
            return False
        self._due = True  # until its answer stands in the trail
        try:
            policy = self._source.load()
        except BadInput as error:
            self._refuse(str(error))
            return False
        if policy.digest != self._policy.digest:
            self._audit.note("policy", "", f"in force: {policy.digest}")
        self._due, self._error, self._noted, self._policy = False, "", "", policy
        return True

    def _refuse(self, error: str) -> None:
        self._error = error
        if error != self._noted:
            with suppress(Unavailable):  # a broken file is no reason to stop a pass
                text = f"refused, the one before stays in force: {error}"
                self._audit.note("policy", "", text)
                self._noted = error
        self._due = error != self._noted
