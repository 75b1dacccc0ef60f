"""The agent's gRPC service: validates requests and passes commands to the keeper.

The keeper decides whether a clock may change. A refusal is a value in the answer; only an invalid
request is an error of the call.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from joulecut_agent import __version__
from joulecut_agent.control import validation
from joulecut_agent.control.clock_schedule import ClockSchedules, clocks_of, refuse_schedule
from joulecut_agent.control.drift_watch import DriftWatch
from joulecut_agent.control.maintenance_window import MaintenanceWindow
from joulecut_agent.control.mark_schedule import STEPS_MAX
from joulecut_agent.control.set_latency import WAIT_S_MAX, SetLatency
from joulecut_agent.control.timed_schedule import TIMED_STEPS_MAX
from joulecut_agent.control.watch_seats import WatchSeats
from joulecut_agent.counters import Counters
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.keeper import requests
from joulecut_agent.keeper.client import KeeperClient, KeeperGone
from joulecut_agent.keeper.keeper import RELEASE_S_MAX
from joulecut_agent.keeper.protocol import ProtocolError
from joulecut_agent.keeper.requests import GPUS_MAX
from joulecut_agent.log import log
from joulecut_agent.monitor.sampler import Sampler
from joulecut_agent.monitor.samples import Samples
from joulecut_agent.ports.reader import Burst, Series
from joulecut_wire import codec, ranges
from joulecut_wire.card_facts import CardFacts
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import (
    Allocation,
    CarriedOut,
    GpuDescription,
    GpuSnapshot,
    NodeDescription,
    ReportFault,
    Result,
    WatchTick,
    with_profiles,
)
from joulecut_wire.metrics import CONTROL_COMMANDS
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

WATCHERS_MAX = 8  # a controller, its successor, and some operators
SAMPLE_READERS_MAX, FLUSH_S = 4, 0.2  # of `ReadSamples`
STORE_CHARACTERS_MAX = 64  # controllers send 32
CALLS_MAX = 4  # besides watchers; the keeper answers one at a time anyway
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 60.0  # boards do not update faster
Context = grpc.ServicerContext


@dataclass(frozen=True, slots=True)
class Node:
    """The node in the answer to `Describe`."""

    name: str
    boot_id: str
    ttl_s_max: float


@dataclass(eq=False)
class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """Every RPC of the wire protocol (see `joulecut_wire/v1/agent.proto`)."""

    node: Node
    sampler: Sampler
    keeper: KeeperClient
    report_queue: ReportQueue
    counters: Counters
    drift_watch: DriftWatch
    window: MaintenanceWindow
    latency: SetLatency
    samples: Samples
    schedules: ClockSchedules
    allocations: Callable[[], Mapping[str, Allocation]] = dict
    faults: Callable[[], tuple[ReportFault, ...]] = tuple

    def __post_init__(self) -> None:
        self.facts: Callable[[str], CardFacts | None] = lambda _: None  # of a self-test
        self._sample_slots = threading.BoundedSemaphore(SAMPLE_READERS_MAX)
        self._watch_seats = WatchSeats(WATCHERS_MAX)
        self._leaving = threading.Event()
        self._carried_out, self._counting = CarriedOut(0, 0, 0), threading.Lock()

    def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802, ARG002
        with contextlib.suppress(KeeperGone):
            self.keeper.refresh()
        status = self.keeper.status
        return codec.encode_node(
            NodeDescription(
                node=self.node.name,
                agent_version=__version__,
                boot_id=self.node.boot_id,
                epoch_seen=self.keeper.epoch_seen,
                ttl_max_s=status.bounds.ttl_s_max if status else self.node.ttl_s_max,
                gpus=tuple(
                    self._with_latency(gpu) for gpu in self.drift_watch.described(self.sampler.gpus)
                ),
                stopped=self._stopped(),
                schedule_steps_max=STEPS_MAX,
                keeps_power_limits=status is not None and status.bounds.keep_power_s > 0.0,
                limits_above_kept=status is not None and status.bounds.keep_power_s > 0.0,
                timed_steps_max=TIMED_STEPS_MAX,
                lowers_unused=True,
            )
        )

    def Watch(self, request: pb.WatchRequest, context: Context) -> Iterator[pb.WatchResponse]:  # noqa: N802
        interval_s = request.interval_s
        if not 0.0 <= interval_s <= INTERVAL_S_MAX:
            _abort(context, f"interval_s is {interval_s}; allowed: 0 to {INTERVAL_S_MAX:g}")
        if len(request.store) > STORE_CHARACTERS_MAX:
            _abort(context, f"store has more than {STORE_CHARACTERS_MAX} characters")
        seat = self._watch_seats.take(context, request.store)
        if seat is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS_MAX} watchers already")
        gone = threading.Event()
        subscription = self.report_queue.subscribe()
        try:
            # False if the call has already ended: then `gone` is never set.
            if not context.add_callback(gone.set):
                return
            while not (gone.is_set() or self._leaving.is_set()):
                tick = codec.encode_tick(self._tick(*subscription.drain()))
                seat.sending_since_s = time.monotonic()
                yield tick
                seat.sending_since_s = math.inf
                gone.wait(max(interval_s, INTERVAL_S_MIN))
        finally:
            self.report_queue.unsubscribe(subscription)
            self._watch_seats.leave(seat)

    def Apply(self, request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:  # noqa: N802
        try:
            wanted = codec.decode_command(request)
        except BadInput as error:
            named = [setting.uuid for setting in request.settings]
            return pb.ApplyResponse(results=self._refuse("apply", named, str(error)))
        uuids = [setting.uuid for setting in wanted.settings]
        _check(context, validation.refuse_command(wanted))
        if unknown := self._unknown(uuids):
            reason = f"nothing was changed: no GPU {unknown[0]!r} on this node"
            return pb.ApplyResponse(results=self._refuse("apply", uuids, reason))
        if self.window.left_s:  # the keeper would open the device to check it
            return pb.ApplyResponse(results=self._refuse("apply", uuids, self._stopped()))
        reasons = {
            setting.uuid: self.drift_watch.refusal(setting.uuid)
            or refuse_schedule(
                setting,
                self.latency.latencies(setting.uuid),
                self.schedules.jitter_s(wanted.job, setting.uuid),
            )
            for setting in wanted.settings
        }
        if bad := next((uuid for uuid, reason in reasons.items() if reason), ""):
            also = f"nothing was changed, because {bad} was refused"
            log(
                "agent",
                f"apply job={wanted.job} refused: {bad} {reasons[bad]}",
                "warning",
                wanted.job,
            )
            results = tuple(Result(u, False, why or also) for u, why in reasons.items())
            return pb.ApplyResponse(results=self._counted("apply", results))
        _check(context, validation.refuse_power_limits(wanted))
        command = validation.to_keeper_request(wanted)
        sent_s = time.monotonic()
        self.drift_watch.sent(uuids)
        try:
            results_pb = self._pass_on("apply", command, uuids, wanted.reason)
        finally:
            self.drift_watch.answered(uuids)
        if all(result.accepted for result in results_pb):
            self.schedules.apply(wanted.job, wanted.generation, wanted.settings)
            # A schedule steps on before a clock change can be observed.
            plain = [s for s in wanted.settings if not clocks_of(s)]
            highest = {setting.uuid: setting.clock_max_mhz for setting in plain}
            if self.latency.started(highest, sent_s):
                self.sampler.hurry(WAIT_S_MAX)
            elif self.schedules.reading_s() < math.inf:
                self.sampler.hurry(0.0)
        return pb.ApplyResponse(results=results_pb, carried_out=self._carried(command))

    def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:  # noqa: N802
        if error := _out_of_range(request):
            return pb.RenewResponse(results=self._refuse("renew", [""], error))
        _check(context, validation.refuse_job_name(request.job))
        command = requests.Renew(request.epoch, request.job, request.generation, request.ttl_s)
        return pb.RenewResponse(results=self._pass_on("renew", command, [""], ""))

    def Clear(self, request: pb.ClearRequest, context: Context) -> pb.ClearResponse:  # noqa: N802
        _check(context, _out_of_range(request))
        uuids = list(dict.fromkeys(request.uuids))
        if request.job:
            _check(context, validation.refuse_job_name(request.job))
        if unknown := self._unknown(uuids):
            reason = f"nothing was changed: no GPU {unknown[0]!r} on this node"
            return pb.ClearResponse(results=self._refuse("clear", uuids[:GPUS_MAX], reason))
        if request.epoch == 0 < self.keeper.epoch_seen:
            # For the keeper, epoch 0 is a request of the node itself.
            reason = f"epoch 0 is older than {self.keeper.epoch_seen}"
            return pb.ClearResponse(results=self._refuse("clear", uuids or [""], reason))
        command = requests.Clear(request.epoch, request.job, tuple(uuids))
        results = self._pass_on("clear", command, uuids or [""], request.reason)
        if not uuids and not request.job:
            self._reset_unleased(request.epoch)
        return pb.ClearResponse(results=results, carried_out=self._carried(command))

    def _carried(self, command: requests.Apply | requests.Clear) -> pb.CarriedOut:
        """Numbers a command whose outcome `status` shows from now on."""
        with self._counting:
            number = self._carried_out.number + 1
            generation = command.generation if isinstance(command, requests.Apply) else 0
            self._carried_out = CarriedOut(command.epoch, generation, number)
            return codec.encode_carried_out(self._carried_out)

    def _reset_unleased(self, epoch: int) -> None:
        """Resets GPUs without a lease whose lock may be ours; the keeper knows which."""
        named = tuple(sorted(self._uuids)[:GPUS_MAX])
        with contextlib.suppress(KeeperGone, ProtocolError):
            self.keeper.ask(requests.Clear(epoch, uuids=named))
            self.keeper.refresh()

    def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802
        """Answers once every handle is dropped; FAILED_PRECONDITION if that fails."""
        _check(context, _out_of_range(request))
        duration_s = request.duration_s
        if not 0.0 < duration_s <= RELEASE_S_MAX:
            allowed = f"above 0 and up to {RELEASE_S_MAX:g} s"
            _abort(context, f"duration_s is {duration_s:g}; allowed: {allowed}")
        self._answer_window(context, "release", self.window.open(duration_s), request.reason)
        return pb.ReleaseResponse(until_s=self.window.left_s)

    def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:  # noqa: N802
        self._answer_window(context, "resume", self.window.close(), request.reason)
        return pb.ResumeResponse()

    def ReadSamples(  # noqa: N802
        self, request: pb.ReadSamplesRequest, context: Context
    ) -> Iterator[pb.ReadSamplesResponse]:
        """Times are Unix times of this node; `since_s` 0: every sample that is left."""
        _check(context, _out_of_range(request))
        if unknown := self._unknown(request.uuids):
            _abort(context, f"no GPU {unknown[0]!r} on this node")
        if not self._sample_slots.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{SAMPLE_READERS_MAX} readers already"
            )
        gone = threading.Event()
        try:
            with self.samples.stream(request.uuids or self._uuids, request.since_s) as stream:
                if not context.add_callback(gone.set):
                    return
                while not (gone.wait(FLUSH_S) or self._leaving.is_set()):
                    yield from (_batch(*one) for one in stream.take())
        finally:
            self._sample_slots.release()

    def _with_latency(self, gpu: GpuDescription) -> GpuDescription:
        """As planned with: the measured latency, without clocks that no lock gives."""
        known, facts = self.latency.latencies(gpu.uuid), self.facts(gpu.uuid)
        if facts and facts.unreached_mhz:
            reached = tuple(mhz for mhz in gpu.clocks_mhz if mhz not in facts.unreached_mhz)
            gpu = replace(gpu, clocks_mhz=reached)
        return replace(gpu, set_latency_p95_s=known.p95_s, set_latency_spread_s=known.spread_s)

    def _unknown(self, uuids: Iterable[str]) -> list[str]:
        known = self._uuids
        return [uuid for uuid in uuids if uuid not in known]

    @property
    def _uuids(self) -> frozenset[str]:
        """The GPUs of this node; one may be found later."""
        return frozenset([gpu.uuid for gpu in self.sampler.gpus])

    def end_watches(self) -> None:
        """Ends every watch."""
        self._leaving.set()

    def _tick(self, reports: tuple[Any, ...], dropped: int) -> WatchTick:
        carried_out = self._carried_out  # before the leases, which are as new or newer
        reading = self.sampler.latest()
        stopped = self._stopped()
        held = tuple(self.allocations().values())
        timings = self.schedules.timings(self.latency.change_error_s)
        gpus: tuple[GpuSnapshot, ...] = ()
        sequence, age_s = 0, math.inf
        if reading is not None:
            sequence = reading.snapshot.sequence
            age_s = time.monotonic() - reading.snapshot.taken_at_s
            gpus = tuple(map(with_profiles, self.drift_watch.seen(reading.snapshot.gpus)))
        return WatchTick(
            sequence,
            age_s,
            gpus,
            reports,
            dropped,
            held,
            stopped,
            timings,
            self.faults(),
            carried_out,
            self._watch_seats.controllers(),
        )

    def _stopped(self) -> str:
        """Reason why no command is taken on this node, or ""."""
        if left_s := self.window.left_s:
            return f"released for {math.ceil(left_s)} s more: every device handle is dropped"
        status = self.keeper.status
        return status.stopped if status else ""

    def _answer_window(self, context: Context, op: str, refusal: str, why: str) -> None:
        said = f"refused: {refusal}" if refusal else "done"
        log("agent", f"{op} {said} ({why})", "warning" if refusal else "info")
        if refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)

    def _pass_on(
        self,
        op: str,
        command: requests.Apply | requests.Renew | requests.Clear,
        uuids: list[str],
        why: str,
    ) -> list[pb.Result]:
        try:
            reply = self.keeper.ask(command)
        except (KeeperGone, ProtocolError) as error:
            return self._refuse(op, uuids, str(error))
        with contextlib.suppress(KeeperGone):
            self.keeper.refresh()  # so that the next watch shows its leases
        if line := validation.log_line(op, command, reply, why):
            refused = any(not slot.accepted for slot in reply.slots)
            log("agent", line, "warning" if refused else "info", command.job)
        results = tuple(Result(slot.uuid, slot.accepted, slot.reason) for slot in reply.slots)
        return self._counted(op, results)

    def _refuse(self, op: str, uuids: list[str], reason: str) -> list[pb.Result]:
        log("agent", f"{op} refused: {reason}", "warning")
        return self._counted(op, tuple(Result(uuid, False, reason) for uuid in uuids))

    def _counted(self, op: str, results: tuple[Result, ...]) -> list[pb.Result]:
        for result in results:
            verdict = "accepted" if result.accepted else "refused"
            self.counters.count(CONTROL_COMMANDS.name, op, verdict)
        return codec.encode_results(results)


def _batch(uuid: str, samples: Burst) -> pb.ReadSamplesResponse:
    def encode(series: Series) -> list[pb.Sample]:
        return [pb.Sample(time_s=at_s, value=value) for at_s, value in series]

    return pb.ReadSamplesResponse(
        uuid=uuid,
        power=encode(samples.power_w),
        utilization=encode(samples.utilization_ratio),
        clock_sm_mhz=encode(samples.clock_sm_mhz),
        nvlink_bytes_per_s=encode(samples.nvlink_bytes),
        pcie_bytes_per_s=encode(samples.pcie_bytes),
    )


def _out_of_range(request: Message) -> str:
    """Which field of the request no command can have, or ""."""
    try:
        ranges.check(request)
    except BadInput as error:
        return str(error)
    return ""


def _check(context: Context, error: str) -> None:
    """Ends the call if the request is invalid."""
    if error:
        _abort(context, error)


def _abort(context: Context, error: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, error)
    raise AssertionError("abort always raises")
