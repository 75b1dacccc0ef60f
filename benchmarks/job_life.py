"""One life of a job: what control saves and keeps while work, phases and GPUs change.

    python benchmarks/job_life.py [--rows evaluation,stalls] [--seeds 3] [--minutes 30] [--stages 8]
        [--holdout 0] [--others 8] [--card a40] [--without jitter,work+constant]

The real controller on a virtual clock and worlds of `tests/worlds/life.py`, A100 8 x 24, from no
knowledge but what `knows` says. `of best` is the energy saved in the last half over what the
best fixed clock per GPU saves in the nominal job without noise (on the capped card where a limit
holds it), `at 60` the same of iterations 60 to 80 with the microbatches that they had, `slow`
the slowdown of the last half; both against the same work at default clocks. `over` counts windows
of ten iterations more than a point above the budget, `row` the longest row of them. `default` is
the share of time at default clocks after the first lowered one, `count` the counter of measured
savings divided by the true saving. With several seeds each figure is the median and the worst.
`floor` is the least median share; a row of windows over may have two in the median, three in any.
`--others` is how many measured jobs the controller has learnt from before, which resemble this one.
`interval` is the share of a week's savings intervals that hold the truth while noise lasts ten
minutes. `--without` prints each life once more for each mechanism of `mechanisms.py` (several
joined by +) that is switched off. Simulated throughout.
"""

import argparse
import multiprocessing
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))
from known_jobs import alike
from life import Knows, Verdict, live, lives
from mechanisms import MECHANISMS, switch_off
from windows import World, measured, saving

KNOWN: tuple[Knows, ...] = ("profile", "operations")
TEN_MINUTES = World(slow_noise=0.005, slow_noise_s=600.0)
INTERVAL_RUNS = 100
# Of windows over in a row: in the median of the seeds, and in any.
ROW_MEDIAN, ROW_MAX = 2, 3
TOLERANCE = 0.003  # a budget of 0 % may be missed by so much


@dataclass(frozen=True, slots=True)
class Row:
    """A life, what is known of it, and the floor: the least share of the best one."""

    life: str
    knows: Knows
    floor: float
    budget: float = 0.05
    iteration_s: float = 1.0
    minutes: float = 30.0
    shown: bool = True  # whether the floor is met today

    @property
    def name(self) -> str:
        return f"{self.life}-{self.knows}-{100.0 * self.budget:g}%-{self.iteration_s:g}s"

    def missed(self, seen: Sequence[Verdict]) -> list[str]:
        """What several seeds of the life miss, in words."""
        share = statistics.median(one.share for one in seen)
        rows = [one.over_row for one in seen]
        slow = max(one.slowdown_all for one in seen)
        found = {
            f"{share:.0%} of the best, {self.floor:.0%} wanted": share < self.floor,
            f"rows of {rows} windows over": statistics.median(rows) > ROW_MEDIAN
            or max(rows) > ROW_MAX,
            f"{slow:+.2%} at a budget of 0 %": self.budget == 0.0 and slow > TOLERANCE,
            "control has ended": any(one.trips >= TRIPS_END for one in seen),
        }
        return [words for words, is_missed in found.items() if is_missed]


TRIPS_END = 3  # the breaker ends control then
# The best is a clock per GPU. A rate alone has one clock for all: 60 % of what that saves, and the
# best common clock of this job saves half of the best.
COMMON = 0.6 * 0.5
ROWS = (
    Row("steady", "operations", 0.88),
    Row("steady", "profile", 0.88),
    Row("random", "operations", 0.80),
    Row("random-waves", "operations", 0.80),
    Row("random-waves", "profile", 0.80),
    Row("checkpoints", "operations", 0.78),
    Row("stalls", "operations", 0.75),
    Row("stalls", "profile", 0.75),
    Row("hot-day", "operations", 0.78, minutes=60.0),
    Row("short-runs", "operations", 0.65),
    Row("microbatches", "operations", 0.75),
    Row("replaced", "operations", 0.85),
    Row("recovers", "operations", 0.85),
    Row("evaluation", "operations", 0.65),
    Row("throttling", "operations", 0.80),
    Row("production", "operations", 0.50),
    Row("production", "profile", 0.50),
    Row("steady", "profile", 0.70, budget=0.0),
    Row("random-waves", "profile", 0.60, budget=0.0),
    Row("steady", "rate", COMMON),
    Row("random-waves", "rate", COMMON, shown=False),  # nothing in one seed of three
    Row("stalls", "rate", COMMON),
    Row("hot-day", "rate", COMMON, minutes=60.0, shown=False),  # rows of four, 27 %
)


