"""A world with iterations of a second, which keeps count of what each of them truly took.

The truth is kept apart from the counters: what a window measures is held against the sum of
what the plant says, iteration by iteration.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from unprofiled import UnprofiledWorld
from worlds import Controller, World

from joulecut_controller.policy.policy import Policy, Verify
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.trust.switchback import WARM_UP_S
from joulecut_controller.trust.window import TOPIC, Arm, MeasuredWindow, from_json
from joulecut_sim.plant import Noise
from joulecut_wire.messages import Command, GpuSnapshot, Result

MICROBATCHES, SCALE = 12, 0.45  # an iteration at default clocks then takes 1.02 s
INTERVAL_S = 5.0
WINDOW_S = 60.0  # the shortest the policy takes
SLOT_S = WINDOW_S + WARM_UP_S
SHARE = 0.25


@dataclass(frozen=True)
class Truth:
    """One iteration; `checkpoint` where it did something else as well."""

    ended_s: float
    duration_s: float
    energy_j: float
    default: bool
    checkpoint: bool


class HeldOutWorld(World):
    """`checkpoint_every` iterations one takes `checkpoint_s` longer, nearly idle; `creep_per_s`
    is how the job itself becomes slower.
    """

    def __init__(
        self,
        *,
        noise: Noise | None = None,
        seed: int = 1,
        checkpoint_every: int = 0,
        checkpoint_s: float = 6.0,
        creep_per_s: float = 0.0,
        job: str = "demo",
    ) -> None:
        super().__init__(noise=noise, seed=seed, job=job, microbatches=MICROBATCHES, scale=SCALE)
        self._rename(job)
        self.truth: list[Truth] = []
        self.checkpoint_every, self.checkpoint_s = checkpoint_every, checkpoint_s
        self.creep_per_s = creep_per_s
        self._began_at_s = self.now_s

    def _rename(self, job: str) -> None:
        """GPUs and nodes of several worlds have names of their own."""
        if job == "demo":
            return
        self.uuids = tuple(f"{job}-{uuid}" for uuid in self.uuids)
        self.stage_of = {uuid: stage for stage, uuid in enumerate(self.uuids)}
        self._energy = dict.fromkeys(self.uuids, 0.0)
        named = {}
        for agent in self.agents.values():
            agent.address, agent.node = f"{job}-{agent.address}", f"{job}-{agent.node}"
            agent.uuids = tuple(f"{job}-{uuid}" for uuid in agent.uuids)
            named[agent.address] = agent
        self.agents = named

    def held_out_policy(self, share: float = SHARE, window_s: float = WINDOW_S) -> Policy:
        return self.policy(verify=Verify(share, window_s))

    @property
    def _is_checkpoint(self) -> bool:
        every = self.checkpoint_every
        return every > 0 and self._iteration % every == every - 1

    def _begin(self) -> None:
        self.slow_ratio = 1.0 + self.creep_per_s * (self.now_s - self._began_at_s)
        super()._begin()
        longer = self.slow_ratio - 1.0
        stages = [
            replace(stage, energy_j=stage.energy_j * (1.0 + longer))
            for stage in self._current.stages
        ]
        if self._is_checkpoint:
            idle_j = self.sku.idle_power_w * self.checkpoint_s
            stages = [replace(stage, energy_j=stage.energy_j + idle_j) for stage in stages]
            self._duration_s += self.checkpoint_s
            self._ends_s += self.checkpoint_s
        self._current = replace(self._current, stages=tuple(stages))

    def _finish(self) -> None:
        if self._current is not None:
            default = set(self._clocks.values()) == {self.sku.clock_max_mhz}
            energy_j = sum(stage.energy_j for stage in self._current.stages)
            self.truth.append(
                Truth(self.now_s, self._duration_s, energy_j, default, self._is_checkpoint)
            )
        super()._finish()

    def _snapshot(self, agent: object, uuid: str) -> GpuSnapshot:
        shown: GpuSnapshot = super()._snapshot(agent, uuid)
        return replace(shown, temperature_celsius=60.0 + int(uuid[-1]))

    def truly(self, default: bool, since_s: float = 0.0) -> tuple[float, float]:
        """Mean seconds and joules of an iteration of training."""
        mine = [
            one
            for one in self.truth
            if one.default is default and not one.checkpoint and one.ended_s >= since_s
        ]
        return (
            statistics.fmean(one.duration_s for one in mine),
            statistics.fmean(one.energy_j for one in mine),
        )

    def share_at_default(self, since_s: float) -> float:
        mine = [one for one in self.truth if one.ended_s >= since_s]
        return sum(one.duration_s for one in mine if one.default) / sum(
            one.duration_s for one in mine
        )


def windows(store: DatabaseStore, arm: Arm | None = None) -> list[MeasuredWindow]:
    """All that were kept, oldest first."""
    made = [from_json(record.content) for record in reversed(store.records(TOPIC))]
    return [window for window in made if arm in (None, window.arm)]


def controlled(
    world: HeldOutWorld, store: DatabaseStore, policy: Policy | None = None
) -> Controller:
    """A controller that looks after the world."""
    return Controller(world, store, policy or world.held_out_policy(), interval_s=INTERVAL_S)


def until_held_out(controller: Controller, passes: int = 120) -> None:
    """Runs until a hold-out has begun; fails where none does."""
    taken = controller.run(passes, until=lambda: held_out(controller))
    assert held_out(controller), f"no hold-out in {taken} passes: {controller.job.holdout}"


def held_out(controller: Controller) -> bool:
    holdout = controller.job.holdout
    return holdout is not None and holdout.held_out


def run_while(controller: Controller, holds: Callable[[], bool], passes: int = 60) -> None:
    controller.run(passes, until=lambda: not holds())
    assert not holds(), controller.job.sentence


class UnprofiledHeldOutWorld(HeldOutWorld, UnprofiledWorld):
    """The same of a job that nobody profiled."""


class Pair:
    """Two worlds behind one fleet port, on one clock."""

    def __init__(self, left: HeldOutWorld, right: HeldOutWorld) -> None:
        self._worlds = (left, right)
        self.agents = {**left.agents, **right.agents}

    @property
    def now_s(self) -> float:
        return self._worlds[0].now_s

    def policy(self, share: float) -> Policy:
        jobs = tuple(world.held_out_policy(share).jobs[0] for world in self._worlds)
        return replace(self._worlds[0].policy(), jobs=jobs)

    def controlled(
        self, store: DatabaseStore, share: float, planners: Executor | None = None
    ) -> Controller:
        return Controller(
            self,
            store,
            self.policy(share),
            interval_s=INTERVAL_S,
            planners=planners,
        )

    def advance(self, seconds: float) -> None:
        for world in self._worlds:
            world.advance(seconds)

    def observe(self, now_s: float, addresses: object = ()) -> FleetState:
        seen = [world.observe(now_s) for world in self._worlds]
        return FleetState(
            tuple(node for one in seen for node in one.nodes),
            tuple(gpu for one in seen for gpu in one.gpus),
        )

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        return tuple(report for world in self._worlds for report in world.take_reports())

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return await self._of(address).apply(address, command)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        return await self._of(address).renew(address, epoch, job, generation, ttl_s)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        return await self._of(address).clear(address, epoch, job, uuids, reason)

    def _of(self, address: str) -> HeldOutWorld:
        return next(world for world in self._worlds if address in world.agents)
