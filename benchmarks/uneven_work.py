"""Two production jobs, operation by operation: what explains them, what plans on them keep.

    python benchmarks/uneven_work.py

Reads ../shared/data/stragglers (ByteDance-Seed/StragglerAnalysis, OSDI'25) in place. Durations are
measured; clocks and energies are not in them, so a published profile stands under them (GPT-3 175B
on A100, second stage), and savings are predicted.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet

from joulecut_controller.sources.profile import read
from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline
from joulecut_engine.optimize.drawn_choices import Statistic
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.jitter import Noise, Trials, judge_of
from joulecut_engine.optimize.jitter_margin import assured
from joulecut_engine.optimize.levels import levels_of
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.recorded import Recorded, recorded
from joulecut_engine.optimize.slow_part import slow_part
from joulecut_engine.optimize.solver import Solver

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA = SHARED / "stragglers"
PROFILE = SHARED / "perseus" / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv"
BLOCKING_POWER_W = 83.64  # of that A100 while it waits, published with the profile (SOSP'24)
STAGE = 1  # of the profile
EXPLAINED_RATIO = 0.03
Floats = NDArray[np.float64]
Curve = dict[Kind, dict[int, tuple[float, float]]]  # by clock: time and energy over default


@dataclass(frozen=True)
class Job:
    """`seconds` (steps, pipelines, operations) and `measured_s` (steps, pipelines)."""

    graph: Graph
    seconds: Floats
    measured_s: Floats

    @property
    def flat(self) -> Floats:
        return self.seconds.reshape(-1, self.seconds.shape[-1])

    def half(self, second: bool) -> "Job":
        steps = len(self.seconds) // 2
        part = slice(steps, None) if second else slice(steps)
        return Job(self.graph, self.seconds[part], self.measured_s[part])

    def step_s(self, factors: Floats) -> Floats:
        """Seconds of each step with every operation `factors` (operations,) as long."""
        pipelines = self.seconds.shape[1]
        times_s = (
            levels_of(self.graph).iteration_times((self.flat * factors).T).reshape(-1, pipelines)
        )
        slowest: Floats = times_s.max(axis=1)
        return slowest


def job(name: str) -> Job:
    """Raises FileNotFoundError."""
    table = parquet.read_table(DATA / f"trace-{name}.parquet")
    columns = {column: table[column].to_numpy() for column in table.column_names}
    computes = np.isin(columns["optype"], ["forward-compute", "backward-compute"])
    one = {column: values[computes] for column, values in columns.items()}
    stages, microbatches = int(one["stage"].max()) + 1, int(one["mb_id"].max()) + 1
    graph = build(Pipeline("1f1b", stages, microbatches))
    column = np.zeros((2, stages, microbatches), dtype=np.int64)
    for i, operation in enumerate(graph.operations):
        column[int(operation.kind == "forward"), operation.stage, operation.microbatch] = i
    forward = (one["optype"] == "forward-compute").astype(np.int64)
    steps, step = np.unique(one["step"], return_inverse=True)
    at = step, one["dp_rank"]
    operation_of = column[forward, one["stage"], one["mb_id"]]
    shape = (len(steps), int(one["dp_rank"].max()) + 1)
    seconds, ranks = (np.zeros((*shape, len(graph.operations))) for _ in range(2))
    np.add.at(seconds, (*at, operation_of), one["duration"])  # mean over the tensor-parallel group
    np.add.at(ranks, (*at, operation_of), 1.0)
    begin_s, end_s = np.full(shape, np.inf), np.zeros(shape)
    np.minimum.at(begin_s, at, one["start_ts"])
    np.maximum.at(end_s, at, one["start_ts"] + one["duration"])
    return Job(graph, seconds / ranks, end_s - begin_s)


def explained(one: Job) -> tuple[Floats, Floats]:
    """Modelled over measured time of each pipeline: by its means, and by its own operations."""
    means = one.flat.copy()
    for columns in _columns(one.graph).values():
        means[:, columns] = means[:, columns].mean(axis=1, keepdims=True)
    measured_s = one.measured_s.ravel()
    by_means, by_own = (levels_of(one.graph).iteration_times(each.T) for each in (means, one.flat))
    return by_means / measured_s, by_own / measured_s


def curve() -> Curve:
    """Raises BadInput where the profile is not there."""
    options = read(PROFILE).options
    made: Curve = {}
    for kind in ("forward", "backward"):
        top = max(options[STAGE, kind], key=lambda option: option.clock_mhz)
        made[kind] = {
            option.clock_mhz: (option.time_s / top.time_s, option.energy_j / top.time_s)
            for option in options[STAGE, kind]
        }
    return made


@dataclass(frozen=True)
class Outcome:
    """Of a plan on steps it has not seen: energy saved, lateness beyond the budget."""

    saved_ratio: float
    late_ratio: float
    clocks_mhz: tuple[int, ...]


def outcome(
    later: Job, card: Curve, clocks: list[int], statistic: Statistic, slow: float
) -> Outcome:
    """One clock per operation of the graph, against default clocks."""
    before_s, after_s = (later.step_s(_factors(later.graph, card, c)) for c in (None, clocks))
    before_j, after_j = (
        _energy_j(later, card, c, s) for c, s in ((None, before_s), (clocks, after_s))
    )
    late = _of(after_s, statistic) / _of(before_s, statistic) - 1.0 - slow
    stages = tuple(clocks[order[0]] for order in later.graph.order)
    return Outcome(1.0 - after_j / before_j, late, stages)


def planned(
    seen: Job, card: Curve, statistic: Statistic, slow: float, *, recording: bool = True
) -> list[int]:
    """A clock for each operation, one per stage, planned on `seen`; by the distribution of single
    operations without `recording`.
    """
    operations = seen.graph.operations
    menus = {
        (stage, kind): tuple(
            ClockOption(mhz, time * mean_s, energy * mean_s)
            for mhz, (time, energy) in card[kind].items()
        )
        for (stage, kind), columns in _columns(seen.graph).items()
        for mean_s in [float(seen.flat[:, columns].mean())]
    }
    problem = priced(seen.graph, [menus[o.stage, o.kind] for o in operations], BLOCKING_POWER_W)
    kept: Recorded = recorded(seen.graph, seen.flat)
    siblings = seen.seconds.shape[1]
    noise = Noise(operation=float(kept.factors.std()), siblings=siblings)
    if recording:
        noise = Noise(siblings=siblings, recorded=kept)
    solver, judge = Solver(problem, "gpu"), judge_of(problem, noise)
    usual = [max(menus[o.stage, o.kind], key=lambda m: m.clock_mhz) for o in operations]
    spread = judge.spread(usual)
    target_s = (spread.mean_s if statistic == "mean" else spread.p95_s) * (1.0 + slow)
    found = assured(
        problem,
        solver,
        Goal(2.0 * solver.fastest_s),
        Trials(problem, noise),
        statistic=statistic,
        target_s=target_s,
        judge=judge,
    )
    return [option.clock_mhz for option in found.plan.clocks]


def hindsight(later: Job, card: Curve, statistic: Statistic, slow: float) -> Outcome:
    """The best fixed clocks of two stages, known only afterwards."""
    stage_of = [operation.stage for operation in later.graph.operations]
    choices = [
        outcome(later, card, [pair[stage] for stage in stage_of], statistic, slow)
        for pair in ((a, b) for a in card["forward"] for b in card["forward"])
    ]
    return max((c for c in choices if c.late_ratio <= 0.0), key=lambda c: c.saved_ratio)


def _columns(graph: Graph) -> dict[tuple[int, Kind], list[int]]:
    found: dict[tuple[int, Kind], list[int]] = {}
    for i, operation in enumerate(graph.operations):
        found.setdefault((operation.stage, operation.kind), []).append(i)
    return found


def _factors(graph: Graph, card: Curve, clocks: list[int] | None, of: int = 0) -> Floats:
    top = max(card["forward"])
    chosen = clocks or [top] * len(graph.operations)
    pairs = zip(graph.operations, chosen, strict=True)
    return np.array([card[operation.kind][mhz][of] for operation, mhz in pairs])


def _energy_j(one: Job, card: Curve, clocks: list[int] | None, step_s: Floats) -> float:
    busy_s = one.seconds @ _factors(one.graph, card, clocks)
    energy_j = one.seconds @ _factors(one.graph, card, clocks, of=1)
    waiting_s = len(one.graph.order) * step_s[:, None] - busy_s
    return float((energy_j + BLOCKING_POWER_W * waiting_s).sum())


def _of(times_s: Floats, statistic: Statistic) -> float:
    return float(times_s.mean() if statistic == "mean" else np.quantile(times_s, 0.95))


def main() -> None:
    jobs = {name: job(name) for name in ("AR", "SE")}
    print("| job, report | mean error | worst | above 3 % |\n|---|---|---|---|")
    for name, one in jobs.items():
        for words, ratio in zip(("means", "each operation"), explained(one), strict=True):
            error = ratio - 1.0
            most, above = np.abs(error).max(), (np.abs(error) > EXPLAINED_RATIO).mean()
            print(f"| {name}, {words} | {error.mean():+.2%} | {most:.2%} | {above:.1%} |")
    card, seen, later = curve(), jobs["SE"].half(False), jobs["SE"].half(True)
    print("\n| SE | saved, late | in hindsight | by a distribution |\n|---|---|---|---|")
    for statistic in ("mean", "p95"):
        for slow in (0.01, 0.02, 0.05):
            plans = [planned(seen, card, statistic, slow, recording=how) for how in (True, False)]
            made = [outcome(later, card, clocks, statistic, slow) for clocks in plans]
            best = hindsight(later, card, statistic, slow).saved_ratio
            ours, other = (f"{m.saved_ratio:.2%}, {100 * m.late_ratio:+.2f}" for m in made)
            print(f"| {statistic}, {slow:.0%} | {ours} | {best:.2%} | {other} |")
    for name, one in jobs.items():
        steps = zip(one.seconds, one.measured_s.tolist(), strict=True)
        parts = [slow_part(one.graph, *step) for step in steps]
        names = sorted({f"{part.name} ({part.cause})" for part in parts if part})
        print(f"\n{name}: {sum(map(bool, parts))} of {len(parts)} steps are delayed: {names}")


if __name__ == "__main__":
    main()
