"""Many agents in one process, and the jobs on their GPUs: real messages over unix sockets.

    python tests/agents/agent_farm.py SPECIFICATION.json

Each node has a gRPC server of its own on `FOLDER/NODE.sock`. A job runs pipelines of one GPU per
stage, all alike; its iteration time and power follow the clocks under lease, by the simulator's
plant. Commands come on standard input, one a line: `start JOB`, and `stats`, which prints one line
of JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from joulecut_sim.plant import Plant
from joulecut_sim.skus import Sku, find
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1.agent_pb2_grpc import (
    AgentServiceServicer,
    add_AgentServiceServicer_to_server,
)

CARD = "a100-sxm"
TTL_S_MAX = 60.0
EXPIRY_S = 0.5  # between two looks for leases that ran out


@dataclass(slots=True)
class Gpu:
    """One GPU: its lease, and its energy counter at `at_s`."""

    uuid: str
    shown: pb.GpuSnapshot
    clock_mhz: int = 0  # 0: no lease
    expires_s: float = 0.0
    epoch: int = 0
    power_w: float = 60.0
    energy_j: float = 0.0
    at_s: float = 0.0

    def draw(self, power_w: float, now_s: float) -> None:
        self.energy_j += self.power_w * (now_s - self.at_s)
        self.power_w, self.at_s = power_w, now_s


@dataclass(slots=True)
class Job:
    """One job. `gpus[s]` are those of stage s, with the node of each."""

    name: str
    gpus: list[list[tuple["Node", Gpu]]]
    plant: Plant

    async def run(self, sku: Sku) -> None:
        number = 0
        while True:
            clocks = tuple(
                min(gpu.clock_mhz or sku.clock_max_mhz for _, gpu in stage) for stage in self.gpus
            )
            done, now_s = self.plant.iterate(clocks), time.monotonic()
            for stage, run in zip(self.gpus, done.stages, strict=True):
                for _, gpu in stage:
                    gpu.draw(run.energy_j / done.duration_s, now_s)
            await asyncio.sleep(done.duration_s)
            number += 1
            count = self.plant.microbatches
            for s, (stage, run) in enumerate(zip(self.gpus, done.stages, strict=True)):
                operations = [
                    pb.OperationReport(kind=kind, count=count, busy_s=busy_s)
                    for kind, busy_s in run.busy_s.items()
                ]
                for node, gpu in stage:
                    report = pb.IterationReport(
                        job=self.name,
                        uuid=gpu.uuid,
                        stage=s,
                        iteration=number,
                        duration_s=done.duration_s,
                        operations=operations,
                    )
                    for reports in node.watchers:
                        reports.append(report)


class Node(AgentServiceServicer):
    """One agent: leases by GPU. `taken` are the GPUs whose lease ended without its controller."""

    def __init__(self, name: str, sku: Sku, gpus: int) -> None:
        self.name, self.sku = name, sku
        self.streams = self.commands = self.renewals = self.expired = 0
        self.epoch = 0
        self.carried_out = pb.CarriedOut()
        self.watchers: list[list[pb.IterationReport]] = []  # each has every report
        now_s = time.monotonic()
        shown = [
            pb.GpuSnapshot(uuid=f"GPU-{name}-{i}", power_average_mw=60_000, energy_j=0.0)
            for i in range(gpus)
        ]
        self.gpus = {one.uuid: Gpu(one.uuid, one, at_s=now_s) for one in shown}

    async def Describe(self, request: Any, context: Any) -> pb.DescribeResponse:
        sku = self.sku
        return pb.DescribeResponse(
            node=self.name,
            agent_version="farm",
            boot_id="boot",
            epoch_seen=self.epoch,
            ttl_max_s=TTL_S_MAX,
            roles=("observe", "apply", "clear"),
            gpus=[
                pb.Gpu(
                    uuid=uuid,
                    index=i,
                    model=sku.model,
                    clocks_mhz=sku.clocks_mhz,
                    power_limit_default_mw=round(1000 * sku.power_limit_w),
                    power_limit_min_mw=round(1000 * sku.power_limit_min_w),
                    power_limit_max_mw=round(1000 * sku.power_limit_max_w),
                    controllable=True,
                )
                for i, uuid in enumerate(self.gpus)
            ],
        )

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[pb.WatchResponse]:
        self.streams += 1
        number = 0
        reports: list[pb.IterationReport] = []
        self.watchers.append(reports)
        try:
            while True:
                now_s, number = time.monotonic(), number + 1
                for gpu in self.gpus.values():
                    gpu.shown.energy_j = gpu.energy_j + gpu.power_w * (now_s - gpu.at_s)
                    gpu.shown.power_average_mw = round(1000 * gpu.power_w)
                    gpu.shown.clock_sm_mhz = gpu.clock_mhz or self.sku.clock_max_mhz
                shown = [gpu.shown for gpu in self.gpus.values()]
                message = pb.WatchResponse(
                    sequence=number, gpus=shown, reports=reports, carried_out=self.carried_out
                )
                reports.clear()
                yield message
                await asyncio.sleep(request.interval_s)
        finally:
            self.watchers = [one for one in self.watchers if one is not reports]

    def expire(self, now_s: float) -> None:
        for gpu in self.gpus.values():
            if gpu.clock_mhz and gpu.expires_s <= now_s:
                self.expired += 1
                self._clear(gpu)

    def _clear(self, gpu: Gpu) -> None:
        gpu.clock_mhz = 0
        gpu.shown.ClearField("lease")

    def _results(self, uuids: Any, request: Any) -> list[pb.Result]:
        reason = f"epoch {request.epoch} < {self.epoch}" if request.epoch < self.epoch else ""
        self.epoch = max(self.epoch, request.epoch)
        return [pb.Result(uuid=uuid, accepted=not reason, reason=reason) for uuid in uuids]

    def _carry_out(self, request: Any, generation: int = 0) -> pb.CarriedOut:
        """Numbers a command, as agents do: messages from now on show its outcome."""
        self.commands += 1
        self.carried_out = pb.CarriedOut(
            epoch=request.epoch, generation=generation, number=self.commands
        )
        return self.carried_out

    async def Apply(self, request: Any, context: Any) -> pb.ApplyResponse:
        results = self._results([one.uuid for one in request.settings], request)
        for setting, result in zip(request.settings, results, strict=True):
            gpu = self.gpus[setting.uuid]
            if result.accepted:
                gpu.clock_mhz = setting.clock_max_mhz
                gpu.expires_s, gpu.epoch = time.monotonic() + request.ttl_s, request.epoch
                gpu.shown.lease.CopyFrom(
                    pb.Lease(
                        job=request.job,
                        epoch=request.epoch,
                        generation=request.generation,
                        clock_max_mhz=setting.clock_max_mhz,
                        expires_in_s=request.ttl_s,
                    )
                )
        carried_out = self._carry_out(request, request.generation)
        return pb.ApplyResponse(results=results, carried_out=carried_out)

    async def Renew(self, request: Any, context: Any) -> pb.RenewResponse:
        self.renewals += 1
        mine = [
            gpu
            for gpu in self.gpus.values()
            if gpu.clock_mhz
            and gpu.shown.lease.job == request.job
            and gpu.shown.lease.generation == request.generation
        ]
        for gpu in mine:
            gpu.expires_s = time.monotonic() + request.ttl_s
        results = self._results([gpu.uuid for gpu in mine], request)
        return pb.RenewResponse(results=results or [pb.Result(accepted=False, reason="no lease")])

    async def Clear(self, request: Any, context: Any) -> pb.ClearResponse:
        results = self._results(request.uuids, request)
        for result in results:
            if result.accepted:
                self._clear(self.gpus[result.uuid])
        return pb.ClearResponse(results=results, carried_out=self._carry_out(request))


class Farm:
    """The nodes and jobs of a specification (see `benchmarks/cluster.py`)."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.sku = find(CARD, "card")
        self.folder = Path(given["folder"])
        self.nodes = [Node(name, self.sku, given["gpus"]) for name in given["nodes"]]
        by_name = {node.name: node for node in self.nodes}
        self.jobs = {one["name"]: self._job(one, by_name) for one in given["jobs"]}

    def _job(self, given: dict[str, Any], nodes: dict[str, Node]) -> Job:
        stages = given["stages"]
        flat = [(nodes[name], gpu) for name in given["nodes"] for gpu in nodes[name].gpus.values()]
        plant = Plant(
            [self.sku] * stages,
            given["microbatches"],
            time_scale=given["scale"],
            seed=int(given["seed"]),
        )
        return Job(given["name"], [flat[stage::stages] for stage in range(stages)], plant)

    async def run(self) -> None:
        servers = []
        for node in self.nodes:
            server = grpc.aio.server()
            add_AgentServiceServicer_to_server(node, server)
            server.add_insecure_port(f"unix:{self.folder}/{node.name}.sock")
            await server.start()
            servers.append(server)
        expiry = asyncio.create_task(self._expire())
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        self._say({"ready": len(servers)})
        running = []
        while line := (await lines.readline()).decode().split():
            if line[0] == "start":
                job = self.jobs[line[1]]
                running.append(asyncio.create_task(job.run(self.sku)))
            else:
                self._say(self.stats())
        for task in (expiry, *running):
            task.cancel()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            for node in self.nodes:
                node.expire(time.monotonic())

    def stats(self) -> dict[str, Any]:
        return {
            "streams": sum(node.streams for node in self.nodes),
            "open": sum(len(node.watchers) for node in self.nodes),
            "open_max": max(len(node.watchers) for node in self.nodes),
            "watched": sum(node.streams > 0 for node in self.nodes),
            "epoch": max(node.epoch for node in self.nodes),
            "epochs": {
                job.name: max(
                    (gpu.epoch for stage in job.gpus for _, gpu in stage if gpu.clock_mhz),
                    default=0,
                )
                for job in self.jobs.values()
            },
            "commands": sum(node.commands for node in self.nodes),
            "renewals": sum(node.renewals for node in self.nodes),
            "expired": sum(node.expired for node in self.nodes),
            "held": {
                job.name: sum(bool(gpu.clock_mhz) for stage in job.gpus for _, gpu in stage)
                for job in self.jobs.values()
            },
            "cpu_s": time.process_time(),
        }

    def _say(self, content: dict[str, Any]) -> None:
        print(json.dumps(content), flush=True)


if __name__ == "__main__":
    asyncio.run(Farm(json.loads(Path(sys.argv[1]).read_text())).run())
