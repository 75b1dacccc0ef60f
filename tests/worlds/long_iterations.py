"""A job whose iterations take 5 to 12 s, with the noise of real clusters.

Iterations vary together (AR(1)), become slower or faster bit by bit, some have a hiccup of seconds
in which nothing computes, and now and then a GPU throttles. True slowdowns are of the plant's own
means at the clocks that were asked for.
"""

import itertools
import random
import statistics
from dataclasses import dataclass, replace

from plant_variants import ReplayPlant, Table
from possible import search
from unprofiled import UnprofiledWorld
from worlds import Agent

from joulecut_sim.plant import Plant
from joulecut_wire.messages import GpuSnapshot

MEAN_ITERATIONS = 24  # for a plant's own mean under its jitter
LOOK_ITERATIONS = 20  # at default clocks: longer stretches are no look at the baseline


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`spread` of whole iterations with `memory` (AR(1)), `drift` of their pace per iteration.

    Shares are of iterations: those with a hiccup, and those at which one GPU begins to throttle.
    """

    spread: float = 0.02
    memory: float = 0.6
    drift: float = 0.0002
    hiccup_share: float = 0.03
    hiccup_s: tuple[float, float] = (1.0, 5.0)
    throttle_share: float = 0.01
    throttle_ratio: float = 0.9
    throttle_iterations: int = 8
    throttle_first: int = 0  # iterations at the start in which the second GPU throttles
    in_operations: bool = True  # whether operations show the spread, or waiting between them


class LongIterationsWorld(UnprofiledWorld):
    """`asked` keeps the clocks of every iteration since the start."""

    def __init__(
        self,
        disturbance: Disturbance,
        *,
        iteration_s: float = 7.0,
        sweep: Table | None = None,
        **world: object,
    ) -> None:
        """`sweep` replaces the simulator's own curves by a measured table of stages."""
        self.seed, self._sweep = int(str(world.get("seed", 1))), sweep
        super().__init__(**world)
        self.plant = self._plant(self.plant.noise.operation)
        default = [self.sku.clock_max_mhz] * self.stages
        scale = self.scale * iteration_s / self._plant(0.0).iterate(default).own_s
        self.plant.time_scale = self.scale = scale
        self.disturbance = disturbance
        self.asked: list[tuple[int, ...]] = []
        self._luck = random.Random(f"disturbance {self.seed}")
        self._wave, self._pace = 0.0, 1.0
        self._throttled: dict[str, int] = {}  # iterations left, by GPU

    def _plant(self, jitter: float) -> Plant:
        noise, made = replace(self.plant.noise, operation=jitter), self.plant
        if self._sweep is None:
            return Plant(
                made.skus, made.microbatches, time_scale=self.scale, noise=noise, seed=self.seed
            )
        return ReplayPlant(
            self.sku,
            self._sweep,
            self.stages,
            made.microbatches,
            time_scale=self.scale,
            noise=noise,
            seed=self.seed,
        )

    def _begin(self) -> None:
        made, luck = self.disturbance, self._luck
        free = (1.0 - made.memory**2) ** 0.5
        self._wave = made.memory * self._wave + free * luck.gauss(0.0, made.spread)
        self._pace *= 1.0 + made.drift
        self._throttled = {u: left - 1 for u, left in self._throttled.items() if left > 1}
        if luck.random() < made.throttle_share:
            self._throttled[luck.choice(self.uuids)] = made.throttle_iterations
        if len(self.asked) < made.throttle_first:
            self._throttled[self.uuids[1]] = 1
        longer = max(0.5, 1.0 + self._wave) * self._pace
        self.asked.append(tuple(self.clocks_mhz()[uuid] for uuid in self.uuids))
        self.slow_ratio = longer if made.in_operations else 1.0
        held = self.clocks_mhz()
        self._clocks = {uuid: self._reached_mhz(uuid, mhz) for uuid, mhz in held.items()}
        run = self.plant.iterate([self._clocks[uuid] for uuid in self.uuids])
        hiccup_s = luck.uniform(*made.hiccup_s) if luck.random() < made.hiccup_share else 0.0
        self._duration_s = run.own_s * longer + hiccup_s
        waits_s = self._duration_s - run.own_s * self.slow_ratio
        stages = tuple(
            replace(
                stage, energy_j=stage.energy_j * self.slow_ratio + self.plant.waiting_w(s) * waits_s
            )
            for s, stage in enumerate(run.stages)
        )
        self._current = replace(run, stages=stages, duration_s=self._duration_s)
        self._began_s, self._ends_s = self.now_s, self.now_s + self._duration_s

    def _reached_mhz(self, uuid: str, mhz: int) -> int:
        limit = self.disturbance.throttle_ratio if uuid in self._throttled else 1.0
        top = min(mhz, self.plant.cap_mhz(self.stage_of[uuid]))
        return int(limit * top) if limit < 1.0 else mhz

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        shown: GpuSnapshot = super()._snapshot(agent, uuid)
        reached = self._reached_mhz(uuid, shown.clock_sm_mhz or 0)
        return replace(shown, clock_sm_mhz=reached)

    # -- the verdict -----------------------------------------------------------------------

    def verdict(self, budget: float) -> "Verdict":
        means: dict[tuple[int, ...], tuple[float, float]] = {}
        default = (self.sku.clock_max_mhz,) * self.stages

        def mean(clocks: tuple[int, ...]) -> tuple[float, float]:
            if clocks not in means:
                judge = self._plant(self.plant.noise.operation)
                runs = [judge.iterate(clocks) for _ in range(MEAN_ITERATIONS)]
                means[clocks] = (
                    statistics.fmean(run.own_s for run in runs),
                    statistics.fmean(run.energy_j for run in runs),
                )
            return means[clocks]

        base_s, base_j = mean(default)
        over = [mean(clocks)[0] / base_s - 1.0 - budget for clocks in self.asked]
        saved = [1.0 - mean(clocks)[1] / base_j for clocks in self.asked]
        possible = search(self._plant(0.0), budget).saved_ratio
        looks = _looks(self.asked, default)
        last = itertools.accumulate(range(len(saved)), lambda a, i: a if i in looks else i)
        return Verdict(possible, tuple(saved[j] for j in last), tuple(over), tuple(self.asked))


