"""What few clock changes, timed from the start of an iteration, save of a running job.

    python benchmarks/timed_changes.py [--cards a100-sxm,a40] [--microbatches 48,96]
                                       [--slowdowns 0,1,2] [--noise 1] [--lost 0]
                                       [--granularities changes] [--iterations 200] [--scale 1]
                                       [--waterfall]

Closed loop on a virtual clock: the real controller, the agent's own timing of changes, simulated
GPUs (set latency 20 +- 10 ms, drawn) and a simulated job of eight stages. Times are against default
clocks under the same noise, mean against mean and P95 against P95. `computation` is what a clock
per operation could save at that slowdown, by the solver, without noise. `--waterfall` prints what
lies between that and the running job: predictions with one of the job's own limits after another,
then what is simulated.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))

from timed_agents import TimedWorld, Timing
from worlds import Controller

from joulecut_controller.plan.granularity import GranularityChoice
from joulecut_controller.plan.plan import Plan
from joulecut_controller.policy.policy import ClockPolicy, Slo
from joulecut_controller.store.database import open_store
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.jitter import Noise as NoiseOnPaper
from joulecut_engine.optimize.jitter import Trials, judge_of
from joulecut_engine.optimize.jitter_margin import TOLERANCE, assured
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_sim.plant import Noise

STAGES = 8
PLAN_PASSES = 300  # of 5 s: a baseline of 30 iterations of 19 s takes 120
SETTLE_PASSES = 40
INTERVAL_S = 5.0


class Found(NamedTuple):
    """Of one run; ratios against default clocks under the same noise."""

    granularity: str
    saved_ratio: float
    possible_ratio: float
    mean_ratio: float
    p95_ratio: float
    plans: int
    seconds: float
    steps: tuple[tuple[str, float], ...]  # from a clock per operation on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", default="a100-sxm,a40")
    parser.add_argument("--microbatches", default="48,96")
    parser.add_argument("--slowdowns", default="0,1,2", help="per cent")
    parser.add_argument("--noise", default="1", help="of an operation, per cent")
    parser.add_argument("--lost", default="0", help="of the starts, per cent")
    parser.add_argument("--granularities", default="changes")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all times")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--waterfall", action="store_true")
    given = parser.parse_args()
    print(
        "card      shape   noise  lost  budget  granularity  saved  possible  share    mean     P95"
    )
    for card, count, noise, lost, budget, asked in _cases(given):
        found = run(card, count, noise, lost, budget, asked, given.iterations, given.scale)
        share = found.saved_ratio / found.possible_ratio
        print(
            f"{card:9} 8 x {count:<3} {noise:5.0%} {lost:5.0%} {budget:7.1%}  "
            f"{found.granularity:11} {found.saved_ratio:6.2%} "
            f"{found.possible_ratio:8.2%} {share:7.0%} {found.mean_ratio:+8.2%} "
            f"{found.p95_ratio:+7.2%}  ({found.plans} plans, {found.seconds:.0f} s)",
            flush=True,
        )
        if given.waterfall:
            before = found.possible_ratio
            for name, saved_ratio in found.steps:
                print(f"    {name:44} {saved_ratio:7.2%} {saved_ratio - before:+7.2%}", flush=True)
                before = saved_ratio


def _cases(given: argparse.Namespace) -> Iterator[tuple[str, int, float, float, float, str]]:
    shares = [
        [float(one) / 100.0 for one in given_as.split(",")]
        for given_as in (given.noise, given.lost, given.slowdowns)
    ]
    counts = [int(one) for one in given.microbatches.split(",")]
    yield from product(given.cards.split(","), counts, *shares, given.granularities.split(","))


def run(
    card: str,
    count: int,
    noise: float,
    lost: float,
    budget: float,
    asked: str,
    iterations: int,
    scale: float = 1.0,
) -> Found:
    """One job under control, from its baseline to `iterations` under its plan."""
    began_s = time.perf_counter()
    timing = Timing(lost_ratio=lost)
    quiet = Noise(operation=noise, gpu_time=0.0, gpu_power=0.0)
    shape = {"card": card, "stages": STAGES, "microbatches": count, "scale": scale}
    world = TimedWorld(timing, noise=quiet, **shape)
    word, _, changes = asked.partition(":")
    clocks = ClockPolicy(word, int(changes or 2), 900, 10.0)  # type: ignore[arg-type]
    if card == "a40":
        clocks = ClockPolicy(word, int(changes or 2), 0, 10.0)  # type: ignore[arg-type]
    policy = world.policy(slo=Slo(max_slowdown=budget), clocks=clocks)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        controller = Controller(world, store, policy, interval_s=INTERVAL_S)
        controller.run(PLAN_PASSES, until=lambda: controller.job.applied is not None)
        controller.run(SETTLE_PASSES)
        begun, begun_s, energy_j = len(world.history), world.now_s, sum(world._energy.values())
        while len(world.history) < begun + iterations:
            controller.run(10)
        seconds = [duration_s for _, duration_s, _ in world.history[begun:]]
        top = {world.sku.clock_max_mhz}
        default = statistics.fmean(set(at.values()) == top for *_, at in world.history[begun:])
        spent_w = (sum(world._energy.values()) - energy_j) / (world.now_s - begun_s)
        choice, plan, plans = controller.job.choice, controller.job.applied, len(controller.plans())
        store.close()
    default_s, default_j = _default(world, iterations)
    saved_ratio = 1.0 - spent_w * statistics.fmean(seconds) / default_j
    steps = list(_predicted(world, budget, noise, choice, plan))
    steps.append((f"{default:.0%} of iterations at default clocks", (1 - default) * steps[-1][1]))
    return Found(
        choice.name,
        saved_ratio,
        possible_ratio(world, budget),
        statistics.fmean(seconds) / statistics.fmean(default_s) - 1.0,
        float(np.quantile(seconds, 0.95) / np.quantile(default_s, 0.95)) - 1.0,
        plans,
        time.perf_counter() - began_s,
        (*steps, ("simulated, running", saved_ratio)),
    )


def _predicted(
    world: TimedWorld, budget: float, noise: float, choice: GranularityChoice, running: Plan | None
) -> Iterator[tuple[str, float]]:
    """What the solver promises with one limit of the running job after another."""
    asked = problem(world.pipeline, world.profile(), world.sku.blocking_power_w)
    fastest, limits = baseline(asked), choice.limits
    goal = Goal(fastest.iteration_time_s * (1.0 + budget))
    yield "a clock per operation", possible_ratio(world, budget)
    if not choice.timed:
        return
    for name, granted in (
        (f"{limits.per_iteration} changes of a GPU", replace(limits, min_dwell_s=0.0)),
        (f"each clock kept for {limits.min_dwell_s:.2f} s", limits),
    ):
        solver = Solver(asked, "changes", granted)
        within = Goal(max(goal.deadline_s, solver.fastest_s))
        yield name, 1.0 - solver.solve(within).energy_j / fastest.energy_j
    if noise:
        spread, slowdown = NoiseOnPaper(operation=noise), max(budget, TOLERANCE)
        judge = judge_of(asked, spread)
        target_s = judge.spread(fastest.clocks).mean_s * (1.0 + slowdown)
        goal = Goal(fastest.iteration_time_s * (1.0 + slowdown))
        kept = assured(
            asked, solver, goal, Trials(asked, spread),
            statistic="mean", target_s=target_s, judge=judge,
        )  # fmt: skip
        saved_ratio = 1.0 - kept.plan.energy_j / fastest.energy_j
        yield f"margin for {noise:.0%} noise at {slowdown:+.2%}", saved_ratio
    made = running.forecast if running is not None else None
    if made is not None:
        yield f"the plan's aim, {made.slowdown_ratio:+.2%}", made.saved_by_granularity[0][1]


def _default(world: TimedWorld, iterations: int) -> tuple[list[float], float]:
    """Times and mean energy of iterations at default clocks."""
    clocks = [world.sku.clock_max_mhz] * STAGES
    done = [world.plant.iterate(clocks) for _ in range(iterations)]
    return [one.duration_s for one in done], statistics.fmean(one.energy_j for one in done)


def possible_ratio(world: TimedWorld, budget: float) -> float:
    """What a clock per operation saves within the budget, by the solver."""
    asked = problem(world.pipeline, world.profile(), world.sku.blocking_power_w)
    fastest = baseline(asked)
    plan = Solver(asked, "computation").solve(Goal(fastest.iteration_time_s * (1.0 + budget)))
    return 1.0 - plan.energy_j / fastest.energy_j


if __name__ == "__main__":
    main()
