"""The power budget: which jobs slow down, and how far, to stay within a limit together.

A job offers the plan of its own target and every slower one of its frontier; the allocation goes by
marginal throughput. A slowed job gets a longer deadline; the planner chooses its clocks as usual.
Jobs that can be slowed count with the mean power of their plans, as predicted and corrected by
measurements, the others with their power limits. Jobs in mode recommend get a separate allocation
that assumes every recommendation is followed, so that no controlled job depends on one that is not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from joulecut_controller.policy.policy import Mode
from joulecut_engine.optimize.budget import Bidder, Offer, Unaffordable, allocate

# Plans exist between two points of a frontier, nearly on the line from one to the other: so
# many steps a point make the allocation finer than any power is known.
STEPS = 4
# An allocation stands while it is predicted to stay below the limit by so much, and gives no less
# throughput than the best one by so much: each new one is a new plan for every job.
SURE_RATIO, WORTH_RATIO = 0.0025, 0.004
FIXED_STEP_RATIO = 0.01  # of the limit: measured power that moved less is the same
OWN_STEP_RATIO = 0.001  # a deadline that moved less is the same, as for a plan
POWER_STEP_RATIO = 0.003  # a measured power that moved less is the same
# Of the budget, for what predictions miss within a minute: plans aim at the rest.
MARGIN_RATIO = 0.01

# The mean power of a job counts with more than is predicted until it is measured, by as much as
# GPUs of one kind differ.
UNMEASURED_RATIO = 1.02

NEAR = 1e-6  # relative: a point at the job's own time is its own


@dataclass(frozen=True, slots=True)
class Point:
    """One plan of a job: real seconds, and mean watts of all its GPUs with their hosts."""

    iteration_time_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Demand:
    """One job of the policy, as its controller describes it. `own_s` is the deadline of its own
    target for the mean iteration, in real seconds; 0 before a baseline. `frontier` ascends in time;
    without one the job cannot be slowed yet, and takes what its power limits leave it with its
    hosts (`limits_w`, filled in where the budget is divided). `power_ratio` is the mean power of
    its newest plan, as measured, over that of the frontier.

    `mean_w` is predicted of the clocks that its GPUs (`uuids`) hold, None while they hold none or
    it is not known; `needs_w`, by GPU, are the limits that leave it these clocks.
    """

    name: str
    weight: float = 1.0
    own_s: float = 0.0
    frontier: tuple[Point, ...] = ()
    mode: Mode = "enforce"
    limits_w: float = 0.0
    power_ratio: float = 1.0
    digest: str = ""  # of the costs that the frontier is of
    uuids: tuple[str, ...] = ()
    mean_w: float | None = None
    needs_w: Mapping[str, float] = field(default_factory=dict)

    def claims(self, *, advised: bool) -> bool:
        """Whether it can be slowed; with those in mode recommend where `advised`."""
        slowable = self.own_s > 0.0 and bool(self.frontier) and self.mode != "off"
        return slowable and (advised or self.mode == "enforce")


@dataclass(frozen=True, slots=True)
class Share:
    """What the budget leaves to one job. `deadline_s` is the mean iteration time that it asks for;
    None: the job's own target holds. `power_w` is the mean power of its GPUs and hosts, None: as
    much as equal limits do; `power_ratio` is the party's that it rests on. `limited`: power limits
    may hold its clocks lower than they are asked to be. `mean_ratio` is the measured mean power of
    its GPUs over that predicted of the clocks they hold.
    """

    deadline_s: float | None = None
    power_w: float | None = None
    power_ratio: float = 1.0
    limited: bool = False
    mean_ratio: float = UNMEASURED_RATIO


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
    limit_w: float, claims: Sequence[Demand], fixed_w: float, margin_w: float = 0.0
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


def held(before: Shares, now: Shares, claims: Sequence[Demand], fixed_w: float) -> Shares | None:
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


def _slower(claims: Sequence[Demand], times_s: Sequence[float]) -> dict[str, float]:
    return {
        claim.name: time_s
        for claim, time_s in zip(claims, times_s, strict=True)
        if time_s > claim.own_s * (1.0 + NEAR)
    }


def _offered(claim: Demand) -> tuple[Point, ...]:
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


class Budgets:
    """The newest allocation."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._deadline_s: Mapping[str, float] = {}
        self._power_of: Mapping[str, float] = {}
        self._ratio_of: Mapping[str, float] = {}
        self.shares: Shares | None = None
        self._advice: Shares | None = None

    @property
    def complaint(self) -> str:
        return self.shares.complaint if self.shares else ""

    def share(self, job: str) -> Share:
        """Of one job, but for what limits do to it."""
        ratio = self._ratio_of.get(job, 1.0)
        return Share(self._deadline_s.get(job), self._power_of.get(job), ratio)

    def settle(
        self,
        limit_w: float | None,
        demands: Sequence[Demand],
        beside_w: float = 0.0,
    ) -> str:
        """Allocates the limit, of which `beside_w` is for GPUs without a job. Returns a sentence
        where the set of slowed jobs changed, else "".
        """
        if limit_w is None:
            change = "the power budget was lifted" if self.shares else ""
            self._key, self._deadline_s, self._power_of, self.shares = (), {}, {}, None
            self._advice = None
            return change
        key = (limit_w, beside_w, *(rests_on(demand, limit_w) for demand in demands))
        if key == self._key:
            return ""
        self._key, before = key, self.shares
        binding = _shared(limit_w, demands, beside_w, self.shares, advised=False)
        self._advice = advice = _shared(limit_w, demands, beside_w, self._advice, advised=True)
        enforced = {demand.name for demand in demands if demand.mode == "enforce"}
        self._deadline_s = {
            name: time_s
            for found, of_these in ((binding, True), (advice, False))
            for name, time_s in found.deadline_s.items()
            if (name in enforced) == of_these
        }
        self.shares = binding if enforced else advice
        self._power_of = self.shares.power_of
        self._ratio_of = {demand.name: demand.power_ratio for demand in demands}
        return _change(before, self.shares)


