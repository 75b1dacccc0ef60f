"""Allocation of a limited power: the next watt goes to the job that makes most of it.

Equal shares are wrong twice: a job that has slack gives up power for nothing, and one without
pays for every watt. Along a job's frontier each step to a slower plan saves power and costs
throughput; at the optimum all jobs pay the same throughput for the last watt (equal slopes,
Fox 1966, "Discrete optimization via marginal analysis").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from joulecut_engine.optimize.levels import Floats, Ints

FITS = 1e-12  # of the limit: sums of powers in another order must not refuse a plan
# Allocations of the first jobs that are followed further; 100 jobs with 64 plans each keep a few
# hundred. Where there are more, the most promising stay and the bound is that of the slopes.
STATES_MAX = 20_000
# Among more jobs than few, what is short by less is below any measurement.
FEW, SHORT = 16, 1e-4


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """What a job draws and delivers with one plan: mean watts of all its GPUs, iterations/s."""

    power_w: float
    rate_hz: float


@dataclass(frozen=True, slots=True)
class Bidder:
    """A job: its plans as offers, in any order, and what its relative throughput is worth.

    The value of an offer is weight * rate / fastest rate: without weights all jobs count
    the same, however long their iterations are.
    """

    name: str
    offers: tuple[Offer, ...]
    weight: float = 1.0
    fastest_hz: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if not self.offers:
            raise ValueError(f"{self.name} offers nothing")
        if not 0.0 < self.weight < math.inf:
            raise ValueError(f"{self.name}: weight {self.weight} is not above 0")
        if not all(0.0 < o.power_w < math.inf and o.rate_hz > 0.0 for o in self.offers):
            raise ValueError(f"{self.name}: powers and rates are above 0")
        object.__setattr__(self, "fastest_hz", max(offer.rate_hz for offer in self.offers))

    def value(self, offer: Offer) -> float:
        return self.weight * offer.rate_hz / self.fastest_hz


@dataclass(frozen=True, slots=True)
class Allocation:
    """One offer per bidder within the limit.

    `value` is the sum of the offers' values; no allocation exceeds `value_bound`.
    `price_per_w` is what one more watt would bring, 0 where power is left over.
    """

    offers: tuple[Offer, ...]
    power_w: float
    value: float
    value_bound: float
    price_per_w: float


class Unaffordable(ValueError):
    """Even the plans of least power draw more than the limit."""

    def __init__(self, limit_w: float, least_w: float) -> None:
        self.limit_w, self.least_w = limit_w, least_w
        super().__init__(f"limit {limit_w:.6g} W is below the least possible {least_w:.6g} W")


def allocate(bidders: Sequence[Bidder], limit_w: float) -> Allocation:
    """The offers of most value found within the limit. Raises Unaffordable.

    Steps along the upper hulls are taken by falling slope until one does not fit: where that
    spends all power, nothing is better. What is left after that goes to the single changes
    that bring most, and then all allocations that the slopes do not rule out are compared, job
    after job (`_compared`): nothing is better then, unless there are more than `STATES_MAX`.
    """
    hulls = [_hull(bidder) for bidder in bidders]
    least_w = math.fsum(hull[0].power_w for hull in hulls)
    room_w = limit_w * (1 + FITS) - least_w
    if room_w < 0:
        raise Unaffordable(limit_w, least_w)
    steps = sorted(
        (
            (_slope(bidder, a, b), -k, b.power_w - a.power_w, number, b)
            for number, (bidder, hull) in enumerate(zip(bidders, hulls, strict=True))
            for k, (a, b) in enumerate(pairwise(hull))
        ),
        reverse=True,
        key=lambda step: step[:2],
    )
    chosen = [hull[0] for hull in hulls]
    price, extra = 0.0, 0.0
    for slope, _, needs_w, number, offer in steps:
        if needs_w > room_w:
            price, extra = slope, slope * max(0.0, room_w)
            break
        chosen[number] = offer
        room_w -= needs_w
    bound = _value(bidders, chosen) + extra
    _spend(bidders, chosen, room_w)
    value = _value(bidders, chosen)
    if value < bound * (1 - (FITS if len(bidders) <= FEW else SHORT)):
        other, whole = _compared(bidders, hulls, limit_w * (1 + FITS), value)
        chosen = other or chosen
        value = _value(bidders, chosen)
        bound = value if whole else bound
    power_w = math.fsum(offer.power_w for offer in chosen)
    return Allocation(tuple(chosen), power_w, value, max(bound, value), price)


def _compared(
    bidders: Sequence[Bidder], hulls: Sequence[list[Offer]], limit_w: float, least: float
) -> tuple[list[Offer] | None, bool]:
    """The allocation of most value, where that is above `least`; and whether all were compared.

    Job after job; of allocations to the jobs so far one stays in the race while no other gives
    more for no more power, and while the slopes of the jobs to come could still lift it.
    """
    power_w, value = np.zeros(1), np.zeros(1)
    steps: list[tuple[Ints, Ints, list[Offer]]] = []
    whole = True
    for number, bidder in enumerate(bidders):
        offers = list(bidder.offers)
        wants_w = np.array([offer.power_w for offer in offers])
        brings = np.array([bidder.value(offer) for offer in offers])
        power_w = (power_w[:, None] + wants_w).ravel()
        value = (value[:, None] + brings).ravel()
        most = value + _still(bidders[number + 1 :], hulls[number + 1 :], limit_w - power_w)
        order = np.lexsort((-value, power_w))
        order = order[most[order] > least * (1 + FITS)]
        above = np.maximum.accumulate(value[order])
        order = order[np.r_[True, value[order][1:] > above[:-1]]] if len(order) else order
        if len(order) > STATES_MAX:
            order = order[np.argsort(-most[order], kind="stable")[:STATES_MAX]]
            whole = False
        steps.append((order // len(offers), order % len(offers), offers))
        power_w, value = power_w[order], value[order]
    if not len(value):
        return None, whole
    at, chosen = int(value.argmax()), []
    for parent, taken, offers in reversed(steps):
        chosen.append(offers[taken[at]])
        at = int(parent[at])
    return chosen[::-1], whole


def _still(bidders: Sequence[Bidder], hulls: Sequence[list[Offer]], room_w: Floats) -> Floats:
    """The most that jobs could add within each of these powers; minus infinity below the least
    that they need."""
    least_w = math.fsum(hull[0].power_w for hull in hulls)
    pairs = [
        (_slope(bidder, a, b), b.power_w - a.power_w)
        for bidder, hull in zip(bidders, hulls, strict=True)
        for a, b in pairwise(hull)
    ]
    pairs.sort(reverse=True)
    base = math.fsum(b.value(hull[0]) for b, hull in zip(bidders, hulls, strict=True))
    watts = np.cumsum([least_w, *(needs_w for _, needs_w in pairs)])
    worth = np.cumsum([base, *(slope * needs_w for slope, needs_w in pairs)])
    return np.where(room_w < least_w * (1 - FITS), -np.inf, np.interp(room_w, watts, worth))


def _value(bidders: Sequence[Bidder], chosen: Sequence[Offer]) -> float:
    return math.fsum(b.value(offer) for b, offer in zip(bidders, chosen, strict=True))


def _spend(bidders: Sequence[Bidder], chosen: list[Offer], room_w: float) -> None:
    """Changes one bidder's offer after another while something better fits."""
    while True:
        best = (0.0, 0.0, 0, chosen[0] if chosen else None)
        for number, bidder in enumerate(bidders):
            now = chosen[number]
            for offer in bidder.offers:
                gain = bidder.value(offer) - bidder.value(now)
                needs_w = offer.power_w - now.power_w
                if needs_w <= room_w and (gain, -needs_w) > (best[0], -best[1]):
                    best = (gain, needs_w, number, offer)
        gain, needs_w, number, picked = best
        if gain <= 0.0 or picked is None:
            return
        chosen[number] = picked
        room_w -= needs_w


def _slope(bidder: Bidder, a: Offer, b: Offer) -> float:
    return (bidder.value(b) - bidder.value(a)) / (b.power_w - a.power_w)


def _hull(bidder: Bidder) -> list[Offer]:
    """The upper hull of value over power, from least power up; slopes fall strictly."""
    hull: list[Offer] = []
    for offer in sorted(bidder.offers, key=lambda o: (o.power_w, -o.rate_hz)):
        if hull and offer.rate_hz <= hull[-1].rate_hz:
            continue
        while len(hull) > 1 and _slope(bidder, hull[-2], hull[-1]) <= _slope(
            bidder, hull[-1], offer
        ):
            hull.pop()
        hull.append(offer)
    return hull
