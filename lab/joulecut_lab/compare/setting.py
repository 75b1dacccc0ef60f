"""What every rule is asked, and what one came to: the words that contest and pages share."""

from dataclasses import dataclass

from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.straggler import Sync


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rules are asked. `power_w` is for one pipeline; straggler factors are times the
    baseline's iteration time; `pipelines` meet at the end of every iteration."""

    problem: Problem
    deadline_s: float
    stragglers: tuple[float, ...] = ()
    pipelines: int = 1
    power_w: float | None = None
    sync: Sync = "iteration"


@dataclass(frozen=True, slots=True)
class Priced:
    """One iteration of one pipeline: seconds, joules of all its GPUs."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rule came to; None where it has no plan at all. One that cannot keep the deadline
    shows its fastest plan, late as it is.

    `claimed` is the rule's own reckoning where that differs (`claimed_fastest_s` is what it
    takes for the time of full speed). `cluster_j` are the joules of all pipelines for each
    straggler, `late` by what fraction they end after it; `limited` is its fastest plan under
    the power.
    """

    name: str
    style: str
    plan: Priced | None
    lower_bound_j: float | None = None
    seconds: float = 0.0
    claimed: Priced | None = None
    claimed_fastest_s: float = 0.0
    cluster_j: tuple[float, ...] = ()
    late: tuple[float, ...] = ()
    claimed_cluster_j: tuple[float, ...] = ()
    limited: Priced | None = None
    remark: str = ""

    @property
    def gap(self) -> float | None:
        """Energy above the bound for the time that the plan takes; None without a plan."""
        if self.plan is None or self.lower_bound_j is None:
            return None
        return max(0.0, self.plan.energy_j / self.lower_bound_j - 1)


def cluster_baseline_j(setting: Setting, fastest: Priced) -> tuple[float, ...]:
    """All pipelines at full speed, waiting for each straggler."""
    price_w = setting.problem.time_price_w
    return tuple(
        (setting.pipelines - 1) * (fastest.energy_j + price_w * (factor - 1) * fastest.time_s)
        + factor * fastest.energy_j
        for factor in setting.stragglers
    )
