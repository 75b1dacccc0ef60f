"""A simulated card on the bench: its own clock and thermostat, so a study takes seconds.

Time is virtual. The card warms up as it works, its energy counter steps every 100 ms, its
passes jitter and each card is a little off its kind; the seed decides all of it.
"""

import random
import zlib
from dataclasses import replace
from math import exp, floor
from typing import Any

from joulecut_lab.study.bench import DEFAULT_CLOCK, Done, Machine, Reading
from joulecut_lab.study.cell import Cell
from joulecut_sim.layer import memory_bytes
from joulecut_sim.layer_plant import LayerCard, LayerPlant, Operating
from joulecut_wire.assumed import COUNTER_STEP_S

# Relative standard deviations, per stretch: adjacent clocks of the public sweeps scatter by
# 0.13-0.22 % in time and 0.4-0.5 % in power.
TIME_NOISE, POWER_NOISE = 0.0018, 0.004
STRETCH_S = 1.0  # how long noise keeps its value, and how often the temperature moves
RESERVED_GIB = 1.5  # assumed: driver, context and workspace


class SimulatedBench:
    """Bench and Clocks in one: on a simulated card both may be had. `noise` 0 is exact."""

    def __init__(self, card: LayerCard, *, seed: int = 1, noise: float = 1.0) -> None:
        self.machine = Machine(
            basis="simulated",
            card=card.sku.model,
            uuid=f"GPU-sim-{card.sku.name}",
            driver="simulated",
            clocks_mhz=card.sku.clocks_mhz,
            dtypes=card.dtypes,
        )
        self._card = card
        self._seed = seed
        self._noise = noise
        self._dice = random.Random(seed)  # noqa: S311 -- seeded noise is the point
        self._plant: LayerPlant | None = None
        self._cell: Cell | None = None
        self._asked_mhz = card.sku.clock_max_mhz
        self._now_s = 0.0
        self._energy_j = self._latched_j = 0.0
        self._celsius = card.sku.ambient_celsius
        self._passes = 0.0
        self._stretch_ends_s = 0.0
        self._point: Operating | None = None

    # -- Clocks --------------------------------------------------------------------------

    def choices_mhz(self) -> tuple[int, ...]:
        return self._card.sku.clocks_mhz

    def ask(self, clock_mhz: int) -> None:
        self._asked_mhz = clock_mhz if clock_mhz != DEFAULT_CLOCK else self._card.sku.clock_max_mhz
        # So that a row does not depend on which rows were measured before it.
        self._dice.seed(zlib.crc32(f"{self._seed} {self._cell} {clock_mhz}".encode()))
        self._new_stretch()

    def check(self) -> None:
        """The clock of a simulated card has no other owner."""

    # -- Bench ---------------------------------------------------------------------------

    def prepare(self, cell: Cell) -> str:
        needed_gib = memory_bytes(cell.layer, cell.dtype, cell.which) / 2**30 + RESERVED_GIB
        if needed_gib > self._card.memory_gib:
            return f"needs {needed_gib:.0f} GiB, the card has {self._card.memory_gib:g}"
        self._plant = LayerPlant(self._card, cell.layer, cell.dtype, cell.which)
        self._cell, self._passes = cell, 0.0
        self._celsius = self._card.sku.ambient_celsius
        self._new_stretch()
        return ""

    def work(self, seconds: float) -> Done:
        until_s = self._now_s + seconds
        while self._now_s < until_s:
            point = self._working()
            duration_s = min(until_s, self._stretch_ends_s) - self._now_s
            self._passes += duration_s / point.time_s
            self._advance(duration_s, point.parts.power_w)
        done = int(self._passes)
        return Done(done, self._now_s - (self._passes - done) * self._working().time_s)

    def now_s(self) -> float:
        return self._now_s

    def read(self) -> Reading:
        point = self._working()
        return Reading(self._latched_j, point.clock_mhz, self._celsius, point.capped)

    def power_w(self) -> float:
        """What the card draws now."""
        return self._working().parts.power_w

    def causes_j(self) -> dict[str, Any]:
        """As of the warm card, without noise."""
        assert self._plant is not None
        point = self._plant.at(self._asked_mhz)
        names = ("switching", "clock", "leakage", "memory")
        return {f"{one}_j": getattr(point.parts, f"{one}_w") * point.time_s for one in names}

    def close(self) -> None:
        self._plant = None

    # -- physics -------------------------------------------------------------------------

    def _working(self) -> Operating:
        if self._point is None:
            self._new_stretch()
        assert self._point is not None
        return self._point

    def _new_stretch(self) -> None:
        assert self._plant is not None
        true = self._plant.at(self._asked_mhz, self._celsius)
        time_s = true.time_s * self._dice.gauss(1.0, self._noise * TIME_NOISE)
        ratio = self._dice.gauss(1.0, self._noise * POWER_NOISE)
        parts = replace(
            true.parts, switching_w=true.parts.switching_w + (ratio - 1.0) * true.parts.power_w
        )
        self._point = replace(true, time_s=time_s, parts=parts)
        self._stretch_ends_s = self._now_s + STRETCH_S

    def _advance(self, duration_s: float, power_w: float) -> None:
        """The counter latches at its last step before the end."""
        end_s = self._now_s + duration_s
        step_s = floor(end_s / COUNTER_STEP_S) * COUNTER_STEP_S
        if step_s > self._now_s:
            self._latched_j = self._energy_j + power_w * (step_s - self._now_s)
        self._energy_j += power_w * duration_s
        self._now_s = end_s
        sku = self._card.sku
        target = sku.ambient_celsius + sku.heating_celsius_per_w * power_w
        self._celsius = target + (self._celsius - target) * exp(-duration_s / sku.heating_s)
        if end_s >= self._stretch_ends_s:
            self._new_stretch()
