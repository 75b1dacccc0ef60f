"""Seeded walks of a cluster: a lying agent, faults of everything else, and a judge.

    python tests/walks/cluster_walk.py --seed 7 --steps 20000

All of it is one process on a virtual clock, so that a seed repeats the walk. A walk alternates:
while all is settled only one agent and Prometheus misbehave, and the job that uses neither must not
notice; then controllers are killed, stopped and cut off, stores fail, drivers are loaded again,
clocks jump, after which that job must come back.
"""

import argparse
import asyncio
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from signal import SIGHUP
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "agents"), str(HERE.parent / "worlds")]

from cluster_judge import Judge  # noqa: E402 - found by the line above
from lying_node import HARD_LIES, SOFT_LIES  # noqa: E402
from virtual_cluster import ANSWERS, HONEST, INTERVAL_S, JOBS, World, loop_of  # noqa: E402

CALM_STEPS, STORM_STEPS = 290, 10
STEP_S = 0.25
SETTLE_S_MAX = 300.0
FIRST_S = 80.0  # by then the store says which agent was first
SETTLED_S = 14.0  # limits and clocks follow the last fault, and agents are listed every 10 s
EVENTS_KEPT = 3000
STORMS = (
    "kill", "stop", "cut", "reload", "full", "down", "corrupt", "lock", "wall", "broken", "hup",
    "apart", "far", "leap", "alone",
)  # fmt: skip


class Walk:
    """One walk: what happened last, how often, and what was broken."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.counts = random.Random(seed), Counter[str]()
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.world = World(folder, seed, self._note)
        self.judge: Judge | None = None
        self.steps = 0
        self.digest = hashlib.sha256()  # of all that happened: equal for equal seeds

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.counts[event["what"]] += 1
        if event["what"] != "memory":
            self.digest.update(repr(event).encode())
        if self.judge is not None:
            getattr(self.judge, event["what"])(event)

    async def take(self, steps: int, until_broken: int) -> None:
        world = self.world
        self.most = until_broken
        await world.start()
        self.judge = Judge(world.contract)
        for _ in world.controllers:
            world.note("started")
        await asyncio.sleep(FIRST_S)
        while self.steps < steps and len(self.judge.found) < until_broken:
            await self._settle()
            await self._lie(CALM_STEPS)
            await self._storm(STORM_STEPS)
        await world.stop()

    async def _settle(self) -> None:
        world = self.world
        world.renumber()
        world.prometheus.answer = "right"
        begun_s = world.clock.now_s
        while not world.held("blue"):
            if world.clock.now_s - begun_s > SETTLE_S_MAX:
                world.note("unsettled", after_s=SETTLE_S_MAX)
                return
            if self.judge is not None and len(self.judge.found) > self.most:
                return
            await asyncio.sleep(0.5)
        self.counts["settled"] += 1
        await asyncio.sleep(SETTLED_S)

    async def _lie(self, steps: int) -> None:
        world, rng = self.world, self.rng
        world.note("calm", on=True)
        for step in range(steps):
            lies = SOFT_LIES if step < 0.6 * steps else HARD_LIES
            world.liar.lie = rng.choice(("", *lies))
            world.prometheus.answer = rng.choice(ANSWERS)
            if rng.random() < 0.01:
                world.liar.rename()
            if rng.random() < 0.01:
                world.nodes[rng.choice(("n2", "n4"))].reload()
            await asyncio.sleep(STEP_S * rng.uniform(0.1, 2.0))
        self.steps += steps
        world.note("calm", on=False)

    async def _storm(self, steps: int) -> None:
        world, rng = self.world, self.rng
        for _ in range(steps):
            world.liar.lie = rng.choice(("", *SOFT_LIES, *HARD_LIES))
            step = rng.choice(STORMS)
            self.counts[f"storm {step}"] += 1
            await getattr(self, f"_{step}")(rng.choice(world.controllers))
            await asyncio.sleep(STEP_S * rng.uniform(0.1, 2.0))
        self.steps += steps
        world.liar.lie = ""

    async def _some_time(self, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.2, most_s))

    async def _kill(self, one: Any) -> None:
        await self.world.kill(one)

    async def _stop(self, one: Any) -> None:
        one.stopped = True
        await self._some_time(12.0)
        one.go_on(asyncio.get_running_loop())

    async def _cut(self, _: Any) -> None:
        node = self.world.nodes[self.rng.choice(HONEST)]
        node.cut = True
        await self._some_time(12.0)
        node.cut = False

    async def _apart(self, one: Any) -> None:
        """The controller reaches no agent."""
        await self._unreached(one, self.world.at, 12.0)

    async def _far(self, one: Any) -> None:
        """The controller reaches no agent of one job, long enough for another to take that."""
        nodes = JOBS[self.rng.choice(sorted(JOBS))]
        at = [address for address, node in self.world.at.items() if node.name in nodes]
        await self._unreached(one, at, 40.0)

    async def _unreached(self, one: Any, addresses: Iterable[str], most_s: float) -> None:
        one.cut = frozenset(addresses)
        await self._some_time(most_s)
        one.cut = frozenset()

    async def _reload(self, _: Any) -> None:
        self.world.nodes[self.rng.choice(HONEST)].reload()

    async def _fail(self, one: Any, disk: str) -> None:
        one.disk = disk
        await self._some_time(12.0)
        one.disk = ""

    async def _full(self, one: Any) -> None:
        await self._fail(one, "full")

    async def _down(self, one: Any) -> None:
        await self._fail(one, "down")

    async def _corrupt(self, one: Any) -> None:
        """Another controller begins its term on garbage."""
        for other in self.world.controllers:
            other.disk = "corrupt"
        await self.world.kill(one)
        for other in self.world.controllers:
            other.disk = "corrupt"
        await self._some_time(12.0)
        for other in self.world.controllers:
            other.disk = ""

    async def _lock(self, _: Any) -> None:
        self.world.note("revoked")
        self.world.lock.end(self.world.lock.leader)

    async def _wall(self, _: Any) -> None:
        self.world.clock.wall_s = self.rng.choice((0.0, -86_400.0, 3600.0, 3.2e7, -4e7, 30.0))

    async def _leap(self, _: Any) -> None:
        """All machines stand still and go on: every timer of theirs is due at once."""
        self.world.clock.now_s += self.rng.choice((3.0, 20.0, 600.0))

    async def _alone(self, one: Any) -> None:
        """The clocks of one machine jump."""
        one.leap(asyncio.get_running_loop(), self.rng.choice((0.0, 3.0, 20.0, 600.0)))
        one.wall_s = self.rng.choice((0.0, -86_400.0, 3600.0, 3.2e7, -4e7))

    async def _broken(self, _: Any) -> None:
        self.world.policy(broken=True)
        await self._some_time(8.0)
        self.world.policy()

    async def _hup(self, one: Any) -> None:
        self.world.policy(slowdown=self.rng.choice(("5%", "4%", "6%")))
        if SIGHUP in one.signals and not one.dead:
            one.signals[SIGHUP]()


class _Kept(io.TextIOBase):
    """The newest lines."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=2000)

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)


