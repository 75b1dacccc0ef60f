"""What each granularity saves on published and example profiles, and that more freedom never costs.

    python benchmarks/granularities.py [--before FILE.json] [--json FILE.json]

Predicted, from profiles alone. Rows are a profile at a slowdown. Columns are plans of this project,
from least freedom to most, and the rules of `joulecut compare` that see single operations. Every
plan is judged by `check`. `--before` adds what the same plans took at another commit, whose
`--json` wrote the file.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "pipelines"))

from pipelines import profiled  # noqa: E402

from joulecut_cli.jobfile import read as read_job  # noqa: E402
from joulecut_engine.graph.clock_option import ClockOption  # noqa: E402
from joulecut_engine.graph.pipeline import Granularity  # noqa: E402
from joulecut_engine.optimize.check import check  # noqa: E402
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits, Goal, Problem  # noqa: E402
from joulecut_engine.optimize.rules_of_thumb import off_path  # noqa: E402
from joulecut_engine.optimize.schedule import baseline, energy, makespan  # noqa: E402
from joulecut_engine.optimize.solver import solve  # noqa: E402
from joulecut_engine.optimize.warmup import warm_up  # noqa: E402
from joulecut_lab.compare import baselines  # noqa: E402
from joulecut_lab.compare.rules import Published, Setting, unit_s  # noqa: E402

CARDS = ("h100-sxm", "h200", "b200", "mi300x")
SLOWDOWNS = (0.0, 0.01, 0.05)
# Changes, and the dwell as a share of the iteration at full speed.
CHANGES = ((1, 0.0), (2, 0.25), (2, 1 / 16), (2, 0.0), (4, 1 / 16), (4, 0.0), (8, 0.0))
# Of columns, the first has the freedom of the second: the second never saves less.
FREER = (
    ("one", "gpu"),
    ("per stage", "gpu"),
    ("gpu", "1"),
    ("gpu", "2, T/4"),
    ("1", "2"),
    ("2, T/4", "2, T/16"),
    ("2, T/16", "2"),
    ("2, T/16", "4, T/16"),
    ("4, T/16", "4"),
    ("2", "4"),
    ("4", "8"),
    ("8", "computation"),
)
RULES = ("one", "per stage", "EnvPipe-like", "Perseus")
TOLERANCE = 1e-9  # of an energy: sums in another order
LATE = 1e-6  # of a deadline: what floats differ by


def questions(fastest_s: float) -> Iterator[tuple[str, Granularity, ChangeLimits]]:
    yield "gpu", "gpu", TWO_CHANGES
    for most, share in CHANGES:
        name = f"{most}, T/{round(1 / share)}" if share else f"{most}"
        yield name, "changes", ChangeLimits(most, share * fastest_s)
    yield "computation", "computation", TWO_CHANGES


def problems() -> Iterator[tuple[str, Problem]]:
    for name in ("a100", "a40"):
        yield f"{name} 8 x 24", profiled(name, 24)
    for card in CARDS:
        yield card, read_job(ROOT / "examples" / "cards" / f"{card}.yaml").problem()


def row(problem: Problem, slowdown: float) -> dict[str, dict[str, float]]:
    """By column: joules, the share of the deadline unused, gap, processor seconds."""
    fastest_s = baseline(problem).iteration_time_s
    goal = Goal(fastest_s * (1 + slowdown))
    found = {}
    for name, granularity, limits in questions(fastest_s):
        began_s = time.process_time()
        plan = solve(problem, goal, granularity, limits=limits)
        assert check(problem, goal, plan) == ()
        found[name] = {
            "energy_j": plan.energy_j,
            "unused": 1 - plan.iteration_time_s / goal.deadline_s,
            "gap": plan.gap,
            "cpu_s": time.process_time() - began_s,
        }
    plans = {
        "one": baselines.one_clock(problem),
        "per stage": baselines.clock_per_stage(problem),
        "EnvPipe-like": [off_path(problem)],
    }
    within = {
        name: baselines.cheapest_within(baselines.timed(problem, those), goal.deadline_s)
        for name, those in plans.items()
    }
    within["Perseus"] = Published(Setting(problem), unit_s(problem)).plan(goal.deadline_s)
    for name, clocks in within.items():
        time_s = makespan(problem, clocks)[0] if clocks else np.inf
        if clocks and time_s <= goal.deadline_s * (1 + LATE):
            found[name] = {
                "energy_j": energy(problem, clocks, time_s),
                "unused": 0.0,
                "changes": most_changes(problem, clocks),
            }
    return found


def most_changes(problem: Problem, clocks: Sequence[ClockOption]) -> int:
    """How often the GPU that does so most changes its clock in an iteration."""
    asked = ([clocks[i].clock_mhz for i in order] for order in problem.graph.order)
    return max(sum(a != b for a, b in zip(one, one[1:] + one[:1], strict=True)) for one in asked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warm_up()
    print(f"# What each granularity saves, {time.strftime('%Y-%m-%d')}\n")
    before = json.loads(options.before.read_text()) if options.before else {}
    rows: dict[str, dict[str, dict[str, float]]] = {}
    heads, worse, differences = [], [], []
    for (name, problem), slowdown in itertools.product(problems(), SLOWDOWNS):
        key = f"{name}, {slowdown:.0%}"
        found = rows[key] = row(problem, slowdown)
        base_j = baseline(problem).energy_j
        saved = {column: 100 * (1 - one["energy_j"] / base_j) for column, one in found.items()}
        for less, more in FREER:
            if less in saved and more in saved and saved[more] < saved[less] - 100 * TOLERANCE:
                worse.append(
                    f"{key}: {more} saves {saved[less] - saved[more]:.3f} less than {less}"
                )
        for column, one in before.get(key, {}).items():
            if "gap" in one and column in found:
                points = 100 * (found[column]["energy_j"] - one["energy_j"]) / base_j
                differences.append((points, f"{key}: {column}", found[column], one))
        if not heads:
            heads = [*(name for name, *_ in questions(1.0)), *RULES]
            print(
                "| profile, slowdown |", " | ".join(heads), "|\n" + "|---" * (1 + len(heads)) + "|"
            )
        shown = (f"{saved[column]:.2f}" if column in saved else "" for column in heads)
        print(f"| {key} |", " | ".join(shown), "|", flush=True)
    often = {
        name: max((one[name]["changes"] for one in rows.values() if name in one), default=0)
        for name in RULES
    }
    print("\nA rule that changes clocks more often than a column allows is no plan of that column. "
          "Most changes of a GPU in an iteration:",
          ", ".join(f"{name} {count:g}" for name, count in often.items()) + ".")  # fmt: skip
    print("\nDearer with more freedom:", *(worse or ["none"]), sep="\n* ")
    for column, *_ in questions(1.0):
        ours = [one[column] for one in rows.values()]
        print(
            f"* {column}: gap {statistics.mean(o['gap'] for o in ours):.2%} (at most "
            f"{max(o['gap'] for o in ours):.2%}), deadline unused at most "
            f"{max(o['unused'] for o in ours):.2%}, {sum(o['cpu_s'] for o in ours):.1f} s"
        )
    if differences:
        points = [one[0] for one in differences]
        print(f"\n{len(points)} plans against before, points of the baseline's energy: mean "
              f"{statistics.mean(points):+.3f}, {min(points):+.3f} to {max(points):+.3f}; seconds "
              f"{sum(d[2]['cpu_s'] for d in differences):.0f} for "
              f"{sum(d[3]['cpu_s'] for d in differences):.0f}. Dearest:")  # fmt: skip
        for one in sorted(differences, key=lambda d: -d[0])[:8]:
            print(f"* {one[0]:+.3f} {one[1]}")
    if options.json:
        options.json.write_text(json.dumps(rows))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
