"""Small pipelines of every shape, and a slow sure way to solve them, for tests of the solver."""

import csv
import io
import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, SCHEDULES, SENDS, Pipeline, Profile, Schedule
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_sim import profile as sim_profile
from joulecut_sim import skus as sim_skus

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "perseus"
PUBLIC = {
    # Blocking powers as published with the profiles (SOSP'24 artifact).
    "a100": (DATA / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv", 83.64),
    "a40": (DATA / "stage_profile" / "gpt3-175b+a40_bf16.csv", 70.38),
}


SIMULATED = {"simulated a100": "a100", "simulated a40": "a40"}
CARDS = {"a100": "a100-sxm", "a40": "a40"}


def rows(name: str) -> list[dict[str, str]]:
    """CSV rows of a profile: simulated without noise, or public (skips where it is absent)."""
    if name in SIMULATED:
        out = io.StringIO(newline="")
        card = sim_skus.CARDS[CARDS[SIMULATED[name]]]
        sim_profile.write(sim_profile.rows(card, 8, scale=1.0, noise=0.0, seed=1), out)
        out.seek(0)
        return list(csv.DictReader(out))
    path = PUBLIC[name][0]
    if not path.is_file():
        pytest.skip(f"no {path}: public profiles are read in place")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def profile_file(name: str, folder: Path) -> Path:
    """A profile as a CSV: public (skips where absent), or simulated with a real sweep's noise."""
    path = PUBLIC[SIMULATED.get(name, name)][0]
    if name in SIMULATED:
        path = folder / f"{name}.csv"
        card = sim_skus.CARDS[CARDS[SIMULATED[name]]]
        with path.open("w", newline="") as file:
            sim_profile.write(sim_profile.rows(card, 8, scale=1.0, noise=1.0, seed=1), file)
    elif not path.is_file():
        pytest.skip(f"no {path}: public profiles are read in place")
    return path


def blocking_power_w(name: str) -> float:
    return PUBLIC[SIMULATED.get(name, name)][1]


def profiled(name: str, microbatches: int, stages: int = 8, schedule: Schedule = "1f1b") -> Problem:
    """A profile as a problem; fewer stages are taken from the end, head included."""
    options = defaultdict(list)
    for row in rows(name):
        option = ClockOption(int(row["frequency"]), float(row["time"]), float(row["energy"]))
        options[int(row["stage"]), row["instruction"]].append(option)
    profile = Profile(
        {
            (stage, kind): tuple(options[8 - stages + stage, kind])
            for stage in range(stages)
            for kind in KINDS
        }
    )
    return problem(Pipeline(schedule, stages, microbatches), profile, blocking_power_w(name))


def with_sends(pipeline: Pipeline, clocks: int, seed: int, send_s: float = 0.004) -> Problem:
    """Clocks like dice; gradients take half as long again as what is sent forwards, and each stage
    sends its way.
    """
    dice, rows = np.random.default_rng(seed), {}
    for stage, kind in itertools.product(range(pipeline.stages), kinds_of(pipeline)):
        times, joules = np.sort(dice.uniform(1, 1.6, clocks)), np.sort(dice.uniform(1, 2, clocks))
        rows[stage, kind] = tuple(
            ClockOption(1400 - 10 * k, 0.1 * float(t), 30 * float(e))
            for k, (t, e) in enumerate(zip(times, joules[::-1], strict=True))
        )
        if kind in SENDS:
            own_s = send_s * (1.0 if kind == "send-forward" else 1.5) + 0.001 * stage
            rows[stage, kind] = (ClockOption(0, own_s, 0.1),)
    powers_w = [60.0 + 4 * stage for stage in range(pipeline.stages)]
    return problem(pipeline, Profile(rows), powers_w, 5.0)


def options(count: int = 4, scale: float = 1.0) -> st.SearchStrategy[tuple[ClockOption, ...]]:
    """Up to `count` options at differing clocks; dominated and equal ones occur."""
    one = st.tuples(st.integers(1, 40), st.integers(1, 40))
    return st.lists(one, min_size=1, max_size=count).map(
        lambda pairs: tuple(
            ClockOption(1000 + 15 * i, 0.01 * scale * time, 0.5 * scale * energy)
            for i, (time, energy) in enumerate(pairs)
        )
    )


@st.composite
def problems(
    draw: st.DrawFn,
    stages_max: int = 2,
    microbatches_max: int = 2,
    options_max: int = 3,
    same_clocks: bool = False,
) -> Problem:
    """A small problem, with blocking power per stage and sometimes an overhead."""
    stages = draw(st.integers(1, stages_max))
    microbatches = draw(st.integers(1, microbatches_max))
    menus = {(stage, kind): draw(options(options_max)) for stage in range(stages) for kind in KINDS}
    if same_clocks:
        least = min(map(len, menus.values()))
        menus = {key: menu[:least] for key, menu in menus.items()}
    return problem(
        Pipeline(draw(st.sampled_from(SCHEDULES)), stages, microbatches),
        Profile(menus),
        [draw(st.sampled_from([0.0, 5.0, 30.0])) for _ in range(stages)],
        draw(st.sampled_from([0.0, 0.0, 20.0])),
    )


def goals(fastest_s: float) -> st.SearchStrategy[Goal]:
    factor = st.sampled_from([1.0, 1.0, 1.05, 1.2, 1.5, 2.0, 5.0])
    return st.builds(lambda f, waits: Goal(fastest_s * f, waits), factor, st.booleans())


def run_times(problem: Problem, clocks: tuple[ClockOption, ...]) -> float:
    """The iteration time, written without looking at the product."""
    ends: list[float] = []
    for i, option in enumerate(clocks):
        ready = [ends[a] for a, b in problem.graph.edges if b == i]
        ends.append(max(ready, default=0.0) + option.time_s)
    return max(ends)


def priced(problem: Problem, goal: Goal, clocks: tuple[ClockOption, ...]) -> float | None:
    """Energy of a choice, or None where it is late."""
    time_s = run_times(problem, clocks)
    if time_s > goal.deadline_s * (1 + 1e-9):
        return None
    charged_s = goal.deadline_s if goal.waits else time_s
    energy_j = problem.overhead_power_w * charged_s
    for operation, option in zip(problem.graph.operations, clocks, strict=True):
        power_w = problem.blocking_power_w[operation.stage]
        energy_j += option.energy_j - power_w * option.time_s
    return energy_j + sum(problem.blocking_power_w) * charged_s


def brute_force(problem: Problem, goal: Goal) -> float | None:
    """Least energy with a clock per operation; every measured option is tried."""
    menus = problem.measured or problem.options
    found = (priced(problem, goal, clocks) for clocks in itertools.product(*menus))
    return min((energy for energy in found if energy is not None), default=None)


def brute_force_gpu(problem: Problem, goal: Goal) -> float | None:
    """Least energy with one clock per stage; None where none is in time."""
    menus = problem.measured or problem.options
    shared = [
        sorted(set.intersection(*({o.clock_mhz for o in menus[i]} for i in indices)))
        for indices in problem.graph.order
    ]
    best: float | None = None
    for choice in itertools.product(*shared):
        clocks = tuple(
            next(o for o in menus[i] if o.clock_mhz == choice[operation.stage])
            for i, operation in enumerate(problem.graph.operations)
        )
        energy = priced(problem, goal, clocks)
        if energy is not None and (best is None or energy < best):
            best = energy
    return best
