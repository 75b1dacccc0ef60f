"""What a model of the run might have said of a plant: the truth, or wrong by some percent."""

import random

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Profile
from joulecut_sim.plant import Plant


def predicted_work(plant: Plant, clock_min_mhz: int, error: float = 0.0, seed: int = 0) -> Profile:
    """Every operation of the plant, its time and its dependence on the clock wrong by `error`, up
    or down by chance, and its power at low clocks too.
    """
    dice = random.Random(f"prediction {seed}")
    lean, heat = (1.0 + dice.choice((-error, error)) for _ in range(2))
    options = {}
    for stage, sku in enumerate(plant.skus):
        top = sku.clock_max_mhz
        for kind in KINDS:
            scale = 1.0 + dice.choice((-error, error))
            top_s, top_w = plant.time_s(stage, kind, top), plant.power_w(stage, kind, top)
            made = []
            for mhz in sku.clocks_mhz:
                if mhz < clock_min_mhz:
                    continue
                time_s = top_s + lean * (plant.time_s(stage, kind, mhz) - top_s)
                power_w = top_w + heat * (plant.power_w(stage, kind, mhz) - top_w)
                made.append(ClockOption(mhz, scale * time_s, scale * time_s * power_w))
            options[stage, kind] = tuple(made)
    return Profile(options, "prediction")
