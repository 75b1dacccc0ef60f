"""Processor time of the control loop's passes against the size of the cluster, on a virtual clock.

    python benchmarks/passes.py [--jobs 12,25,50,100] [--nodes-per-job 12] [--passes 40]
                                [--iteration-s 3] [--no-profiles] [--profile]
                                [--controllers 1]

A controller without processes around it: agents and jobs are values, iterations follow the clocks
under lease. All jobs are alike, so that the solver answers once for all and the passes are what is
measured. Prints milliseconds of a processor per steady pass (mean, longest) for each size, and the
growth exponent over all sizes; `--profile` prints the functions that take most. Several
`--controllers` share the jobs, with their claims in memory: prints when all clocks are held, the
processor time of each, and when others hold those of one that is gone.
"""

import argparse
import asyncio
import cProfile
import math
import pstats
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / "worlds")]

from at_once import AtOnce, studied  # noqa: E402
from worlds import HeldSource  # noqa: E402

from joulecut_controller.election.claims import Claims, Group, divided  # noqa: E402
from joulecut_controller.election.fenced_fleet import FencedFleet  # noqa: E402
from joulecut_controller.policy.policy import ClockPolicy, GpuRef, JobPolicy, Policy, Slo  # noqa: E402
from joulecut_controller.ports import ArrivedReport, FleetState  # noqa: E402
from joulecut_controller.reconcile.pacing import Pacing  # noqa: E402
from joulecut_controller.reconcile.planning_step import SolverFunctions  # noqa: E402
from joulecut_controller.reconcile.reconciler import Reconciler  # noqa: E402
from joulecut_controller.store.database import open_store  # noqa: E402
from joulecut_controller.view import GpuView, NodeView  # noqa: E402
from joulecut_controller.web.board_cache import Publisher  # noqa: E402
from joulecut_engine.estimate.online import OnlineEstimator  # noqa: E402
from joulecut_engine.graph.clock_option import ClockOption  # noqa: E402
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile  # noqa: E402
from joulecut_engine.optimize.check import check  # noqa: E402
from joulecut_engine.optimize.solver import Solver  # noqa: E402
from joulecut_sim.plant import Iteration, Noise, Plant  # noqa: E402
from joulecut_sim.profile import rows  # noqa: E402
from joulecut_sim.skus import find  # noqa: E402
from joulecut_wire.messages import (  # noqa: E402
    Command,
    GpuDescription,
    GpuSnapshot,
    IterationReport,
    Lease,
    OperationReport,
    Result,
)

SKU = find("a100-sxm", "card")
GPUS = 8
INTERVAL_S = 5.0
HELD_WITHIN = 60  # passes until every job's clocks are held
SETTLED = 8  # passes after that
SHOWN = 30  # functions of a profile


class Job:
    """One job on whole nodes; stage s has the GPUs s of its nodes. Its newest iteration ended at
    `ends_s`, where later the job has not begun."""

    def __init__(
        self,
        name: str,
        nodes: list[str],
        scale: float,
        *,
        stages: int,
        microbatches: int,
        begins_s: float = 0.0,
        jitter_ratio: float = 0.0,
    ) -> None:
        self.name, self.scale, self.microbatches = name, scale, microbatches
        self.stages = [[f"GPU-{node}-{s}" for node in nodes] for s in range(stages)]
        noise = Noise(operation=0.0, gpu_time=0.0, gpu_power=0.0)
        self._plant = Plant([SKU] * stages, microbatches, time_scale=scale, noise=noise)
        self._made: dict[tuple[int, ...], Iteration] = {}
        self._jitter_ratio = jitter_ratio
        self.number, self.ends_s = 0, begins_s

    def ratio(self) -> float:
        """What its next iteration takes over one that is not disturbed."""
        drawn = random.Random(f"{self.name} {self.number}")
        return 1.0 + self._jitter_ratio * drawn.gauss()

    def run(self, clocks: tuple[int, ...]) -> Iteration:
        if clocks not in self._made:
            self._made[clocks] = self._plant.iterate(clocks)
        return self._made[clocks]


