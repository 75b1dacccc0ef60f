"""Jobs of several replicas, each a pipeline of lock-step groups, and what clocks could save them.

The GPUs of a group share every operation: each does its part at its own pace, and all wait for the
slowest. Replicas meet once per iteration, to add up their gradients, which takes a constant time.
The order of operations is that of the graph, which `tests/reference` holds to torch's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from unprofiled import UnprofiledWorld
from worlds import Agent, World

from joulecut_controller.ports import ArrivedReport
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.jitter import Noise as Jitter
from joulecut_engine.optimize.jitter import Trials, judge_of
from joulecut_engine.optimize.jitter_margin import assured
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.solver import Solver
from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ, INSTRUCTIONS, Instruction
from joulecut_sim.plant import Iteration, Noise, Plant, StageRun
from joulecut_sim.skus import Sku

Gpu = tuple[int, int, int]  # stage, replica, member
HALVES = ("input", "weight")  # of a backward, each half of it


class ShapePlant(Plant):
    """`slow` maps GPUs to their time over that of the others. `seen_apart`: whether a GPU reports
    its own time, or that of its group.
    """

    def __init__(
        self,
        sku: Sku,
        pipeline: Pipeline,
        *,
        slow: Mapping[Gpu, float],
        time_scale: float,
        noise: Noise,
        constant_s: float = 0.0,
        seen_apart: bool = True,
        seed: int = 1,
    ) -> None:
        super().__init__(
            [sku] * pipeline.stages, 1, time_scale=time_scale, noise=replace(noise, gpu_time=0.0)
        )
        self.microbatches = pipeline.microbatches
        self.pipeline, self.constant_s, self.seen_apart = pipeline, constant_s, seen_apart
        self.gpus: tuple[Gpu, ...] = tuple(
            (stage, replica, member)
            for stage in range(pipeline.stages)
            for replica in range(pipeline.replicas)
            for member in range(pipeline.lockstep)
        )
        dice = np.random.default_rng(seed)
        self.ratio = {
            gpu: slow.get(gpu, 1.0) * float(dice.normal(1.0, noise.gpu_time)) for gpu in self.gpus
        }
        self.watts = {gpu: float(dice.normal(1.0, noise.gpu_power)) for gpu in self.gpus}
        self.power_ratio = [1.0] * pipeline.stages
        self._luck = np.random.default_rng(seed + 1)
        self._steps = _steps(pipeline)

    def gpu_s(self, gpu: Gpu, kind: Instruction, clock_mhz: float) -> float:
        """Mean time of one whole operation on one GPU."""
        return self.time_s(gpu[0], kind, clock_mhz) * self.ratio[gpu]

    def gpu_w(self, gpu: Gpu, kind: Instruction, clock_mhz: float) -> float:
        return self.power_w(gpu[0], kind, clock_mhz) * self.watts[gpu]

    def iterate(
        self,
        clocks_mhz: Sequence[float],
        peer_s: float = 0.0,
        limits_w: Sequence[float] | None = None,
    ) -> Iteration:
        """One iteration at the given clock per GPU. No power limit below the card's."""
        clock_of = dict(zip(self.gpus, clocks_mhz, strict=True))
        own_s = {
            gpu: {kind: self.gpu_s(gpu, kind, mhz) for kind in INSTRUCTIONS}
            for gpu, mhz in clock_of.items()
        }
        pace = {
            (stage, replica): {
                kind: max(
                    own_s[stage, replica, member][kind] for member in range(self.pipeline.lockstep)
                )
                for kind in INSTRUCTIONS
            }
            for stage in range(self.pipeline.stages)
            for replica in range(self.pipeline.replicas)
        }
        ends_s, busy = [], {}
        for replica in range(self.pipeline.replicas):
            end_s, worked = self._play([pace[s, replica] for s in range(self.pipeline.stages)])
            ends_s.append(end_s)
            busy |= {(stage, replica): one for stage, one in enumerate(worked)}
        iteration_s = max(ends_s) + self.constant_s
        duration_s = max(iteration_s, peer_s)
        runs = []
        for gpu in self.gpus:
            group, working_j, working_s, told = gpu[:2], 0.0, 0.0, {}
            for part, group_s in busy[group].items():
                kind: Instruction = "forward" if part == "forward" else "backward"
                part_s = group_s * own_s[gpu][kind] / pace[group][kind]
                working_s += part_s
                working_j += part_s * self.gpu_w(gpu, kind, clock_of[gpu])
                told[part] = part_s if self.seen_apart else group_s
            waiting_j = self.waiting_w(gpu[0]) * (duration_s - working_s)
            runs.append(StageRun(told, working_j + waiting_j, self.cap_mhz(gpu[0])))
        return Iteration(iteration_s, duration_s, tuple(runs))

    def _play(self, pace: Sequence[Mapping[Instruction, float]]) -> tuple[float, list]:
        """When the last operation of a replica ends, and how long each stage worked by kind."""
        chunks, jitter = self.pipeline.chunks, self.noise.operation
        luck = np.maximum(0.5, self._luck.normal(1.0, jitter, len(self._steps))).tolist()
        ends: list[float] = []
        worked: list[dict[str, float]] = [{} for _ in pace]
        for (stage, kind, needs), lucky in zip(self._steps, luck, strict=True):
            if kind == "forward":
                seconds = pace[stage]["forward"] / chunks * lucky
            else:
                seconds = pace[stage]["backward"] / chunks * lucky * (0.5 if kind in HALVES else 1)
            ends.append(max((ends[one] for one in needs), default=0.0) + seconds)
            worked[stage][kind] = worked[stage].get(kind, 0.0) + seconds
        return max(ends), worked


