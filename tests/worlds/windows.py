"""Windows of a job with known truth: iterations drawn one by one, cut as a controller would.

Made up, seeded. Schedule and warm-up are the product's own. What moves: the
room over the day (and with it leakage), the saving over the day and with the work, the job itself
(a slow walk, steps, phases of a curriculum), noise of single iterations that hangs together, and
slower noise that lasts for half an hour. Lower clocks cool the GPUs: part of the saving is less
leakage, which lags behind the clocks as the heat sink does.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from joulecut_controller.trust.saving import Saving, by_shape
from joulecut_controller.trust.switchback import WARM_UP_S, SwitchbackSchedule, slot_s
from joulecut_controller.trust.window import MeasuredWindow

NOON_UNIX_S = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
DAY_S = 86_400.0
ITERATION_S = 5.0
WINDOW_S = 300.0
LEAKAGE_PER_CELSIUS = 0.0015  # of the energy


def saving(windows: Iterable[MeasuredWindow]) -> Saving | None:
    """What one job saves in its newest shape; None where no window is usable."""
    return max(by_shape(windows), key=lambda one: one.ended_unix_s, default=None)


def is_drawn(schedule: SwitchbackSchedule, slot: int) -> bool:
    """Whether a slot is at default clocks."""
    return schedule.drawn(schedule.cycle(slot)) == slot


@dataclass(frozen=True)
class World:
    """What is true, and how it is hidden; ratios are of energy unless said otherwise."""

    saved: float = 0.15
    slowdown: float = 0.01
    saved_swing: float = 0.0  # over the day, both ways
    noise: float = 0.02  # of one iteration
    noise_memory: float = 0.7  # correlation of one iteration with the next
    slow_noise: float = 0.002
    slow_noise_s: float = 1800.0  # how long it lasts
    room_celsius: float = 6.0  # swing over the day
    walk_per_day: float = 0.01  # of the job's own drift, both energy and time
    trend_per_day: float = 0.01
    steps_per_day: float = 1.0
    step: float = 0.02
    phases: int = 1  # of a curriculum
    phase_ratio: float = 1.3  # of a phase's energy and time over the one's before
    phase_saved: float = 0.03  # that a phase saves more
    cooler_celsius: float = 5.0  # under the plan
    heat_sink_s: float = 20.0
    holdout: float = 0.05


@dataclass(frozen=True)
class Truth:
    """Over the whole period: energy that iterations take less under the plan, time they take more.
    Leakage included: what the energy counter of a world without the plan would show.
    """

    saved: float
    slowdown: float


def _followed(values: np.ndarray, keep: float) -> np.ndarray:
    """y[n] = values[n] + keep * y[n - 1]"""
    return np.fromiter(accumulate(values, lambda before, value: value + keep * before), float)


def _memory(noise: np.ndarray, keep: float, sd: float) -> np.ndarray:
    return sd * math.sqrt(1.0 - keep**2) * _followed(noise, keep)


def windows(
    seed: int, days: float, world: World | None = None, job: str = "gpt3"
) -> list[MeasuredWindow]:
    """As a controller would have recorded them, in order of time."""
    return measured(seed, days, world, job)[0]


def measured(
    seed: int, days: float, world: World | None = None, job: str = "gpt3"
) -> tuple[list[MeasuredWindow], Truth]:
    """The windows, and what is true of their period."""
    world = world or World()
    chance = np.random.default_rng(seed)
    schedule = SwitchbackSchedule(
        f"{job}-{seed}", world.holdout, slot_s(WINDOW_S, ITERATION_S, 0.0)
    )
    count = int(days * DAY_S / ITERATION_S)
    at_s = np.arange(count) * ITERATION_S
    first = schedule.slot(NOON_UNIX_S) + 1
    offset_s = schedule.begins_unix_s(first) - NOON_UNIX_S
    slot = np.floor((at_s - offset_s) / schedule.slot_s).astype(int)
    held_slots = {n for n in range(slot[-1] + 1) if is_drawn(schedule, first + n)}
    plan = 1.0 - np.isin(slot, list(held_slots)).astype(float)

    phase = np.minimum((at_s / (days * DAY_S) * world.phases).astype(int), world.phases - 1)
    of_day = np.sin(2 * np.pi * (at_s / DAY_S + chance.random()))
    saved = world.saved + world.saved_swing * of_day + world.phase_saved * phase
    room = world.room_celsius * np.sin(2 * np.pi * (at_s / DAY_S + chance.random()))
    drift = (
        np.cumsum(chance.normal(size=count)) * world.walk_per_day * math.sqrt(ITERATION_S / DAY_S)
        + world.trend_per_day * at_s / DAY_S
        + math.log(world.phase_ratio) * phase
    )
    for _ in range(chance.poisson(world.steps_per_day * days)):
        drift[chance.integers(count) :] += chance.normal(0.0, world.step)
    drift += _memory(
        chance.normal(size=count), math.exp(-ITERATION_S / world.slow_noise_s), world.slow_noise
    )

    pace = math.exp(-ITERATION_S / world.heat_sink_s)
    cooler = world.cooler_celsius * (1.0 - (1.0 - pace) * _followed(1.0 - plan, pace))
    fast = [_memory(chance.normal(size=count), world.noise_memory, world.noise) for _ in "et"]
    default_j = 30e3 * np.exp(drift + LEAKAGE_PER_CELSIUS * room)
    default_s = ITERATION_S * np.exp(drift)
    leaked = np.exp(-LEAKAGE_PER_CELSIUS * cooler)
    energy = default_j * leaked * np.where(plan > 0.5, 1.0 - saved, 1.0) * np.exp(fast[0])
    times = default_s * np.where(plan > 0.5, 1.0 + world.slowdown, 1.0) * np.exp(0.5 * fast[1])

    each_s = 1.0 / default_s
    plan_j = default_j * (1.0 - saved) * math.exp(-LEAKAGE_PER_CELSIUS * world.cooler_celsius)
    truth = Truth(
        saved=float(1.0 - (plan_j * each_s).sum() / (default_j * each_s).sum()),
        slowdown=world.slowdown,
    )
    made = []
    for number in range(slot[-1]):
        if not schedule.is_measured(first + number):
            continue
        begun_s = offset_s + number * schedule.slot_s
        part = slice(
            math.ceil((begun_s + WARM_UP_S) / ITERATION_S),
            math.floor((begun_s + schedule.slot_s) / ITERATION_S),
        )
        made.append(_window(job, part, number in held_slots, energy, times))
    return made, truth


def _window(
    job: str, part: slice, held: bool, energy: np.ndarray, times: np.ndarray
) -> MeasuredWindow:
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
        predicted_time_s=ITERATION_S if held else ITERATION_S * 1.008,
        predicted_energy_j=30e3 if held else 30e3 * 0.845,
    )
