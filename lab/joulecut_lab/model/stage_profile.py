"""Stage profile of a run: time and energy of every stage's operations at every clock.

The form that `plan` reads, from the model instead of a sweep: one pipeline, one GPU per stage and
tensor rank, so that times and energies are those of one GPU.
"""

from collections.abc import Sequence

import numpy as np

from joulecut_engine.graph.pipeline import Kind, Profile
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.cost import Cost
from joulecut_lab.model.power import power_of
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.stages import Phases, stages_of
from joulecut_lab.model.system import System

SPLIT_BACKWARD = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")


def stage_profile(
    architecture: Architecture,
    system: System,
    run: Run,
    clocks_mhz: Sequence[int],
    held_mhz: float = np.inf,
) -> Profile:
    """Options of every part and kind at `clocks_mhz`, above 0. Those above `held_mhz`, which the
    power limit leaves, cost as that one.

    Keys count parts of the model in its order: stages where each holds one.
    """
    real_mhz = np.minimum(np.array(clocks_mhz, dtype=np.float64), held_mhz)
    runs = Runs.of([run] * len(clocks_mhz)).at_clock(real_mhz)
    stages, power = stages_of(architecture, system, runs), power_of(system)
    options = {
        (part, kind): cost.options(power, clocks_mhz, real_mhz)
        for part, phases in enumerate(stages.every_part(run))
        for kind, cost in _kinds(phases, run).items()
    }
    return Profile(options, source=f"model of {architecture.name or 'a transformer'}")


def _kinds(phases: Phases, run: Run) -> dict[Kind, Cost]:
    forward = phases.forward + phases.ends_forward
    inputs = phases.input + phases.repeat + phases.ends_input
    weight = phases.weight + phases.ends_weight
    if run.order in SPLIT_BACKWARD:
        split: dict[Kind, Cost] = {"forward": forward, "input": inputs, "weight": weight}
        return {**split, "backward": inputs + weight} if run.order == "dualpipe-v" else split
    return {"forward": forward, "backward": inputs + weight}