class Cluster:
    """Implements `ports.Fleet`. The last of the jobs takes `spread` longer than the first;
    iterations vary by `jitter_ratio` (one standard deviation)."""

    def __init__(
        self,
        jobs: int,
        nodes_per_job: int,
        iteration_s: float,
        *,
        stages: int = GPUS,
        microbatches: int = 24,
        spread: float = 0.0,
        jitter_ratio: float = 0.0,
    ) -> None:
        unit = Job("unit", ["n"], 1.0, stages=stages, microbatches=microbatches)
        unit_s = unit.run((SKU.clock_max_mhz,) * stages).duration_s
        scale, self.now_s = iteration_s / unit_s, 1000.0
        self.nodes = [f"n{i:04d}" for i in range(jobs * nodes_per_job)]
        self.jobs = [
            Job(
                f"job{j:03d}",
                self.nodes[j * nodes_per_job : (j + 1) * nodes_per_job],
                scale * (1.0 + spread * j / jobs),
                stages=stages,
                microbatches=microbatches,
                begins_s=self.now_s,
                jitter_ratio=jitter_ratio,
            )
            for j in range(jobs)
        ]
        self.descriptions = {
            f"GPU-{node}-{i}": GpuDescription(
                f"GPU-{node}-{i}", i, SKU.model, SKU.clocks_mhz,
                power_limit_default_w=SKU.power_limit_w,
                controllable=True, power_limit_min_w=SKU.power_limit_min_w,
                power_limit_max_w=SKU.power_limit_w,
            )
            for node in self.nodes
            for i in range(GPUS)
        }  # fmt: skip
        self.leases: dict[str, tuple[Lease, float]] = {}
        self.energy_j = dict.fromkeys(self.descriptions, 0.0)
        self.epoch = 0
        self._reports: list[ArrivedReport] = []
        self._state = FleetState((), ())
        self._at: dict[str, tuple[NodeView, list[GpuView]]] = {}  # by address

    def policy(self, *, profiles: bool, noise: float = 0.0) -> Policy:
        """`noise` of the profiles: see `profile.rows`."""
        made = {job.scale: _profile(len(job.stages), job.scale, noise) for job in self.jobs}
        width = len(self.nodes) // len(self.jobs)
        return Policy(
            mode="recommend",
            jobs=tuple(
                JobPolicy(
                    name=job.name,
                    mode="enforce",
                    slo=Slo(max_slowdown=0.02),
                    gpus=tuple(
                        GpuRef(uuid.split("-")[1], int(uuid.split("-")[2]))
                        for stage in job.stages
                        for uuid in stage
                    ),
                    clocks=ClockPolicy(granularity="gpu", min_mhz=900),
                    pipeline=Pipeline(
                        "1f1b", len(job.stages), job.microbatches, data_parallel=width
                    ),
                    profile=made[job.scale] if profiles else None,
                    blocking_power_w=SKU.blocking_power_w,
                )
                for job in self.jobs
            ),
            source="benchmark",
            digest="1",
        )

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for uuid in [u for u, (_, ends_s) in self.leases.items() if ends_s <= self.now_s]:
            del self.leases[uuid]
        for job in self.jobs:
            clocks = tuple(self._clock(stage[0]) for stage in job.stages)
            done = job.run(clocks)
            for stage, run in zip(job.stages, done.stages, strict=True):
                for uuid in stage:
                    self.energy_j[uuid] += run.energy_j * seconds / done.duration_s
            while job.ends_s + done.duration_s * (ratio := job.ratio()) <= self.now_s:
                job.ends_s += done.duration_s * ratio
                job.number += 1
                self._report(job, done, ratio)
        self._look()

    def _report(self, job: Job, done: Iteration, ratio: float) -> None:
        for s, (stage, run) in enumerate(zip(job.stages, done.stages, strict=True)):
            operations = tuple(
                OperationReport(kind, job.microbatches, ratio * busy_s)
                for kind, busy_s in run.busy_s.items()
            )
            self._reports += [
                ArrivedReport(
                    IterationReport(
                        job.name, uuid, s, job.number, ratio * done.duration_s, operations
                    ),
                    job.ends_s,
                )
                for uuid in stage
            ]

    def _clock(self, uuid: str) -> int:
        held = self.leases.get(uuid)
        return held[0].clock_max_mhz if held else SKU.clock_max_mhz

    def _look(self) -> None:
        nodes = tuple(NodeView(n, n, True, self.epoch, 60.0, "1") for n in self.nodes)
        gpus = []
        for uuid, description in self.descriptions.items():
            held = self.leases.get(uuid)
            snapshot = GpuSnapshot(
                uuid,
                power_average_w=300.0,
                energy_j=self.energy_j[uuid],
                clock_sm_mhz=self._clock(uuid),
                utilization_gpu_ratio=1.0,
                lease=held[0] if held else None,
            )
            node = uuid.split("-")[1]
            gpus.append(GpuView(description, node, node, snapshot, 0.0))
        self._state = FleetState(nodes, tuple(gpus))
        self._at = {node.address: (node, []) for node in nodes}
        for gpu in gpus:
            self._at[gpu.address][1].append(gpu)

    # -- the fleet port --------------------------------------------------------------------

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        del now_s
        if not addresses:
            return self._state
        asked = [self._at[address] for address in addresses]
        return FleetState(
            tuple(node for node, _ in asked), tuple(gpu for _, gpus in asked for gpu in gpus)
        )

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken, self._reports = tuple(self._reports), []
        return taken

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        del address
        self.epoch = command.epoch
        for one in command.settings:
            lease = Lease(command.job, command.epoch, command.generation, 0, one.clock_max_mhz, 0.0)
            self.leases[one.uuid] = (lease, self.now_s + command.ttl_s)
        return tuple(Result(one.uuid, accepted=True) for one in command.settings)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        del epoch, job, generation
        renewed = [f"GPU-{address}-{i}" for i in range(GPUS)]
        for uuid in renewed:
            if uuid in self.leases:
                self.leases[uuid] = (self.leases[uuid][0], self.now_s + ttl_s)
        return tuple(Result(uuid, accepted=True) for uuid in renewed)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        del address, epoch, job, reason
        for uuid in uuids:
            self.leases.pop(uuid, None)
        return tuple(Result(uuid, accepted=True) for uuid in uuids)


