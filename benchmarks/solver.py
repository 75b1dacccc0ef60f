"""How fast and how close to the bound plans are, beside two public references.

    python benchmarks/solver.py [--quick] [--only lowtime,highs,large,gaps] [--out FILE]

One run, one machine, one DAG and profile for all. lowtime 0.3.0 (`uv pip install --group
bench`) walks from the slowest plan to the fastest, one time unit at a time, so its whole
frontier is what one of its answers costs. Realised times and energies of its plans are
recomputed from the measured durations, because it plans with times rounded down. scipy's
HiGHS gets the relaxation as a linear program; writing it down is not counted. It and ours take
turns, medians count. CPU seconds of this process are compared, so that neighbours on the machine
matter less.

Machine code is loaded before the clock starts; what that takes is printed. Options are
filtered on raw energy before blocking power is taken off, as lowtime's own published
frontiers are (the other order gives it twice as many points).
"""

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import numpy as np
from lowtime.cost_model import ExponentialModel
from lowtime.graph_utils import add_sink_node, add_source_node
from lowtime.operation import (
    CandidateExecutionOptions,
    ExecutionOption,
    Operation,
    OperationSpec,
)
from lowtime.solver import PhillipsDessouky
from scipy import sparse
from scipy.optimize import linprog

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Granularity, Pipeline, Profile
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.curves import curves_of
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_engine.optimize.solver import Solver, frontier
from joulecut_engine.optimize.warmup import warm_up

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT.parent / "shared" / "data" / "perseus" / "stage_profile"
A100, A40 = "gpt3-175b+a100_sxm_bf16.csv", "gpt3-175b+a40_bf16.csv"
BLOCKING_POWER_W = {A100: 83.64, A40: 70.38}  # as published with the profiles
UNIT_S = 1e-3  # lowtime's default
POINTS = 100
REPEATS = 5  # the median counts
EACH = 3  # of ours for each of HiGHS: a tenth of its time is more easily disturbed
COMPARED_MAX = 300  # of lowtime's plans, evenly spaced, compared with ours at the same time
# With sixteen stages, those in the middle occur twice; the last carries the head, also of four.
STAGES = {
    4: (0, 1, 2, 7),
    8: tuple(range(8)),
    16: tuple(round(k * 7 / 15) for k in range(16)),
}
SLOWDOWNS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Timed:
    """CPU seconds of this process, wall seconds, and what was computed."""

    cpu_s: float
    wall_s: float
    result: object


def timed(run: Callable[[], object]) -> Timed:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = run()
    return Timed(time.process_time() - cpu_s, time.perf_counter() - wall_s, result)


def read(name: str, stages: int, microbatches: int) -> Problem:
    options = defaultdict(list)
    with (PROFILES / name).open(newline="") as file:
        for row in csv.DictReader(file):
            option = ClockOption(int(row["frequency"]), float(row["time"]), float(row["energy"]))
            options[int(row["stage"]), row["instruction"]].append(option)
    menus = {
        (stage, kind): tuple(options[source, kind])
        for stage, source in enumerate(STAGES[stages])
        for kind in KINDS
    }
    pipeline = Pipeline("1f1b", stages, microbatches)
    return problem(pipeline, Profile(menus), BLOCKING_POWER_W[name])


def lowtime_dag(asked: Problem) -> nx.DiGraph:
    """The same operations and dependencies, for lowtime."""
    specs: dict[int, OperationSpec[ClockOption]] = {}
    for operation, options in zip(asked.graph.operations, asked.measured, strict=True):
        if id(options) in specs:
            continue
        power_w = asked.blocking_power_w[operation.stage]
        candidates = CandidateExecutionOptions(
            [ExecutionOption(o.time_s, UNIT_S, o.energy_j, o) for o in options]
        )
        for option in candidates.options:
            option.cost -= power_w * option.quant_time * UNIT_S
        with warnings.catch_warnings():  # its grid search tries starts that overflow
            warnings.simplefilter("ignore")
            model = ExponentialModel(candidates, search_strategy="best")
        specs[id(options)] = OperationSpec(candidates, model)
    dag = nx.DiGraph()
    for i, options in enumerate(asked.measured):
        dag.add_node(i, op=Operation(specs[id(options)]))
    dag.add_edges_from(asked.graph.edges)
    add_source_node(dag, -1)
    add_sink_node(dag, -2)
    dag.graph["source_node"], dag.graph["sink_node"] = -1, -2
    return dag


