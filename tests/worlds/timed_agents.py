"""A world whose agents time clock changes as real ones do, on its virtual clock.

Iteration starts go through the agent's own predictions and schedules; device, network and threads
are replaced by drawn latencies. Starts come with jitter, and some are lost.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from worlds import World

from joulecut_agent.control.iteration_clock import IterationClock
from joulecut_agent.control.timed_schedule import SetLatencies, TimedSchedule
from joulecut_wire.messages import Command, IterationTiming, Result, Setting

SOON_S = 1e-3  # an agent's thread does not wake up twice within


@dataclass(frozen=True)
class Timing:
    """Set latency as mean and half width of a uniform draw, the deviation of starts, and the
    share of starts that is lost."""

    latency_s: float = 0.02
    latency_half_s: float = 0.01
    start_sd_s: float = 0.002
    lost_ratio: float = 0.0

    @property
    def latencies(self) -> SetLatencies:
        """As an agent measures them."""
        half_s = 0.9 * self.latency_half_s
        return SetLatencies(self.latency_s - half_s, self.latency_s + half_s)


@dataclass
class Gpu:
    """One GPU's schedule, carried out by its agent. Times are the world's."""

    dice: random.Random
    timing: Timing
    starts: IterationClock = field(default_factory=IterationClock)
    schedule: TimedSchedule | None = None
    rest_mhz: int = 0
    asked_mhz: int = 0
    next_s: float = math.inf
    changes: list[tuple[float, int]] = field(default_factory=list)  # when in effect

    def apply(self, setting: Setting, now_s: float) -> None:
        self.schedule = TimedSchedule(setting) if setting.timed_steps else None
        self.rest_mhz = setting.clock_max_mhz
        self.changes = [(at_s, mhz) for at_s, mhz in self.changes if at_s <= now_s][-1:]
        self._send(self.rest_mhz, now_s)
        if self.schedule is not None:
            for pace_s in (self.starts.period_s, setting.iteration_time_s):
                if pace_s > 0.0 and pace_s not in self.starts.paces_s:
                    self.starts.paces_s.append(pace_s)
        self.next_s = now_s if self.schedule else math.inf

    def begin(self, number: int, now_s: float) -> None:
        """An iteration begins."""
        if self.dice.random() < self.timing.lost_ratio:
            return
        late_s = abs(self.dice.gauss(0.0, self.timing.start_sd_s))
        self.clock(now_s + late_s)
        self.starts.seen(now_s + late_s, number, now_s + late_s)
        if self.schedule is not None:
            self._look(now_s + late_s)

    def clock(self, at_s: float) -> tuple[int, float]:
        """The clock in effect, and until when that certainly stays. Time never goes back."""
        while self.next_s <= at_s:
            self._look(self.next_s)
        begun = [mhz for effect_s, mhz in self.changes if effect_s <= at_s]
        later = [effect_s for effect_s, _ in self.changes if effect_s > at_s]
        until_s = min([*later, self.next_s])
        del self.changes[: max(0, len(begun) - 1)]
        return (begun[-1] if begun else self.rest_mhz), max(until_s, at_s + 1e-9)

    def _look(self, now_s: float) -> None:
        assert self.schedule is not None
        due = self.schedule.due(self.starts.prediction(), self.timing.latencies, now_s)
        if due.clock_mhz != self.asked_mhz:
            self._send(due.clock_mhz, now_s)
        self.next_s = max(due.next_s, now_s + SOON_S)

    def _send(self, mhz: int, now_s: float) -> None:
        timing = self.timing
        spread_s = self.dice.uniform(-timing.latency_half_s, timing.latency_half_s)
        last_s = self.changes[-1][0] if self.changes else -math.inf
        self.changes.append((max(last_s, now_s + timing.latency_s + spread_s), mhz))
        self.asked_mhz = mhz


class TimedWorld(World):
    """See above."""

    def __init__(self, timing: Timing, **more: object) -> None:
        super().__init__(timed=True, **more)
        self.timed_gpus = {uuid: Gpu(random.Random(f"agent {uuid}"), timing) for uuid in self.uuids}
        self._number, self.timing = 0, timing

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        results = await super().apply(address, command)
        if all(result.accepted for result in results):
            for setting in command.settings:
                if setting.uuid in self.timed_gpus:
                    self.timed_gpus[setting.uuid].apply(setting, self.now_s)
        return results

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        results = await super().clear(address, epoch, job, uuids, reason)
        for uuid in uuids:
            if uuid in self.timed_gpus:
                self.timed_gpus[uuid].apply(Setting(uuid, self.sku.clock_max_mhz), self.now_s)
        return results

    def _begin(self) -> None:
        self._number += 1
        for gpu in self.timed_gpus.values():
            gpu.begin(self._number, self.now_s)
        super()._begin()

    def _clock(self, stage: int, at_s: float) -> tuple[float, float]:
        uuid = self.uuids[stage]
        if not self._steps_of(uuid):
            return self._clocks[uuid], math.inf
        mhz, until_s = self.timed_gpus[uuid].clock(self.now_s + at_s)
        return mhz, until_s - self.now_s

    def _timing(self, uuid: str) -> IterationTiming | None:
        if uuid not in self.timed_gpus:
            return None
        starts = self.timed_gpus[uuid].starts
        return IterationTiming(
            self.job,
            uuid,
            "report",
            starts.period_s,
            starts.jitter_s,
            starts.starts_per_minute(self.now_s),
            starts.missed_ratio,
        )
