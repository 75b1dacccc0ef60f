"""A small cluster on the wire: four agents in one process, one of which lies, and two controllers.

Jobs, leases and clocks are those of `agents/agent_farm.py`; power limits are added here. Everything
that the judge needs is written down as it happens.
"""

import asyncio
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
from agent_farm import CARD, Gpu, Job, Node

from joulecut_sim.plant import Noise, Plant
from joulecut_sim.profile import rows, write
from joulecut_sim.skus import find
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1.agent_pb2_grpc import add_AgentServiceServicer_to_server

BIN = Path(sys.executable).parent
GPUS, STAGES, MICROBATCHES, SCALE = 4, 4, 16, 0.05  # an iteration of 0.15 s
HONEST, LIAR = ("n0", "n1", "n2"), "n3"
JOBS = {"blue": ("n0", "n1"), "red": ("n2", LIAR)}
INTERVAL_S, TTL_S = 0.5, 3.0
BUDGET_W = 6500.0  # sixteen cards of 500 W, at work with some 350 W each
Note = Callable[..., None]

# An agent that tells one of the second kind is quarantined for a minute, and not heard.
SOFT_LIES = ("steal", "invent", "name", "epoch", "far_epoch", "reports", "vanish", "deaf")
HARD_LIES = ("nan", "infinite", "negative", "late", "flood", "stuff", "text", "labels")


