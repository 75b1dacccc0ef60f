"""A job that nobody profiled, on a virtual clock: the explorer's advice carried out on a plant.

The plant is the simulator's. What a window tells is what agents and job would tell: iteration
times, energy counters, busy times where the job has the hook. The verdict uses the plant's own
means, never a prediction.
"""

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from possible import common, search_in_jitter

from joulecut_controller.learn.advice import Advice, ExplorerInput
from joulecut_controller.learn.explorer import advise
from joulecut_controller.learn.measurement_log import (
    JobConstants,
    Measurement,
    MeasurementLog,
    window_iterations,
)
from joulecut_controller.observe.variance import OperationVariance, ratios
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.pipeline import KINDS, Pipeline
from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ
from joulecut_sim.plant import Iteration, Plant

LEARNING_S = 600.0  # what issue and docs promise: ten minutes ...
REACHED = 0.9  # of what is possible
LEARNING_ITERATIONS = 200  # ... or so many iterations, whichever is later
COUNTER_NOISE = 0.003  # of a window's energy: counters step every 100 ms
MEAN_ITERATIONS = 120  # for a plant's own mean under its jitter; ratios of two: to 0.02 %
OVER = 0.0005  # a window later than this, as a ratio of the default, is over the budget

MakePlant = Callable[[float, int], Plant]  # (jitter of an operation, seed)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What learning came to. Ratios; `over_points` in percentage points of the default time."""

    saved: float
    possible: float
    over_points: float
    over_in_row: int  # longest run of windows over the budget
    slowdown: float
    clocks_mhz: tuple[int, ...]
    best_mhz: tuple[int, ...]
    windows: int
    settled_s: float  # when the clocks last changed
    reached_s: float = math.inf  # first window with 90 % of what is possible

    @property
    def share(self) -> float:
        return self.saved / self.possible