def walked(folder: Path, seed: int, steps: int, until_broken: int = 20) -> tuple[Walk, list[str]]:
    """The walk, and what its controllers said last."""
    walk, said = Walk(folder, seed), _Kept()
    with (
        walk.world.clock.rules(),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
        asyncio.Runner(loop_factory=lambda: loop_of(walk.world)) as runner,
    ):
        runner.run(walk.take(steps, until_broken))
    return walk, list(said.lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--keep", action="store_true", help="leaves the folder")
    given = parser.parse_args(argv)
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets belongs to the walk
        order = {**os.environ, "PYTHONHASHSEED": "0"}
        again = [sys.executable, __file__, f"--seed={given.seed}", f"--steps={given.steps}"]
        flags = ["--keep"] if given.keep else []
        os.execve(sys.executable, [*again, *flags], order)
    print(f"cluster, seed {given.seed}, {given.steps} steps", flush=True)
    memory = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="cluster-", dir=memory if memory.is_dir() else None)
    folder, begun_s = Path(made), time.process_time()
    walk, said = walked(folder, given.seed, given.steps)
    found = walk.judge.found if walk.judge else ["nothing was judged"]
    hours = (walk.world.clock.now_s - walk.world.begun_s) / 3600.0
    print(
        f"{walk.steps} steps, {hours:.1f} hours of a cluster in "
        f"{time.process_time() - begun_s:.0f} s of a processor; {json.dumps(walk.counts)}; "
        f"digest {walk.digest.hexdigest()[:16]}"
    )
    print("\n".join(f"{count} x {text}" for text, count in Counter(found).items()))
    if found or given.keep:
        (folder / "events.json").write_text("\n".join(map(json.dumps, walk.events)))
        (folder / "said.txt").write_text("".join(said))
        print(f"events and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if found else 0


assert SETTLED_S > 2.0 * INTERVAL_S

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
