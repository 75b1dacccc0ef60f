"""Closed loop of a job with tensor and data parallelism, against what perfect knowledge could save.

    python benchmarks/closed_loop_shapes.py [--stages 8 --microbatches 96 --tensor 8 --data 4]
        [--budget 2] [--profile yes|no] [--passes 400]

Simulated: 256 A100 of uneven speed (0.4 % standard deviation) and power (1.5 %), one of them 5 %
slower, operations that vary by 1 %, 2 % of communication. The last stage is 7 % longer. Perfect
knowledge solves every replica for the common deadline with all true curves, a clock per GPU.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))

from shapes import ShapeWorld, UnprofiledShapes, possible
from worlds import Controller

from joulecut_controller.policy.policy import Slo
from joulecut_controller.store.database import open_store
from joulecut_engine.graph.pipeline import Pipeline

SLOW = {(3, 1, 5): 1.05}  # stage, replica, member
CONSTANT_RATIO = 0.02
BAR = 0.01  # points of energy
EVERY = 25  # passes
MEASURED = 200  # iterations of the mean that is held against the budget


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=96)
    parser.add_argument("--tensor", type=int, default=8)
    parser.add_argument("--data", type=int, default=4)
    parser.add_argument("--budget", type=float, default=2.0, help="percent")
    parser.add_argument("--profile", choices=("yes", "no"), default="yes")
    parser.add_argument("--together", action="store_true", help="groups report one time")
    parser.add_argument("--passes", type=int, default=400)
    given = parser.parse_args()
    shape = Pipeline(
        "1f1b",
        given.stages,
        given.microbatches,
        tensor_parallel=given.tensor,
        data_parallel=given.data,
    )
    kind = ShapeWorld if given.profile == "yes" else UnprofiledShapes
    slow = {
        (s % given.stages, r % given.data, m % given.tensor): x for (s, r, m), x in SLOW.items()
    }
    constant_s = CONSTANT_RATIO * 0.0065 * (given.microbatches + given.stages - 1)
    world = kind(shape, slow=slow, constant_s=constant_s, seen_apart=not given.together)
    budget = given.budget / 100.0
    begun_s = time.process_time()
    best = possible(world.plant, budget)
    print(
        f"{given.stages} x {given.microbatches}, tensor {given.tensor}, data {given.data}: "
        f"{len(world.uuids)} GPUs, budget {given.budget:g} %, profile: {given.profile}"
    )
    print(f"possible {best:.2%} ({time.process_time() - begun_s:.0f} s of processor time)")
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        if isinstance(world, UnprofiledShapes):
            policy = world.unprofiled(budget=budget)
        else:
            policy = world.policy(slo=Slo(max_slowdown=budget))
        controller = Controller(world, store, policy)
        for done in range(EVERY, given.passes + 1, EVERY):
            controller.run(EVERY)
            shown(world, controller, done, time.process_time() - begun_s)
        store.close()
    baseline = controller.job.view.measured.baseline
    assert baseline is not None
    saved, slower = world.saved(), world.recent_s(MEASURED) / baseline.time_mean_s - 1.0
    print(f"saved {saved:.2%} of {best:.2%} possible, {slower:+.2%} slower (budget {budget:.1%})")
    clocks = world.clocks_mhz()
    for stage in range(given.stages):
        mine = sorted({mhz for uuid, mhz in clocks.items() if world.stage_of[uuid] == stage})
        print(f"stage {stage}: {', '.join(map(str, mine))} MHz")
    return 0 if saved >= best - BAR and slower <= budget + 0.002 else 1


def shown(world: ShapeWorld, controller: Controller, done: int, seconds: float) -> None:
    baseline = controller.job.view.measured.baseline
    slower = world.recent_s(30) / baseline.time_mean_s - 1.0 if baseline else 0.0
    print(
        f"{done:4d} passes, {seconds:4.0f} s: saved {world.saved():.2%}, {slower:+.2%} slower: "
        f"{controller.job.sentence[:90]}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