def _looks(asked: list[tuple[int, ...]], default: tuple[int, ...]) -> set[int]:
    """Iterations of short stretches at default clocks between or after lowered ones."""
    found: set[int] = set()
    for clocks, group in itertools.groupby(enumerate(asked), key=lambda pair: pair[1]):
        at = [i for i, _ in group]
        if clocks == default and at[0] > 0 and len(at) <= LOOK_ITERATIONS:
            found.update(at)
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """By iteration: true saving and slowdown above the budget. Ratios.

    During a short look at default clocks the saving is that of the clocks before it.
    """

    possible: float
    saved: tuple[float, ...]
    over: tuple[float, ...]
    clocks: tuple[tuple[int, ...], ...]

    def share(self, iteration: int) -> float:
        """Saving of the clocks in force after so many iterations, over the possible."""
        return self.saved[min(iteration, len(self.saved)) - 1] / self.possible

    @property
    def reached(self) -> int | None:
        """Iterations until 90 % were saved for good."""
        below = [i for i, saved in enumerate(self.saved) if saved < 0.9 * self.possible]
        after = below[-1] + 1 if below else 0
        return after if after < len(self.saved) else None

    @property
    def over_in_row(self) -> int:
        """Most settings in a row that were more than 0.05 points over."""
        row = longest = 0
        for at, over in enumerate(self.over):
            if at and self.clocks[at] == self.clocks[at - 1]:
                continue
            row = row + 1 if over > 0.0005 else 0
            longest = max(longest, row)
        return longest
