"""A job that becomes faster or slower, at once or bit by bit, and how late it is meanwhile."""

import statistics
from dataclasses import dataclass

from unprofiled import UnprofiledWorld

from joulecut_sim.plant import Noise, Plant

WINDOW = 25  # iterations


@dataclass(frozen=True, slots=True)
class Change:
    """By `begin_s + lasts_s` (since the world's start) iterations take `ratio` times as long."""

    begin_s: float
    ratio: float
    lasts_s: float = 0.0

    def at(self, since_s: float) -> float:
        if since_s < self.begin_s:
            return 1.0
        part = min(1.0, (since_s - self.begin_s) / self.lasts_s) if self.lasts_s else 1.0
        return float(self.ratio**part)


class ChangingWorld(UnprofiledWorld):
    """Reports operations if `detailed`. `pace` keeps each iteration's ratio to the first ones."""

    changes: tuple[Change, ...] = ()

    def __init__(self, noise: Noise | None = None, **world: object) -> None:
        super().__init__(noise=noise, **world)
        self.pace: list[float] = []
        self._start_s = self.now_s
        top = [self.sku.clock_max_mhz] * self.stages
        self._seed = int(str(world.get("seed", 1)))  # the judges' GPUs are the same
        judge = self._judge(noise)
        self.default_s = statistics.fmean(judge.iterate(top).own_s for _ in range(300))

    def _judge(self, noise: Noise | None) -> Plant:
        made = self.plant
        return Plant(
            made.skus, made.microbatches, time_scale=self.scale, noise=noise, seed=self._seed
        )

    def _begin(self) -> None:
        self.slow_ratio = 1.0
        for change in self.changes:
            self.slow_ratio *= change.at(self.now_s - self._start_s)
        super()._begin()

    def _finish(self) -> None:
        had = len(self.history)
        super()._finish()
        self.pace += [self.slow_ratio] * (len(self.history) - had)

    def slowdowns(self, since_s: float = 0.0) -> list[float]:
        """Of windows against the same iterations at default clocks as the job is at that time."""
        times = [
            duration_s / (self.default_s * pace)
            for (ended_s, duration_s, _), pace in zip(self.history, self.pace, strict=True)
            if ended_s - self._start_s >= since_s
        ]
        whole = range(0, len(times) - WINDOW + 1, WINDOW)
        return [statistics.fmean(times[at : at + WINDOW]) - 1.0 for at in whole]

    def saved(self) -> float:
        """By the clocks in force, of the plant's own means without jitter."""
        still = self._judge(Noise(operation=0.0))
        now = [self.clocks_mhz()[uuid] for uuid in self.uuids]
        top = [self.sku.clock_max_mhz] * self.stages
        return 1.0 - still.iterate(now).energy_j / still.iterate(top).energy_j


def longest_above(slowdowns: list[float], limit: float) -> int:
    """Windows in a row."""
    row = longest = 0
    for slowdown in slowdowns:
        row = row + 1 if slowdown > limit else 0
        longest = max(longest, row)
    return longest
