"""The agent's gRPC service: it checks the shape of what is asked, and passes it on.

Whether a clock may change is the keeper's to say. A refusal is a value in the answer; only
a request that makes no sense at all is an error of the call.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc

from joulecut_agent import __version__
from joulecut_agent import state as leases
from joulecut_agent.feed import Feed
from joulecut_agent.keeper_client import KeeperClient, KeeperGone
from joulecut_agent.keeper_protocol import GPUS_MAX, JOB_BYTES_MAX, ProtocolError, Reply
from joulecut_agent.log import say
from joulecut_agent.sampler import Sampler
from joulecut_agent.state import Command
from joulecut_agent.tally import Tally
from joulecut_wire import codec
from joulecut_wire.messages import NodeDescription, Result, WatchTick
from joulecut_wire.metrics import CONTROL_COMMANDS
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

WATCHERS_MAX = 8  # a controller, its successor, and people who look
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
    """Release, Resume and ReadSamples answer UNIMPLEMENTED."""

    def __init__(
        self, node: Node, sampler: Sampler, keeper: KeeperClient, feed: Feed, tally: Tally
    ) -> None:
        self._node = node
        self._sampler = sampler
        self._keeper = keeper
        self._feed = feed
        self._tally = tally
        self._uuids = frozenset(gpu.uuid for gpu in sampler.gpus)
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
                gpus=self._keeper.described(self._sampler.gpus),
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
        _check_job(context, wanted.job)
        if not 0 < len(uuids) <= GPUS_MAX:
            _bad(context, f"{len(uuids)} settings; allowed: 1 to {GPUS_MAX}")
        if len(set(uuids)) < len(uuids):
            _bad(context, "a GPU is named twice in one command")
        if unknown := [uuid for uuid in uuids if uuid not in self._uuids]:
            reason = f"nothing was changed: no GPU {unknown[0]!r} on this node"
            return pb.ApplyResponse(results=self._refuse("apply", uuids, reason))
        clocks = {s.uuid: (s.clock_min_mhz, s.clock_max_mhz) for s in wanted.settings}
        command = Command(
            leases.APPLY, wanted.epoch, wanted.job, wanted.generation, wanted.ttl_s, clocks
        )
        return pb.ApplyResponse(results=self._pass_on("apply", command, uuids, wanted.reason))

    def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:  # noqa: N802
        _check_job(context, request.job)
        command = Command(
            leases.RENEW, request.epoch, request.job, request.generation, request.ttl_s
        )
        return pb.RenewResponse(results=self._pass_on("renew", command, [""], ""))

    def Clear(self, request: pb.ClearRequest, context: Context) -> pb.ClearResponse:  # noqa: N802
        uuids = list(dict.fromkeys(request.uuids))
        if request.job:
            _check_job(context, request.job)
        if unknown := [uuid for uuid in uuids if uuid not in self._uuids]:
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

    def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802, ARG002
        _not_yet(context, "release windows")

    def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:  # noqa: N802, ARG002
        _not_yet(context, "release windows")

    def ReadSamples(  # noqa: N802
        self,
        request: pb.ReadSamplesRequest,  # noqa: ARG002
        context: Context,
    ) -> Iterator[pb.ReadSamplesResponse]:
        _not_yet(context, "high-rate samples")

    def leave(self) -> None:
        """Ends every watch."""
        self._leaving.set()

    def _tick(self, reports: tuple[Any, ...], dropped: int) -> WatchTick:
        picture = self._sampler.latest()
        now_s = time.monotonic()
        if picture is None:
            return WatchTick(0, math.inf, (), reports, dropped)
        status = self._keeper.status
        gpus = picture.snapshot.gpus
        if status is not None:
            gpus = tuple(replace(gpu, lease=status.lease(gpu.uuid, now_s)) for gpu in gpus)
        age_s = now_s - picture.snapshot.taken_at_s
        return WatchTick(picture.snapshot.sequence, age_s, gpus, reports, dropped)

    def _pass_on(self, op: str, command: Command, uuids: list[str], why: str) -> list[pb.Result]:
        try:
            reply = self._keeper.ask(command)
            with contextlib.suppress(KeeperGone):
                self._keeper.refresh()  # so that the next watch shows the lease
        except (KeeperGone, ProtocolError) as error:
            return self._refuse(op, uuids, str(error))
        self._audit(op, command, reply, why)
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

    def _audit(self, op: str, command: Command, reply: Reply, why: str) -> None:
        """One line a command; a heartbeat only where it was refused."""
        refused = [slot for slot in reply.slots if not slot.accepted]
        if op == "renew" and not refused:
            return
        clocks = _listed(command.clocks_mhz) if op == "apply" else ""
        verdict = f"refused: {refused[0].reason}" if refused else f"accepted {len(reply.slots)}"
        say(
            "agent",
            f"{op} job={command.job or '*'} epoch={command.epoch} generation={command.generation}"
            f" {clocks} {verdict} ({why})",
        )


def _listed(clocks_mhz: Mapping[str, tuple[int, int]]) -> str:
    return " ".join(f"{uuid}={low}-{high}MHz" for uuid, (low, high) in clocks_mhz.items())


def _check_job(context: Context, job: str) -> None:
    if not job or not job.isprintable() or len(job.encode(errors="replace")) > JOB_BYTES_MAX:
        _bad(context, f"job {job[:40]!r}; allowed: 1 to {JOB_BYTES_MAX} printable bytes")


def _bad(context: Context, sentence: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
    raise AssertionError("abort always raises")


def _not_yet(context: Context, what: str) -> NoReturn:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{what} are not available yet")
    raise AssertionError("abort always raises")
