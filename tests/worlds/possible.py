"""The most that one clock per GPU could have saved, had the plant been known exactly.

The yardstick of plans, so it shares nothing with the solver that made them: it reads the plant's
true mean curves, without jitter, and searches clock vectors by repeated descent over all changes of
two stages, and of one against the rest, from several starts. What it finds is a real plan; on
pipelines small enough for it, exhaustive search agrees.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ, INSTRUCTIONS, Instruction
from joulecut_sim.plant import Plant

Floats = NDArray[np.float64]
Choice = tuple[int, ...]  # an index into the swept clocks, per stage

BATCH = 4096  # clock vectors evaluated at once: 25 MB for 768 operations
REACH = 5  # clocks a single move may go; the last descent goes all the way
DRAWS = 64  # gives the ratio of two plans under equal noise to 0.02 % at 4 % jitter
SEED = 1
PARTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the budget, to begin from
ROUNDS_MAX = 60  # descents take fewer than 20; a bound is a bound


@dataclass(frozen=True, slots=True)
class Possible:
    """The best plan found: one clock per GPU, its iteration time and energy."""

    clocks_mhz: tuple[int, ...]
    iteration_time_s: float
    energy_j: float
    baseline_time_s: float
    baseline_energy_j: float

    @property
    def saved_ratio(self) -> float:
        return 1.0 - self.energy_j / self.baseline_energy_j

    @property
    def slowdown_ratio(self) -> float:
        return self.iteration_time_s / self.baseline_time_s - 1.0


def search(plant: Plant, slowdown: float) -> Possible:
    """The least energy of one iteration within `(1 + slowdown)` of the default clocks' time."""
    grid = Grid(plant)
    top = tuple(len(clocks) - 1 for clocks in grid.clocks)
    base_time, base_energy = grid.evaluate(np.array([top]))
    # A jot more, so that a deadline equal to a plan's own time is kept despite rounding.
    deadline_s = float(base_time[0]) * (1.0 + slowdown) * (1.0 + 1e-12)
    best = (float(base_energy[0]), top)
    for start in grid.starts(deadline_s):
        best = min(best, descend(grid, start, deadline_s, REACH))
    best = descend(grid, best[1], deadline_s, len(grid.clocks[0]))
    return _found(grid, top, best)


def common(plant: Plant, slowdown: float) -> Possible:
    """The same with one clock for all GPUs, in a step of the tables."""
    grid = Grid(plant)
    count = min(map(len, grid.clocks))
    rows = np.array([[len(clocks) - 1 - n for clocks in grid.clocks] for n in range(count)])
    times_s, energies_j = grid.evaluate(rows)
    kept = times_s <= times_s[0] * (1.0 + slowdown) * (1.0 + 1e-12)
    best = int(np.argmin(np.where(kept, energies_j, np.inf)))
    return _found(grid, tuple(rows[0]), (float(energies_j[best]), tuple(rows[best])))


def search_in_jitter(plant: Plant, slowdown: float) -> Possible:
    """As `search`, with operations that jitter by `plant.noise.operation`.

    The mean iteration keeps the deadline, under the same noise for every plan. The slowest of
    several jittering stages is slower than each, so plans exact on mean times come late.
    """
    if plant.noise.operation <= 0.0:
        return search(plant, slowdown)
    dice = np.random.default_rng(SEED)
    noise = dice.normal(1.0, plant.noise.operation, (len(plant.steps), DRAWS))
    grid = Grid(plant, np.maximum(0.5, noise))  # as the plant does
    top = tuple(len(clocks) - 1 for clocks in grid.clocks)
    base_time, base_energy = grid.evaluate(np.array([top]))
    deadline_s = float(base_time[0]) * (1.0 + slowdown) * (1.0 + 1e-12)
    best = (float(base_energy[0]), top)
    for part in PARTS:
        exact = search(plant, slowdown * part)
        start = tuple(
            int(np.searchsorted(clocks, mhz))
            for clocks, mhz in zip(grid.clocks, exact.clocks_mhz, strict=True)
        )
        if np.isfinite(best_of(grid, np.array([start]), deadline_s)[0]):
            best = min(best, descend(grid, start, deadline_s, REACH))
            break
    best = min(best, descend(grid, top, deadline_s, REACH))
    return _found(grid, top, best)


def _found(grid: "Grid", top: Choice, best: tuple[float, Choice]) -> Possible:
    """`top` are the default clocks, `best` an energy and its clocks."""
    time_s, energy_j = map(np.ndarray.tolist, grid.evaluate(np.array([top, best[1]])))
    clocks = zip(grid.clocks, best[1], strict=True)
    return Possible(
        tuple(int(swept[at]) for swept, at in clocks), time_s[1], best[0], time_s[0], energy_j[0]
    )


