"""Parts of a controller process that outlive leadership terms, and its output.

A process waits for the leader lock, leads a term, and waits again; its page, its view of the agents
and its store stay.
"""

import asyncio
import sys
from collections.abc import Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from joulecut_controller.cluster.history import History
from joulecut_controller.config import Config
from joulecut_controller.election.capacity import Capacity
from joulecut_controller.election.claim_table import ClaimTable
from joulecut_controller.election.epoch import Comeback
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.fleet.grpc_fleet import GrpcFleet
from joulecut_controller.garbage import Sweeper
from joulecut_controller.metrics.collector import MetricsEndpoint
from joulecut_controller.policy.policy import Policy
from joulecut_controller.solver_warmup import SolverWarmup
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.commands import CommandChannel


@dataclass(slots=True)
class ServiceContext:
    """What stays while leaders come and go; `policy` is the last one that was in force."""

    config: Config
    source: PolicyFile
    policy: Policy
    store: DatabaseStore
    fleet: GrpcFleet
    watch_s: float
    leadership: Leadership
    publisher: Publisher
    history: History
    metrics: MetricsEndpoint
    commands: CommandChannel
    planners: Executor
    background: Executor
    address: str
    warming: SolverWarmup
    sweeper: Sweeper
    stopping: asyncio.Event
    claims: ClaimTable
    comeback: Comeback = field(default_factory=Comeback)
    capacity: Capacity = field(default_factory=Capacity)
    asked: dict[str, float] = field(default_factory=dict)  # as the page takes it
    apart: bool = False  # it left its jobs to others, since it reached no agent
    sharing: asyncio.Lock = field(default_factory=asyncio.Lock)  # while the claims are read

    async def until_stopped(self, work: Coroutine[Any, Any, Any]) -> None:
        """Waits for the work, or for the order to stop. Raises what the work raises."""
        worked, stopped = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        await asyncio.wait((worked, stopped), return_when=asyncio.FIRST_COMPLETED)
        ended = worked.done()
        for task in (worked, stopped):
            task.cancel()
        await asyncio.gather(worked, stopped, return_exceptions=True)
        if ended:
            worked.result()


def announce(line: str) -> None:
    """One line on standard output where the process becomes standby or leader."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
