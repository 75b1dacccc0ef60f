"""Gives a GPU back when the work it was set for has gone, whatever else goes on.

No clock outlives its job or its owner: who comes next did not agree to it.
"""

import contextlib
import time

from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.lease import Command
from joulecut_agent.log import say


class Custody:
    """Safe to use from every thread."""

    def __init__(self, keeper: KeeperClient) -> None:
        self._keeper = keeper

    def held(self) -> dict[str, str]:
        """The job of each GPU under a lease."""
        status, now_s = self._keeper.status, time.monotonic()
        leased = {uuid: status.lease(uuid, now_s) for uuid in status.slots} if status else {}
        return {uuid: lease.job for uuid, lease in leased.items() if lease}

    def job_ended(self, job: str, uuid: str) -> None:
        """The last process of a job has gone."""
        self._give_back(uuid, job)

    def owner_changed(self, uuid: str) -> None:
        """Whatever job holds a lease on it: that was for the owner who has gone."""
        if uuid in self.held():
            say("agent", f"{uuid} has changed hands: its lease is given back")
        self._give_back(uuid)

    def _give_back(self, uuid: str, job: str = "") -> None:
        status = self._keeper.status
        if status is None or status.slots.get(uuid) is None:
            return
        command = Command(leases.CLEAR, job=job, clocks_mhz={uuid: (0, 0)}, cause="job_ended")
        with contextlib.suppress(KeeperGone):
            self._keeper.ask(command)
            self._keeper.refresh()