def rests_on(demand: Demand, limit_w: float) -> tuple[object, ...]:
    """The inputs of the allocation, in steps below which a difference is noise."""
    claims = demand.claims(advised=True)
    fixed_w = 0.0 if demand.claims(advised=False) else demand.limits_w
    fixed = round(fixed_w / (FIXED_STEP_RATIO * limit_w))
    own = round(math.log(demand.own_s) / OWN_STEP_RATIO) if demand.own_s else None
    ratio = round(demand.power_ratio / POWER_STEP_RATIO)
    return demand.name, demand.mode, demand.weight, demand.digest, claims, fixed, own, ratio


def _shared(
    limit_w: float,
    demands: Sequence[Demand],
    beside_w: float,
    before: Shares | None,
    *,
    advised: bool,
) -> Shares:
    claims = [demand for demand in demands if demand.claims(advised=advised)]
    others = (demand for demand in demands if not demand.claims(advised=advised))
    fixed_w = beside_w + sum(demand.limits_w for demand in others)
    now = shares(limit_w, claims, fixed_w, MARGIN_RATIO * limit_w)
    if before is None or before.limit_w != limit_w:
        return now
    return held(before, now, claims, fixed_w) or now


def _change(before: Shares | None, now: Shares) -> str:
    if now.complaint:
        return "" if before is not None and before.complaint else now.complaint
    slowed = sorted(now.deadline_s)
    if before is not None and not before.complaint and sorted(before.deadline_s) == slowed:
        return ""
    asks = f"slows {', '.join(slowed)}" if slowed else "slows no job"
    return f"the power budget of {now.limit_w:.6g} W {asks}: {now.power_w:.6g} W predicted"
