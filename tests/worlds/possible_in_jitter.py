"""The most that one clock per GPU could save of a plant whose operations jitter."""

import numpy as np

from joulecut_sim.plant import Plant
from joulecut_sim.possible import REACH, Grid, Possible, best_of, descend, search

DRAWS = 64  # gives the ratio of two plans under equal noise to 0.02 % at 4 % jitter
SEED = 1
PARTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the budget, to begin from


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
    time_s, _ = grid.evaluate(np.array([best[1]]))
    return Possible(
        tuple(int(grid.clocks[stage][at]) for stage, at in enumerate(best[1])),
        float(time_s[0]),
        best[0],
        float(base_time[0]),
        float(base_energy[0]),
    )
