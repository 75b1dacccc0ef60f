"""Stage profile of a run: time and energy of every stage's operations at every clock.

The form that `plan` reads, from the model instead of a sweep: one pipeline, one GPU per stage and
tensor rank, so that times and energies are those of one GPU.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.cost import Cost
from joulecut_lab.model.links import BITS
from joulecut_lab.model.power import Power, power_of
from joulecut_lab.model.run import Run, part_layers
from joulecut_lab.model.runs import Floats, Runs
from joulecut_lab.model.stages import Phases, stages_of
from joulecut_lab.model.system import System

SPLIT_BACKWARD = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")


def stage_profile(
    architecture: Architecture, system: System, run: Run, clocks_mhz: Sequence[int]
) -> Profile:
    """Options of every part and kind at `clocks_mhz`, above 0; the power cap is not applied.

    Keys count parts of the model in its order: stages where each holds one.
    """
    runs = Runs.of([run] * len(clocks_mhz)).at_clock(np.array(clocks_mhz, dtype=np.float64))
    stages = stages_of(architecture, system, runs)
    power = power_of(system)
    counts = part_layers(architecture.layers, run)
    plain = architecture.dense_layers if architecture.experts else architecture.layers
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for part, count in enumerate(counts):
        dense = min(count, plain)
        plain -= dense
        one = np.ones(len(runs))
        phases = stages.part(count * one, dense * one)
        if part == 0:
            phases = phases + stages.embedding
        if part == len(counts) - 1:
            phases = phases + stages.logits
        for kind, cost in _kinds(phases, run).items():
            joules = energy_of(power, cost, runs.clock_mhz)
            rows = zip(clocks_mhz, cost.seconds, joules, strict=True)
            options[part, kind] = tuple(
                ClockOption(clock, float(time_s), float(energy_j))
                for clock, time_s, energy_j in rows
            )
    return Profile(options, source=f"model of {architecture.name or 'a transformer'}")


def _kinds(phases: Phases, run: Run) -> dict[Kind, Cost]:
    forward = phases.forward + phases.ends_forward
    inputs = phases.input + phases.repeat + phases.ends_input
    weight = phases.weight + phases.ends_weight
    if run.order in SPLIT_BACKWARD:
        split: dict[Kind, Cost] = {"forward": forward, "input": inputs, "weight": weight}
        return {**split, "backward": inputs + weight} if run.order == "dualpipe-v" else split
    return {"forward": forward, "backward": inputs + weight}


def energy_of(power: Power, cost: Cost, clock_mhz: Floats) -> Floats:
    """Joules of one GPU for a piece of work, idle power included."""
    joules = cost.flops * power.flop_j * power.voltage_square(clock_mhz)
    joules = joules + BITS * cost.bytes * power.hbm_bit_j
    joules = joules + cost.up_bits * power.up_bit_j + cost.out_bits * power.out_bit_j
    joules = joules + power.waiting_over_idle_w(clock_mhz) * (cost.seconds - cost.compute)
    return np.asarray(joules + power.idle_w * cost.seconds)
