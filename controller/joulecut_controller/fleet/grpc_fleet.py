"""gRPC client of all agents: one stream per agent, and commands with deadlines.

A lost agent is normal: its GPUs grow old, its commands are refused, and the stream reconnects with
a bounded back-off. Nothing here raises into a pass. An agent that sends what no agent of ours sends
is quarantined: nothing of it is believed and its GPUs are not set, for a minute, and for twice as
long after each time. No agent says anything about a GPU of another. An agent that other controllers
watch is looked at once in a while instead: described, and one message read.
"""

import asyncio
import math
import re
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence, Set
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from joulecut_controller.fleet.gpu_owners import GpuOwners
from joulecut_controller.fleet.quota import Quota
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.view import GpuView, NodeView
from joulecut_wire import codec
from joulecut_wire.errors import BadInput, described
from joulecut_wire.messages import (
    Allocation,
    Command,
    GpuSnapshot,
    IterationTiming,
    NodeDescription,
    ReportFault,
    Result,
    WatchTick,
)
from joulecut_wire.tls import Pem, Rotating
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1.agent_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:  # the stubs' types know the asyncio flavour only by this name
    from joulecut_wire.v1.agent_pb2_grpc import AgentServiceAsyncStub

# An agent hands a command to its keeper, which writes eight GPUs in well under a second.
COMMAND_DEADLINE_S = 3.0
DESCRIBE_DEADLINE_S = 5.0
BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 5.0  # an agent that comes back is seen within a pass or two
# A stream without messages for so long is dead, even if the connection is open.
SILENCE_INTERVALS = 5
SILENCE_S_MIN = 5.0
# Silence is counted in looks of this length: while the event loop was busy, none is counted, since
# messages wait in the socket then.
SILENCE_POLL_S = 0.5
# A thousand agents that are described at once would answer later than their deadline.
OPENING_MAX = 64
DESCRIBE_EVERY_S = 30.0  # controllable and epoch may change without a reconnect
POLL_EVERY_S = 60.0  # at agents that others watch: their readings are for pages and the ledger
POLLS_PER_S_MAX = 20.0  # of all agents; each costs two milliseconds on either side
RETURN_S = 10.0  # after a GPU is shown again: its keeper opens the reloaded driver within seconds
RETURN_EVERY_S = 0.5  # meanwhile; a limit that the reload took is missing until it is described
# Agents that do not number commands sample once a second; sooner after an answer a message may
# show what was before.
SHOWN_S = 1.0
BEHIND_S_MAX = 30.0  # a message that late is no reading any more
REPORTS_KEPT = 100_000  # 1,000 GPUs at ten iterations a second for ten seconds
MESSAGE_BYTES_MAX = 16 << 20  # twice the largest reports that an agent keeps for a watcher
QUARANTINE_S, QUARANTINE_S_MAX = 60.0, 3600.0
_PEER = re.compile(r"^[A-Z]+: (?:ipv[46]|unix):\S+: ")  # the peer, shown already
SPREAD = 0.1  # after ten messages the streams are out of step
ROTATION_POLL_S = 2.0  # certificates live for hours at least
LEFT = (Result("", accepted=False, reason="not sent: no longer among the agents"),)
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # agents are reached directly, whatever the shell says
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


_Gpus = dict[str, pb.GpuSnapshot]  # of one message, by UUID


@dataclass(slots=True)
class _Reading:
    """The newest reading of a GPU; the message is decoded at the first use of `snapshot`."""

    message: pb.GpuSnapshot
    taken_s: float
    _snapshot: GpuSnapshot | None = None

    @property
    def snapshot(self) -> GpuSnapshot:
        self._snapshot = self._snapshot or codec.decode_gpu(self.message)
        return self._snapshot


