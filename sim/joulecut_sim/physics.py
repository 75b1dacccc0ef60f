"""State of one simulated GPU over time: pure, so that all processes compute the same.

A card is a value; `advance` returns the card at a later time. Energy is the integral of a power
that is constant between events, so it does not depend on when or how often it is read.
"""

from dataclasses import dataclass, replace
from math import exp, floor

from joulecut_sim.skus import Sku

COUNTER_STEP_S = 0.1  # the driver refreshes the energy counter every 100 ms (Zeus)
# It counts millijoules. Sums of floats differ in their last bits by where they were split, so
# without this two readings of one step could fall, which an agent takes for a driver reload.
COUNTER_DIGITS = 3
AVERAGE_S = 0.5  # time constant of the averaged power: close to the 1 s window of Ampere
WORKS_MAX = 8  # a job hands in one piece per iteration, at most two ahead
CHANGES_MAX = 8  # clock changes remembered; older ones have long taken effect
LATE_S_MAX = 2.0  # how long after its last piece a job still counts as running


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch of work on one GPU: its energy, whatever the clocks were inside it.

    `clock_cap_mhz` is the highest clock the power cap leaves this work.
    """

    begin_s: float
    end_s: float
    energy_j: float
    clock_cap_mhz: int
    utilization: float = 1.0

    @property
    def power_w(self) -> float:
        return self.energy_j / (self.end_s - self.begin_s)


@dataclass(frozen=True, slots=True)
class Change:
    """A clock lock that takes effect at a time; both clocks 0 mean the driver's default."""

    effective_s: float
    clock_min_mhz: int
    clock_max_mhz: int


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, settled up to `at_s`. Energies in J, powers in W, times on CLOCK_BOOTTIME."""

    at_s: float
    energy_j: float = 0.0
    latched_j: float = 0.0  # the counter's last 100 ms step
    average_w: float = 0.0
    temperature_celsius: float = 0.0
    load_ratio: float = 0.0
    memory_used_bytes: int = 0
    lost: bool = False
    mig: bool = False
    writes: int = 0  # locks, resets and power limits accepted so far
    power_limit_mw: int = 0  # 0: the driver's default
    works: tuple[Work, ...] = ()
    changes: tuple[Change, ...] = ()


def fresh(sku: Sku, now_s: float) -> Card:
    """A card as after a driver load: idle, cool, counters at zero, default clocks."""
    return Card(
        at_s=now_s,
        average_w=sku.idle_power_w,
        temperature_celsius=sku.ambient_celsius + sku.heating_celsius_per_w * sku.idle_power_w,
    )


def lock_at(card: Card, when_s: float) -> tuple[int, int]:
    """The lock in effect at a time, (0, 0) for none."""
    held = (0, 0)
    for change in card.changes:
        if change.effective_s <= when_s:
            held = (change.clock_min_mhz, change.clock_max_mhz)
    return held


def work_at(card: Card, when_s: float) -> Work | None:
    """The current piece of work; for LATE_S_MAX after the last one, that one."""
    last = None
    for work in card.works:
        if work.begin_s <= when_s < work.end_s:
            return work
        if work.end_s <= when_s < work.end_s + LATE_S_MAX:
            last = work
    return last


def power_limit_w(sku: Sku, card: Card) -> float:
    """The limit in force."""
    return card.power_limit_mw / 1000.0 if card.power_limit_mw else sku.power_limit_w


def clock_mhz(sku: Sku, card: Card, when_s: float) -> int:
    """The SM clock: the highest allowed one under load, the lowest otherwise."""
    low, high = lock_at(card, when_s)
    work = work_at(card, when_s)
    if work is None and card.load_ratio <= 0.0:
        return max(sku.clock_min_mhz, low)
    limit_w = power_limit_w(sku, card)
    cap = work.clock_cap_mhz if work else sku.cap_clock_mhz(card.load_ratio, limit_w)
    return min(high or sku.clock_max_mhz, cap)


def _power_w(sku: Sku, card: Card, when_s: float) -> float:
    """The integrated power; work not handed in yet counts as none."""
    for work in card.works:
        if work.begin_s <= when_s < work.end_s:
            return _within_limit_w(card, work.power_w)
    if card.load_ratio <= 0.0:
        return sku.idle_power_w
    _, high = lock_at(card, when_s)
    cap = sku.cap_clock_mhz(card.load_ratio, power_limit_w(sku, card))
    return sku.load_power_w(min(high or sku.clock_max_mhz, cap), card.load_ratio)


def _within_limit_w(card: Card, power_w: float) -> float:
    """A limit set inside a piece of work holds at once; the job slows from its next one. Without
    one the work has the cap of its profile.
    """
    return min(power_w, card.power_limit_mw / 1000.0) if card.power_limit_mw else power_w


def power_shown_w(sku: Sku, card: Card, when_s: float) -> float:
    """The power sensor's value; a job that is briefly late does not read as idle."""
    work = work_at(card, when_s)
    return _within_limit_w(card, work.power_w) if work else _power_w(sku, card, when_s)


def settled_until_s(card: Card, now_s: float) -> float:
    """End of the final part of the integral: not beyond the work of a running job."""
    ends = [work.end_s for work in card.works]
    if ends and max(ends) + LATE_S_MAX > now_s:
        return min(now_s, max(ends))
    return now_s


def advance(sku: Sku, card: Card, until_s: float) -> Card:
    """The same card at `until_s`; the card itself where that lies in its past."""
    tick_s = _last_tick_s(until_s)
    if card.at_s < tick_s <= until_s:
        card = _run(sku, card, tick_s)
        card = replace(card, latched_j=round(card.energy_j, COUNTER_DIGITS))
    card = _run(sku, card, until_s)
    works = tuple(work for work in card.works if work.end_s + LATE_S_MAX > card.at_s)
    return replace(card, works=works)


def _last_tick_s(until_s: float) -> float:
    """The counter's last step at or before a time; 17 * 0.1 > 1.7 in floats, so 1.7 has step 16."""
    tick = floor(until_s / COUNTER_STEP_S)
    return (tick - 1 if tick * COUNTER_STEP_S > until_s else tick) * COUNTER_STEP_S


def _run(sku: Sku, card: Card, until_s: float) -> Card:
    edges = {until_s}
    for work in card.works:
        edges |= {work.begin_s, work.end_s, work.end_s + LATE_S_MAX}
    edges |= {change.effective_s for change in card.changes}
    for edge_s in sorted(edge for edge in edges if card.at_s < edge <= until_s):
        card = _step(sku, card, edge_s)
    return card


def _step(sku: Sku, card: Card, until_s: float) -> Card:
    """To the next edge; power is constant on the way."""
    duration_s = until_s - card.at_s
    power_w = _power_w(sku, card, card.at_s)
    # Without it the reading fell by 3-12 % below the counter of a job that hands in its work late.
    shown_w = power_shown_w(sku, card, card.at_s)
    keep = exp(-duration_s / AVERAGE_S)
    warm = exp(-duration_s / sku.heating_s)
    target = sku.ambient_celsius + sku.heating_celsius_per_w * power_w
    return replace(
        card,
        at_s=until_s,
        energy_j=card.energy_j + power_w * duration_s,
        average_w=shown_w + (card.average_w - shown_w) * keep,
        temperature_celsius=target + (card.temperature_celsius - target) * warm,
    )
