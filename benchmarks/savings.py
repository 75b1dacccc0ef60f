"""How often intervals of measured savings hold the truth, and how wide they are.

    python benchmarks/savings.py [--runs 400] [--worlds plain,heat-sink] [--days 1,7]

Simulated: worlds of tests/worlds/windows.py with known truth, seeded. Each line is `runs` jobs.
`holds` are shares of intervals with the truth in them, `half` half widths in percentage points,
`wait` how long a report says that an interval of one point takes, from the start on.
"""

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))

from windows import ITERATION_S, World, measured, saving

TEN_MINUTES = math.exp(-ITERATION_S / 600.0)  # how long noise hangs together, as a correlation
WORLDS = {
    "plain": World(),
    "heat-sink": World(heat_sink_s=30.0, cooler_celsius=8.0),
    "day": World(saved_swing=0.05),
    "curriculum": World(phases=4),
    "scatter": World(noise=0.10, noise_memory=0.0),
    "all-four": World(
        heat_sink_s=30.0,
        cooler_celsius=8.0,
        saved_swing=0.05,
        phases=4,
        noise=0.10,
        noise_memory=0.0,
    ),
    "memory": World(noise_memory=0.9),
    "walk": World(walk_per_day=0.03, trend_per_day=0.03),
    "slow": World(slow_noise=0.005),
    "ten-minutes": World(slow_noise=0.005, slow_noise_s=600.0),
    "steps": World(steps_per_day=5.0, step=0.03),
    "room": World(room_celsius=15.0),
    "minutes": World(noise=0.06, noise_memory=TEN_MINUTES, holdout=0.2),
    "minutes-5": World(noise=0.02, noise_memory=TEN_MINUTES),
    "nothing": World(saved=0.0, slowdown=0.0, cooler_celsius=0.0),
    "holdout1": World(holdout=0.01),
    "holdout20": World(holdout=0.2),
    "holdout50": World(holdout=0.5),
}
SHARES = 0.92, 0.98  # of intervals that hold the truth
DOUBT = 2.0  # standard errors of such a share, of so many runs
BARS = {1.0: 1.0, 7.0: 0.3}  # points of half width of plain jobs, after so many days at 5 %


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--days", default="1,7")
    given = parser.parse_args()
    print(f"{given.runs} runs each, hold-outs 5 % unless named, noise of an iteration 2 %")
    print(
        "world      days  hold-outs  holds: energy   time   half: median    p95    bias   "
        "deviation  wait h    s"
    )
    missed = False
    for name in given.worlds.split(","):
        for days in map(float, given.days.split(",")):
            missed |= line(name, days, given.runs)
    return 1 if missed else 0


def line(name: str, days: float, runs: int) -> bool:
    """Prints one, and says whether a bar was missed."""
    world, begun_s = WORLDS[name], time.perf_counter()
    energy = slower = 0
    halves, errors, counts, waits = [], [], [], []
    for seed in range(runs):
        windows, truth = measured(seed, days, world)
        found = saving(windows)
        if found is None or found.saved_ratio is None or found.slowdown_ratio is None:
            continue
        ratio, slowdown = found.saved_ratio, found.slowdown_ratio
        energy += ratio.low <= truth.saved <= ratio.high
        slower += slowdown.low <= truth.slowdown <= slowdown.high
        halves.append(100.0 * ratio.half_width)
        errors.append(100.0 * (ratio.mid - truth.saved))
        counts.append(found.holdouts)
        waits.append(24.0 * days + (found.point_in_s or 0.0) / 3600.0)
    known = len(halves)
    halves.sort()
    shares = energy / known, slower / known
    doubt = DOUBT * math.sqrt(0.95 * 0.05 / known)
    missed = not all(SHARES[0] - doubt <= share <= SHARES[1] + doubt for share in shares)
    late = name == "plain" and days in BARS and halves[int(0.95 * known)] > BARS[days]
    print(
        f"{name:<10} {days:>4g} {statistics.median(counts):>10.0f} {shares[0]:>14.1%} "
        f"{shares[1]:>6.1%} {statistics.median(halves):>14.2f} {halves[int(0.95 * known)]:>6.2f} "
        f"{statistics.fmean(errors):>+7.3f} {statistics.pstdev(errors):>11.3f} "
        f"{statistics.median(waits):>7.0f} {time.perf_counter() - begun_s:>4.0f}"
        + (f"  {runs - known} unknown" if known < runs else "")
        + ("  MISSED" if missed or late else ""),
        flush=True,
    )
    return missed or late


if __name__ == "__main__":
    sys.exit(main())
