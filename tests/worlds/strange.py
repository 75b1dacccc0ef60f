"""Sweeps of cards that do not have the predictors' form: what a user's own card may look like.

Time is a soft roofline beside a host's share, voltage rises in two slopes, leakage follows the
voltage, the activity of the work follows what it waits for, and a power limit may hold the
clock. Every number is drawn from a seed, widely. Assumed throughout; nothing here is measured.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TOPS_MHZ = (1200, 1380, 1590, 1755, 1980, 2100, 2520)
STEPS = (12, 38, 60)  # how many clocks a sweep has
LOWEST = 0.35  # of the highest clock
SHARPNESS = (1.0, 2.0, 4.0, 8.0)  # 1: compute and memory take turns; 8: they overlap

Sweep = dict[tuple[int, str], dict[int, tuple[float, float]]]  # clock: seconds, joules


@dataclass(frozen=True, slots=True)
class Work:
    """One operation: seconds at the highest clock, and what of it follows the clock."""

    time_s: float
    clocked: float
    sharpness: float
    host: float
    load: float

    def busy(self, ratio: float) -> tuple[float, float]:
        """What computing and the GPU in all take, in units of `time_s`; `ratio`: f_max / f."""
        compute = self.clocked * ratio
        gpu = (compute**self.sharpness + (1.0 - self.clocked) ** self.sharpness) ** (
            1.0 / self.sharpness
        )
        return compute, gpu


def sweep(seed: int, stages: int = 1) -> Sweep:
    """What each stage costs at every clock, without noise."""
    dice = random.Random(f"strange {seed}")
    top, count = dice.choice(TOPS_MHZ), dice.choice(STEPS)
    low = top * dice.uniform(LOWEST, 0.7)
    clocks = sorted({round(low + (top - low) * i / (count - 1)) for i in range(count)})
    knee, bend = sorted(top * dice.uniform(0.4, 1.0) for _ in range(2))
    slopes = dice.uniform(0.1, 1.2), dice.uniform(0.0, 1.0)
    static_w, leak = dice.uniform(20.0, 120.0), dice.uniform(0.0, 0.6)
    limit_w = dice.uniform(150.0, 800.0)
    full = limit_w * (1.25 if dice.random() < 0.4 else 0.8)

    def volts(mhz: float) -> float:
        return 1.0 + sum(
            slope * max(0.0, mhz - at) / 1000.0
            for slope, at in zip(slopes, (knee, bend), strict=True)
        )

    found: Sweep = {}
    for stage in range(stages):
        for kind in ("forward", "backward"):
            work = Work(
                dice.uniform(0.005, 0.4),
                dice.uniform(0.15, 1.0),
                dice.choice(SHARPNESS),
                dice.uniform(0.0, 0.1),
                dice.uniform(0.7, 1.0),
            )

            def power_w(mhz: float, work: Work = work) -> float:
                compute, gpu = work.busy(top / mhz)
                activity = gpu / (gpu + work.host) * (0.5 + 0.5 * compute / gpu)
                dynamic = full * work.load * mhz / top * (volts(mhz) / volts(top)) ** 2
                return static_w * (1.0 + leak * (volts(mhz) ** 3 - 1.0)) + dynamic * activity

            options = {}
            for clock in clocks:
                mhz = float(clock)
                while power_w(mhz) > limit_w:
                    mhz -= 1.0
                time_s = work.time_s * (work.host + work.busy(top / mhz)[1])
                options[clock] = (time_s, time_s * power_w(mhz))
            found[stage, kind] = options
    return found


def noisy(
    clean: Mapping[tuple[int, str], Mapping[int, tuple[float, float]]], sd: float, seed: int
) -> Sweep:
    """The same with every time and energy off by its own draw (relative sd)."""
    dice = random.Random(f"noise {seed}")
    return {
        key: {
            clock: (time_s * dice.gauss(1.0, sd), energy_j * dice.gauss(1.0, sd))
            for clock, (time_s, energy_j) in options.items()
        }
        for key, options in clean.items()
    }


def spread(clocks: Iterable[int], count: int) -> tuple[int, ...]:
    """So many of the clocks, evenly apart, both ends among them."""
    table = sorted(clocks)
    return tuple(table[round(i * (len(table) - 1) / (count - 1))] for i in range(count))