class Grid:
    """The plant's mean time and power at every swept clock, and many plans at once.

    `factors` of shape (steps, iterations) stretch the operations: times are means over iterations.
    """

    def __init__(self, plant: Plant, factors: Floats | None = None) -> None:
        self._steps = plant.steps
        self._factors = np.ones((len(self._steps), 1)) if factors is None else factors
        self.stages = plant.stages
        self._microbatches = plant.microbatches
        self._waiting_w = np.array([plant.waiting_w(stage) for stage in range(self.stages)])
        self.clocks: list[NDArray[np.int64]] = []
        self._time: list[dict[Instruction, Floats]] = []
        self._busy: list[Floats] = []
        self._energy: list[Floats] = []
        for stage, sku in enumerate(plant.skus):
            clocks = [clock for clock in sku.clocks_mhz if clock >= CLOCK_SWEPT_MIN_MHZ]
            time: dict[Instruction, Floats] = {
                kind: np.array([plant.time_s(stage, kind, clock) for clock in clocks])
                for kind in INSTRUCTIONS
            }
            power = {
                kind: np.array([plant.power_w(stage, kind, clock) for clock in clocks])
                for kind in INSTRUCTIONS
            }
            self.clocks.append(np.array(clocks))
            self._time.append(time)
            self._busy.append((time["forward"] + time["backward"]) * self._microbatches)
            self._energy.append(
                (time["forward"] * power["forward"] + time["backward"] * power["backward"])
                * self._microbatches
            )

    @property
    def iterations(self) -> int:
        return int(self._factors.shape[1])

    def evaluate(self, choices: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Iteration time and energy of many plans; `choices` has shape (plans, stages)."""
        durations = [
            {kind: self._time[stage][kind][choices[:, stage]] for kind in INSTRUCTIONS}
            for stage in range(self.stages)
        ]
        free: list[Floats] = [np.zeros((len(choices), 1)) for _ in range(self.stages)]
        ends: list[Floats] = []
        for step, factors in zip(self._steps, self._factors, strict=True):
            begin = free[step.stage]
            if step.needs >= 0:
                begin = np.maximum(begin, ends[step.needs])
            end = begin + durations[step.stage][step.instruction][:, None] * factors
            free[step.stage] = end
            ends.append(end)
        time_s = np.maximum.reduce(free).mean(axis=1)
        energy_j = np.zeros(len(choices))
        for stage in range(self.stages):
            at = choices[:, stage]
            energy_j += self._energy[stage][at]
            energy_j += self._waiting_w[stage] * (time_s - self._busy[stage][at])
        return time_s, energy_j

    def starts(self, deadline_s: float) -> Iterator[Choice]:
        """Plans to descend from: each stage as slow as its own work allows, and the top."""
        yield tuple(len(clocks) - 1 for clocks in self.clocks)
        for share in (0.80, 0.84, 0.88, 0.92, 0.96):
            yield tuple(
                int(np.argmax(busy <= deadline_s * share))
                if (busy <= deadline_s * share).any()
                else len(busy) - 1
                for busy in self._busy
            )


def descend(grid: Grid, start: Choice, deadline_s: float, reach: int) -> tuple[float, Choice]:
    """The best of all moves of up to `reach` clocks, again and again, until none helps."""
    here = best_of(grid, np.array([start]), deadline_s)
    for _ in range(ROUNDS_MAX):
        found = here
        moves = _moves(grid.stages, reach) + np.array(here[1])
        tops = np.array([len(clocks) - 1 for clocks in grid.clocks])
        moves = moves[((moves >= 0) & (moves <= tops)).all(axis=1)]
        batch = max(1, BATCH // grid.iterations)
        for at in range(0, len(moves), batch):
            found = min(found, best_of(grid, moves[at : at + batch], deadline_s))
        if found[0] >= here[0]:
            break
        here = found
    return here


def best_of(grid: Grid, choices: NDArray[np.int64], deadline_s: float) -> tuple[float, Choice]:
    time_s, energy_j = grid.evaluate(choices)
    energy_j = np.where(time_s <= deadline_s, energy_j, np.inf)
    at = int(np.argmin(energy_j))
    return float(energy_j[at]), tuple(int(clock) for clock in choices[at])


def _moves(stages: int, reach: int) -> NDArray[np.int64]:
    """Every change of two stages, and of one stage against all others, as rows of steps."""
    steps = range(-reach, reach + 1)
    rows: list[list[int]] = []
    for first, second in itertools.product(steps, steps):
        for one, other in itertools.combinations(range(stages), 2):
            row = [0] * stages
            row[one], row[other] = first, second
            rows.append(row)
        for one in range(stages):
            row = [second] * stages
            row[one] = first
            rows.append(row)
    return np.array(rows, dtype=np.int64)
