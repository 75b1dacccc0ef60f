"""Clocks of some GPUs through their node's agent: leased, bounded, and reset at the end.

No clock is set here. The agent asks the keeper, and if this process dies, the lease runs out and
the card returns to its default. The epoch is the one that the agent has seen, not a new one: a
controller must not conclude that another has taken over from it.
"""

import argparse
import re
import threading
import time
from collections.abc import Mapping, Sequence

from joulecut_cli.agent_client import SOCKET, Agent
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.messages import Command, Result, Setting

TTL_S = 30.0  # the card is back at its default half a minute after this process has died
# Agents bound how often a clock may be lowered; a sweep does so often, and waits.
PATIENCE_S = 180.0
RETRY_S = 0.25
GENERATION_MAX = 2**40
OLDER_THAN = re.compile(r"older than (\d+)")
Range = tuple[int, int]  # lowest and highest clock in MHz


def agent_at(flag: str, address: str) -> Agent:
    """An agent of this node. Raises BadInput: over TCP commands need a certificate."""
    if not address.startswith(SOCKET) or address == SOCKET or not address.isprintable():
        raise BadInput(flag, f'"{address}" is no address', "unix:PATH of the agent")
    none = {"cert": None, "key": None, "ca": None, "server_name": ""}
    return Agent(argparse.Namespace(node=address, **none))


def holder(agent: Agent, uuid: str) -> str:
    """Whose this GPU's clock is, or who computes there, as the agent knows; "" without anyone.

    Raises Unavailable where the GPU is unknown or its clock cannot be set.
    """
    described = next((gpu for gpu in agent.describe().gpus if gpu.uuid == uuid), None)
    if described is None:
        raise Unavailable(f"the agent at {agent.address} has no GPU {uuid}")
    if not described.controllable:
        raise Unavailable(f"its clock cannot be set: {described.reason}")
    tick = agent.seen()
    lease = next((gpu.lease for gpu in tick.gpus if gpu.uuid == uuid), None)
    if lease is not None:
        return f"job {lease.job} holds this GPU's clock"
    owner = next((one for one in tick.allocations if one.uuid == uuid), None)
    return f"it belongs to {owner.job} ({owner.source})" if owner else ""


class AgentLease:
    """A lease of `job` over some GPUs, renewed by a thread of its own until `close`."""

    def __init__(self, agent: Agent, job: str, uuids: Sequence[str], ttl_s: float = TTL_S) -> None:
        """Raises Unavailable without an agent."""
        about = agent.describe()
        self._agent, self._job, self._uuids = agent, job, tuple(uuids)
        self._epoch = max(1, about.epoch_seen)
        self._ttl_s = min(ttl_s, about.ttl_max_s)
        self._generation = 1
        self.sent_s = 0.0  # the newest command, monotonic
        self._lost = ""
        self._turn = threading.Lock()  # a renewal and a change never cross
        self._held = False
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def lock(self, clocks_mhz: Mapping[str, Range], patience_s: float = PATIENCE_S) -> str:
        """Ask for clock ranges; the reason of a refusal that lasts, or "". Raises Unavailable."""
        settings = tuple(Setting(u, high, low) for u, (low, high) in clocks_mhz.items())
        until_s = time.monotonic() + patience_s
        while True:
            self.check()
            refused = self._applied(settings)
            if not refused:
                return ""
            if "generation" in refused and self._generation < GENERATION_MAX:
                # A number that came before: an earlier lease's, or a controller's of this term. The
                # next one is taken, so that a later plan soon has a higher one.
                newest = OLDER_THAN.search(refused)
                self._generation = max(self._generation, int(newest[1]) if newest else 0)
                continue
            if time.monotonic() >= until_s or "permission" in refused:
                return refused
            time.sleep(RETRY_S)

    def reset(self) -> None:
        """Give the clocks back and end the lease. Raises Unavailable."""
        with self._turn:
            if self._held:
                self._agent.clear(self._job, f"{self._job} ended", self._uuids)
                self._held = False  # only now: Ctrl-C may come before the answer

    def abandon(self) -> float:
        """Renew no more; the lease runs out. Seconds until then at most."""
        self._leaving.set()
        with self._turn:  # a renewal under way is over
            return self._ttl_s

    def check(self) -> None:
        """Raises Unavailable where the lease was lost."""
        if self._lost:
            raise Unavailable(f"the clock was lost: {self._lost}")

    def close(self) -> None:
        """Reset what is held. Idempotent. Raises Unavailable."""
        self._leaving.set()
        self.reset()
        if self._thread is not None:
            self._thread.join(timeout=RETRY_S)

    def _applied(self, settings: tuple[Setting, ...]) -> str:
        with self._turn:
            self._generation += 1
            command = Command(
                self._epoch, self._job, self._generation, self._ttl_s, settings, self._job
            )
            self._held = True  # before the answer: it may be lost
            self.sent_s = time.monotonic()
            refused = _refusal(self._agent.apply(command))
        if not refused and self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
            self._thread.start()
        return refused

    def _renew(self) -> None:
        """Until a renewal is refused: another owner has the clock, and the work ends."""
        while not self._leaving.wait(self._ttl_s / 3.0):
            with self._turn:
                if not self._held:
                    continue
                try:
                    self._lost = _refusal(
                        self._agent.renew(self._epoch, self._job, self._generation, self._ttl_s)
                    )
                except Unavailable as error:
                    self._lost = str(error)
            if self._lost:
                return


def _refusal(results: tuple[Result, ...]) -> str:
    return next((result.reason for result in results if not result.accepted), "")
