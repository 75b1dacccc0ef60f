"""What a job's plan is worth at the site's prices, and whether its limit can pay."""

from dataclasses import asdict, dataclass

from joulecut_controller.answer import Json
from joulecut_controller.board import JobBoard
from joulecut_controller.policy.policy import Policy, Slo
from joulecut_engine.money import Iteration, Prices, Worth, least_cost, worth

WITHIN = 1e-9  # relative: the last point of a frontier within a limit is at it


@dataclass(frozen=True, slots=True)
class JobWorth:
    """One job. `measured` is of hold-outs, else the newest plan's forecast counts. `least_cost` is
    the point of its frontier where energy and time cost least; None without a frontier.

    `above` is the plan's break-even slowdown where the job's target `slo` allows more, also more
    than the plan at that limit; None where the limit pays or the site is short of watts.
    """

    plan: Worth
    measured: bool
    least_cost: Worth | None
    prices: Prices
    slo: Slo
    above: float | None

    @property
    def basis(self) -> str:
        """What the figures rest on, in a word."""
        return "measured" if self.measured else "predicted"

    @property
    def warning(self) -> str:
        """Both numbers; empty where the limit pays."""
        return "" if self.above is None else self.slo.loses_text(f"{100.0 * self.above:.2f} %")


def job_worth(job: JobBoard, policy: Policy | None) -> JobWorth | None:
    """None before a plan has a forecast or hold-outs a saving."""
    given, gpus = (policy or Policy()).cost, sum(map(len, job.view.placement.stages))
    plan = job.applied or job.decision
    forecast = plan.forecast if plan is not None and plan.actions else None
    saving = job.holdout.saving if job.holdout else None
    if not gpus or (forecast is None and saving is None):
        return None
    prices = given.prices(hosts=False)  # a forecast's energies have the hosts' in them
    found, measured = None, False
    if saving is not None and saving.saved_ratio is not None and saving.slowdown_ratio is not None:
        default_s, default_j = saving.default_time_s, saving.default_energy_j
        if default_s and default_j:
            slower, saved = saving.slowdown_ratio.mid, saving.saved_ratio.mid
            under = Iteration(default_s * (1.0 + slower), default_j * (1.0 - saved))
            found = worth(Iteration(default_s, default_j), under, gpus, given.prices())
            measured = True
    if found is None and forecast is not None:
        default = Iteration(forecast.baseline_time_s, forecast.baseline_energy_j)
        under = Iteration(forecast.iteration_time_s, forecast.energy_j)
        found = worth(default, under, gpus, prices)
    if found is None:
        return None
    slo, cheapest, at_limit = job.view.policy.slo, None, found
    limit = slo.allowed_slowdown
    if job.frontier and forecast is not None:
        default = Iteration(forecast.baseline_time_s, forecast.baseline_energy_j)
        points = [Iteration(one.iteration_time_s, one.energy_j) for one in job.frontier]
        cheapest = worth(default, least_cost([default, *points], gpus, prices), gpus, prices)
        within = [one for one in points if one.time_s <= default.time_s * (1.0 + limit + WITHIN)]
        if within:
            at_limit = worth(default, within[-1], gpus, prices)
    short = policy is not None and policy.power_budget_w is not None
    short = short or slo.least_cost
    even = found.break_even_slowdown  # the plan's own, which stands beside the warning
    above = even if limit > max(at_limit.break_even_slowdown, even) and not short else None
    return JobWorth(found, measured, cheapest, given.prices(), slo, above)


def worth_json(found: JobWorth | None) -> Json | None:
    """Worth of the plan and of the least-cost point, the prices, and the warning in words."""
    if found is None:
        return None
    return {
        "basis": found.basis,
        "plan": found.plan.as_json(),
        "least_cost": found.least_cost and found.least_cost.as_json(),
        "prices": asdict(found.prices)
        | {"assumed": list(found.prices.assumed), "text": str(found.prices)},
        "warning": found.warning,
    }