HEADER = (
    "| life | knows | budget | of best | at 60 | slow | over | row | default | trips | plans |"
    " count | floor | verdict | CPU s |"
)


def line(row: Row, seen: Sequence[Verdict], without: str = "") -> str:
    counters = [one.counter for one in seen if one.counter is not None]
    worst = max(counters, key=lambda ratio: abs(ratio - 1.0)) if counters else None
    cells = (
        (row.life if row.iteration_s == 1.0 else f"{row.life} {row.iteration_s:g} s")
        + (f" without {without}" if without else ""),
        row.knows,
        f"{row.budget:.0%}",
        _both([one.share for one in seen], min, "{:.0%}"),
        _both([one.share_60 for one in seen], min, "{:.0%}"),
        _both([one.slowdown for one in seen], max, "{:+.2%}"),
        _both([float(one.over) for one in seen], max, "{:.0f}"),
        _both([float(one.over_row) for one in seen], max, "{:.0f}"),
        _both([one.at_default for one in seen], max, "{:.0%}"),
        _both([float(one.trips) for one in seen], max, "{:.0f}"),
        _both([float(one.generations) for one in seen], max, "{:.0f}"),
        "-" if worst is None else f"{worst:.2f}",
        f"{row.floor:.0%}",
        "; ".join(row.missed(seen)) or "kept",
        f"{statistics.fmean(one.cpu_s for one in seen):.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def _both(figures: Sequence[float], worst: Callable[[Sequence[float]], float], form: str) -> str:
    middle = form.format(statistics.median(figures))
    return middle if len(figures) == 1 else f"{middle}, {form.format(worst(figures))}"


def lived(row: Row, given: argparse.Namespace, without: str) -> list[Verdict]:
    """The seeds of a row; in a process of its own where something is switched off."""
    switch_off(without)
    seen = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        world = lives()[row.life](
            knows=row.knows,
            budget=row.budget,
            iteration_s=row.iteration_s,
            stages=given.stages,
            seed=seed,
            holdout=given.holdout / 100.0,
            card=given.card,
        )
        seen.append(live(world, given.minutes or row.minutes, alike(world, given.others, seed)))
    return seen


def interval() -> str:
    """Share of a week's intervals that hold the truth."""
    held = known = 0
    for seed in range(INTERVAL_RUNS):
        windows, truth = measured(seed, 7.0, TEN_MINUTES)
        found = saving(windows)
        if found is not None and found.saved_ratio is not None:
            known += 1
            held += found.saved_ratio.low <= truth.saved <= found.saved_ratio.high
    share = held / known
    return (
        f"interval of a week, noise of ten minutes: {share:.1%} of {known} hold the truth "
        f"(wanted 92-98 %: {'yes' if 0.92 <= share <= 0.98 else 'no'})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default="", help="names of lives; all where none is given")
    parser.add_argument("--knows", default="", help="profile, operations, rate; all by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="of virtual time; a row's own")
    parser.add_argument("--stages", type=int, default=8, help="2 to 8; production has 2")
    parser.add_argument("--holdout", type=float, default=0.0, help="percent of the time")
    parser.add_argument("--others", type=int, default=0, help="measured jobs before this one")
    parser.add_argument("--card", default="a100-sxm", help="a simulated card")
    parser.add_argument("--without", default="", help=", ".join(MECHANISMS))
    given = parser.parse_args()
    without = list(filter(None, given.without.split(",")))
    if unknown := {one for each in without for one in each.split("+")} - MECHANISMS.keys():
        parser.error(f"--without: no mechanism {min(unknown)}; there are {', '.join(MECHANISMS)}")
    commit = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    short = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip()
    print(f"{platform.processor() or platform.machine()}, {platform.python_version()}, {short}")
    print(f"simulated, {given.seeds} seeds from {given.first_seed},")
    print(f"{given.card}, {given.stages} stages, hold-outs {given.holdout:g} %,")
    print(f"{given.others} other jobs known\n")
    print(HEADER)
    print("|---" * (HEADER.count("|") - 1) + "|")
    known, missed = lives(), False
    wanted, knowing = set(filter(None, given.rows.split(","))), given.knows.split(",")
    for row in ROWS:
        if (wanted and row.life not in wanted) or (given.knows and row.knows not in knowing):
            continue
        if row.life not in known:
            print(f"| {row.life} | left out: its data is absent |", flush=True)
            continue
        seen = lived(row, given, "")
        missed |= row.shown and bool(row.missed(seen))
        print(line(row, seen), flush=True)
        for each in without:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(line(row, pool.apply(lived, (row, given, each)), each), flush=True)
    if not wanted or "interval" in wanted:
        print(f"\n{interval()}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
