"""The plant: one pipeline iteration on simulated GPUs, and its true time and energy.

Each GPU differs a little from its profile in time and in power, and each operation jitters. The
schedule is executed here on its own: nothing is shared with the controller's graph or predictors,
so an error in those shows as a missed prediction and not as agreement with itself.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from joulecut_sim.gpt3 import INSTRUCTIONS, Curve, Instruction, curve
from joulecut_sim.skus import Sku
from joulecut_wire.errors import BadInput

Schedule = Literal["1f1b", "gpipe"]
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe")
OPERATIONS_MAX = 1_000_000  # 64 stages of 4,096 microbatches, twice over


@dataclass(frozen=True, slots=True)
class Step:
    """One operation in a stage's program; `needs` indexes the step it waits for, -1 none."""

    stage: int
    microbatch: int
    instruction: Instruction
    needs: int


@dataclass(frozen=True, slots=True)
class Played:
    """One iteration: when each step began, how long all took, how long each stage worked."""

    begin_s: tuple[float, ...]
    duration_s: float
    busy_s: tuple[float, ...]


def program(schedule: Schedule, stages: int, microbatches: int) -> tuple[Step, ...]:
    """All steps in an order in which each comes after everything it waits for.

    1F1B: stage s starts with min(S-s-1, M) forwards, then alternates forward and backward
    until the forwards run out, then does the backwards left. GPipe: all forwards, then all
    backwards. A forward waits for the stage before, a backward for the stage after.
    """
    if stages < 1 or microbatches < 1 or 2 * stages * microbatches > OPERATIONS_MAX:
        raise BadInput(
            "pipeline",
            f"{stages} stages x {microbatches} microbatches",
            f"at least 1 each, and {OPERATIONS_MAX} operations",
        )
    queues = [_stage_order(schedule, stage, stages, microbatches) for stage in range(stages)]
    place: dict[tuple[int, int, Instruction], int] = {}
    steps: list[Step] = []
    heads = [0] * stages
    while len(steps) < 2 * stages * microbatches:
        for stage, queue in enumerate(queues):
            while heads[stage] < len(queue):
                instruction, microbatch = queue[heads[stage]]
                before = _before(stage, stages, microbatch, instruction)
                if before is not None and before not in place:
                    break
                place[stage, microbatch, instruction] = len(steps)
                needs = -1 if before is None else place[before]
                steps.append(Step(stage, microbatch, instruction, needs))
                heads[stage] += 1
    return tuple(steps)


def play(steps: Sequence[Step], durations_s: Sequence[float], stages: int) -> Played:
    """Runs the steps as early as they can, each taking its duration in seconds."""
    begins: list[float] = []
    ends: list[float] = []
    free = [0.0] * stages
    busy = [0.0] * stages
    for step, duration_s in zip(steps, durations_s, strict=True):
        begin = free[step.stage]
        if step.needs >= 0 and ends[step.needs] > begin:
            begin = ends[step.needs]
        end = begin + duration_s
        begins.append(begin)
        ends.append(end)
        free[step.stage] = end
        busy[step.stage] += duration_s
    return Played(tuple(begins), max(free), tuple(busy))


def _stage_order(
    schedule: Schedule, stage: int, stages: int, microbatches: int
) -> list[tuple[Instruction, int]]:
    warm = microbatches if schedule == "gpipe" else min(stages - stage - 1, microbatches)
    order: list[tuple[Instruction, int]] = [("forward", m) for m in range(warm)]
    for backward, forward in enumerate(range(warm, microbatches)):
        order += [("forward", forward), ("backward", backward)]
    order += [("backward", m) for m in range(microbatches - warm, microbatches)]
    return order


def _before(
    stage: int, stages: int, microbatch: int, instruction: Instruction
) -> tuple[int, int, Instruction] | None:
    """What a step waits for besides its own stage."""
    if instruction == "forward":
        return (stage - 1, microbatch, "forward") if stage else None
    if stage == stages - 1:
        return (stage, microbatch, "forward")
    return (stage + 1, microbatch, "backward")


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations. Defaults are assumed: a healthy, uniform node.

    `operation` per operation and iteration, `gpu_time` and `gpu_power` once per GPU.
    """

    operation: float = 0.01
    gpu_time: float = 0.004
    gpu_power: float = 0.015


@dataclass(frozen=True, slots=True)
class StageRun:
    """One stage in one iteration: seconds worked by instruction, and joules, waiting included."""

    busy_s: dict[Instruction, float]
    energy_j: float
    clock_cap_mhz: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration as it truly happened; `own_s` without waiting for a sibling."""

    own_s: float
    duration_s: float
    stages: tuple[StageRun, ...]

    @property
    def energy_j(self) -> float:
        return sum(stage.energy_j for stage in self.stages)


