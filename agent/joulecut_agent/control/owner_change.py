"""Ends a lease when its job has ended, or its GPU has another owner.

No clock outlives its job or its owner: the next one did not agree to it.
"""

import contextlib
import time

from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.requests import Clear
from joulecut_agent.log import log


class OwnerChange:
    """Thread-safe."""

    def __init__(self, keeper: KeeperClient) -> None:
        self._keeper = keeper

    def held(self) -> dict[str, str]:
        """The job of each GPU under a lease."""
        status, now_s = self._keeper.status, time.monotonic()
        leased = {uuid: status.lease(uuid, now_s) for uuid in status.slots} if status else {}
        return {uuid: lease.job for uuid, lease in leased.items() if lease}

    def owner_changed(self, uuid: str) -> None:
        """Ends the lease of any job: it was for the owner before."""
        if uuid in self.held():
            log("agent", f"{uuid} has another owner: its lease ends")
        self.job_ended("", uuid)

    def job_ended(self, job: str, uuid: str) -> None:
        """The last process of a job has ended, or of any job where that is ""."""
        status = self._keeper.status
        if status is None or status.slots.get(uuid) is None:
            return
        with contextlib.suppress(KeeperGone):
            self._keeper.ask(Clear(job=job, uuids=(uuid,), cause="job_ended"))
            self._keeper.refresh()
