"""The operator's policy as values, and as plain JSON; `schema` reads it from YAML."""

import hashlib
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from joulecut_controller.policy.rate_query import RateQuery
from joulecut_engine.graph.pipeline import Pipeline, Profile

Mode = Literal["off", "recommend", "enforce"]
GranularityAsked = Literal["gpu", "edge", "changes", "computation", "auto"]
Ranks = Literal["hook", "list", "completion-index"]

# No job knows its own pace better: a baseline is taken with a standard error of 0.25 %.
TOLERANCE_RATIO = 0.003
# Of a job without an entry, which gets no command. At 0 % a rate alone often shows no first step.
FOUND_SLOWDOWN_RATIO = 0.01
P95_DEVIATIONS = 1.645  # of a normal distribution; some tens of iterations show no finer shape


@dataclass(frozen=True, slots=True)
class Slo:
    """The throughput target. Exactly one of the three is given.

    `max_slowdown` is a fraction of the job's own rate at default clocks,
    `max_iteration_time_s` is absolute (`min_rate` is turned into it). A slowdown below the
    tolerance means: not measurably slower.
    """

    max_slowdown: float | None = None
    max_iteration_time_s: float | None = None
    given_as: str = "max_slowdown"  # the key in the file, for messages
    statistic: Literal["mean", "p95"] = "mean"  # of the iteration time, held against the target
    tolerance: float = TOLERANCE_RATIO

    def deadline_s(self, baseline_s: float) -> float:
        """What the statistic must not exceed; `baseline_s` is the statistic of the baseline."""
        if self.max_iteration_time_s is not None:
            return self.max_iteration_time_s
        assert self.max_slowdown is not None
        return baseline_s * (1.0 + max(self.max_slowdown, self.tolerance))

    def beyond_mean_s(self, deviation_s: float) -> float:
        """How far the statistic of times with this standard deviation is above their mean."""
        return P95_DEVIATIONS * deviation_s if self.statistic == "p95" else 0.0

    def statistic_s(self, mean_s: float, deviation_s: float) -> float:
        """The statistic of times with this mean and this standard deviation."""
        return mean_s + self.beyond_mean_s(deviation_s)

    def mean_deadline_s(self, mean_s: float, deviation_s: float) -> float:
        """What the mean must not exceed, so that the statistic meets its deadline; mean and
        standard deviation are the baseline's, and the scatter is assumed to stay the same.
        """
        deadline_s = self.deadline_s(self.statistic_s(mean_s, deviation_s))
        return deadline_s - self.beyond_mean_s(deviation_s)


@dataclass(frozen=True, slots=True)
class ClockPolicy:
    """The operator's bounds, which override any plan.

    `granularity` is the finest one allowed; None where the policy gives none: `auto`, or for a job
    that an earlier version enforced, what it had. `changes` are those of a GPU per iteration; where
    the policy gives none, `auto` may take more.
    """

    granularity: GranularityAsked | None = None
    changes: int = 2
    min_mhz: int = 0
    min_dwell_s: float = 10.0
    changes_given: bool = False


@dataclass(frozen=True, slots=True)
class Verify:
    """How savings are measured: `holdout` is the share of time at default clocks, in windows of
    `window_s`, warm-up not counted.
    """

    holdout: float = 0.0
    window_s: float = 300.0


@dataclass(frozen=True, slots=True)
class GpuRef:
    """One GPU as an operator names it: node and index."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class PodMatch:
    """Pods of one namespace that carry all these labels, and belong to `job` where it is given."""

    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class SlurmJobMatch:
    """The Slurm job of this id, or those of this name, user, account and partition, as far as
    they are given.
    """

    job_name: str = ""
    job_id: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""

    @property
    def shown(self) -> str:
        """As written in the policy: `job_name: gpt3, user: alice`."""
        names = (field.name for field in fields(self))
        return ", ".join(f"{name}: {word}" for name in names if (word := getattr(self, name)))


@dataclass(frozen=True, slots=True)
class OptIn:
    """What jobs may ask for by themselves. `max_slowdown` is the most, None for the entry's own;
    with `slurm`, only these Slurm jobs may ask.
    """

    allow: bool = False
    max_slowdown: float | None = None
    slurm: SlurmJobMatch | None = None


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """One job. `gpus` in the operator's order. Without `gpus`, `pods` and `slurm`:
    the GPUs that report this job.
    """

    name: str
    mode: Mode
    slo: Slo
    gpus: tuple[GpuRef, ...] = ()
    clocks: ClockPolicy = ClockPolicy()
    pipeline: Pipeline | None = None
    profile: Profile | None = None  # None: no change of clocks
    rate: RateQuery | None = None  # in place of reports of its own
    power_signature: bool = False  # whether an estimate from power carries control
    predicted: Profile | None = None  # by a model of the run; a job with it may lose `profile`
    blocking_power_w: float = 0.0
    ranks: Ranks = "hook"  # source of the stage of each GPU
    weight: float = 1.0  # of its relative throughput, where a power budget is shared out
    pods: PodMatch | None = None
    slurm: SlurmJobMatch | None = None
    rank_order: str = "tp-cp-ep-dp-pp"  # the first changes fastest; asked where ranks are counted
    verify: Verify = Verify()
    tenant: str = ""  # for reports; empty: its Kubernetes namespace
    opt_in: OptIn = OptIn()
    opt_in_refused: str = ""  # why the running job does not get what it asks for
    found: bool = False  # no line of the policy names it

    @property
    def found_by_allocation(self) -> bool:
        """Whether the job's GPUs follow from the owners that agents report."""
        return self.pods is not None or self.slurm is not None


@dataclass(frozen=True, slots=True)
class Cost:
    """Factors for savings at the wall; None where the operator gave none."""

    gpu_hour: float | None = None
    kwh: float | None = None
    host_power_w: float = 0.0  # per GPU
    pue: float = 1.0
    co2_g_per_kwh: float | None = None  # of the grid


@dataclass(frozen=True, slots=True)
class FoundJobsPolicy:
    """Running jobs that no entry takes: recommended at this slowdown, or left out."""

    mode: Literal["recommend", "off"] = "recommend"
    max_slowdown: float = FOUND_SLOWDOWN_RATIO


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy file in force. `digest` names its content in the audit trail."""

    mode: Mode = "recommend"
    jobs: tuple[JobPolicy, ...] = ()
    found_jobs: FoundJobsPolicy = FoundJobsPolicy()
    cost: Cost = Cost()
    power_budget_w: float | None = None  # of all GPUs together, host power included
    source: str = ""
    digest: str = ""


DIGEST_LENGTH = 12  # hexadecimal digits, as of a policy


def policy_json(policy: Policy) -> dict[str, Any]:
    """The policy with its entries in their order, since the first match wins; without jobs that
    were found, which no line names. Units in the keys.
    """
    jobs = tuple([job for job in policy.jobs if not job.found])
    shown: dict[str, Any] = _plain(replace(policy, jobs=jobs))
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Profile):
        return _profile(value)
    if isinstance(value, GpuRef):
        return f"{value.node}/{value.index}"
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _profile(profile: Profile) -> str:
    """What a profile says, as one word: its path is another on every machine."""
    content = repr(sorted((key, tuple(options)) for key, options in profile.options.items()))
    return hashlib.sha256(content.encode()).hexdigest()[:DIGEST_LENGTH]
