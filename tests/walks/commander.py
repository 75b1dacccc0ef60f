"""Two controllers of one agent, both of which believe that they lead.

Each has its own epoch and its own count of generations, as two stores would give them. What a
command was promised goes into the log: from when it was sent, until when a lease may last.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import grpc
from node import GPUS, Node

from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

CALL_S = 10.0  # longer than any hang that a walk makes; the outcome is then known
ANSWER_S = 0.2  # how long the walk waits before it goes on
QUEUE_S = 3.0  # a command whose outcome is not known may wait that long at a keeper
ITERATION_S = 1.2  # of the job
LOWERED_S = (0.1, 0.7)  # within an iteration, by a timed step
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


def _timed(high: int, step: int) -> list[pb.TimedStep]:
    down_s, up_s = LOWERED_S
    if not step:
        return []
    return [
        pb.TimedStep(offset_s=down_s, clock_max_mhz=step),
        pb.TimedStep(offset_s=up_s, clock_max_mhz=high),
    ]


class Commander:
    """One controller's side of the wire."""

    def __init__(self, node: Node, epoch: int) -> None:
        self._node = node
        self._channel = grpc.insecure_channel(node.address, options=OPTIONS)
        self._stub = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._gpus = {uuid: gpu for gpu, uuid in enumerate(node.driver.uuids)}
        self.epoch, self.generation = epoch, 0
        self.accepted = 0

    def apply(
        self, settings: Mapping[int, tuple[int, ...]], ttl_s: float, *, epoch: int = -1,
        again: bool = False,
    ) -> None:  # fmt: skip
        """(min MHz, max MHz, watts, step) by GPU; `again`: the newest generation once more."""
        self.generation += not again
        uuids = self._node.driver.uuids
        wanted = [
            pb.Setting(
                uuid=uuids[gpu],
                clock_min_mhz=low,
                clock_max_mhz=high,
                power_limit_mw=1000 * watts or None,
                timed_steps=_timed(high, step),
                iteration_time_s=ITERATION_S if step else 0.0,
            )
            for gpu, (low, high, watts, *rest) in settings.items()
            for step in [rest[0] if rest else 0]
        ]
        request = pb.ApplyRequest(
            epoch=self.epoch if epoch < 0 else epoch, job="walk", generation=self.generation,
            ttl_s=ttl_s, settings=wanted, reason="walk",
        )  # fmt: skip
        self._send(self._stub.Apply, request, list(settings), ttl_s)

    def renew(self, ttl_s: float, back: int) -> None:
        """The generation `back` before the newest."""
        request = pb.RenewRequest(
            epoch=self.epoch, job="walk", generation=max(0, self.generation - back), ttl_s=ttl_s
        )
        self._send(self._stub.Renew, request, list(range(GPUS)), ttl_s)

    def clear(self, gpus: list[int], job: str) -> None:
        uuids = [self._node.driver.uuids[gpu] for gpu in gpus]
        self._send(self._stub.Clear, pb.ClearRequest(epoch=self.epoch, job=job, uuids=uuids), [], 0)

    def release(self, for_s: float) -> None:
        self._send(self._stub.Release, pb.ReleaseRequest(duration_s=for_s), [], 0.0)

    def resume(self) -> None:
        self._send(self._stub.Resume, pb.ResumeRequest(), [], 0.0)

    def close(self) -> None:
        self._channel.close()

    def _send(self, call: Any, request: Any, gpus: list[int], ttl_s: float) -> None:
        asked_s = time.monotonic()
        epoch = getattr(request, "epoch", 0)

        def note(answer: Any) -> None:
            """A lease ends `ttl_s` after the keeper took the command: not later than now."""
            now_s = time.monotonic()
            known = answer.code() is grpc.StatusCode.OK
            given = gpus
            if known and gpus:
                accepted = [one.uuid for one in answer.result().results if one.accepted]
                given = [self._gpus[uuid] for uuid in accepted if uuid]
                self.accepted += bool(given)
            lease = {
                "asked_s": asked_s, "until_s": now_s + ttl_s + (0.0 if known else QUEUE_S),
                "epoch": epoch, "accepted": known,
            }  # fmt: skip
            for gpu in given:
                self._node.log.add(now_s, lease={"gpu": gpu, **lease})

        future = call.future(request, timeout=CALL_S)
        future.add_done_callback(note)
        with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
            future.exception(timeout=ANSWER_S)
