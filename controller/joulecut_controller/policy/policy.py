"""The operator's wishes as values; `schema` reads them from YAML and refuses what is wrong."""

from dataclasses import dataclass
from typing import Literal

from joulecut_controller.workload import Granularity, Pipeline, Profile

Mode = Literal["off", "recommend", "enforce"]

P95_DEVIATIONS = 1.645  # of a normal distribution; some tens of iterations show no finer shape


@dataclass(frozen=True, slots=True)
class Slo:
    """The throughput target. Exactly one of the three is given.

    `max_slowdown` is a fraction of the job's own rate at default clocks,
    `max_iteration_time_s` is absolute (`min_rate` is turned into it).
    """

    max_slowdown: float | None = None
    max_iteration_time_s: float | None = None
    given_as: str = "max_slowdown"  # the key the operator wrote, for reasons
    statistic: Literal["mean", "p95"] = "mean"  # of the iteration time, held against the target

    def deadline_s(self, baseline_s: float) -> float:
        """What the statistic must not exceed; `baseline_s` is the statistic of the baseline."""
        if self.max_iteration_time_s is not None:
            return self.max_iteration_time_s
        assert self.max_slowdown is not None
        return baseline_s * (1.0 + self.max_slowdown)

    def beyond_mean_s(self, deviation_s: float) -> float:
        """How far the statistic of times with this standard deviation is above their mean."""
        return P95_DEVIATIONS * deviation_s if self.statistic == "p95" else 0.0


@dataclass(frozen=True, slots=True)
class ClockPolicy:
    """The operator's bounds; they win over any plan."""

    granularity: Granularity = "gpu"
    min_mhz: int = 0
    min_dwell_s: float = 10.0


@dataclass(frozen=True, slots=True)
class GpuRef:
    """One GPU as an operator names it: node and index."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """One job. `gpus` in the operator's order; empty means: whatever GPUs report this job."""

    name: str
    mode: Mode
    slo: Slo
    gpus: tuple[GpuRef, ...] = ()
    clocks: ClockPolicy = ClockPolicy()
    pipeline: Pipeline | None = None
    profile: Profile | None = None  # None: no evidence, hence no change
    blocking_power_w: float = 0.0
    ranks: Literal["hook", "list"] = "hook"  # who says which GPU works which stage
    weight: float = 1.0  # of its relative throughput, where a power budget is shared out


@dataclass(frozen=True, slots=True)
class Cost:
    """Factors for savings at the wall; None where the operator gave none."""

    gpu_hour: float | None = None
    kwh: float | None = None
    host_power_w: float = 0.0  # per GPU
    pue: float = 1.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy file in force. `digest` names its content in the audit trail."""

    mode: Mode = "recommend"
    jobs: tuple[JobPolicy, ...] = ()
    cost: Cost = Cost()
    power_budget_w: float | None = None  # of all jobs together, host power included
    source: str = ""
    digest: str = ""