def _profile(stages: int, scale: float, noise: float) -> Profile:
    options: dict[tuple[int, Kind], list[ClockOption]] = {}
    for stage, kind, clock, time_s, energy_j in rows(SKU, stages, scale=scale, noise=noise, seed=1):
        options.setdefault((stage, kind), []).append(ClockOption(clock, time_s, energy_j))
    return Profile({key: tuple(made) for key, made in options.items()}, "simulated")


class Seat:
    """Implements `ports.Fleet` for one of several controllers: reports of the agents that it
    watches (None: all).
    """

    def __init__(self, cluster: Cluster) -> None:
        self.observe, self.apply = cluster.observe, cluster.apply
        self.renew, self.clear = cluster.renew, cluster.clear
        self.needed: Collection[str] | None = None
        self.arrived: tuple[ArrivedReport, ...] = ()

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken, self.arrived, needed = self.arrived, (), self.needed
        if needed is None:
            return taken
        return tuple(one for one in taken if one.report.uuid.split("-")[1] in needed)


class Sharing:
    """One controller, or several of one store with their claims in memory. `profiler` runs with
    them.
    """

    def __init__(self, args: argparse.Namespace, jobs: int, folder: Path) -> None:
        self.cluster = Cluster(jobs, args.nodes_per_job, args.iteration_s)
        policy = self.cluster.policy(profiles=not args.no_profiles)
        self.store = open_store(f"sqlite:///{folder}/{jobs}.db")
        self.live = set(range(1, args.controllers + 1))
        self.holders = dict.fromkeys((job.name for job in self.cluster.jobs), 0)
        self.used_s = dict.fromkeys(self.live, 0.0)
        self.publisher, self.profiler = Publisher(), cProfile.Profile()
        self.members: dict[int, tuple[Reconciler, Claims, Seat]] = {}
        for number in sorted(self.live):
            group = self._group(number) if len(self.live) > 1 else None
            claims, seat = Claims(self.store.next_epoch(0), group), Seat(self.cluster)
            reconciler = Reconciler(
                fleet=FencedFleet(
                    seat, lambda: True, claims.first, claims=claims, epoch_above=_none_above
                ),
                store=self.store,
                source=HeldSource(policy),
                policy=policy,
                learner=OnlineEstimator({}),
                solver=SolverFunctions(prepare=Solver, check=check, frontier=lambda *_: ()),
                planners=AtOnce(),
                background=AtOnce(),
                claims=claims,
                pacing=Pacing(INTERVAL_S, watch_s=1.0),
                now_s=lambda: self.cluster.now_s,
                unix_s=lambda: 1.8e9 + self.cluster.now_s,
            )
            self.members[number] = reconciler, claims, seat

    def _group(self, number: int) -> Group:
        live, wanted = frozenset(self.live), divided(self.holders, self.live)
        return Group(
            number, self.store.epoch(), min(live), live, dict(self.holders), wanted
        )  # fmt: skip

    def _share(self, number: int) -> None:
        """What a reading of the claims does."""
        reconciler, claims, seat = self.members[number]
        wanted = divided(self.holders, self.live)
        lost = [job for job, one in self.holders.items() if one not in self.live]
        taken = {job for job in lost if wanted[job] == number}
        if any(self.holders[job] for job in taken):
            self.store.next_epoch(0)
        given = {job for job in claims.given if self.holders[job] == number}
        self.holders |= {job: wanted[job] for job in taken | given}
        reconciler.follow(self._group(number))
        seat.needed = reconciler.agents()

    async def run(self, passes: int = 1, *, profile: bool = False) -> None:
        for _ in range(passes):
            self.cluster.advance(INTERVAL_S)
            reports = self.cluster.take_reports()
            for number in sorted(self.live):
                reconciler, _, seat = self.members[number]
                seat.arrived += reports
                if profile:
                    self.profiler.enable()
                begun_s = time.process_time()
                if reconciler.claims.group:
                    self._share(number)
                await reconciler.beat_all()
                self.publisher.publish(await reconciler.run_pass())
                self.used_s[number] += time.process_time() - begun_s
                self.profiler.disable()
                await studied()

    async def until_held(self, jobs: Collection[str], above: int = 0) -> float:
        """Seconds of the virtual clock until all GPUs of these jobs hold clocks of an epoch above
        `above`; infinite where that takes too long.
        """
        begun_s = self.cluster.now_s
        gpus = [u for job in self.cluster.jobs if job.name in jobs for s in job.stages for u in s]
        for _ in range(3 * HELD_WITHIN):
            await self.run()
            held = [self.cluster.leases.get(uuid) for uuid in gpus]
            if all(one is not None and one[0].epoch > above for one in held):
                return self.cluster.now_s - begun_s
        return math.inf

    async def stop(self) -> None:
        for reconciler, _, _ in self.members.values():
            await reconciler.stop("done")
        self.store.close()


