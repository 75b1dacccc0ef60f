"""A world with iterations of a second, which keeps count of what each of them truly took.

The truth is kept apart from the counters: what a window measures is held against the sum of
what the plant says, iteration by iteration.
"""

import statistics
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from sharing import Sharing
from unprofiled import UnprofiledWorld
from worlds import Controller, World

from joulecut_controller.policy.policy import Policy, Verify
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.trust.switchback import WARM_UP_S
from joulecut_controller.trust.window import TOPIC, Arm, MeasuredWindow, from_json
from joulecut_sim.plant import Noise

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
    """`checkpoint_every` iterations one takes `checkpoint_s` longer, nearly idle."""

    def __init__(
        self,
        *,
        noise: Noise | None = None,
        seed: int = 1,
        checkpoint_every: int = 0,
        checkpoint_s: float = 6.0,
        job: str = "demo",
    ) -> None:
        super().__init__(
            noise=noise, seed=seed, job=job, microbatches=MICROBATCHES, scale=SCALE,
            prefix="" if job == "demo" else f"{job}-",
        )  # fmt: skip
        self.truth: list[Truth] = []
        self.checkpoint_every, self.checkpoint_s = checkpoint_every, checkpoint_s

    def held_out_policy(self, share: float = SHARE, window_s: float = WINDOW_S) -> Policy:
        return self.policy(verify=Verify(share, window_s))

    @property
    def _is_checkpoint(self) -> bool:
        every = self.checkpoint_every
        return every > 0 and self._iteration % every == every - 1

    def _begin(self) -> None:
        super()._begin()
        if self._is_checkpoint:
            idle_j = self.sku.idle_power_w * self.checkpoint_s
            stages = (replace(s, energy_j=s.energy_j + idle_j) for s in self._current.stages)
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


class Pair(Sharing):
    """Two worlds behind one fleet port, on one clock."""

    def __init__(self, left: HeldOutWorld, right: HeldOutWorld) -> None:
        super().__init__((left, right))

    def held_out_policy(self, share: float) -> Policy:
        jobs = tuple(world.held_out_policy(share).jobs[0] for world in self.worlds)
        return replace(self.worlds[0].policy(), jobs=jobs)

    def controlled(
        self, store: DatabaseStore, share: float, planners: Executor | None = None
    ) -> Controller:
        policy = self.held_out_policy(share)
        return Controller(self, store, policy, interval_s=INTERVAL_S, planners=planners)
