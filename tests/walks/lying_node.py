"""A simulated agent on the wire that may lie, be cut off, or have its driver loaded again.

Jobs, leases and clocks are those of `agents/agent_farm.py`; power limits are added here.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from agent_farm import CARD, Gpu, Node

from joulecut_sim.skus import find
from joulecut_wire.v1 import agent_pb2 as pb

NAMED = "n0"  # the node whose name a liar gives
Note = Callable[..., None]

# An agent that tells one of the second kind is quarantined for a minute, and not heard.
SOFT_LIES = (
    "steal", "invent", "name", "epoch", "far_epoch", "reports", "vanish", "deaf", "power",
)  # fmt: skip
HARD_LIES = ("nan", "infinite", "negative", "late", "flood", "stuff", "text", "labels")


class WalkedNode(Node):
    """An agent that may lie, be cut off, or have its driver loaded again."""

    def __init__(self, name: str, note: Note, seed: int, gpus: int) -> None:
        super().__init__(name, find(CARD, "card"), gpus)
        self.note, self.rng = note, random.Random(seed)
        self.lie, self.cut = "", False
        self.kept_w: dict[str, float] = {}
        self.limit_w = dict.fromkeys(self.gpus, self.sku.power_limit_w)
        self.others: tuple[str, ...] = ()  # GPUs of other nodes

    def drawn_w(self, gpu: Gpu) -> float:
        """No more than its limit."""
        return min(gpu.power_w, self.limit_w[gpu.uuid])

    def reload(self) -> None:
        now_s = time.monotonic()
        for gpu in self.gpus.values():
            self.limit_w[gpu.uuid] = self.sku.power_limit_w
            gpu.energy_j, gpu.at_s = 0.0, now_s
            self._clear(gpu)
        self.note("reloaded", node=self.name)

    def rename(self) -> None:
        """Its GPUs were replaced."""
        for gpu in list(self.gpus.values()):
            self._clear(gpu)
            del self.gpus[gpu.uuid], self.limit_w[gpu.uuid]
            self.kept_w.pop(gpu.uuid, None)
            gpu.uuid = gpu.shown.uuid = f"GPU-{self.name}-{self.rng.getrandbits(48):x}"
            self.gpus[gpu.uuid] = gpu
            self.limit_w[gpu.uuid] = self.sku.power_limit_w

    async def Describe(self, request: Any, context: Any) -> pb.DescribeResponse:
        await self._perhaps_cut(context)
        answer = await super().Describe(request, context)
        answer.keeps_power_limits = True
        for gpu in answer.gpus:
            gpu.power_controllable = True
        if self.lie in ("steal", "invent"):
            names = self.others if self.lie == "steal" else self._invented()
            answer.gpus.extend(pb.Gpu(uuid=name, index=9, controllable=True) for name in names)
        if self.lie == "epoch":
            answer.epoch_seen += self.rng.randint(1, 1000)
        if self.lie == "far_epoch":
            answer.epoch_seen = self.rng.choice((2**32, 2**63, 2**64 - 1))
        if self.lie == "name":
            answer.node = NAMED
        if self.lie == "power":
            for gpu in answer.gpus:
                gpu.power_controllable, gpu.power_limit_min_mw = False, 90_000_000
        if self.lie == "text":
            answer.node = "n" * 100_000
        return answer

    def _invented(self) -> list[str]:
        return [f"GPU-{self.rng.getrandbits(64):x}" for _ in range(40)]

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[pb.WatchResponse]:
        await self._perhaps_cut(context)
        async for message in super().Watch(request, context):
            for gpu in message.gpus:
                gpu.power_average_mw = round(1000 * self.drawn_w(self.gpus[gpu.uuid]))
                gpu.power_limit_enforced_mw = round(1000 * self.limit_w[gpu.uuid])
                gpu.power_limit_kept_mw = round(1000 * self.kept_w.get(gpu.uuid, 0.0))
                gpu.utilization_gpu_ratio = 1.0
            if self.lie == "vanish" or self.cut:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            for _ in range(200 if self.lie == "flood" else 1):
                yield self._lied(message)

    def _lied(self, message: pb.WatchResponse) -> pb.WatchResponse:
        wrong = {"nan": math.nan, "infinite": math.inf, "negative": -5.0}.get(self.lie)
        if wrong is not None:
            gpu = self.rng.choice(message.gpus)
            setattr(gpu, self.rng.choice(("energy_j", "temperature_celsius")), 300 * wrong)
            message.age_s = wrong if self.rng.random() < 0.3 else 0.0
        if self.lie == "power":
            for gpu in message.gpus:
                gpu.power_limit_enforced_mw = 90_000_000
        if self.lie == "late":
            for report in message.reports:
                report.age_s = self.rng.choice((math.nan, 1e300, 80_000.0))
        if self.lie in ("stuff", "reports"):
            count = 4_097 if self.lie == "stuff" else 40
            times_s = [0.1] * (1 if self.lie == "stuff" else 500)
            busy = [pb.OperationReport(kind="forward", count=500, durations_s=times_s)]
            jobs, uuids = ("blue", "red", "more"), (*self.gpus, *self.others)
            told = [(job, one) for job in jobs for one in uuids]
            about = [self.rng.choice(told) for _ in range(count)]
            message.reports.extend(
                pb.IterationReport(
                    job=job,
                    uuid=uuid,
                    iteration=self.rng.getrandbits(62),
                    duration_s=self.rng.choice((1e-5, 0.2, 80_000.0)),
                    operations=busy,
                )
                for job, uuid in about
            )
        if self.lie == "steal":
            message.gpus.extend(
                pb.GpuSnapshot(uuid=uuid, clock_sm_mhz=210, drift="external_writer")
                for uuid in self.others
            )
            message.allocations.extend(
                pb.Allocation(uuid=uuid, job="stolen", source="slurm") for uuid in self.others
            )
        if self.lie == "labels":
            labels = {f"{n}": "x" * 8_000 for n in range(200)}
            uuid = next(iter(self.gpus))
            message.allocations.append(pb.Allocation(uuid=uuid, job="j", labels=labels))
        return message

    async def Apply(self, request: Any, context: Any) -> pb.ApplyResponse:
        await self._perhaps_cut(context)
        self._command(request.epoch, [one.uuid for one in request.settings], clear=False)
        known = [one for one in request.settings if one.uuid in self.gpus]
        clocks = {uuid: gpu.clock_mhz for uuid, gpu in self.gpus.items()}
        own = pb.ApplyRequest()
        own.CopyFrom(request)
        del own.settings[:]
        own.settings.extend(known)
        answer = await super().Apply(own, context)
        for setting, result in zip(known, answer.results, strict=True):
            if not result.accepted:
                continue
            if not setting.clock_max_mhz:  # the clocks are left alone
                self.gpus[setting.uuid].clock_mhz = clocks[setting.uuid]
            if setting.HasField("power_limit_mw"):
                self.limit_w[setting.uuid] = setting.power_limit_mw / 1000
                self.kept_w[setting.uuid] = self.limit_w[setting.uuid]
        return answer

    async def Renew(self, request: Any, context: Any) -> pb.RenewResponse:
        await self._perhaps_cut(context)
        self._command(request.epoch, [], clear=False)
        return await super().Renew(request, context)

    async def Clear(self, request: Any, context: Any) -> pb.ClearResponse:
        await self._perhaps_cut(context)
        self._command(request.epoch, list(request.uuids), clear=True, reason=request.reason)
        held = [uuid for uuid in request.uuids if uuid in self.gpus]
        return await super().Clear(pb.ClearRequest(epoch=request.epoch, uuids=held), context)

    def expire(self, now_s: float) -> None:
        before = self.expired
        super().expire(now_s)
        if self.expired > before:
            self.note("expired", node=self.name)

    def _command(self, epoch: int, uuids: list[str], *, clear: bool, reason: str = "") -> None:
        about = {"epoch": epoch, "uuids": uuids, "clear": clear, "reason": reason}
        self.note("command", node=self.name, **about)

    async def _perhaps_cut(self, context: Any) -> None:
        if self.cut or self.lie == "vanish":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        if self.lie == "deaf":
            await asyncio.sleep(5.0)
