"""Processor time of one decision about a job without a profile, by its number of stages.

    python benchmarks/decision_cpu.py [--stages 8,16,32,64] [--levels L2,L1] [--windows 12]

The first windows of a simulated A100 job (budget 5 %, as many microbatches as stages unless given),
followed as advised: the mean and the worst decision after the first.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "tests" / "worlds")]
from learning import Course  # noqa: E402

from joulecut_controller.learn.explorer import advise  # noqa: E402
from joulecut_sim.plant import Noise, Plant  # noqa: E402
from joulecut_sim.skus import find  # noqa: E402


def decisions_s(stages: int, microbatches: int, windows: int, *, detailed: bool) -> list[float]:
    def make(jitter: float, seed: int) -> Plant:
        skus = [find("a100-sxm", "card")] * stages
        return Plant(skus, microbatches, noise=Noise(operation=jitter), seed=seed)

    course = Course(make, jitter=0.01, seed=1, budget=0.05, detailed=detailed)
    course.window = 8
    spent_s = []
    for _ in range(windows):
        course.log, _ = course.log.add(course._measure())
        began_s = time.process_time()
        advice = advise(course.facts(), course.log.measurements)
        spent_s.append(time.process_time() - began_s)
        if advice.changes:
            course.now_mhz = advice.clocks_mhz
    return spent_s[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--stages", default="8,16,32,64")
    parser.add_argument("--levels", default="L2")
    parser.add_argument("--microbatches", type=int, default=0, help="0: as many as stages")
    parser.add_argument("--windows", type=int, default=12)
    args = parser.parse_args()
    decisions_s(2, 4, 3, detailed=True)  # compiles
    print("level stages x microbatches   mean   worst")
    for level in args.levels.split(","):
        for stages in map(int, args.stages.split(",")):
            count = args.microbatches or stages
            spent_s = decisions_s(stages, count, args.windows, detailed=level == "L2")
            mean_ms, worst_ms = 1e3 * statistics.fmean(spent_s), 1e3 * max(spent_s)
            print(
                f"{level} {stages:3d} x {count:<3d} {mean_ms:7.0f} ms {worst_ms:7.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
