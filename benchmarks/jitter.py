"""How late plans run when times jitter, and what keeping the deadline costs of the saving.

    python benchmarks/jitter.py [--microbatches 48] [--draws 200]

Public A100 and A40 profiles, 8 stages, 16 data-parallel siblings; the mean of the iteration
time is held to the slowdown of the jittering baseline. The realised mean is judged with other
luck than the plan was made with. Simulated, seeded.
"""

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path

from joulecut_controller.hardware import ClockOption
from joulecut_controller.model import problem
from joulecut_controller.solve.jitter import Noise, Trials
from joulecut_controller.solve.margin import assured
from joulecut_controller.solve.problem import Goal, Problem
from joulecut_controller.solve.schedule import baseline
from joulecut_controller.solve.solver import Solver
from joulecut_controller.workload import Pipeline, Profile

PROFILES = Path(__file__).resolve().parents[2] / "shared" / "data" / "perseus" / "stage_profile"
CARDS = {
    "A100": ("gpt3-175b+a100_sxm_bf16.csv", 83.64),
    "A40": ("gpt3-175b+a40_bf16.csv", 70.38),
}
SIBLINGS = 16
OTHER_SEED = 7  # luck that the plan has not seen


def read(card: str, microbatches: int) -> Problem:
    name, power_w = CARDS[card]
    options = defaultdict(list)
    with (PROFILES / name).open(newline="") as file:
        for row in csv.DictReader(file):
            option = ClockOption(int(row["frequency"]), float(row["time"]), float(row["energy"]))
            options[int(row["stage"]), row["instruction"]].append(option)
    profile = Profile({key: tuple(menu) for key, menu in options.items()})
    return problem(Pipeline("1f1b", 8, microbatches), profile, power_w)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--microbatches", type=int, default=48)
    parser.add_argument("--draws", type=int, default=200)
    args = parser.parse_args()
    print("card  noise  budget   no margin: late saving   margin: late  saving  draws s  total s")
    for card in CARDS:
        asked = read(card, args.microbatches)
        fastest = baseline(asked)
        solver = Solver(asked, "computation")
        for noise in (0.01, 0.03):
            for budget in (0.0, 0.01, 0.02, 0.05):
                how = Noise(operation=noise, siblings=SIBLINGS)
                trials = Trials(asked, how, draws=args.draws)
                judge = Trials(asked, how, draws=args.draws, seed=OTHER_SEED)
                began_s = time.perf_counter()
                judge.spread(fastest.clocks)
                draws_s = time.perf_counter() - began_s
                goal = Goal(fastest.iteration_time_s * (1 + budget))
                began_s = time.perf_counter()
                found = assured(asked, solver, goal, trials, statistic="mean")
                total_s = time.perf_counter() - began_s
                base_s = judge.spread(fastest.clocks).mean_s
                late = judge.spread(found.unassured.clocks).mean_s / base_s - 1
                kept = judge.spread(found.plan.clocks).mean_s / base_s - 1
                saved = [1 - p.energy_j / fastest.energy_j for p in (found.unassured, found.plan)]
                print(
                    f"{card:5} {noise:5.0%} {budget:6.1%}  {late:+15.2%} {saved[0]:6.1%} "
                    f"{kept:+14.2%} {saved[1]:7.1%} {draws_s:8.2f} {total_s:8.1f}"
                )


if __name__ == "__main__":
    main()
