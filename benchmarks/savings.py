"""How often intervals of measured savings hold the truth, and how wide they are.

    python benchmarks/savings.py [--runs 200] [--worlds plain,steps] [--days 1,7]

Simulated: worlds of tests/worlds/windows.py with known truth, seeded. Each line is `runs` jobs.
`holds` are shares of intervals with the truth in them, `half` half widths in percentage points.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))

from windows import World, windows

from joulecut_controller.verify.saving import saving

WORLDS = {
    "plain": World(),
    "memory": World(noise_memory=0.9),
    "walk": World(walk_per_day=0.03, trend_per_day=0.03),
    "slow": World(slow_noise=0.005),
    "steps": World(steps_per_day=5.0, step=0.03),
    "room": World(room_celsius=15.0),
    "nothing": World(saved=0.0, slowdown=0.0, cooler_celsius=0.0),
    "holdout20": World(holdout=0.2),
    "holdout50": World(holdout=0.5),
}
BARS = {1.0: 1.0, 7.0: 0.3}  # points of half width, after so many days at 5 %


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--days", default="0.36,1,7")
    given = parser.parse_args()
    print(f"{given.runs} runs each, hold-outs 5 % unless named, noise of an iteration 2 %")
    print(
        "world      days  hold-outs  holds: energy   time   half: median    p95    max    bias    s"
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
    halves, errors, counts = [], [], []
    for seed in range(runs):
        found = saving(windows(seed, days, world))
        if found is None or found.saved_ratio is None or found.slowdown_ratio is None:
            continue
        ratio, slowdown = found.saved_ratio, found.slowdown_ratio
        energy += ratio.low <= world.true_saved <= ratio.high
        slower += slowdown.low <= world.slowdown <= slowdown.high
        halves.append(100.0 * ratio.half_width)
        errors.append(100.0 * (ratio.mid - world.true_saved))
        counts.append(found.holdouts)
    told = len(halves)
    halves.sort()
    shares = energy / told, slower / told
    missed = not all(0.91 <= share <= 0.99 for share in shares)
    bar = BARS.get(days)
    usual = world.holdout == 0.05 and world.noise_memory == World().noise_memory
    late = bar is not None and usual and halves[-1] > bar
    print(
        f"{name:<10} {days:>4g} {statistics.median(counts):>10.0f} {shares[0]:>14.1%} "
        f"{shares[1]:>6.1%} {statistics.median(halves):>14.2f} {halves[int(0.95 * told)]:>6.2f} "
        f"{halves[-1]:>6.2f} {statistics.fmean(errors):>+7.3f} "
        f"{time.perf_counter() - begun_s:>4.0f}"
        + (f"  {runs - told} not told" if told < runs else "")
        + ("  MISSED" if missed or late else ""),
        flush=True,
    )
    return missed or late


if __name__ == "__main__":
    sys.exit(main())
