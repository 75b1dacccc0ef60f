"""The most that plans of a granularity could save of the demo's simulated job.

The simulator shares nothing with the solver, so the solver is asked here, with the plant's true
curves. What it finds is a real plan of the plant's mean times, without jitter.
"""

from dataclasses import replace

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import ChangeLimits, Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ, INSTRUCTIONS
from joulecut_sim.plant import Plant


def possible_saved_ratio(
    plant: Plant, slowdown: float, granularity: str, changes: int = 0, min_dwell_s: float = 0.0
) -> float:
    """The saved share of energy within a slowdown: with one clock per GPU (`gpu`), with `changes`
    of each per iteration, at least `min_dwell_s` apart, or with a clock per operation (0).
    """
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for stage, sku in enumerate(plant.skus):
        swept = [mhz for mhz in sku.clocks_mhz if mhz >= CLOCK_SWEPT_MIN_MHZ]
        for kind in INSTRUCTIONS:
            costs = [(mhz, plant.time_s(stage, kind, mhz)) for mhz in swept]
            options[stage, kind] = tuple(
                ClockOption(mhz, time_s, time_s * plant.power_w(stage, kind, mhz))
                for mhz, time_s in costs
            )
    pipeline = Pipeline("1f1b", plant.stages, plant.microbatches)
    waiting_w = tuple(map(plant.waiting_w, range(plant.stages)))
    asked = replace(problem(pipeline, Profile(options), waiting_w[0]), blocking_power_w=waiting_w)
    fastest = baseline(asked)
    goal = Goal(fastest.iteration_time_s * (1.0 + slowdown))
    solvers = [Solver(asked, "gpu")]
    if changes:
        limits = ChangeLimits(changes, min_dwell_s)
        solvers.append(Solver(asked, "changes", limits=limits))
    elif granularity != "gpu":
        solvers.append(Solver(asked, "computation"))
    return 1.0 - min(one.solve(goal).energy_j for one in solvers) / fastest.energy_j
