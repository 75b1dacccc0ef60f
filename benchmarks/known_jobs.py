"""Measured jobs that resemble the job of a world: what a cluster's controller has learnt."""

import random
from dataclasses import replace

import numpy as np
from unprofiled import UnprofiledWorld

from joulecut_engine.estimate.other_jobs import Counters, KnownJob, measured
from joulecut_engine.graph.pipeline import KINDS

CLOCK_SHARE_SD = 0.05  # of the time: how much less or more of it follows the clock


def alike(world: UnprofiledWorld, count: int, seed: int) -> list[KnownJob]:
    """`count` jobs on the same card, each with the stages of the same model, drawn apart."""
    dice, found = random.Random(f"others {seed}"), []
    sku, plant = world.sku, world.plant
    for number in range(count):
        for kind in KINDS:
            curve = plant.curve(dice.randrange(plant.stages), kind)
            share = curve.clock_bound + dice.gauss(0.0, CLOCK_SHARE_SD)
            curve = replace(curve, clock_bound=min(0.98, max(0.1, share)))
            top = min(float(sku.clocks_mhz[-1]), curve.cap_mhz)
            clocks = np.array([mhz for mhz in sku.clocks_mhz if 0.6 * top < mhz < top])
            clock, drawn = top / sku.clocks_mhz[-1], curve.power_w(top) / sku.power_limit_w
            job = measured(
                f"{seed} {number}",
                Counters(sku.model, clock, drawn, gpu_ratio=1.0, kind=kind),
                clocks / top,
                np.array([curve.time_s(mhz) / curve.time_s(top) for mhz in clocks]),
                np.array([curve.power_w(mhz) / curve.power_w(top) for mhz in clocks]),
                default_mhz=top,
                top_mhz=sku.clocks_mhz[-1],
            )
            assert job is not None
            found.append(job)
    return found