@dataclass
class Course:
    """One job's life. `detailed` is L2: the job tells its busy times; otherwise only its rate.

    `wobble` is the relative spread of whole iterations that no operation explains.
    """

    make: MakePlant
    jitter: float
    seed: int
    budget: float
    detailed: bool
    wobble: float = 0.0
    blocking_power_w: float | None = None
    clock_min_mhz: int = CLOCK_SWEPT_MIN_MHZ
    log: MeasurementLog = field(default_factory=lambda: MeasurementLog("course"))
    advices: list[Advice] = field(default_factory=list)
    windows: list[tuple[tuple[int, ...], float]] = field(default_factory=list)  # clocks, mean s
    now_s: float = 0.0
    iterations: int = 0
    settled_s: float = 0.0

    def __post_init__(self) -> None:
        self.plant = self.make(self.jitter, self.seed)
        self._dice = random.Random(f"course {self.seed}")
        skus = self.plant.skus
        self.default = tuple(
            min(self.plant.cap_mhz(stage), sku.clock_max_mhz) for stage, sku in enumerate(skus)
        )
        self.now_mhz = self.default
        told_w = self.blocking_power_w
        self.constants = JobConstants(
            Pipeline("1f1b", self.plant.stages, self.plant.microbatches),
            self.default,
            skus[0].clock_max_mhz,
            skus[0].blocking_power_w if told_w is None else told_w,
        )
        self.grids = tuple(
            tuple(mhz for mhz in sku.clocks_mhz if self.clock_min_mhz <= mhz <= top)
            for sku, top in zip(skus, self.default, strict=True)
        )
        self.window = window_iterations(self.plant.iterate(self.default).own_s)

    def run(self, seconds: float = LEARNING_S, iterations: int = LEARNING_ITERATIONS) -> None:
        while self.now_s < seconds or self.iterations < iterations:
            self.step()

    def step(self) -> Advice:
        """One window, and what is made of it."""
        self.log, _ = self.log.add(self._measure())
        advice = advise(self.facts(), self.log.measurements)
        self.advices.append(advice)
        if advice.changes and advice.clocks_mhz != self.now_mhz:
            self.now_mhz, self.settled_s = advice.clocks_mhz, self.now_s
        return advice

    def facts(self) -> ExplorerInput:
        budget = Slo(max_slowdown=self.budget).budget(1.0)
        alike = (0,) * self.plant.stages
        return ExplorerInput(self.constants, self.grids, self.now_mhz, budget, self.window, alike)

    def _measure(self) -> Measurement:
        runs = [self.plant.iterate(self.now_mhz) for _ in range(self.window)]
        factors = [max(0.5, self._dice.gauss(1.0, self.wobble)) for _ in runs]
        times = [run.own_s * factor for run, factor in zip(runs, factors, strict=True)]
        stages = range(self.plant.stages)
        energy_j = tuple(
            statistics.fmean(
                run.stages[s].energy_j * factor for run, factor in zip(runs, factors, strict=True)
            )
            * self._dice.gauss(1.0, COUNTER_NOISE)
            for s in stages
        )
        busy_s = tuple(
            tuple(
                statistics.fmean(run.stages[s].busy_s[kind] for run in runs)
                / self.plant.microbatches
                for kind in ("forward", "backward")
            )
            for s in stages
        )
        self.now_s += sum(times)
        self.iterations += self.window
        self.windows.append((self.now_mhz, statistics.fmean(times)))
        return Measurement(
            self.now_mhz,
            self.window,
            statistics.fmean(times),
            statistics.stdev(times),
            energy_j,
            busy_s if self.detailed else (),
            self._operation_sd(runs) if self.detailed else None,
        )

    def _operation_sd(self, runs: list[Iteration]) -> float | None:
        """How far operations stray, by the controller's own measurement of the hook's sums."""
        scatters = [OperationVariance() for _ in range(self.plant.stages)]
        for run in runs:
            for scatter, stage in zip(scatters, run.stages, strict=True):
                scatter.add(*((stage.busy_s[kind], self.plant.microbatches) for kind in KINDS))
        found = ratios(scatters)
        return None if found is None else found[0]

    # -- the verdict -----------------------------------------------------------------------

    def _reached_s(self, still: Plant, enough_j: float) -> float:
        """When the first window began that took so few joules an iteration."""
        began_s, joules = 0.0, {}
        for clocks, mean_s in self.windows:
            if clocks not in joules:
                joules[clocks] = still.iterate(clocks).energy_j
            if joules[clocks] <= enough_j:
                return began_s
            began_s += mean_s * self.window
        return math.inf

    def outcome(self) -> Outcome:
        means: dict[tuple[int, ...], float] = {}

        def mean_s(clocks_mhz: tuple[int, ...]) -> float:
            if clocks_mhz not in means:
                count = MEAN_ITERATIONS if self.jitter else 1
                judge = self.make(self.jitter, self.seed)
                # The same luck at all clocks, and none that a window had.
                judge._dice = random.Random(f"judge {self.seed}")
                means[clocks_mhz] = statistics.fmean(
                    judge.iterate(clocks_mhz).own_s for _ in range(count)
                )
            return means[clocks_mhz]

        still = self.make(0.0, self.seed)
        base_j = still.iterate(self.default).energy_j
        # The search begins at the highest clock, the job where it runs by default: on measured
        # sweeps under a power cap the one may be a percent faster than the other.
        top = tuple(sku.clock_max_mhz for sku in self.plant.skus)
        slower = still.iterate(self.default).own_s / still.iterate(top).own_s
        allowed = (1.0 + self.budget) * slower - 1.0
        search = search_in_jitter if self.detailed else common
        best = search(self.make(self.jitter, self.seed), allowed)
        best_j = still.iterate(best.clocks_mhz).energy_j
        slow = [mean_s(clocks) / mean_s(self.default) - 1.0 for clocks, _ in self.windows]
        row = longest = 0
        for slowdown in slow:
            row = row + 1 if slowdown > self.budget + OVER else 0
            longest = max(longest, row)
        return Outcome(
            saved=1.0 - still.iterate(self.now_mhz).energy_j / base_j,
            possible=1.0 - best_j / base_j,
            over_points=max(0.0, *(100.0 * (s - self.budget) for s in slow)),
            over_in_row=longest,
            slowdown=mean_s(self.now_mhz) / mean_s(self.default) - 1.0,
            clocks_mhz=self.now_mhz,
            best_mhz=best.clocks_mhz,
            windows=len(self.windows),
            settled_s=self.settled_s,
            reached_s=self._reached_s(still, base_j - REACHED * (base_j - best_j)),
        )
