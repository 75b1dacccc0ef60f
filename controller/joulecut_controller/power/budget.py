"""The power budget: which jobs slow down, and how far, to stay within a limit together.

A job offers the plan of its own target and every slower one of its frontier; the allocation goes by
marginal throughput. A slowed job gets a longer deadline; the planner chooses its clocks as usual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from joulecut_engine.optimize.budget import Bidder, Offer, Unaffordable, allocate

# Plans exist between two points of a frontier, nearly on the line from one to the other: so
# many steps a point make the allocation finer than any power is known.
STEPS = 4
# An allocation stands while it is predicted to stay below the limit by so much, and gives no less
# throughput than the best one by so much: each new one is a new plan for every job.
SURE_RATIO, WORTH_RATIO = 0.0025, 0.004
NEAR = 1e-6  # relative: a point at the job's own time is its own


@dataclass(frozen=True, slots=True)
class Point:
    """One plan of a job: real seconds, and mean watts of all its GPUs with their hosts."""

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
    """An allocation. `deadline_s` holds the jobs that must be slower than their own targets,
    `power_of` the mean watts of each job's plan. `complaint` says why no plans keep the limit,
    empty where some do: then equal power limits keep it alone, and no job has a deadline. `power_w`
    is the sum.
    """

    limit_w: float
    power_w: float
    deadline_s: Mapping[str, float] = field(default_factory=dict)
    power_of: Mapping[str, float] = field(default_factory=dict)
    price_per_w: float = 0.0  # relative throughput that one watt more would bring
    complaint: str = ""


def shares(
    limit_w: float, claims: Sequence[Claim], fixed_w: float, margin_w: float = 0.0
) -> Shares:
    """The deadlines that keep all jobs within the limit at the least cost of throughput.

    `fixed_w` is left to what cannot be slowed, `margin_w` to errors of prediction.
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
        found = allocate(bidders, limit_w - fixed_w - (margin_w if claims else 0.0))
    except Unaffordable as none:
        least_w = none.least_w + fixed_w
        rest = f", {fixed_w:.6g} W of it for what cannot be slowed" if fixed_w else ""
        complaint = (
            f"no plans keep the power budget of {limit_w:.6g} W: {least_w:.6g} W is the least "
            f"that they need{rest}; equal power limits keep it"
        )
        return Shares(limit_w, least_w, complaint=complaint)
    chosen = [1.0 / offer.rate_hz for offer in found.offers]
    power_of = {c.name: o.power_w for c, o in zip(claims, found.offers, strict=True)}
    total_w = found.power_w + fixed_w
    return Shares(limit_w, total_w, _slower(claims, chosen), power_of, found.price_per_w)


def held(before: Shares, now: Shares, claims: Sequence[Claim], fixed_w: float) -> Shares | None:
    """The allocation of before, with powers as they are known now; None where it no longer keeps
    the limit, or `now` gives more by more than noise.
    """
    names = {claim.name for claim in claims}
    if now.complaint or before.complaint or names != before.power_of.keys():
        return None
    power_of, value, best = {}, 0.0, 0.0
    for claim in claims:
        time_s = before.deadline_s.get(claim.name, claim.own_s)
        within = [p for p in _offered(claim) if p.iteration_time_s <= time_s * (1.0 + NEAR)]
        if not within:
            return None
        power_of[claim.name] = min(point.power_w for point in within)
        value += claim.weight * claim.own_s / time_s
        best += claim.weight * claim.own_s / now.deadline_s.get(claim.name, claim.own_s)
    total_w = sum(power_of.values()) + fixed_w
    if total_w > (1.0 - SURE_RATIO) * before.limit_w or value < (1.0 - WORTH_RATIO) * best:
        return None
    return replace(before, power_w=total_w, power_of=power_of)


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
