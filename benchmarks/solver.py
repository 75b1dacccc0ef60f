"""How fast and how close to the bound plans are, beside the public reference solver.

    python benchmarks/solver.py [--quick] [--out FILE]

One run, one machine, one DAG for both: lowtime 0.3.0 (`uv pip install --group bench`) walks
from the slowest plan to the fastest, one time unit at a time, and its whole frontier is what
one of its answers costs; Joulecut answers one deadline. The ratio is printed for one answer
and for a frontier of as many deadlines as Joulecut draws by default. Realised times and
energies of lowtime's plans are recomputed from the measured durations, because it plans with
times rounded down.

Options are filtered on raw energy before blocking power is taken off, as lowtime's own
published frontiers are (the other order gives it twice as many points).
"""

import argparse
import csv
import os
import platform
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
from lowtime.cost_model import ExponentialModel
from lowtime.graph_utils import add_sink_node, add_source_node
from lowtime.operation import (
    CandidateExecutionOptions,
    ExecutionOption,
    Operation,
    OperationSpec,
)
from lowtime.solver import PhillipsDessouky

from joulecut_controller.hardware import ClockOption
from joulecut_controller.model import problem
from joulecut_controller.solve.opinion import check
from joulecut_controller.solve.problem import Goal, Problem
from joulecut_controller.solve.schedule import baseline, energy, makespan
from joulecut_controller.solve.solver import Solver, frontier
from joulecut_controller.workload import KINDS, Pipeline, Profile

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT.parent / "shared" / "data" / "perseus" / "stage_profile"
A100, A40 = "gpt3-175b+a100_sxm_bf16.csv", "gpt3-175b+a40_bf16.csv"
BLOCKING_POWER_W = {A100: 83.64, A40: 70.38}  # as published with the profiles
UNIT_S = 1e-3  # lowtime's default
POINTS = 50
# With four stages, the first three and the last, which carries the head.
STAGES = {8: tuple(range(8)), 4: (0, 1, 2, 7)}


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


def against_lowtime(name: str, stages: int, microbatches: int) -> list[str]:
    asked = read(name, stages, microbatches)
    dag = lowtime_dag(asked)  # cost-model fits are not counted
    theirs = timed(lambda: lowtime_plans(asked, dag))
    plans = theirs.result
    assert isinstance(plans, list)
    fastest = plans[-1]  # the plan it gives for "no slower than now"
    time_s, _ = makespan(asked, fastest)
    goal = Goal(time_s)  # the same real iteration time for both
    ours = timed(lambda: Solver(asked, "computation").solve(goal))
    plan = ours.result
    many = timed(lambda: frontier(asked, POINTS, "computation"))
    energy_j = energy(asked, fastest, time_s)
    assert check(asked, goal, plan) == ()
    return [
        f"{stages} x {microbatches}",
        f"{len(plans)} points, {theirs.cpu_s:.2f}",
        f"{ours.cpu_s:.3f}",
        f"{theirs.cpu_s / ours.cpu_s:.0f}",
        f"{many.cpu_s:.2f}",
        f"{theirs.cpu_s / many.cpu_s:.1f}",
        f"{(energy_j / plan.lower_bound_j - 1) * 100:.2f} %",
        f"{plan.gap * 100:.2f} %",
        f"{(time_s / baseline(asked).iteration_time_s - 1) * 100:+.2f} %",
    ]


def alone(name: str, microbatches: int, slowdown: float) -> list[str]:
    asked = read(name, 8, microbatches)
    goal = Goal(baseline(asked).iteration_time_s * (1 + slowdown))
    ours = timed(lambda: Solver(asked, "computation").solve(goal))
    coarse = timed(lambda: Solver(asked, "gpu").solve(goal))
    plan, per_gpu = ours.result, coarse.result
    assert check(asked, goal, plan) == ()
    assert check(asked, goal, per_gpu) == ()
    fastest_j = baseline(asked).energy_j
    return [
        name.removeprefix("gpt3-175b+").removesuffix("_bf16.csv"),
        f"8 x {microbatches}",
        f"{slowdown * 100:g} %",
        f"{ours.wall_s:.2f}",
        f"{ours.cpu_s:.2f}",
        f"{plan.gap * 100:.2f} %",
        f"{(1 - plan.energy_j / fastest_j) * 100:.1f} %",
        f"{coarse.wall_s:.2f}",
        f"{(1 - per_gpu.energy_j / fastest_j) * 100:.1f} %",
    ]


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
    parser = argparse.ArgumentParser(description="Joulecut's solver beside lowtime 0.3.0.")
    parser.add_argument("--quick", action="store_true", help="leave out 4 x 32 (lowtime: 40 s)")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if not (PROFILES / A100).is_file():
        print(f"no {PROFILES}: nothing to measure", file=sys.stderr)
        return 1
    lines = [f"# Solver, {time.strftime('%Y-%m-%d')}", "", machine(), ""]
    print("\n".join(lines), flush=True)
    sizes = [(8, 12)] if options.quick else [(8, 12), (4, 32)]
    head = ["stages x microbatches", "lowtime 0.3.0, CPU s", "one plan, CPU s", "ratio"]
    head += [f"{POINTS} deadlines, CPU s", "ratio", "lowtime above bound", "plan above bound"]
    head += ["its iteration time over the fastest"]
    block = ["A100, fastest plan of lowtime (unit 1 ms), and ours at that same real time:", ""]
    block += table(head, [against_lowtime(A100, *size) for size in sizes])
    print("\n".join(block), flush=True)
    cases = [(name, 96, slow) for name in (A100, A40) for slow in (0.0, 0.01, 0.02, 0.05, 0.1)]
    head = ["profile", "size", "slowdown", "wall s", "CPU s", "gap", "saving"]
    head += ["gpu: wall s", "gpu: saving"]
    more = ["", "One plan from a cold start, relaxation and rounding included:", ""]
    more += table(head, [alone(*case) for case in cases])
    print("\n".join(more))
    if options.out is not None:
        options.out.write_text("\n".join([*lines, *block, *more]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
