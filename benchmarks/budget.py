"""What a power limit costs: marginal throughput against one cap for all.

    python benchmarks/budget.py [--less 0.12]

Two jobs (the public GPT-3 175B profiles of A100 and A40, 8 x 96) draw `--less` of their power
less, together: allocated along their frontiers (Joulecut), or by one power cap, or one clock, for
each job, as uniform limits do. Predicted from the profiles.
"""

import argparse

import numpy as np
from jitter import CARDS, read

from joulecut_engine.optimize.budget import Bidder, Offer, allocate
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline, energy, makespan
from joulecut_engine.optimize.solver import prepared
from joulecut_lab.compare import baselines

POINTS = 64  # of a frontier


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--less", type=float, default=0.12)
    args = parser.parse_args()
    bidders, full_w = [], 0.0
    for card in CARDS:
        asked = read(card, 96)
        fastest = baseline(asked)
        own_w = fastest.energy_j / fastest.iteration_time_s
        full_w += own_w
        limit_w = (1 - args.less) * own_w
        for name, plans in (
            ("one power cap", baselines.power_cap(asked)),
            ("one clock", baselines.one_clock(asked)),
            ("one clock per stage", baselines.clock_per_stage(asked)),
        ):
            clocks = baselines.quickest_under(baselines.timed(asked, plans), limit_w)
            if clocks is None:
                print(f"{card}: {name} cannot")
                continue
            lost = 1 - fastest.iteration_time_s / makespan(asked, clocks)[0]
            print(f"{card}: {name} for {args.less:.0%} less power loses {lost:.2%} throughput")
        frontier = prepared(asked, "computation")
        offers = []
        for deadline_s in np.linspace(frontier.fastest_s, frontier.cheapest_s, POINTS).tolist():
            plan = frontier.at(Goal(deadline_s, waits=True))
            energy_j = energy(asked, plan.clocks, plan.iteration_time_s)
            offers.append(Offer(energy_j / plan.iteration_time_s, 1 / plan.iteration_time_s))
        offers.append(Offer(own_w, 1 / fastest.iteration_time_s))
        bidders.append(Bidder(card, tuple(offers)))
    found_all = allocate(bidders, (1 - args.less) * full_w)
    for bidder, offer in zip(bidders, found_all.offers, strict=True):
        print(f"{bidder.name}: {offer.power_w:.0f} W, throughput {bidder.value(offer):.4f}")
    lost = 1 - found_all.value / len(bidders)
    print(f"Joulecut, {args.less:.0%} less power for both together loses {lost:.2%} throughput")


if __name__ == "__main__":
    main()