def _steps(pipeline: Pipeline) -> list[tuple[int, Kind, list[int]]]:
    """Stage and kind of each operation, and those that it waits for, in an order that runs."""
    graph = build(pipeline)
    needs: list[list[int]] = [[] for _ in graph.operations]
    for before, after in graph.edges:
        needs[after].append(before)
    return [(o.stage, o.kind, waits) for o, waits in zip(graph.operations, needs, strict=True)]


class ShapeWorld(World):
    """One node per group. GPU names are GPU-STAGE-REPLICA-MEMBER; reports name the replica where
    it is `named`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        slow: Mapping[Gpu, float] | None = None,
        constant_s: float = 0.0,
        seen_apart: bool = True,
        named: bool = True,
        noise: Noise | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__(stages=pipeline.stages, microbatches=1)
        self.named = named
        self.pipeline = pipeline
        self.plant: ShapePlant = ShapePlant(
            self.sku,
            pipeline,
            slow=slow or {},
            time_scale=self.scale,
            noise=noise or Noise(),
            constant_s=constant_s,
            seen_apart=seen_apart,
            seed=seed,
        )
        self.gpu_of = {"GPU-{}-{}-{}".format(*gpu): gpu for gpu in self.plant.gpus}
        self.uuids = tuple(self.gpu_of)
        self.stage_of = {uuid: gpu[0] for uuid, gpu in self.gpu_of.items()}
        groups: dict[tuple[int, int], list[str]] = {}
        for uuid, gpu in self.gpu_of.items():
            groups.setdefault(gpu[:2], []).append(uuid)
        self.agents = {}
        for n, uuids in enumerate(groups.values()):
            self.agents[f"n{n}:1"] = Agent(f"n{n}:1", f"n{n}", tuple(uuids))
        self._energy = dict.fromkeys(self.uuids, 0.0)

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken: tuple[ArrivedReport, ...] = super().take_reports()
        if not self.named:
            return taken
        return tuple(
            replace(one, report=replace(one.report, replica=self.gpu_of[one.report.uuid][1]))
            for one in taken
        )

    def profile(self, lowest_mhz: int = 0) -> Profile:
        """Of one GPU, per part: a backward in halves where the schedule has them."""
        whole = super().profile(lowest_mhz)
        options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
        chunks = self.pipeline.chunks
        for (stage, kind), menu in whole.options.items():
            split = kind == "backward" and self.pipeline.schedule == "zb-h1"
            share = (0.5 if split else 1.0) / chunks
            part = tuple(
                ClockOption(o.clock_mhz, o.time_s * share, o.energy_j * share) for o in menu
            )
            for name in HALVES if split else (kind,):
                options[stage, name] = part
        return Profile(options, whole.source)

    def saved(self) -> float:
        """What the clocks in force save, by the plant's own means without jitter."""
        held = self.clocks_mhz()
        default = [self.sku.clock_max_mhz] * len(self.uuids)
        noise, self.plant.noise = self.plant.noise, Noise(operation=0.0)
        now_j = self.plant.iterate([held[uuid] for uuid in self.uuids]).energy_j
        ratio = now_j / self.plant.iterate(default).energy_j
        self.plant.noise = noise
        return 1.0 - ratio


class UnprofiledShapes(ShapeWorld, UnprofiledWorld):
    """The same without a profile, with the busy times of operations in its reports."""

    detailed = True


