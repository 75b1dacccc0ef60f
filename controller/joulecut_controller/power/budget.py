"""The power budget: which jobs slow down, and how far, to stay within a limit together.

A job offers the plan of its own target and every slower one of its frontier; the allocation goes by
marginal throughput. A slowed job gets a longer deadline; the planner chooses its clocks as usual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from joulecut_engine.optimize.budget import Bidder, Offer, Unaffordable, allocate

# Plans exist between two points of a frontier, nearly on the line from one to the other: so
# many steps a point make the allocation finer than any power is known.
STEPS = 4
NEAR = 1e-6  # relative: a point at the job's own time is its own


@dataclass(frozen=True, slots=True)
class Point:
    """One plan of a job: real seconds, and watts that all its GPUs need, with their hosts."""

    iteration_time_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that can be slowed. `frontier` ascends in time and is not empty; `own_s` is the
    deadline of its own target, in real seconds."""

    name: str
    weight: float
    own_s: float
    frontier: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Shares:
    """An allocation. `deadline_s` holds the jobs that must be slower than their own targets;
    `complaint` says why no plans keep the limit, empty where some do. `power_w` is predicted for
    jobs with a claim and measured for the rest.
    """

    limit_w: float
    power_w: float
    deadline_s: Mapping[str, float] = field(default_factory=dict)
    price_per_w: float = 0.0  # relative throughput that one watt more would bring
    complaint: str = ""


def shares(limit_w: float, claims: Sequence[Claim], fixed_w: float) -> Shares:
    """The deadlines that keep all jobs within the limit at the least cost of throughput.

    `fixed_w` is drawn by what cannot be slowed. Where even the slowest plans draw more than the
    limit, they are chosen, with a complaint.
    """
    offered = [_offered(claim) for claim in claims]
    bidders = [
        Bidder(
            claim.name,
            tuple(Offer(point.power_w, 1.0 / point.iteration_time_s) for point in points),
            claim.weight,
        )
        for claim, points in zip(claims, offered, strict=True)
    ]
    try:
        found = allocate(bidders, limit_w - fixed_w)
    except Unaffordable as none:
        slowest = [min(points, key=lambda p: p.power_w).iteration_time_s for points in offered]
        least_w = none.least_w + fixed_w
        rest = f", {fixed_w:.6g} W of it for what cannot be slowed" if fixed_w else ""
        complaint = (
            f"no plans keep the power budget of {limit_w:.6g} W: {least_w:.6g} W is the least "
            f"that they need{rest}"
        )
        return Shares(limit_w, least_w, _slower(claims, slowest), complaint=complaint)
    chosen = [1.0 / offer.rate_hz for offer in found.offers]
    return Shares(limit_w, found.power_w + fixed_w, _slower(claims, chosen), found.price_per_w)


def _slower(claims: Sequence[Claim], times_s: Sequence[float]) -> dict[str, float]:
    return {
        claim.name: time_s
        for claim, time_s in zip(claims, times_s, strict=True)
        if time_s > claim.own_s * (1.0 + NEAR)
    }


def _offered(claim: Claim) -> tuple[Point, ...]:
    """The plan of the own target, and slower ones; the first one where none is so fast."""
    fine = [
        _between(before, after, step / STEPS)
        for before, after in pairwise(claim.frontier)
        for step in range(STEPS)
    ]
    fine.append(claim.frontier[-1])
    limit_s = claim.own_s * (1.0 + NEAR)
    faster = [point for point in fine if point.iteration_time_s <= limit_s]
    slower = [point for point in fine if point.iteration_time_s > limit_s]
    return (*faster[-1:], *slower)


def _between(before: Point, after: Point, share: float) -> Point:
    """Energies, not powers, lie on a line between two plans."""
    time_s = before.iteration_time_s + share * (after.iteration_time_s - before.iteration_time_s)
    first_j = before.power_w * before.iteration_time_s
    last_j = after.power_w * after.iteration_time_s
    return Point(time_s, (first_j + share * (last_j - first_j)) / time_s)
