"""The agent's gRPC service: it checks the shape of what is asked, and passes it on.

Whether a clock may change is the keeper's to say. A refusal is a value in the answer; only
a request that makes no sense at all is an error of the call.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc

from joulecut_agent import __version__
from joulecut_agent.control import validation
from joulecut_agent.control.clock_schedule import STEPS_MAX, Programs
from joulecut_agent.control.clock_schedule import refusal as program_refusal
from joulecut_agent.control.drift_watch import Oversight
from joulecut_agent.control.maintenance_window import Window
from joulecut_agent.control.set_latency import WAIT_S_MAX, SetLatency
from joulecut_agent.counters import Tally
from joulecut_agent.jobs.report_queue import Feed
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import RELEASE_S_MAX
from joulecut_agent.keeper.lease import GPUS_MAX, Command
from joulecut_agent.keeper.protocol import ProtocolError
from joulecut_agent.log import say
from joulecut_agent.monitor.sampler import Sampler
from joulecut_agent.monitor.samples import Batch, Samples
from joulecut_agent.ports.reader import Series
from joulecut_wire import codec
from joulecut_wire.messages import Allocation, NodeDescription, Result, WatchTick
from joulecut_wire.metrics import CONTROL_COMMANDS
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

WATCHERS_MAX = 8  # a controller, its successor, and people who look
SAMPLERS_MAX, FLUSH_S = 4, 0.2  # readers of fast samples, and how often one is served
CALLS_MAX = 4  # besides watchers; the keeper answers one at a time anyway
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 60.0  # faster than a board's own readings is no news
Context = grpc.ServicerContext


@dataclass(frozen=True, slots=True)
class Node:
    """What `Describe` says of the node itself."""

    name: str
    boot_id: str
    ttl_s_max: float


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """Every RPC of one node."""

    def __init__(
        self, node: Node, *, sampler: Sampler, keeper: KeeperClient, feed: Feed, tally: Tally,
        oversight: Oversight, window: Window, latency: SetLatency, samples: Samples,
        programs: Programs, allocations: Callable[[], Mapping[str, Allocation]] = dict,
    ) -> None:  # fmt: skip
        self._node = node
        self._sampler = sampler
        self._keeper = keeper
        self._feed = feed
        self._tally = tally
        self._oversight = oversight
        self._window = window
        self._latency = latency
        self._samples = samples
        self._programs = programs
        self._allocations = allocations
        self._sample_seats = threading.BoundedSemaphore(SAMPLERS_MAX)
        self._seats = threading.BoundedSemaphore(WATCHERS_MAX)
        self._leaving = threading.Event()

    def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802, ARG002
        with contextlib.suppress(KeeperGone):
            self._keeper.refresh()
        status = self._keeper.status
        return codec.encode_node(
            NodeDescription(
                node=self._node.name,
                agent_version=__version__,
                boot_id=self._node.boot_id,
                epoch_seen=self._keeper.epoch_seen,
                ttl_max_s=status.ttl_s_max if status else self._node.ttl_s_max,
                gpus=tuple(
                    replace(gpu, set_latency_p95_s=self._latency.p95_s(gpu.uuid))
                    for gpu in self._oversight.described(self._sampler.gpus)
                ),
                stopped=self._stopped(),
                program_steps_max=STEPS_MAX,
            )
        )

    def Watch(self, request: pb.WatchRequest, context: Context) -> Iterator[pb.WatchResponse]:  # noqa: N802
        interval_s = request.interval_s
        if not (math.isfinite(interval_s) and 0 <= interval_s <= INTERVAL_S_MAX):
            _bad(context, f"interval_s is {interval_s}; allowed: 0 to {INTERVAL_S_MAX:g}")
        if not self._seats.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS_MAX} watchers already")
        gone = threading.Event()
        subscription = self._feed.subscribe()
        try:
            # False where the call has ended already: then nobody would ever set `gone`.
            if not context.add_callback(gone.set):
                return
            while not (gone.is_set() or self._leaving.is_set()):
                yield codec.encode_tick(self._tick(*subscription.drain()))
                gone.wait(max(interval_s, INTERVAL_S_MIN))
        finally:
            self._feed.unsubscribe(subscription)
            self._seats.release()

    def Apply(self, request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:  # noqa: N802
        wanted = codec.decode_command(request)
        uuids = [setting.uuid for setting in wanted.settings]
        _check(context, validation.misshapen(wanted))
        if unknown := self._unknown(uuids):
            reason = f"nothing was changed: no GPU {unknown[0]!r} on this node"
            return pb.ApplyResponse(results=self._refuse("apply", uuids, reason))
        if self._window.left_s:  # the keeper would open the device to judge it
            return pb.ApplyResponse(results=self._refuse("apply", uuids, self._stopped()))
        reasons = {
            setting.uuid: self._oversight.refusal(setting.uuid)
            or program_refusal(setting, self._latency.p95_s(setting.uuid))
            for setting in wanted.settings
        }
        if bad := next((uuid for uuid, reason in reasons.items() if reason), ""):
            also = f"nothing was changed, because {bad} was refused"
            say("agent", f"apply job={wanted.job} refused: {bad} {reasons[bad]}")
            results = tuple(Result(u, False, why or also) for u, why in reasons.items())
            return pb.ApplyResponse(results=self._counted("apply", results))
        command = validation.in_keepers_words(wanted)
        _check(context, validation.powerless(command))
        ordered_s = time.monotonic()
        self._oversight.purposes.ordered(command, wanted.reason)
        try:
            results_pb = self._pass_on("apply", command, uuids, wanted.reason)
        finally:
            self._oversight.purposes.answered(command)
        if not all(result.accepted for result in results_pb):
            self._oversight.purposes.withdrawn(command, wanted.reason)
        else:
            self._programs.ordered(wanted.job, wanted.generation, wanted.settings)
            # A program moves on before a clock is seen to have followed.
            highest = {s.uuid: s.clock_max_mhz for s in wanted.settings if not s.program}
            if self._latency.ordered(highest, ordered_s):
                self._sampler.hurry(WAIT_S_MAX)
        return pb.ApplyResponse(results=results_pb)

    def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:  # noqa: N802
        _check(context, validation.misnamed(request.job))
        command = Command(
            leases.RENEW, request.epoch, request.job, request.generation, request.ttl_s
        )
        return pb.RenewResponse(results=self._pass_on("renew", command, [""], ""))

    def Clear(self, request: pb.ClearRequest, context: Context) -> pb.ClearResponse:  # noqa: N802
        uuids = list(dict.fromkeys(request.uuids))
        if request.job:
            _check(context, validation.misnamed(request.job))
        if unknown := self._unknown(uuids):
            reason = f"nothing was changed: no GPU {unknown[0]!r} on this node"
            return pb.ClearResponse(results=self._refuse("clear", uuids[:GPUS_MAX], reason))
        if request.epoch == 0 < self._keeper.epoch_seen:
            # To the keeper it would be the node's own word, which no epoch binds.
            reason = f"epoch 0 is older than {self._keeper.epoch_seen}"
            return pb.ClearResponse(results=self._refuse("clear", uuids or [""], reason))
        command = Command(
            leases.CLEAR, request.epoch, request.job, clocks_mhz=dict.fromkeys(uuids, (0, 0))
        )
        results = self._pass_on("clear", command, uuids or [""], request.reason)
        return pb.ClearResponse(results=results)

    def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802
        """Answers once every handle is dropped; FAILED_PRECONDITION where that was not possible."""
        duration_s = request.duration_s
        if not 0.0 < duration_s <= RELEASE_S_MAX:
            allowed = f"above 0 and up to {RELEASE_S_MAX:g} s"
            _bad(context, f"duration_s is {duration_s:g}; allowed: {allowed}")
        self._windowed(context, "release", self._window.open(duration_s), request.reason)
        return pb.ReleaseResponse(until_s=self._window.left_s)

    def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:  # noqa: N802
        self._windowed(context, "resume", self._window.close(), request.reason)
        return pb.ResumeResponse()

    def ReadSamples(  # noqa: N802
        self, request: pb.ReadSamplesRequest, context: Context
    ) -> Iterator[pb.ReadSamplesResponse]:
        """Times are Unix times of this node; `since_s` is one of them, 0 for all there is."""
        if not (math.isfinite(request.since_s) and request.since_s >= 0.0):
            _bad(context, f"since_s is {request.since_s}; allowed: 0 or more")
        if unknown := self._unknown(request.uuids):
            _bad(context, f"no GPU {unknown[0]!r} on this node")
        if not self._sample_seats.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{SAMPLERS_MAX} readers already")
        gone = threading.Event()
        stream = self._samples.subscribe(request.uuids or self._uuids, request.since_s)
        try:
            if not context.add_callback(gone.set):
                return
            while not (gone.wait(FLUSH_S) or self._leaving.is_set()):
                yield from map(_batch, stream.take())
        finally:
            self._samples.unsubscribe(stream)
            self._sample_seats.release()

    def _unknown(self, uuids: Iterable[str]) -> list[str]:
        known = self._uuids
        return [uuid for uuid in uuids if uuid not in known]

    @property
    def _uuids(self) -> frozenset[str]:
        """The GPUs of this node; one may be found late."""
        return frozenset([gpu.uuid for gpu in self._sampler.gpus])

    def leave(self) -> None:
        """Ends every watch."""
        self._leaving.set()

    def _tick(self, reports: tuple[Any, ...], dropped: int) -> WatchTick:
        picture = self._sampler.latest()
        stopped = self._stopped()
        held = tuple(self._allocations().values())
        if picture is None:
            return WatchTick(0, math.inf, (), reports, dropped, held, stopped)
        age_s = time.monotonic() - picture.snapshot.taken_at_s
        gpus = self._oversight.seen(picture.snapshot.gpus)
        sequence = picture.snapshot.sequence
        return WatchTick(sequence, age_s, gpus, reports, dropped, held, stopped)

    def _stopped(self) -> str:
        """Why no command is taken on this node, or ""."""
        if left_s := self._window.left_s:
            return f"released for {math.ceil(left_s)} s more: every device handle is dropped"
        status = self._keeper.status
        return status.stopped if status else ""

    def _windowed(self, context: Context, op: str, refusal: str, why: str) -> None:
        say("agent", f"{op} {f'refused: {refusal}' if refusal else 'done'} ({why})")
        if refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)

    def _pass_on(self, op: str, command: Command, uuids: list[str], why: str) -> list[pb.Result]:
        try:
            reply = self._keeper.ask(command)
            self._keeper.learn(reply)
        except (KeeperGone, ProtocolError) as error:
            return self._refuse(op, uuids, str(error))
        if line := validation.line(op, command, reply, why):
            say("agent", line)
        results = tuple(Result(slot.uuid, slot.accepted, slot.reason) for slot in reply.slots)
        return self._counted(op, results)

    def _refuse(self, op: str, uuids: list[str], reason: str) -> list[pb.Result]:
        say("agent", f"{op} refused: {reason}")
        return self._counted(op, tuple(Result(uuid, False, reason) for uuid in uuids))

    def _counted(self, op: str, results: tuple[Result, ...]) -> list[pb.Result]:
        for result in results:
            verdict = "accepted" if result.accepted else "refused"
            self._tally.count(CONTROL_COMMANDS.name, op, verdict)
        return codec.encode_results(results)


def _batch(batch: Batch) -> pb.ReadSamplesResponse:
    def told(series: Series) -> list[pb.Sample]:
        return [pb.Sample(time_s=at_s, value=value) for at_s, value in series]

    return pb.ReadSamplesResponse(
        uuid=batch.uuid,
        power=told(batch.power_w),
        utilization=told(batch.utilization_ratio),
        clock_sm_mhz=told(batch.clock_sm_mhz),
        nvlink_bytes_per_s=told(batch.nvlink_bytes_per_s),
        pcie_bytes_per_s=told(batch.pcie_bytes_per_s),
        dropped=batch.dropped,
    )


def _check(context: Context, wrong: str) -> None:
    """Ends the call where there is something wrong with what was asked."""
    if wrong:
        _bad(context, wrong)


def _bad(context: Context, sentence: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
    raise AssertionError("abort always raises")