class WalkedNode(Node):
    """An agent that may lie, be cut off, or have its driver loaded again."""

    def __init__(self, name: str, note: Note, seed: int) -> None:
        super().__init__(name, find(CARD, "card"), GPUS)
        self.note, self.rng = note, random.Random(seed)
        self.lie, self.cut = "", False
        self.kept_w: dict[str, float] = {}
        self.limit_w = dict.fromkeys(self.gpus, self.sku.power_limit_w)
        self.others: tuple[str, ...] = ()  # GPUs of other nodes

    def reload(self) -> None:
        now_s = time.monotonic()
        for gpu in self.gpus.values():
            self.limit_w[gpu.uuid] = self.sku.power_limit_w
            gpu.energy_j, gpu.at_s = 0.0, now_s
            self._clear(gpu)
        self.note("reloaded", node=self.name)

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
            answer.node = HONEST[0]
        if self.lie == "text":
            answer.node = "n" * 100_000
        return answer

    def _invented(self) -> list[str]:
        return [f"GPU-{self.rng.getrandbits(64):x}" for _ in range(40)]

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[pb.WatchResponse]:
        await self._perhaps_cut(context)
        async for message in super().Watch(request, context):
            for gpu in message.gpus:
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
        if self.lie == "late":
            for report in message.reports:
                report.age_s = self.rng.choice((math.nan, 1e300, 80_000.0))
        if self.lie in ("stuff", "reports"):
            count = 4_000 if self.lie == "stuff" else 300
            busy = [pb.OperationReport(kind="forward", count=500, durations_s=[0.1] * 500)]
            message.reports.extend(
                pb.IterationReport(
                    job=self.rng.choice(("blue", "red", f"job {n}")),
                    uuid=self.rng.choice((*self.gpus, *self.others)),
                    iteration=self.rng.getrandbits(62),
                    duration_s=self.rng.choice((1e-5, 0.2, 80_000.0)),
                    operations=busy,
                )
                for n in range(count)
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
        self._command(request.epoch, list(request.uuids), clear=True)
        held = [uuid for uuid in request.uuids if uuid in self.gpus]
        return await super().Clear(pb.ClearRequest(epoch=request.epoch, uuids=held), context)

    def expire(self, now_s: float) -> None:
        before = self.expired
        super().expire(now_s)
        if self.expired > before:
            self.note("expired", node=self.name)

    def _command(self, epoch: int, uuids: list[str], *, clear: bool) -> None:
        self.note("command", node=self.name, epoch=epoch, uuids=uuids, clear=clear)

    async def _perhaps_cut(self, context: Any) -> None:
        if self.cut or self.lie == "vanish":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        if self.lie == "deaf":
            await asyncio.sleep(5.0)


class Controller:
    """One controller process; `wanted` once the walk has killed it."""

    def __init__(self, folder: Path, name: str, note: Note) -> None:
        self._folder, self._name, self._note = folder, name, note
        self.child: asyncio.subprocess.Process | None = None
        self.wanted = False

    async def start(self) -> None:
        self._note("started")
        self.wanted = False
        log = (self._folder / f"{self._name}.log").open("ab")
        argv = (str(BIN / "joulecut-controller"), "--config", str(self._folder / "c.yaml"))
        self.child = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log)
        log.close()

    def send(self, number: int) -> None:
        if self.child is not None and self.child.returncode is None:
            self.wanted = self.wanted or number == signal.SIGKILL
            self.child.send_signal(number)

    async def look(self) -> None:
        """Notes its memory, or its end; one that ended is started again."""
        assert self.child is not None
        if self.child.returncode is None:
            pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
            mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            self._note("memory", pid=self.child.pid, mib=mib)
            return
        self._note("ended", wanted=self.wanted, status=self.child.returncode)
        await self.start()

    async def stop(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        if self.child is not None:
            await self.child.wait()


class World:
    """Nodes, jobs and controllers; `events` is what the judge reads."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.begun_s = folder, time.monotonic()
        self.events: list[dict[str, Any]] = []
        names = (*HONEST, LIAR)
        self.nodes = {name: WalkedNode(name, self.note, seed + n) for n, name in enumerate(names)}
        self.liar = self.nodes[LIAR]
        self.liar.others = tuple(self.nodes["n0"].gpus)
        self.controllers = [Controller(folder, name, self.note) for name in ("first", "second")]
        self._servers: list[Any] = []  # the liar's last
        self._numbers = 0  # of the liar's addresses
        self._tasks: list[asyncio.Task[None]] = []
        self._write()

    @property
    def contract(self) -> dict[str, Any]:
        return {
            "gpus": {name: list(node.gpus) for name, node in self.nodes.items()},
            "protected": list(JOBS["blue"]),
            "budget_w": BUDGET_W,
            "interval_s": INTERVAL_S,
        }

    def note(self, what: str, **more: Any) -> None:
        self.events.append({"at_s": time.monotonic() - self.begun_s, "what": what, **more})

    def held(self, job: str) -> bool:
        """Whether all its GPUs are under leases."""
        return all(gpu.clock_mhz for name in JOBS[job] for gpu in self.nodes[name].gpus.values())

    async def start(self) -> None:
        for node in self.nodes.values():
            await self._serve(node, f"{node.name}{'-0' * (node is self.liar)}.sock")
        sku = find(CARD, "card")
        for name in JOBS:
            plant = Plant(
                [sku] * STAGES, MICROBATCHES, time_scale=SCALE, seed=1,
                noise=Noise(operation=0.0, gpu_time=0.0, gpu_power=0.0),
            )  # fmt: skip
            flat = self._gpus(name)
            job = Job(name, [flat[stage::STAGES] for stage in range(STAGES)], plant)
            self._tasks.append(asyncio.create_task(job.run(sku)))
        self._tasks.append(asyncio.create_task(self._look()))
        for controller in self.controllers:
            await controller.start()

    async def renumber(self) -> None:
        """The liar's agent is another one from now on, at a new address: it is heard again."""
        self.liar.lie = ""
        await self._servers.pop().stop(None)
        self._numbers += 1
        await self._serve(self.liar, f"{LIAR}-{self._numbers}.sock")
        self._list_agents()

    async def _serve(self, node: WalkedNode, socket: str) -> None:
        server = grpc.aio.server()
        add_AgentServiceServicer_to_server(node, server)
        server.add_insecure_port(f"unix:{self.folder}/{socket}")
        await server.start()
        self._servers.append(server)

    def _list_agents(self) -> None:
        sockets = [*(f"{name}.sock" for name in HONEST), f"{LIAR}-{self._numbers}.sock"]
        (self.folder / "agents.new").write_text("".join(f"unix:{one}\n" for one in sockets))
        (self.folder / "agents.new").rename(self.folder / "agents.txt")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for controller in self.controllers:
            await controller.stop()
        for server in self._servers:
            await server.stop(None)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            now_s = time.monotonic()
            for node in self.nodes.values():
                node.expire(now_s)
            honest = [self.nodes[name] for name in HONEST]
            self.note("limits", sum_w=sum(sum(node.limit_w.values()) for node in honest))
            for controller in self.controllers:
                await controller.look()

    def _gpus(self, job: str) -> list[tuple[Node, Gpu]]:
        nodes = [self.nodes[name] for name in JOBS[job]]
        return [(node, gpu) for node in nodes for gpu in node.gpus.values()]

    def _write(self) -> None:
        sku = find(CARD, "card")
        with (self.folder / "profile.csv").open("w", newline="") as file:
            write(rows(sku, STAGES, scale=SCALE, noise=0.0, seed=1), file)
        pipeline = {
            "schedule": "1f1b", "stages": STAGES, "microbatches": MICROBATCHES, "data_parallel": 2,
            "profile": "profile.csv", "blocking_power_w": sku.blocking_power_w,
        }  # fmt: skip
        jobs = [
            {
                "name": name, "mode": "enforce", "slo": {"max_slowdown": "5%"},
                "match": {"gpus": [f"{node}/0-{GPUS - 1}" for node in nodes]},
                "clocks": {"min_mhz": 900, "granularity": "gpu", "min_dwell": "1s"},
                "pipeline": pipeline, "ranks": {"source": "hook"}, "verify": {"holdout": "0%"},
            }
            for name, nodes in JOBS.items()
        ]  # fmt: skip
        policy = {
            "apiVersion": "joulecut/v1", "kind": "Policy", "mode": "enforce",
            "cluster": {"power_budget_w": BUDGET_W}, "jobs": jobs,
        }  # fmt: skip
        (self.folder / "policy.yaml").write_text(json.dumps(policy))
        config = {
            "agents": {"file": "agents.txt"},
            "policy": "policy.yaml", "store": "sqlite:///controller.db",
            "listen": {"http": "127.0.0.1:0"}, "interval_s": INTERVAL_S, "lease": {"ttl_s": TTL_S},
        }  # fmt: skip
        self._list_agents()
        (self.folder / "c.yaml").write_text(json.dumps(config))