@dataclass(slots=True)
class _Agent:
    """State of one agent."""

    address: str
    description: NodeDescription | None = None
    described: pb.DescribeResponse | None = None  # what it was read from
    connected: bool = False
    error: str = "not reached yet"
    described_s: float = float("-inf")
    uuids: Set[str] | None = None  # the GPUs of the newest tick
    returned_s: float = float("-inf")  # when one of them was shown again
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # describe again, soon
    needed: asyncio.Event = field(default_factory=asyncio.Event)  # its stream stays open
    readings: dict[str, _Reading] = field(default_factory=dict)
    shows: int | None = None  # the number of the newest command that the last message follows
    answered: int = 0  # the largest number of a command of ours, in the order of this stream
    answered_s: float = float("-inf")
    allocations: dict[str, Allocation] = field(default_factory=dict)
    timings: dict[str, IterationTiming] = field(default_factory=dict)
    stopped: str = ""
    faults: tuple[ReportFault, ...] = ()
    other_hosts: tuple[str, ...] = ()
    stream: Any = None  # the call, while one is open
    quiet_s: float = 0.0  # of the open stream, since its last message
    silent: bool = False  # the stream was ended for that
    quota: Quota = field(default_factory=lambda: Quota(1.0, MESSAGE_BYTES_MAX))
    quarantine: str = ""  # why nothing of it is believed
    offences: int = 0
    offended_s: float = float("-inf")
    shown: tuple[object, object] | None = None  # what the last notice was of

    def is_behind(self, taken_s: float, now_s: float) -> bool:
        """Whether its last message was made before our newest command was carried out."""
        if self.shows is None:
            return taken_s < self.answered_s + SHOWN_S
        return self.shows < self.answered and now_s < self.answered_s + BEHIND_S_MAX