def possible(plant: ShapePlant, slowdown: float) -> float:
    """What clocks of their own for all GPUs could save, had all true curves been known.

    Each replica is solved on its own for the common deadline; each group has, at every pace of its
    slowest GPU, the cheapest clock of every member that keeps it.
    """
    pipeline = plant.pipeline
    lone = replace(pipeline, tensor_parallel=1, context_parallel=1, expert_parallel=1)
    lone = replace(lone, data_parallel=1)
    default_j, best_j, asked = 0.0, 0.0, []
    for replica in range(pipeline.replicas):
        menus: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
        for stage in range(pipeline.stages):
            menus |= _group_menus(plant, stage, replica)
        watts = plant.skus[0].blocking_power_w
        asked.append(problem(lone, Profile(menus, "true"), watts))
    jitter = Jitter(operation=plant.noise.operation, siblings=pipeline.replicas)
    tops = [Solver(one, "gpu") for one in asked]
    mean_s = [Trials(one, jitter).spread(_at_top(one)).mean_s for one in asked]
    base_s = max(mean_s)
    deadline_s = (base_s + plant.constant_s) * (1.0 + slowdown) - plant.constant_s
    for one, solver in zip(asked, tops, strict=True):
        found = assured(
            one,
            solver,
            Goal(deadline_s),
            Trials(one, jitter),
            statistic="mean",
            target_s=deadline_s,
            judge=judge_of(one, jitter),
        )
        best_j += found.plan.energy_j
        late_s = deadline_s + plant.constant_s - found.plan.iteration_time_s
        best_j += one.time_price_w * late_s
    top = [float(sku.clock_max_mhz) for sku in plant.skus for _ in range(pipeline.width)]
    noise, plant.noise = plant.noise, Noise(operation=0.0)
    default_j = plant.iterate(top).energy_j / pipeline.lockstep
    plant.noise = noise
    return 1.0 - best_j / default_j


def _at_top(asked: object) -> tuple[ClockOption, ...]:
    return tuple(min(menu, key=lambda o: (o.time_s, o.energy_j)) for menu in asked.options)


def _group_menus(
    plant: ShapePlant, stage: int, replica: int
) -> dict[tuple[int, Kind], tuple[ClockOption, ...]]:
    """Per GPU of a group: at each clock of its slowest GPU, the mean energy at the best clocks."""
    sku, chunks = plant.skus[stage], plant.pipeline.chunks
    clocks = [mhz for mhz in sku.clocks_mhz if mhz >= CLOCK_SWEPT_MIN_MHZ]
    members = [g for g in plant.gpus if g[:2] == (stage, replica)]
    time_s = {
        (gpu, kind): np.array([plant.gpu_s(gpu, kind, mhz) for mhz in clocks])
        for gpu in members
        for kind in INSTRUCTIONS
    }
    waits_w = plant.waiting_w(stage)
    over_j = {
        key: t * (np.array([plant.gpu_w(*key, mhz) for mhz in clocks]) - waits_w)
        for key, t in time_s.items()
    }
    slowest = max(members, key=lambda gpu: plant.ratio[gpu])
    options: dict[Instruction, list[ClockOption]] = {kind: [] for kind in INSTRUCTIONS}
    for j, mhz in enumerate(clocks):
        energy = dict.fromkeys(INSTRUCTIONS, 0.0)
        for gpu in members:
            kept = np.ones(len(clocks), dtype=bool)
            for kind in INSTRUCTIONS:
                kept &= time_s[gpu, kind] <= time_s[slowest, kind][j] * (1 + 1e-9)
            cost = sum(over_j[gpu, kind] for kind in INSTRUCTIONS)
            at = int(np.where(kept, cost, math.inf).argmin())
            for kind in INSTRUCTIONS:
                pace_s = time_s[slowest, kind][j]
                energy[kind] += (over_j[gpu, kind][at] + waits_w * pace_s) / len(members)
        for kind in INSTRUCTIONS:
            options[kind].append(ClockOption(mhz, float(time_s[slowest, kind][j]), energy[kind]))
    made: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for kind, menu in options.items():
        split = kind == "backward" and plant.pipeline.schedule == "zb-h1"
        share = (0.5 if split else 1.0) / chunks
        part = tuple(ClockOption(o.clock_mhz, o.time_s * share, o.energy_j * share) for o in menu)
        for name in HALVES if split else (kind,):
            made[stage, name] = part
    return made
