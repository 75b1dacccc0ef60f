"""One iteration in progress, on GPUs whose clocks change meanwhile.

An operation that a change falls into goes on at the new clock with what is left of it. Time is
counted from the start of the iteration. With clocks that stay, the answer is `Plant.iterate`'s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from joulecut_sim.gpt3 import Instruction
from joulecut_sim.plant import Iteration, Plant, StageRun

# Of a stage at a time: its clock, and until when it certainly stays.
Clock = Callable[[int, float], tuple[float, float]]

# A step of the plant begins: its stage, its index, seconds from the start of the iteration.
Begun = Callable[[int, int, float], None]

WHOLE = 1e-12  # of an operation: less is rounding


@dataclass(slots=True)
class _Stage:
    """One GPU: its steps in order, the one under way, and what it has spent."""

    steps: list[int]
    at_s: float = 0.0
    next: int = 0
    left: float = 1.0  # of the step under way
    energy_j: float = 0.0
    busy_s: dict[Instruction, float] = field(
        default_factory=lambda: {"forward": 0.0, "backward": 0.0}
    )


class Execution:
    """One iteration of a plant. `peer_s` is the time of a sibling that is waited for; `begun` is
    called before each operation, which then runs at the clock that it left.
    """

    def __init__(
        self, plant: Plant, peer_s: float = 0.0, limits_w: tuple[float, ...] | None = None,
        begun: Begun = lambda *_: None,
    ) -> None:  # fmt: skip
        self._plant, self._peer_s, self._begun = plant, peer_s, begun
        self._limits_w = limits_w or tuple(sku.power_limit_w for sku in plant.skus)
        self._factors = plant.drawn()
        self._ends_s = [math.inf] * len(plant.steps)
        by_stage: list[list[int]] = [[] for _ in plant.skus]
        for index, step in enumerate(plant.steps):
            by_stage[step.stage].append(index)
        self._stages = [_Stage(steps) for steps in by_stage]
        self._left = len(plant.steps)
        self._lowest_mhz = [math.inf] * plant.stages

    @property
    def operations_left(self) -> int:
        return self._left

    @property
    def own_s(self) -> float:
        """When the last operation ended; infinite while one is left."""
        return max(self._ends_s)

    @property
    def duration_s(self) -> float:
        """Of the iteration, waiting for the sibling included; infinite while it is not known."""
        return max(self.own_s, self._peer_s)

    @property
    def energy_j(self) -> tuple[float, ...]:
        """What each GPU has spent up to the time it was advanced to."""
        return tuple(stage.energy_j for stage in self._stages)

    def advance(self, until_s: float, clock: Clock) -> None:
        """To a time, or to the end of the iteration if that is earlier."""
        moved = True
        while moved:
            moved = False
            for number in range(len(self._stages)):
                moved |= self._advance(number, until_s, clock)
        limit_s = min(until_s, self.duration_s)
        for number, stage in enumerate(self._stages):
            self._wait(number, stage, limit_s)

    def capped_mhz(self, stage: int, asked_mhz: float) -> int:
        """The highest clock that the power cap left the stage."""
        lowest = self._lowest_mhz[stage]
        return int(lowest) if lowest < asked_mhz else self._plant.cap_mhz(stage)

    def iteration(self) -> Iteration:
        """The whole iteration, once it has ended."""
        stages = tuple(
            StageRun(dict(stage.busy_s), stage.energy_j, self._plant.cap_mhz(number))
            for number, stage in enumerate(self._stages)
        )
        return Iteration(self.own_s, self.duration_s, stages)

    def _advance(self, number: int, until_s: float, clock: Clock) -> bool:
        """Runs the operations of one stage that can begin by then; whether there were any."""
        stage, plant, done = self._stages[number], self._plant, False
        while stage.next < len(stage.steps):
            index = stage.steps[stage.next]
            step = plant.steps[index]
            ready_s = self._ends_s[step.needs] if step.needs >= 0 else 0.0
            if max(ready_s, stage.at_s) >= until_s:
                break
            self._wait(number, stage, ready_s)
            if stage.left == 1.0:
                self._begun(number, index, stage.at_s)
            while stage.left > WHOLE and stage.at_s < until_s:
                asked_mhz, holds_s = clock(number, stage.at_s)
                kind, limit_w = step.instruction, self._limits_w[number]
                mhz = plant.limited_mhz(number, kind, asked_mhz, limit_w)
                if mhz < asked_mhz:
                    self._lowest_mhz[number] = min(self._lowest_mhz[number], mhz)
                whole_s = plant.time_s(number, kind, mhz) * self._factors[index]
                spent_s = min(stage.left * whole_s, holds_s - stage.at_s, until_s - stage.at_s)
                stage.left -= spent_s / whole_s
                stage.at_s += spent_s
                stage.busy_s[kind] += spent_s
                stage.energy_j += plant.power_w(number, kind, mhz) * spent_s
            if stage.left > WHOLE:
                break
            self._ends_s[index] = stage.at_s
            stage.next, stage.left, done = stage.next + 1, 1.0, True
            self._left -= 1
        return done

    def _wait(self, number: int, stage: _Stage, until_s: float) -> None:
        """Blocking power until then, where the stage is not at work."""
        if until_s > stage.at_s and stage.left == 1.0:
            stage.energy_j += self._plant.waiting_w(number) * (until_s - stage.at_s)
            stage.at_s = until_s
