"""Live readings from agents: samples are averaged over steps; nothing is changed.

Uses the controller's own fleet client, for observing only. A step is a mean over many samples,
because a clock at one moment says little about a minute.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from joulecut_cli import agent_client
from joulecut_controller.fleet.grpc_fleet import GrpcFleet
from joulecut_controller.policy.owner import instance_of, shared
from joulecut_controller.view import GpuView
from joulecut_lab.audit.job_estimate import Rate
from joulecut_lab.audit.reading import NO_OWNER, SHARED, Frame, GpuName, GpuReading, Means
from joulecut_wire import tls
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.messages import Allocation, GpuSnapshot

LOOK_S = 1.0  # agents sample once a second
STEPS_MAX = 1_440
STEP_S_MIN = 5.0
FIRST_WAIT_S = 10.0  # for agents that are there at all
STALE_LOOKS = 5.0
AGENTS_MAX = 2_000
MEANS = ("power_w", "clock_mhz", "busy_ratio", "memory_ratio")


@dataclass(slots=True)
class _Step:
    """One GPU over the samples of a step: means, and the last of what has none."""

    means: Means = field(default_factory=Means)
    reasons: set[str] = field(default_factory=set)
    last: GpuSnapshot | None = None
    owner: str = NO_OWNER
    on_purpose: bool = False

    def add(self, shown: GpuSnapshot, owner: str) -> None:
        self.means.add("power_w", shown.power_average_w)
        self.means.add("clock_mhz", shown.clock_sm_mhz)
        self.means.add("busy_ratio", shown.utilization_gpu_ratio)
        self.means.add("memory_ratio", shown.utilization_memory_ratio)
        self.reasons.update(shown.event_reasons)
        self.last = shown
        self.owner = owner or self.owner  # a job without an owner reports once an iteration
        self.on_purpose = self.on_purpose or shown.lease is not None

    def reading(self, uuid: str) -> GpuReading:
        assert self.last is not None
        means: dict[str, Any] = {name: self.means.mean(name) for name in MEANS}
        return GpuReading(
            uuid, self.owner, self.last.energy_j, reasons=frozenset(self.reasons),
            power_limit_w=self.last.power_limit_enforced_w, on_purpose=self.on_purpose, **means,
        )  # fmt: skip


class Watch:
    """Some agents, for some time. Raises Unavailable where none answers."""

    def __init__(
        self,
        addresses: Sequence[str],
        seconds: float,
        *,
        certificates: tls.Rotating[tls.Pem] | None = None,
        server_name: str = "",
    ) -> None:
        self._addresses, self._seconds = addresses, seconds
        self._tls, self._server_name = certificates, server_name
        # Two steps at least: the first sample only begins to count.
        self.step_s = max(seconds / STEPS_MAX, min(STEP_S_MIN, seconds / 4.0))
        self._look_s = min(LOOK_S, self.step_s / 2.0)
        self.gpus: dict[str, GpuName] = {}
        self.rates: dict[str, Rate] = {}
        self.allocations: dict[str, Allocation] = {}  # the newest, by job
        self.silent: tuple[str, ...] = ()

    def follow(self, take: Callable[[Frame], None], progress: Callable[[int, int], None]) -> None:
        """Frames until the time is up, or an interrupt ends it early; `progress` gets (seconds
        passed, seconds).
        """
        asyncio.run(self._follow(take, progress))

    async def _follow(
        self, take: Callable[[Frame], None], progress: Callable[[int, int], None]
    ) -> None:
        over = asyncio.Event()
        with suppress(RuntimeError, ValueError):  # not the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, over.set)
        fleet = GrpcFleet(
            self._addresses, watch_s=self._look_s, tls=self._tls, server_name=self._server_name
        )
        await fleet.start()
        try:
            await fleet.all_read(FIRST_WAIT_S)
            self._must_answer(fleet)
            await _shown(fleet, over)
            async for frame in self._frames(fleet, over, progress):
                take(frame)
        finally:
            await fleet.stop()

    def _must_answer(self, fleet: GrpcFleet) -> None:
        nodes = fleet.observe(time.monotonic()).nodes
        self.silent = tuple(f"{n.address} ({n.error})" for n in nodes if not n.node)
        if len(self.silent) == len(nodes):
            raise Unavailable(
                f"no agent answers: {', '.join(self.silent)}; check the gRPC port (9431), "
                "and --cert, --key and --ca"
            )

    async def _frames(
        self, fleet: GrpcFleet, over: asyncio.Event, progress: Callable[[int, int], None]
    ) -> AsyncIterator[Frame]:
        begun_s = time.monotonic()
        until_s, due_s = begun_s + self._seconds, begun_s
        steps: dict[str, _Step] = {}
        while True:
            now_s = time.monotonic()
            self._look(fleet, now_s, steps)
            last = over.is_set() or now_s >= until_s
            if now_s >= due_s or last:
                yield Frame(now_s, self.step_s, tuple(s.reading(u) for u, s in steps.items()))
                steps, due_s = {}, now_s + self.step_s
            progress(int(now_s - begun_s), int(self._seconds))
            if last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._look_s, max(0.0, until_s - now_s))):
                    await over.wait()

    def _look(self, fleet: GrpcFleet, now_s: float, steps: dict[str, _Step]) -> None:
        reporting: dict[str, str] = {}
        owners: dict[str, str] = {}
        reports = fleet.take_reports()
        for arrived in reports:
            reporting[arrived.report.uuid] = arrived.report.job
        for gpu in fleet.observe(now_s).gpus:
            if gpu.snapshot is None or gpu.age_s > STALE_LOOKS * max(LOOK_S, self._look_s):
                continue
            about = gpu.description
            top_mhz = float(about.clocks_mhz[-1]) if about.clocks_mhz else 0.0
            self.gpus.setdefault(gpu.uuid, GpuName(gpu.uuid, gpu.place, about.model, top_mhz))
            owners[gpu.uuid] = self._owner(gpu, reporting.get(gpu.uuid, NO_OWNER))
            steps.setdefault(gpu.uuid, _Step()).add(gpu.snapshot, owners[gpu.uuid])
        for arrived in reports:
            report = arrived.report
            rate = self.rates.setdefault(owners.get(report.uuid, report.job), Rate())
            if report.peer_iteration_time_s is None:
                rate.own, rate.own_s = rate.own + 1, rate.own_s + report.duration_s
                continue
            rate.waited, rate.waited_s = rate.waited + 1, rate.waited_s + report.duration_s
            rate.peer_s += report.peer_iteration_time_s

    def _owner(self, gpu: GpuView, reported: str) -> str:
        allocation = gpu.allocation
        if allocation is None or not allocation.job:
            return reported
        if shared(allocation):
            return SHARED
        name = instance_of(allocation).name
        self.allocations[name] = allocation
        return name


async def _shown(fleet: GrpcFleet, over: asyncio.Event) -> None:
    """Waits for a snapshot of every GPU: energy used before it would miss in the first step."""
    until_s = time.monotonic() + FIRST_WAIT_S
    while not over.is_set() and (now_s := time.monotonic()) < until_s:
        if all(gpu.snapshot for gpu in fleet.observe(now_s).gpus):
            return
        await asyncio.sleep(0.05)


def watch_of(given: argparse.Namespace, duration_s: float) -> Watch:
    """The agents that the flags name. Raises BadInput."""
    return Watch(
        _addresses(given),
        duration_s,
        certificates=_certificates(given),
        server_name=given.server_name,
    )


def _addresses(given: argparse.Namespace) -> Sequence[str]:
    names = [name.strip() for name in given.agents.split(",") if name.strip()]
    if not 1 <= len(names) <= AGENTS_MAX:
        raise BadInput("--agents", f"{len(names)} addresses", f"1 to {AGENTS_MAX}")
    made = []
    for name in names:
        one = argparse.Namespace(**{**vars(given), "node": name})
        made.append(agent_client.Agent(one).address)
    return list(dict.fromkeys(made))


def _certificates(given: argparse.Namespace) -> tls.Rotating[tls.Pem] | None:
    if given.cert is None:
        return None
    files = tls.TlsFiles(given.cert, given.key, given.ca)
    return tls.rotating(files, lambda _: None)