class Plant:
    """A pipeline job on its GPUs: clocks in, one iteration out."""

    def __init__(
        self, skus: Sequence[Sku], microbatches: int, *, schedule: Schedule = "1f1b",
        time_scale: float = 1.0, noise: Noise | None = None, seed: int = 1,
    ) -> None:  # fmt: skip
        self.skus = tuple(skus)
        self.microbatches = microbatches
        self.time_scale = time_scale
        self.noise = noise or Noise()
        self.steps: tuple[Step, ...] = program(schedule, len(self.skus), microbatches)
        offsets = random.Random(f"gpus {seed}")
        self._dice = random.Random(f"operations {seed}")
        self.time_ratio = [offsets.gauss(1.0, self.noise.gpu_time) for _ in self.skus]
        self.power_ratio = [offsets.gauss(1.0, self.noise.gpu_power) for _ in self.skus]

    @property
    def stages(self) -> int:
        return len(self.skus)

    def curve(self, stage: int, instruction: Instruction) -> Curve:
        return curve(self.skus[stage].name, stage, self.stages, instruction)

    def time_s(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        """Mean time of one operation on this stage's own GPU."""
        shape = self.curve(stage, instruction).time_s(clock_mhz)
        return shape * self.time_scale * self.time_ratio[stage]

    def power_w(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        """Power while that operation runs there."""
        return self.curve(stage, instruction).power_w(clock_mhz) * self.power_ratio[stage]

    def waiting_w(self, stage: int) -> float:
        """Power while that GPU waits for its neighbours."""
        return self.skus[stage].blocking_power_w * self.power_ratio[stage]

    def cap_mhz(self, stage: int) -> int:
        """The clock shown where the power cap binds: the lowest that gives full speed."""
        cap = max(self.curve(stage, instruction).cap_mhz for instruction in INSTRUCTIONS)
        clocks = self.skus[stage].clocks_mhz
        return next((clock for clock in clocks if clock >= cap), clocks[-1])

    def limited_mhz(
        self, stage: int, instruction: Instruction, clock_mhz: float, limit_w: float
    ) -> float:
        """The clock that a power limit leaves an operation: the highest one that draws no more,
        or the card's lowest. At the card's own limit the curve's cap says it already.
        """
        sku = self.skus[stage]
        if limit_w >= sku.power_limit_w or self.power_w(stage, instruction, clock_mhz) <= limit_w:
            return clock_mhz
        clocks = sku.clocks_mhz  # ascending, and power with them
        fitting = bisect_right(
            clocks, limit_w, hi=bisect_left(clocks, clock_mhz),
            key=lambda clock: self.power_w(stage, instruction, clock),
        )  # fmt: skip
        return clocks[fitting - 1] if fitting else sku.clock_min_mhz

    def drawn(self) -> list[float]:
        """By step, how much longer it takes than usual in the next iteration."""
        jitter, gauss = self.noise.operation, self._dice.gauss
        if jitter <= 0.0:
            return [1.0] * len(self.steps)
        # Never below half: a Gaussian has tails that no operation has.
        return [max(0.5, gauss(1.0, jitter)) for _ in self.steps]

    def iterate(
        self,
        clocks_mhz: Sequence[float],
        peer_s: float = 0.0,
        limits_w: Sequence[float] | None = None,
    ) -> Iteration:
        """One iteration at the given clock and power limit per stage, with a sibling that takes
        `peer_s`. Without limits the cards' own.
        """
        limits_w = limits_w or [sku.power_limit_w for sku in self.skus]
        clocks = [
            {kind: self.limited_mhz(stage, kind, clock, limit_w) for kind in INSTRUCTIONS}
            for stage, (clock, limit_w) in enumerate(zip(clocks_mhz, limits_w, strict=True))
        ]
        times = [
            {kind: self.time_s(stage, kind, clock) for kind, clock in by_kind.items()}
            for stage, by_kind in enumerate(clocks)
        ]
        durations = [
            times[step.stage][step.instruction] * factor
            for step, factor in zip(self.steps, self.drawn(), strict=True)
        ]
        played = play(self.steps, durations, self.stages)
        duration_s = max(played.duration_s, peer_s)
        worked: list[dict[Instruction, float]] = [
            {"forward": 0.0, "backward": 0.0} for _ in clocks_mhz
        ]
        for step, time_s in zip(self.steps, durations, strict=True):
            worked[step.stage][step.instruction] += time_s
        stages = []
        for stage, by_kind in enumerate(clocks):
            busy = worked[stage]
            energy_j = sum(
                self.power_w(stage, kind, clock) * busy[kind] for kind, clock in by_kind.items()
            )
            energy_j += self.waiting_w(stage) * (duration_s - played.busy_s[stage])
            limited = max(by_kind.values()) < clocks_mhz[stage]
            cap_mhz = int(max(by_kind.values())) if limited else self.cap_mhz(stage)
            stages.append(StageRun(busy, energy_j, cap_mhz))
        return Iteration(played.duration_s, duration_s, tuple(stages))