def lowtime_plans(asked: Problem, dag: nx.DiGraph) -> list[tuple[ClockOption, ...]]:
    """Clocks of every plan on its way from slowest to fastest."""
    operations = [dag.nodes[i]["op"] for i in range(len(asked.graph.operations))]
    return [
        tuple(operation.assigned_knob for operation in operations)
        for _ in PhillipsDessouky(dag).run()
    ]


def median(run: Callable[[], object]) -> Timed:
    times = sorted((timed(run) for _ in range(REPEATS)), key=lambda one: one.cpu_s)
    return times[REPEATS // 2]


def against_lowtime(name: str, stages: int, microbatches: int) -> list[str]:
    """Frontier against frontier, one deadline against its frontier, plan against plan."""
    asked = read(name, stages, microbatches)
    dag = lowtime_dag(asked)  # cost-model fits are not counted
    theirs = timed(lambda: lowtime_plans(asked, dag))
    plans = theirs.result
    assert isinstance(plans, list)
    fastest = plans[-1]  # the plan it gives for "no slower than now"
    time_s, _ = makespan(asked, fastest)
    goal = Goal(time_s)  # the same real iteration time for both
    one = median(lambda: Solver(asked, "computation").solve(goal))
    many = median(lambda: frontier(asked, POINTS, "computation"))
    step = max(1, len(plans) // COMPARED_MAX)
    compared = [fastest, *plans[::step]]
    kept = Solver(asked, "computation")
    worst = max(_above(asked, kept.at, clocks) for clocks in compared)
    assert check(asked, goal, one.result) == ()
    return [
        f"{stages} x {microbatches}",
        f"{len(plans)}",
        f"{theirs.cpu_s:.1f}",
        f"{many.cpu_s:.3f}",
        f"{theirs.cpu_s / many.cpu_s:.0f}",
        f"{one.cpu_s * 1e3:.1f}",
        f"{theirs.cpu_s / one.cpu_s:.0f}",
        f"{(energy(asked, fastest, time_s) / one.result.lower_bound_j - 1) * 100:.2f} %",
        f"{one.result.gap * 100:.2f} %",
        f"{worst * 100:+.3f} %",
    ]


def _above(
    asked: Problem, ours: Callable[[Goal], Solution], clocks: tuple[ClockOption, ...]
) -> float:
    """Our energy over theirs at the time their plan really takes."""
    time_s, _ = makespan(asked, clocks)
    return ours(Goal(time_s)).energy_j / energy(asked, clocks, time_s) - 1


def against_highs(name: str, microbatches: int, slowdown: float) -> list[str]:
    """One cold deadline with rounding against the relaxation alone; then neighbours, warm."""
    asked = read(name, 8, microbatches)
    goal = Goal(baseline(asked).iteration_time_s * (1 + slowdown))
    highs: list[tuple[float, float]] = []
    colds: list[Timed] = []
    for _ in range(REPEATS):  # in turn, so that a busy minute meets both
        highs.append(linear_program(asked, goal))
        ours = (lambda: Solver(asked, "computation").solve(goal) for _ in range(EACH))
        colds.extend(map(timed, ours))
    optimum_j, highs_s = sorted(highs, key=lambda one: one[1])[REPEATS // 2]
    cold = sorted(colds, key=lambda one: one.cpu_s)[REPEATS * EACH // 2]
    bound_j = Solver(asked, "computation").solve(goal).lower_bound_j
    kept = Solver(asked, "computation")
    kept.at(goal)
    near = [
        timed(lambda k=k: kept.at(Goal(goal.deadline_s * (1 + 0.001 * k)))) for k in range(1, 10)
    ]
    warm_s = sorted(one.cpu_s for one in near)[4]
    return [
        shown(name),
        f"8 x {microbatches}",
        f"{slowdown * 100:g} %",
        f"{highs_s * 1e3:.0f}",
        f"{cold.cpu_s * 1e3:.1f}",
        f"{highs_s / cold.cpu_s:.1f}",
        f"{cold.result.gap * 100:.2f} %",
        f"{warm_s * 1e3:.1f}",
        f"{bound_j / optimum_j - 1:+.0e}",
    ]


def linear_program(asked: Problem, goal: Goal) -> tuple[float, float]:
    """The same relaxation for HiGHS: starts, hull segments, end. Its optimum and seconds."""
    count = len(asked.graph.operations)
    curves = curves_of(asked)
    each = [curves.distinct[c] for c in curves.curve]
    segments = np.array([len(curve.saved_w) for curve in each])
    first = count + np.cumsum(segments) - segments
    end = count + int(segments.sum())
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    right: list[float] = []

    def add(before: int, after: int) -> None:
        used = range(first[before], first[before] + segments[before])
        rows.extend([len(right)] * (2 + segments[before]))
        columns.extend([before, after, *used])
        values.extend([1.0, -1.0, *[1.0] * segments[before]])
        right.append(-float(each[before].time_s[0]))

    for before, after in asked.graph.edges:
        add(before, after)
    for i in range(count):
        add(i, end)
    objective = np.concatenate(
        [np.zeros(count), *(-curve.saved_w for curve in each), [asked.time_price_w]]
    )
    widths = np.concatenate([np.diff(curve.hull_s) for curve in each])
    most = np.concatenate([np.full(count, np.inf), widths, [goal.deadline_s]])
    below = sparse.csr_matrix((values, (rows, columns)), shape=(len(right), end + 1))
    bounds = np.column_stack([np.zeros(end + 1), most])
    began_s = time.process_time()
    solved = linprog(objective, A_ub=below, b_ub=right, bounds=bounds, method="highs")
    seconds = time.process_time() - began_s
    assert solved.status == 0
    cheapest_j = sum(float(curve.cost_j[curve.cheapest]) for curve in each)
    spent_j = sum(float((curve.saved_w * np.diff(curve.hull_s)).sum()) for curve in each)
    return float(solved.fun) + cheapest_j + spent_j, seconds


def large() -> None:
    """16 x 512 in a process of its own; its figures as JSON."""
    warm_up()
    asked = read(A100, 16, 512)
    goal = Goal(baseline(asked).iteration_time_s * 1.03)
    one = timed(lambda: Solver(asked, "computation").solve(goal))
    assert check(asked, goal, one.result) == ()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([one.wall_s, peak, one.result.gap]))


def gaps(name: str, microbatches: int, granularity: Granularity, prove_s: float) -> list[str]:
    """Gaps in percent at all slowdowns, and the mean seconds of one."""
    asked = read(name, 8, microbatches)
    fastest_s = baseline(asked).iteration_time_s
    solver = Solver(asked, granularity)
    cells, seconds = [], 0.0
    for slowdown in SLOWDOWNS:
        goal = Goal(fastest_s * (1 + slowdown))
        one = timed(lambda goal=goal: proved(solver, goal, prove_s))
        assert check(asked, goal, one.result) == ()
        seconds += one.wall_s
        cells.append(f"{one.result.gap * 100:.2f}")
    size = f"8 x {microbatches}"
    return [
        shown(name),
        size,
        granularity,
        f"{prove_s:g}",
        *cells,
        f"{seconds / len(SLOWDOWNS):.2f}",
    ]


def proved(solver: Solver, goal: Goal, seconds: float) -> Solution:
    """The first answer, and what so many seconds more lead to."""
    until_s = time.process_time() + seconds
    found = solver.solve(goal)
    if seconds:
        for better in solver.improvements(goal, found):
            found = better
            if time.process_time() >= until_s:
                break
    return found


def shown(name: str) -> str:
    return name.removeprefix("gpt3-175b+").removesuffix("_bf16.csv")


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def machine() -> str:
    """Processor, cores, Python and commit: without them a time means nothing."""
    model = "unknown processor"
    if (cpu := Path("/proc/cpuinfo")).is_file():
        for line in cpu.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0))
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    commit = commit.strip()
    load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").is_file() else "?"
    return (
        f"{model}, {cores} cores (load {load} at the start), Python {platform.python_version()}, "
        f"commit {commit or 'unknown'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Joulecut's solver beside lowtime and HiGHS.")
    parser.add_argument("--quick", action="store_true", help="8 x 12 against lowtime, few gaps")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (PROFILES / A100).is_file():
        print(f"no {PROFILES}: nothing to measure", file=sys.stderr)
        return 1
    if options.large:
        large()
        return 0
    loaded = timed(warm_up)
    made = f"benchmarks/solver.py{' --quick' * options.quick} --only {options.only}"
    text = [f"# Solver, {time.strftime('%Y-%m-%d')}", "", f"Made by `python {made}`.", ""]
    text += [machine(), ""]
    text.append(f"Machine code loaded in {loaded.wall_s:.1f} s (compiled, if there was none).")
    print("\n".join(text), flush=True)
    for name in options.only.split(","):
        if name not in PARTS:
            print(f'--only: "{name}" is none of {", ".join(PARTS)}', file=sys.stderr)
            return 2
        block = ["", *PARTS[name](options.quick)]
        print("\n".join(block), flush=True)
        text += block
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")
    return 0


def _lowtime(quick: bool) -> list[str]:
    head = ["size", "its points", "CPU s", f"our {POINTS} points, CPU s", "ratio"]
    head += ["our one deadline, CPU ms", "ratio", "its fastest plan above the bound"]
    head += ["ours at that time", "ours over its energy, worst of its times"]
    sizes = [(8, 12)] if quick else [(8, 12), (4, 32), (8, 32)]
    rows = [against_lowtime(A100, *size) for size in sizes]
    return ["lowtime 0.3.0 (Rust), unit 1 ms, A100; ours with rounding:", "", *table(head, rows)]


def _highs(quick: bool) -> list[str]:  # noqa: ARG001 -- quick as it is
    head = [
        "profile",
        "size",
        "slowdown",
        "HiGHS, relaxation alone, CPU ms",
        "ours, cold, rounded, CPU ms",
    ]
    head += ["ratio", "gap", "next deadline, rounded, CPU ms"]
    head += ["bound against HiGHS"]
    rows = [against_highs(name, 96, slow) for name in (A100, A40) for slow in (0.0, 0.03, 0.1)]
    return ["scipy's HiGHS on the same relaxation:", "", *table(head, rows)]


def _large(quick: bool) -> list[str]:  # noqa: ARG001
    """A process of its own, so that its memory is its own."""
    asked = [sys.executable, __file__, "--large"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    seconds, peak, gap = json.loads(said)
    line = f"16 x 512 (16,384 operations), A100, 3 % slower: {seconds:.2f} s cold with rounding, "
    return [line + f"peak {peak:.0f} MiB with everything loaded, gap {gap * 100:.2f} %."]


def _gaps(quick: bool) -> list[str]:
    head = ["profile", "size", "granularity", "--prove"]
    head += [f"{slowdown * 100:g} %" for slowdown in SLOWDOWNS] + ["mean s"]
    sizes = (12, 96) if quick else (6, 12, 24, 48, 96)
    every: list[tuple[int, Granularity, float]] = [
        *((size, "computation", prove_s) for size in sizes for prove_s in (0.0, 5.0)),
        *((size, granularity, 0.0) for size in (12, 96) for granularity in ("gpu", "changes")),
    ]
    rows = [gaps(name, *case) for name in (A100, A40) for case in every]
    return ["Gap in % of the energy, by slowdown:", "", *table(head, rows)]


PARTS: dict[str, Callable[[bool], list[str]]] = {
    "lowtime": _lowtime,
    "highs": _highs,
    "large": _large,
    "gaps": _gaps,
}

if __name__ == "__main__":
    sys.exit(main())