async def _none_above(_: int) -> bool:
    return False


async def measured(args: argparse.Namespace, jobs: int, folder: Path) -> list[float]:
    """Processor seconds of each steady pass of one controller."""
    asyncio.get_running_loop().set_default_executor(AtOnce())
    one, took_s = Sharing(args, jobs, folder), []
    if not args.no_profiles and math.isinf(await one.until_held(one.holders)):
        print(f"{jobs} jobs: not all are held")
    await one.run(SETTLED)
    for _ in range(args.passes):
        before_s = one.used_s[1]
        await one.run(profile=args.profile)
        took_s.append(one.used_s[1] - before_s)
    if args.profile:
        pstats.Stats(one.profiler).sort_stats("tottime").print_stats(SHOWN)
        pstats.Stats(one.profiler).sort_stats("cumtime").print_stats(2 * SHOWN)
    await one.stop()
    return took_s


async def shared(args: argparse.Namespace, jobs: int, folder: Path) -> None:
    asyncio.get_running_loop().set_default_executor(AtOnce())
    group = Sharing(args, jobs, folder)
    gpus = len(group.cluster.descriptions)
    held_s = await group.until_held(group.holders)
    print(f"{gpus} GPUs, {jobs} jobs, {args.controllers} controllers: all held after {held_s:g} s")
    await group.run(min(SETTLED, args.passes))
    before_s = dict(group.used_s)
    await group.run(args.passes)
    took_s = args.passes * INTERVAL_S
    for number, used_s in group.used_s.items():
        count = sum(holder == number for holder in group.holders.values())
        print(f"controller {number}, {count} jobs: {(used_s - before_s[number]) / took_s:.2f} core")
    gone = max(group.live)
    group.live.discard(gone)
    lost = [job for job, holder in group.holders.items() if holder == gone]
    epoch = group.store.epoch()
    held_s = await group.until_held(lost, above=epoch)
    print(f"one is gone: others hold its {len(lost)} jobs after {held_s:g} s of the virtual clock")
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{most_mib:.0f} MiB at most, of all controllers and the simulated cluster", flush=True)
    await group.stop()


def exponent(sizes: list[int], costs: list[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    fit = statistics.linear_regression([math.log(n) for n in sizes], [math.log(s) for s in costs])
    return fit.slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--jobs", default="12,25,50,100")
    parser.add_argument("--nodes-per-job", type=int, default=12)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--iteration-s", type=float, default=3.0)
    parser.add_argument("--no-profiles", action="store_true")
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    sizes = [int(word) for word in args.jobs.split(",")]
    means = []
    with tempfile.TemporaryDirectory(prefix="joulecut") as folder:
        for jobs in sizes if args.controllers > 1 else ():
            asyncio.run(shared(args, jobs, Path(folder)))
        for jobs in sizes if args.controllers == 1 else ():
            took_s = asyncio.run(measured(args, jobs, Path(folder)))
            means.append(statistics.fmean(took_s))
            gpus = jobs * args.nodes_per_job * GPUS
            print(
                f"{gpus} GPUs, {jobs} jobs: {1e3 * means[-1]:.0f} ms a pass, "
                f"longest {1e3 * max(took_s):.0f} ms",
                flush=True,
            )
    if len(means) > 1:
        print(f"growth exponent: {exponent(sizes, means):.2f}")


if __name__ == "__main__":
    main()
