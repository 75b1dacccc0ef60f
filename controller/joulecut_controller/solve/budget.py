"""Who gets how much of a limited power: the job that makes most of the next watt.

Equal shares are wrong twice: a job that has slack gives up power for nothing, and one without
pays for every watt. Along a job's frontier each step to a slower plan saves power and costs
throughput; at the optimum all jobs pay the same throughput for the last watt (equal slopes,
Fox 1966, "Discrete optimization via marginal analysis").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FITS = 1e-12  # of the limit: sums of powers in another order must not refuse a plan


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

    def __post_init__(self) -> None:
        if not self.offers:
            raise ValueError(f"{self.name} offers nothing")
        if not 0.0 < self.weight < math.inf:
            raise ValueError(f"{self.name}: weight {self.weight} is not above 0")
        if not all(0.0 < o.power_w < math.inf and o.rate_hz > 0.0 for o in self.offers):
            raise ValueError(f"{self.name}: powers and rates are above 0")

    def value(self, offer: Offer) -> float:
        return self.weight * offer.rate_hz / max(o.rate_hz for o in self.offers)


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
    that bring most. With frontiers of some dozen points the rest is below any measurement;
    `value_bound` says how much it can be.
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
    power_w = math.fsum(offer.power_w for offer in chosen)
    return Allocation(tuple(chosen), power_w, value, max(bound, value), price)


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
