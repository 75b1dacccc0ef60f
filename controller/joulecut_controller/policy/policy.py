"""The operator's wishes as values; `schema` reads them from YAML and refuses what is wrong."""

from dataclasses import dataclass
from typing import Literal

from joulecut_controller.workload import Granularity, Pipeline, Profile

Mode = Literal["off", "recommend", "enforce"]


@dataclass(frozen=True, slots=True)
class Slo:
    """The throughput target. Exactly one of the three is given.

    `max_slowdown` is a fraction of the job's own rate at default clocks,
    `max_iteration_time_s` is absolute (`min_rate` is turned into it).
    """

    max_slowdown: float | None = None
    max_iteration_time_s: float | None = None
    given_as: str = "max_slowdown"  # the key the operator wrote, for reasons

    def deadline_s(self, baseline_s: float) -> float:
        if self.max_iteration_time_s is not None:
            return self.max_iteration_time_s
        assert self.max_slowdown is not None
        return baseline_s * (1.0 + self.max_slowdown)


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
    source: str = ""
    digest: str = ""
