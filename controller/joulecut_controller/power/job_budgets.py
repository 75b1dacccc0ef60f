"""The power budget of the policy, allocated over the jobs.

Recomputed when an input changed. Jobs that can be slowed count with the mean power of their plans,
as predicted and corrected by measurements, the others with their power limits. Jobs in mode
recommend get a separate allocation that assumes every recommendation is followed, so that no
controlled job depends on one that is not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecut_controller.plan.plan import FrontierPoint
from joulecut_controller.power.budget import Claim, Point, Shares, held, shares
from joulecut_controller.view import JobState

FIXED_STEP_RATIO = 0.01  # of the limit: measured power that moved less is the same
OWN_STEP_RATIO = 0.001  # a deadline that moved less is the same, as for a plan
POWER_STEP_RATIO = 0.003  # a measured power that moved less is the same
# Of the budget, for what predictions miss within a minute: plans aim at the rest.
MARGIN_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Party:
    """One job of the policy in one pass. Without a frontier it cannot be slowed yet. `limits_w` is
    what its power limits leave it, `power_ratio` the mean power of its newest plan, as measured,
    over that of the frontier.
    """

    view: JobState
    limits_w: float = 0.0
    power_ratio: float = 1.0
    frontier: tuple[FrontierPoint, ...] = ()
    digest: str = ""  # of the costs that the frontier is of

    @property
    def name(self) -> str:
        return self.view.policy.name

    @property
    def enforced(self) -> bool:
        return self.view.policy.mode == "enforce"

    def own_s(self) -> float | None:
        """The job's own deadline for the mean iteration; None before a baseline."""
        baseline, slo = self.view.measured.baseline, self.view.policy.slo
        if baseline is None:
            return None
        return slo.mean_deadline_s(baseline.time_mean_s, baseline.time_sd_s)

    def hosts_w(self, host_power_w: float) -> float:
        return host_power_w * sum(map(len, self.view.placement.stages))

    def claim(self, host_power_w: float) -> Claim | None:
        own_s = self.own_s()
        if own_s is None or not self.frontier or self.view.policy.mode == "off":
            return None
        # Hosts are in the frontier's energies already: planning charges them.
        hosts_w = self.hosts_w(host_power_w)
        points = (
            Point(
                p.iteration_time_s,
                hosts_w + self.power_ratio * (p.energy_j / p.iteration_time_s - hosts_w),
            )
            for p in self.frontier
        )
        return Claim(self.name, self.view.policy.weight, own_s, tuple(points))


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

    def deadline_s(self, job: str) -> float | None:
        """The mean iteration time that the budget asks of a job; None: its own target holds."""
        return self._deadline_s.get(job)

    def power_w(self, job: str, hosts_w: float) -> tuple[float, float] | None:
        """The mean power that the budget leaves to a job's GPUs, and what its frontier says of
        that; None: as much as equal limits do.
        """
        if job not in self._power_of:
            return None
        share_w = max(0.0, self._power_of[job] - hosts_w)
        return share_w, share_w / self._ratio_of[job]

    def settle(
        self,
        limit_w: float | None,
        parties: Sequence[Party],
        host_power_w: float,
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
        rests_on = (_rests_on(party, limit_w, host_power_w) for party in parties)
        key = (limit_w, host_power_w, beside_w, *rests_on)
        if key == self._key:
            return ""
        self._key, before = key, self.shares
        binding = _shared(limit_w, parties, host_power_w, beside_w, self.shares, advised=False)
        advice = _shared(limit_w, parties, host_power_w, beside_w, self._advice, advised=True)
        self._advice = advice
        enforced = {party.name for party in parties if party.enforced}
        self._deadline_s = {
            name: time_s
            for found, of_these in ((binding, True), (advice, False))
            for name, time_s in found.deadline_s.items()
            if (name in enforced) == of_these
        }
        self.shares = binding if enforced else advice
        self._power_of = self.shares.power_of
        self._ratio_of = {party.name: party.power_ratio for party in parties}
        return _change(before, self.shares)


def _rests_on(party: Party, limit_w: float, host_power_w: float) -> tuple[object, ...]:
    """The inputs of the allocation, in steps below which a difference is noise."""
    policy, own_s = party.view.policy, party.own_s()
    claims = party.claim(host_power_w) is not None
    fixed_w = 0.0 if claims and party.enforced else party.limits_w
    fixed = round(fixed_w / (FIXED_STEP_RATIO * limit_w))
    own = None if own_s is None else round(math.log(own_s) / OWN_STEP_RATIO)
    ratio = round(party.power_ratio / POWER_STEP_RATIO)
    return party.name, policy.mode, policy.weight, party.digest, claims, fixed, own, ratio


def _shared(
    limit_w: float,
    parties: Sequence[Party],
    host_power_w: float,
    beside_w: float,
    before: Shares | None,
    *,
    advised: bool,
) -> Shares:
    claims, fixed_w = [], beside_w
    for party in parties:
        claim = party.claim(host_power_w)
        if claim is not None and (party.enforced or advised):
            claims.append(claim)
        else:
            fixed_w += party.limits_w + party.hosts_w(host_power_w)
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
