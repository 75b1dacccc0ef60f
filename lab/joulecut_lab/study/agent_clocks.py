"""Clocks of a study through the node's agent: leased, bounded, and reset at the end.

The study never sets a clock itself. It asks the agent, which asks the keeper; if the study
dies, the lease runs out and the card returns to its default.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from joulecut_controller.fleet.grpc_fleet import GrpcFleet
from joulecut_controller.view import GpuView, NodeView
from joulecut_lab.study.bench import DEFAULT_CLOCK
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.messages import Command, Result, Setting

JOB = "joulecut-study"
TTL_S = 30.0  # the card is back at its default half a minute after a study has died
RENEW_S = TTL_S / 3.0
SOCKET = "unix:"  # over TCP an agent takes commands with a certificate only
REACH_S = 5.0  # for the agent to describe itself
# Agents bound how often a clock may be lowered; a sweep does so once per layer, and waits.
PATIENCE_S = 180.0
RETRY_S = 2.0
GENERATION_MAX = 2**40
T = TypeVar("T")


class AgentClocks:
    """The clock of one GPU of the agent at `address` (unix:PATH), for as long as this lives.

    Raises BadInput on an address that is none, Unavailable where there is no such agent, the
    GPU is not controllable, or a job holds it.
    """

    def __init__(self, address: str, uuid: str) -> None:
        if not address.startswith(SOCKET) or address == SOCKET or not address.isprintable():
            raise BadInput("--lock-via", f'"{address}" is no address', "unix:PATH of the agent")
        self._address = address
        self._uuid = uuid
        self._generation = 1
        self._held = False
        self._lost = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._fleet = GrpcFleet([address], watch_s=1.0)
        self._renewing: asyncio.Task[None] | None = None
        self._open = True
        try:
            self._run(self._fleet.start())
            node, gpu = self._found()
        except BaseException:
            self.close()
            raise
        # The epoch that the agent has seen, not a new one: a controller must not conclude that
        # another has taken over from it.
        self._epoch = max(1, node.epoch_seen)
        self._ttl_s = min(TTL_S, node.ttl_max_s)
        lowest = gpu.description.clock_min_mhz
        highest = gpu.description.clock_max_mhz or gpu.description.clocks_mhz[-1]
        self._clocks = tuple(c for c in gpu.description.clocks_mhz if lowest <= c <= highest)

    def choices_mhz(self) -> tuple[int, ...]:
        return self._clocks

    def ask(self, clock_mhz: int) -> None:
        assert clock_mhz != DEFAULT_CLOCK
        self.check()
        until_s = time.monotonic() + PATIENCE_S
        while True:
            result = self._run(self._asked(clock_mhz))
            if result.accepted:
                self._held = True
                if self._renewing is None:
                    self._renewing = self._run(self._begin_renewing())
                return
            # A number that came before: an earlier study's, or a controller's of this term.
            if "generation" in result.reason and self._generation < GENERATION_MAX:
                self._generation *= 2
                continue
            if time.monotonic() >= until_s:
                raise Unavailable(f"the agent refuses {clock_mhz} MHz: {result.reason}")
            time.sleep(RETRY_S)

    def check(self) -> None:
        if self._lost:
            raise Unavailable(f"the clock was lost: {self._lost}")

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._run(self._ended())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=REACH_S)
            self._loop.close()

    def _found(self) -> tuple[NodeView, GpuView]:
        """The agent and the GPU, once both have said something."""
        until_s = time.monotonic() + REACH_S
        while True:
            state = self._run(self._observed())
            node = state.nodes[0]
            gpu = next((g for g in state.gpus if g.description.uuid == self._uuid), None)
            if gpu is not None and gpu.snapshot is not None:
                break
            heard = bool(state.gpus) and all(g.snapshot for g in state.gpus)
            if heard or time.monotonic() >= until_s:
                if node.connected:
                    raise Unavailable(f"the agent at {self._address} has no GPU {self._uuid}")
                raise Unavailable(f"no agent at {self._address}: {node.error}")
            time.sleep(0.05)
        if not gpu.description.controllable:
            raise Unavailable(f"its clock cannot be set: {gpu.description.reason}")
        if gpu.snapshot.lease is not None:
            raise Unavailable(f"job {gpu.snapshot.lease.job} holds this GPU's clock")
        return node, gpu

    async def _observed(self) -> Any:
        return self._fleet.observe(time.monotonic())

    async def _asked(self, clock_mhz: int) -> Result:
        self._generation += 1
        settings = (Setting(self._uuid, clock_mhz),)
        command = Command(self._epoch, JOB, self._generation, self._ttl_s, settings, "study")
        return (await self._fleet.apply(self._address, command))[0]

    async def _begin_renewing(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self._renew(), name="renew the study's lease")

    async def _renew(self) -> None:
        """Until a renewal is refused: another owner has the clock, and the study ends."""
        while not self._lost:
            await asyncio.sleep(min(RENEW_S, self._ttl_s / 3.0))
            results = await self._fleet.renew(
                self._address, self._epoch, JOB, self._generation, self._ttl_s
            )
            refused = next((r.reason for r in results if not r.accepted), "")
            if refused and "generation" not in refused:  # a clock was changed meanwhile
                self._lost = refused

    async def _ended(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._held:
            await self._fleet.clear(self._address, self._epoch, JOB, [self._uuid], "study ended")
        await self._fleet.stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
