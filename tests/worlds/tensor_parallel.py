"""A pipeline whose stages are tensor-parallel groups, each spread over both nodes.

The GPUs of a group share every operation: each does its part at its own pace, and all wait for the
slowest. So every member reports the same busy times, the waiting for the others included.
"""

from collections.abc import Sequence

from worlds import Agent, World

from joulecut_engine.graph.pipeline import Pipeline
from joulecut_sim.gpt3 import INSTRUCTIONS, Instruction
from joulecut_sim.plant import Iteration, Noise, Plant, StageRun, play
from joulecut_sim.skus import Sku


class GroupPlant(Plant):
    """Groups of GPUs in a row. `member_ratios[stage]` are the times of its GPUs over the card's.

    `time_s` and `power_w` are those of one GPU of a group under one clock.
    """

    def __init__(
        self,
        sku: Sku,
        microbatches: int,
        *,
        member_ratios: Sequence[Sequence[float]],
        time_scale: float,
        noise: Noise,
        seed: int = 1,
    ) -> None:
        super().__init__(
            [sku] * len(member_ratios), microbatches, time_scale=time_scale, noise=noise, seed=seed
        )
        self.member_ratios = tuple(tuple(ratios) for ratios in member_ratios)

    def time_s(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        own_s: float = super().time_s(stage, instruction, clock_mhz)
        return own_s * max(self.member_ratios[stage])

    def power_w(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        ratios = self.member_ratios[stage]
        working_w: float = super().power_w(stage, instruction, clock_mhz)
        works = sum(ratios) / len(ratios) / max(ratios)
        return works * working_w + (1.0 - works) * self.waiting_w(stage)

    def iterate(
        self,
        clocks_mhz: Sequence[float],
        peer_s: float = 0.0,
        limits_w: Sequence[float] | None = None,
    ) -> Iteration:
        """One iteration at the given clock per GPU, by stage. No power limit below the card's."""
        clocks = iter(clocks_mhz)
        clocks_of = [[next(clocks) for _ in ratios] for ratios in self.member_ratios]
        own_s = [
            {kind: self._own_s(stage, kind, of) for kind in INSTRUCTIONS}
            for stage, of in enumerate(clocks_of)
        ]
        gauss, jitter = self._dice.gauss, self.noise.operation
        durations = [
            max(own_s[step.stage][step.instruction]) * max(0.5, gauss(1.0, jitter))
            for step in self.steps
        ]
        played = play(self.steps, durations, self.stages)
        busy: list[dict[Instruction, float]] = [{"forward": 0.0, "backward": 0.0} for _ in own_s]
        for step, time_s in zip(self.steps, durations, strict=True):
            busy[step.stage][step.instruction] += time_s
        duration_s = max(played.duration_s, peer_s)
        runs = []
        for stage, of in enumerate(clocks_of):
            for member, clock_mhz in enumerate(of):
                works_s = working_j = 0.0
                for kind in INSTRUCTIONS:
                    times = own_s[stage][kind]
                    part_s = busy[stage][kind] * times[member] / max(times)
                    works_s += part_s
                    working_j += part_s * super().power_w(stage, kind, clock_mhz)
                waiting_j = self.waiting_w(stage) * (duration_s - works_s)
                runs.append(StageRun(busy[stage], working_j + waiting_j, self.cap_mhz(stage)))
        return Iteration(played.duration_s, duration_s, tuple(runs))

    def _own_s(self, stage: int, kind: Instruction, clocks_mhz: Sequence[float]) -> list[float]:
        return [
            super(GroupPlant, self).time_s(stage, kind, clock_mhz) * ratio
            for ratio, clock_mhz in zip(self.member_ratios[stage], clocks_mhz, strict=True)
        ]


class GroupWorld(World):
    """2 stages of 2 GPUs each, one of each pair on either node; GPU `slow` takes 5 % longer."""

    def __init__(self, *, slow: int = 0, microbatches: int = 12, seed: int = 1) -> None:
        super().__init__(stages=2, microbatches=microbatches)
        self.pipeline = Pipeline("1f1b", 2, microbatches, tensor_parallel=2)
        ratios = [1.05 if gpu == slow else 1.0 for gpu in range(4)]
        self.plant = GroupPlant(
            self.sku,
            microbatches,
            member_ratios=(ratios[:2], ratios[2:]),
            time_scale=self.scale,
            noise=Noise(),
            seed=seed,
        )
        self.uuids = tuple(f"GPU-{stage}-{member}" for stage in range(2) for member in range(2))
        self.stage_of = {uuid: gpu // 2 for gpu, uuid in enumerate(self.uuids)}
        self.agents = {
            "n1:1": Agent("n1:1", "n1", self.uuids[0::2]),
            "n2:1": Agent("n2:1", "n2", self.uuids[1::2]),
        }
        self._energy = dict.fromkeys(self.uuids, 0.0)

    def lowered(self) -> set[str]:
        """GPUs below their default clock."""
        clocks = self.clocks_mhz()
        return {uuid for uuid, clock_mhz in clocks.items() if clock_mhz < self.sku.clock_max_mhz}
