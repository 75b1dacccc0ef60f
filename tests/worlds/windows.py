"""Windows of a job with known truth: iterations drawn one by one, cut as a controller would.

Made up, seeded. What moves: the room over the day (and with it leakage), the job itself
(a slow walk), single steps, noise of single iterations that hangs together, and slower noise
that lasts for half an hour. Lower clocks cool the GPUs: part of the saving is less leakage.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from joulecut_controller.verify.window import MeasuredWindow

NOON_UNIX_S = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
ITERATION_S = 5.0
WINDOW_S = 300.0
WARMUP_S = 60.0
LEAKAGE_PER_CELSIUS = 0.0015  # of the energy
THERMAL_S = 20.0
BESIDE = 3  # windows under the plan that are kept on either side of a hold-out


@dataclass(frozen=True)
class World:
    """What is true, and how it is hidden; ratios are of energy unless said otherwise."""

    saved: float = 0.15
    slowdown: float = 0.01
    noise: float = 0.02  # of one iteration
    noise_memory: float = 0.7  # correlation of one iteration with the next
    slow_noise: float = 0.002  # lasts for half an hour
    room_celsius: float = 6.0  # swing over the day
    walk_per_day: float = 0.01  # of the job's own drift, both energy and time
    trend_per_day: float = 0.01
    steps_per_day: float = 1.0
    step: float = 0.02
    cooler_celsius: float = 5.0  # under the plan
    holdout: float = 0.05

    @property
    def true_saved(self) -> float:
        """Leakage included: what the energy counter of a world without the plan would show."""
        return 1.0 - (1.0 - self.saved) * math.exp(-LEAKAGE_PER_CELSIUS * self.cooler_celsius)


def _memory(noise: np.ndarray, keep: float, sd: float) -> np.ndarray:
    return sd * lfilter([math.sqrt(1.0 - keep**2)], [1.0, -keep], noise)


def windows(
    seed: int, days: float, world: World | None = None, job: str = "gpt3"
) -> list[MeasuredWindow]:
    """As a controller would have recorded them, in order of time."""
    world = world or World()
    chance = np.random.default_rng(seed)
    slots = int(days * 86_400.0 / WINDOW_S)
    each = int(WINDOW_S / ITERATION_S)
    count = slots * each
    at_s = np.arange(count) * ITERATION_S
    block = round(1.0 / world.holdout)
    held = np.zeros(slots, dtype=bool)
    for first in range(0, slots - block + 1, block):  # one in every block, at a random place
        held[first + chance.integers(block)] = True
    plan = np.repeat(~held, each).astype(float)
    pace = math.exp(-ITERATION_S / THERMAL_S)
    cooler = world.cooler_celsius * lfilter([1.0 - pace], [1.0, -pace], plan)
    room = world.room_celsius * np.sin(2 * np.pi * (at_s / 86_400.0 + chance.random()))
    celsius = 60.0 + room - cooler
    drift = (
        np.cumsum(chance.normal(size=count))
        * world.walk_per_day
        * math.sqrt(ITERATION_S / 86_400.0)
        + world.trend_per_day * at_s / 86_400.0
    )
    for _ in range(chance.poisson(world.steps_per_day * days)):
        drift[chance.integers(count) :] += chance.normal(0.0, world.step)
    slow = _memory(chance.normal(size=count), math.exp(-ITERATION_S / 1800.0), world.slow_noise)
    fast = [_memory(chance.normal(size=count), world.noise_memory, world.noise) for _ in "et"]
    energy = 30e3 * np.exp(
        drift
        + slow
        + fast[0]
        + LEAKAGE_PER_CELSIUS * (celsius - 60.0)
        + plan * math.log(1.0 - world.saved)
    )
    times = ITERATION_S * np.exp(
        drift + slow + 0.5 * fast[1] + plan * math.log(1.0 + world.slowdown)
    )
    change = np.flatnonzero(np.diff(held.astype(int))) + 1
    fresh = np.zeros(slots, dtype=bool)
    fresh[change] = True
    near = np.convolve(held, np.ones(2 * BESIDE + 1), mode="same") > 0.5
    return [
        _window(job, int(slot), each, held[slot], fresh[slot], energy, times, celsius)
        for slot in np.flatnonzero(near)
    ]


def _window(
    job: str,
    slot: int,
    each: int,
    held: bool,
    fresh: bool,
    energy: np.ndarray,
    times: np.ndarray,
    celsius: np.ndarray,
) -> MeasuredWindow:
    skipped = int(WARMUP_S / ITERATION_S) if fresh else 0
    part = slice(slot * each + skipped, (slot + 1) * each)
    return MeasuredWindow(
        job=job,
        shape="1f1b 8x96",
        arm="default" if held else "plan",
        generation=0 if held else 12,
        begun_unix_s=NOON_UNIX_S + part.start * ITERATION_S,
        ended_unix_s=NOON_UNIX_S + part.stop * ITERATION_S,
        gpus=8,
        iterations=part.stop - part.start,
        time_mean_s=float(times[part].mean()),
        time_sd_s=float(times[part].std()),
        energy_j=float(energy[part].mean()),
        temperature_celsius=float(celsius[part].mean()),
        predicted_time_s=ITERATION_S if held else ITERATION_S * 1.008,
        predicted_energy_j=30e3 if held else 30e3 * 0.845,
    )
