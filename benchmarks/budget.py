"""What jobs do together under one power budget: Joulecut, equal power limits, best fixed clocks.

    python benchmarks/budget.py [--seeds 3] [--minutes 10] [--jobs 2,3,4] [--shares 85,80,75,65]

Drawn sets of jobs (`tests/worlds/sharing.py`) under the real controller on a virtual clock, each at
0 % of slowdown of its own, with a budget of so much of what all draw at default clocks. Throughput
is the sum over jobs of the rate relative to default clocks, over the last half. `best` is one fixed
clock per GPU by mean power, with perfect knowledge. `over` counts seconds more than 1 % above the
budget after the first minute, `gone` those of two minutes without a controller. Simulated.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))
from sharing import drawn, share


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", default="2,3,4")
    parser.add_argument("--shares", default="85,80,75,65")
    args = parser.parse_args()
    print("seed jobs budget |   own  equal   best | own/equal own/best |  used over gone")
    counts = [int(one) for one in args.jobs.split(",")]
    shares = [float(one) / 100.0 for one in args.shares.split(",")]
    for seed in range(args.first, args.first + args.seeds):
        for count in counts:
            for ratio in shares:
                one = share(drawn(seed, count), ratio, args.minutes)
                print(
                    f"{seed:4d} {count:4d} {ratio:6.0%} | {one.own:5.3f} {one.equal:6.3f} "
                    f"{one.best:6.3f} | {one.own / one.equal:9.3f} {one.own / one.best:8.3f} | "
                    f"{one.used:5.1%} {one.over:4d} {one.gone:4d}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