class GrpcFleet:
    """The agents at these addresses (host:port). `watch_s` is the interval of their messages. A
    command without an answer within `deadline_s` counts as refused; a stream without messages for
    `silence_s` reconnects. The newest `reports_kept` reports are kept until they are taken. With
    `tls` every agent's certificate must name its address, or `server_name`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        watch_s: float,
        deadline_s: float = COMMAND_DEADLINE_S,
        silence_s: float = SILENCE_S_MIN,
        reports_kept: int = REPORTS_KEPT,
        tls: Rotating[Pem] | None = None,
        server_name: str = "",
        store: str = "",
    ) -> None:
        """`store` names the caller's to agents, which tell each controller of the others."""
        self._store = store
        self._tls = tls
        self._server_name = server_name
        self._pem: Pem | None = None  # what the channels were opened with
        self._retired: list[grpc.aio.Channel] = []  # opened with older ones
        self._watch_s = watch_s
        self._deadline_s = deadline_s
        self._silence_s = max(silence_s, SILENCE_INTERVALS * watch_s)
        self._agents = {address: self._agent(address) for address in addresses}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, AgentServiceAsyncStub] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._reports: deque[ArrivedReport] = deque(maxlen=reports_kept)
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._started_s = -math.inf
        self.owners = GpuOwners()
        # Called with the address of an agent that shows something else than before, and whether
        # that concerns the agent itself or whose its GPUs are.
        self.noticed: Callable[[str, bool], None] = lambda *_: None

    def _agent(self, address: str) -> _Agent:
        interval_s = _own_interval_s(address, self._watch_s)
        made = _Agent(address, quota=Quota(interval_s, MESSAGE_BYTES_MAX))
        made.needed.set()
        return made

    async def start(self) -> None:
        """Opens the streams; does not wait for any agent."""
        self._started_s = time.monotonic()
        self._pem = self._tls.current() if self._tls else None
        self._tasks.append(asyncio.create_task(self._end_silent_streams(), name="silence"))
        for address in self._agents:
            self._begin(address)
        if self._tls:
            self._tasks.append(asyncio.create_task(self._rotate(self._tls), name="certificates"))

    async def follow(self, addresses: Collection[str]) -> None:
        """From now on the agents at these addresses. Those that stay notice nothing; the leases of
        one that left run out there.
        """
        for address in [address for address in self._agents if address not in addresses]:
            del self._agents[address], self._stubs[address]
            task, channel = self._streams.pop(address), self._channels.pop(address)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await channel.close()
        for address in addresses:
            if address not in self._agents:
                self._agents[address] = self._agent(address)
                self._begin(address)

    def watch(self, needed: Collection[str] | None) -> None:
        """Streams stay open to these agents alone (None: to all); others are looked at."""
        for address, agent in self._agents.items():
            if needed is None or address in needed:
                agent.needed.set()
            else:
                agent.needed.clear()

    @property
    def _poll_s(self) -> float:
        return max(POLL_EVERY_S, len(self._agents) / POLLS_PER_S_MAX)

    def _begin(self, address: str) -> None:
        self._open(address)
        watch = self._follow(self._agents[address])
        self._streams[address] = asyncio.create_task(watch, name=f"watch {address}")

    def _open(self, address: str) -> None:
        options: list[tuple[str, Any]] = list(OPTIONS)
        if self._pem is None or address.startswith("unix:"):
            channel = grpc.aio.insecure_channel(address, options=options)
        else:
            if self._server_name:
                options.append(("grpc.ssl_target_name_override", self._server_name))
            pem = self._pem
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
            channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._channels[address] = channel
        self._stubs[address] = cast("AgentServiceAsyncStub", AgentServiceStub(channel))

    async def _rotate(self, tls: Rotating[Pem]) -> None:
        """New channels with new certificates; calls under way end on the old ones."""
        while True:
            await asyncio.sleep(ROTATION_POLL_S)
            pem = await asyncio.to_thread(tls.current)
            if pem is self._pem:
                continue
            self._pem, old = pem, dict(self._channels)
            for address in self._agents:
                self._open(address)
            self._retired.extend(old.values())
            # By then every stream has moved, and every command has ended.
            await asyncio.sleep(self._silence_s + self._deadline_s)
            await self._close_retired()

    async def _close_retired(self) -> None:
        retired, self._retired = self._retired, []
        await asyncio.gather(*(channel.close() for channel in retired))

    async def stop(self) -> None:
        tasks = (*self._tasks, *self._streams.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close_retired()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def all_read(self, limit_s: float) -> bool:
        """Waits until every agent has described itself and sent readings, at most `limit_s` from
        the start; True if all did.
        """
        until_s = self._started_s + limit_s
        while time.monotonic() < until_s:
            if all(agent.connected for agent in self._agents.values()):
                return True
            await asyncio.sleep(0.05)
        return False

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        nodes: list[NodeView] = []
        gpus: list[GpuView] = []
        wanted = [self._agents[one] for one in addresses if one in self._agents]
        for agent in wanted if addresses else self._agents.values():
            known = agent.description
            nodes.append(
                NodeView(
                    address=agent.address,
                    node=self.owners.named(agent.address, known.node) if known else "",
                    connected=agent.connected,
                    epoch_seen=known.epoch_seen if known else 0,
                    ttl_max_s=known.ttl_max_s if known else 0.0,
                    agent_version=known.agent_version if known else "",
                    error=agent.error,
                    stopped=agent.stopped,
                    faults=agent.faults,
                    other_hosts=agent.other_hosts,
                    roles=known.roles if known else (),
                    keeps_power_limits=known.keeps_power_limits if known else False,
                    limits_above_kept=known.limits_above_kept if known else False,
                    timed_steps_max=known.timed_steps_max if known else 0,
                    lowers_unused=known.lowers_unused if known else False,
                    quarantine=agent.quarantine,
                    conflict=self.owners.conflicts(agent.address),
                    claimed=self.owners.claimed(agent.address),
                )
            )
            if known is not None:
                gpus.extend(self._gpus(agent, known, now_s))
        return FleetState(tuple(nodes), tuple(gpus))

    def _gpus(self, agent: _Agent, known: NodeDescription, now_s: float) -> Iterator[GpuView]:
        """The GPUs that the agent speaks for."""
        node = self.owners.named(agent.address, known.node)
        for gpu in known.gpus:
            if not self.owners.owns(agent.address, gpu.uuid):
                continue
            reading = agent.readings.get(gpu.uuid)
            taken_s = reading.taken_s if reading else float("-inf")
            allocation, timing = agent.allocations.get(gpu.uuid), agent.timings.get(gpu.uuid)
            yield GpuView(
                gpu,
                agent.address,
                node,
                reading.snapshot if reading else None,
                now_s - taken_s,
                allocation,
                timing,
                behind=agent.is_behind(taken_s, now_s),
                every_s=0.0 if agent.needed.is_set() else self._poll_s,
                conflict=self.owners.conflict(gpu.uuid),
            )

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken = tuple(self._reports)
        self._reports.clear()
        return taken

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return await self._ask(address, "Apply", codec.encode_command(command))

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        request = pb.RenewRequest(epoch=epoch, job=job, generation=generation, ttl_s=ttl_s)
        return await self._ask(address, "Renew", request, ttl_s / 3)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        request = pb.ClearRequest(epoch=epoch, job=job, uuids=list(uuids), reason=reason)
        return await self._ask(address, "Clear", request)

    async def _ask(
        self, address: str, method: str, request: Any, within_s: float = math.inf
    ) -> tuple[Result, ...]:
        """The agent's results; its silence is one refusal."""
        if address not in self._stubs:
            return LEFT
        call = getattr(self._stubs[address], method)
        try:
            answer = await call(request, timeout=min(self._deadline_s, within_s))
            results = codec.decode_results(answer)
        except grpc.aio.AioRpcError as error:
            return (Result("", accepted=False, reason=f"no answer ({_reason(error)})"),)
        except BadInput as error:
            return (Result("", accepted=False, reason=f"no valid answer ({error})"),)
        agent = self._agents.get(address)
        if agent is not None and not isinstance(answer, pb.RenewResponse):
            agent.answered = max(agent.answered, answer.carried_out.number)
            agent.answered_s = time.monotonic()
        if agent is not None and not all(result.accepted for result in results):
            agent.asked.set()  # a larger epoch may be why
        return results

    async def _follow(self, agent: _Agent) -> None:
        """Describe, then watch, again and again."""
        backoff_s = BACKOFF_S_MIN
        while True:
            stub, looked = self._stubs[agent.address], False
            try:
                async with self._opening:
                    await self._describe(agent)
                async with aclosing(self._ticks(agent, stub)) as ticks:
                    async for tick, gpus, arrived_s in ticks:
                        agent.quarantine = ""
                        self._take(agent, tick, gpus, arrived_s)
                        backoff_s = BACKOFF_S_MIN
                        if looked := not agent.needed.is_set():
                            break
                        if self._is_to_describe(agent, gpus.keys(), arrived_s):
                            await self._describe_again(agent)
                if looked:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_own_interval_s(agent.address, self._poll_s)):
                            await agent.needed.wait()
                    continue
                if stub is not self._stubs[agent.address]:
                    continue  # only the certificates changed: the agent is not lost
                agent.error = "the stream ended"
            except grpc.aio.AioRpcError as error:
                agent.error = _reason(error)
            except Exception as error:  # any error costs the GPUs of this agent alone
                backoff_s = self._quarantine(agent, described(error))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not agent.silent or (task is not None and task.cancelling()):
                    raise
                agent.silent, agent.error = False, "the stream is silent"
            agent.connected, agent.other_hosts = False, ()
            with suppress(Exception):  # the periodic resync covers a lost notice
                self._notice(agent, ())
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    @staticmethod
    def _is_to_describe(agent: _Agent, shown: Set[str], now_s: float) -> bool:
        if agent.uuids is not None and not shown <= agent.uuids:
            agent.returned_s = now_s
        agent.uuids = shown
        returns = now_s - agent.returned_s < RETURN_S
        every_s = RETURN_EVERY_S if returns else DESCRIBE_EVERY_S
        return agent.asked.is_set() or now_s - agent.described_s > every_s

    def _quarantine(self, agent: _Agent, why: str) -> float:
        """Believes nothing of the agent any more. Returns for how many seconds."""
        now_s = time.monotonic()
        forgiven = now_s - agent.offended_s > 2.0 * QUARANTINE_S_MAX
        agent.offences = 0 if forgiven else min(agent.offences + 1, 16)
        agent.offended_s = now_s
        agent.quarantine = agent.error = why
        agent.readings, agent.allocations, agent.timings, agent.faults = {}, {}, {}, ()
        return float(min(QUARANTINE_S * 2.0**agent.offences, QUARANTINE_S_MAX))

    async def _describe(self, agent: _Agent) -> None:
        agent.asked.clear()
        request = pb.DescribeRequest()
        answer = await self._stubs[agent.address].Describe(request, timeout=DESCRIBE_DEADLINE_S)
        if agent.description is None or answer != agent.described:
            agent.description, agent.described = codec.decode_node(answer), answer  # 0.4 ms
        agent.described_s = time.monotonic()
        agent.stopped = agent.description.stopped
        known = frozenset([gpu.uuid for gpu in agent.description.gpus])
        self.owners.claim(
            agent.address, agent.description.node, known, self._agents, agent.described_s
        )
        agent.quota.keep_only(known)
        for gone in [uuid for uuid in agent.readings if uuid not in known]:
            del agent.readings[gone]

    async def _describe_again(self, agent: _Agent) -> None:
        """An agent whose messages come is there, however late it describes itself."""
        try:
            await self._describe(agent)
        except grpc.aio.AioRpcError:
            agent.described_s = time.monotonic()  # with the next turn

    async def _ticks(
        self, agent: _Agent, stub: "AgentServiceAsyncStub"
    ) -> AsyncGenerator[tuple[WatchTick, _Gpus, float], None]:
        """Until the stream ends, or another stub has taken its place."""
        interval_s = _own_interval_s(agent.address, self._watch_s)
        call = stub.Watch(pb.WatchRequest(interval_s=interval_s, store=self._store))
        agent.stream, agent.quiet_s = call, 0.0
        agent.answered = 0  # it may have begun again; what it says now is newer than all
        try:
            while stub is self._stubs[agent.address]:
                message = await call.read()
                if not isinstance(message, pb.WatchResponse):  # grpc.aio.EOF
                    return
                agent.quiet_s, now_s = 0.0, time.monotonic()
                yield *self._checked(agent, message, now_s), now_s
        finally:
            agent.stream = None
            call.cancel()

    def _checked(
        self, agent: _Agent, message: pb.WatchResponse, now_s: float
    ) -> tuple[WatchTick, _Gpus]:
        """What the agent may say of it: about its own GPUs, within its quota. Raises BadInput."""
        known = agent.description.gpus if agent.description else ()
        flood = agent.quota.flood(message.ByteSize(), len(known), now_s)
        if flood:
            raise BadInput(f"agent {agent.address}", flood)
        tick = codec.decode_tick_without_gpus(message)
        shown = {one.uuid: one for one in message.gpus}
        named = shown.keys() | {one.uuid for one in tick.reports}
        named |= {one.uuid for one in tick.allocations} | {one.uuid for one in tick.timings}
        others = {uuid for uuid in named if not self.owners.owns(agent.address, uuid)}
        dropped = agent.quota.dropped
        reports = tuple(
            report
            for report, raw in zip(tick.reports, message.reports, strict=True)
            if report.uuid not in others
            and agent.quota.has_room(report.uuid, raw.ByteSize(), now_s)
        )
        dropped = tick.reports_dropped + agent.quota.dropped - dropped
        tick = replace(tick, reports=reports, reports_dropped=dropped)
        if others:
            shown = {uuid: one for uuid, one in shown.items() if uuid not in others}
            tick = replace(
                tick,
                allocations=tuple(one for one in tick.allocations if one.uuid not in others),
                timings=tuple(one for one in tick.timings if one.uuid not in others),
            )
        return tick, shown

    async def _end_silent_streams(self) -> None:
        """Ends streams whose socket was silent; one look counts no more than its own length, so
        that a busy event loop is no silence of anybody.
        """
        while True:
            await asyncio.sleep(SILENCE_POLL_S)
            for agent in tuple(self._agents.values()):
                agent.quiet_s += SILENCE_POLL_S
                if agent.stream is not None and agent.quiet_s > self._silence_s:
                    agent.silent = True
                    agent.stream.cancel()

    def _take(self, agent: _Agent, tick: WatchTick, gpus: _Gpus, arrived_s: float) -> None:
        agent.connected, agent.error = True, ""
        taken_s = arrived_s - max(0.0, tick.age_s)
        for uuid, message in gpus.items():
            agent.readings[uuid] = _Reading(message, taken_s)
        agent.allocations = {one.uuid: one for one in tick.allocations}
        agent.timings = {one.uuid: one for one in tick.timings}
        agent.stopped = tick.stopped
        agent.shows = tick.carried_out.number if tick.carried_out else None
        agent.faults = tick.faults
        agent.other_hosts = tuple(one.host for one in tick.watchers if one.store != self._store)
        self._notice(agent, tuple(map(_held, gpus.values())))
        self._reports.extend(ArrivedReport(report, arrived_s) for report in tick.reports)

    def _notice(self, agent: _Agent, gpus: tuple[tuple[object, ...], ...]) -> None:
        shown = ((agent.connected, agent.stopped, agent.allocations), gpus)
        before, agent.shown = agent.shown, shown
        if shown != before:
            self.noticed(agent.address, before is None or shown[0] != before[0])


def _held(gpu: pb.GpuSnapshot) -> tuple[object, ...]:
    """The lease on a GPU, and what keeps it from being set."""
    lease = gpu.lease  # of no lease: no job
    return gpu.uuid, lease.job, lease.generation, gpu.drift, gpu.stands_back_s > 0.0


def _own_interval_s(address: str, watch_s: float) -> float:
    """At most `watch_s`, another one for each agent: messages of a thousand streams that keep step
    arrive in one moment, and hold up the event loop for half a second.
    """
    return watch_s * (1.0 - SPREAD * zlib.crc32(address.encode()) / 2**32)


def _reason(error: grpc.aio.AioRpcError) -> str:
    details = " ".join((error.details() or "").split()).rpartition("last error: ")[2]
    details = _PEER.sub("", details)[:120]
    return f"{error.code().name}: {details}" if details else error.code().name
