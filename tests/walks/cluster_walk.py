"""Seeded walks of a cluster: a lying agent, faults of honest nodes and controllers, and a judge.

    python tests/walks/cluster_walk.py --seed 7 --steps 300

A walk alternates: while all is settled only the liar misbehaves, and the job that does not use its
node must not notice; then controllers are killed or stopped, nodes cut off and drivers loaded
again, after which that job must come back. A seed repeats the steps and not the timing.
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "agents")]

from cluster_judge import violations  # noqa: E402 - found by the line above
from cluster_world import HARD_LIES, HONEST, INTERVAL_S, SOFT_LIES, World  # noqa: E402

CALM_STEPS, STORM_STEPS = 24, 6
STEP_S = 0.35
SETTLE_S_MAX = 90.0  # on a machine that others load
SETTLED_S = 14.0  # limits and clocks follow the last fault, and agents are listed every 10 s
FIRST_S = 80.0  # by then the store says which agent was first
STORMS = ("kill", "stop", "cut", "reload")


async def walk(folder: Path, seed: int, steps: int) -> World:
    """One walk. Returns the world as it was left, with its events."""
    rng, world = random.Random(seed), World(folder, seed)
    await world.start()
    try:
        await asyncio.sleep(FIRST_S)
        while steps > 0:
            await _settle(world)
            steps -= await _lie(world, rng, min(steps, CALM_STEPS))
            steps -= await _storm(world, rng, min(steps, STORM_STEPS))
    finally:
        await world.stop()
    return world


async def _settle(world: World) -> None:
    await world.renumber()
    begun_s = time.monotonic()
    while not world.held("blue"):
        if time.monotonic() - begun_s > SETTLE_S_MAX:
            world.note("unsettled", after_s=SETTLE_S_MAX)
            return
        await asyncio.sleep(0.1)
    await asyncio.sleep(SETTLED_S)


async def _lie(world: World, rng: random.Random, steps: int) -> int:
    world.note("calm", on=world.held("blue"))
    for step in range(steps):
        world.liar.lie = rng.choice(("", *(SOFT_LIES if step < 0.6 * steps else HARD_LIES)))
        if rng.random() < 0.1:
            world.nodes["n2"].reload()
        await asyncio.sleep(STEP_S * rng.uniform(0.3, 2.0))
    world.note("calm", on=False)
    return steps


async def _storm(world: World, rng: random.Random, steps: int) -> int:
    for _ in range(steps):
        step, controller = rng.choice(STORMS), rng.choice(world.controllers)
        node = world.nodes[rng.choice(HONEST)]
        world.liar.lie = rng.choice(("", *SOFT_LIES, *HARD_LIES))
        if step == "kill":
            controller.send(signal.SIGKILL)
        elif step == "stop":
            controller.send(signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(0.2, 4.0))
            controller.send(signal.SIGCONT)
        elif step == "cut":
            node.cut = True
            await asyncio.sleep(rng.uniform(0.2, 4.0))
            node.cut = False
        else:
            node.reload()
        await asyncio.sleep(STEP_S)
    world.liar.lie = ""
    return steps


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--keep", action="store_true", help="leaves the folder")
    given = parser.parse_args(argv)
    print(f"cluster, seed {given.seed}, {given.steps} steps", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    world = asyncio.run(walk(folder, given.seed, given.steps))
    found = violations(world.events, world.contract)
    counts = Counter(event["what"] for event in world.events)
    print(f"{time.monotonic() - world.begun_s:.0f} s; {json.dumps(counts)}")
    print("\n".join(found))
    if found or given.keep:
        (folder / "events.json").write_text("\n".join(map(json.dumps, world.events)))
        print(f"events and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if found else 0


assert SETTLED_S > 2.0 * INTERVAL_S

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
