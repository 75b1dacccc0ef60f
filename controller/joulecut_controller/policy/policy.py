"""The operator's policy as values, and as plain JSON.

The sections of its file that are values as they stand are here, with their keys; `schema` has the
others.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from joulecut_controller.policy.rate_query import RateQuery
from joulecut_engine.graph.pipeline import Pipeline, Profile
from joulecut_engine.money import Prices
from joulecut_wire.quantity import (
    CURRENCY,
    POWER_W_MAX,
    PRICE_MAX,
    PUE_MAX,
    Fault,
    choice,
    duration,
    flag,
    name,
    number,
    percentage,
    shown,
    text,
    whole,
)
from joulecut_wire.section import Named, key

Mode = Literal["off", "recommend", "enforce"]
GranularityAsked = Literal["gpu", "changes", "auto", "computation", "edge"]
Ranks = Literal["hook", "list", "completion-index"]

# No job knows its own pace better: a baseline is taken with a standard error of 0.25 %.
TOLERANCE_RATIO = 0.003
# Of a job without an entry, which gets no command. At usual prices longer GPU time costs more than
# the energy saved: break-even is at 0.3 %.
FOUND_SLOWDOWN_RATIO = 0.0
CHANGES_MAX = 16  # of a GPU's clock in an iteration: more save 0.1 % where so many fit in it
CLOCK_MHZ_MAX = 10_000  # no GPU comes near
HOLDOUT_PERCENT_MAX = 50.0
CO2_G_PER_KWH_MAX = 10_000.0  # coal alone is around 1000
GRAMS_PER_TONNE = 1e6
MADE = {"made": True}  # of a field that the file does not have, and no JSON of a policy
SLOWDOWN = percentage(100.0)  # half the speed is not a slowdown budget


@dataclass(frozen=True, slots=True)
class Slo:
    """The throughput target: one of the first two.

    `max_slowdown` is a fraction of the job's own rate at default clocks,
    `max_iteration_time_s` is absolute (`min_rate` is turned into it). A slowdown below the
    tolerance means: not measurably slower. With `least_cost` the slowdown is that of the point of
    the job's frontier where time and energy cost least, at most `bound`; 0 until that is known.
    """

    max_slowdown: float | None = None
    max_iteration_time_s: float | None = None
    given_as: str = "max_slowdown"  # the key in the file; empty: an order has no target
    tolerance: float = TOLERANCE_RATIO
    least_cost: bool = False
    bound: float | None = None

    def at_cost(self, slowdown: float) -> "Slo":
        """With the slowdown where time and energy cost least."""
        return replace(
            self, max_slowdown=slowdown if self.bound is None else min(slowdown, self.bound)
        )

    def deadline_s(self, baseline_s: float) -> float:
        """What the mean iteration must not exceed; `baseline_s` is that of the baseline."""
        if self.max_iteration_time_s is not None:
            return self.max_iteration_time_s
        assert self.max_slowdown is not None
        return baseline_s * (1.0 + max(self.max_slowdown, self.tolerance))

    @property
    def allowed_slowdown(self) -> float:
        """What it allows on purpose; 0 for a target below its tolerance."""
        limit = self.max_slowdown
        return 0.0 if limit is None or limit <= self.tolerance else limit

    def loses_text(self, break_even: str) -> str:
        """Why what it allows loses money."""
        return (
            f"max_slowdown {100.0 * self.allowed_slowdown:.3g} % is above the break-even of "
            f"{break_even}: longer GPU time costs more than the energy saved"
        )

    def budget(self, default_s: float) -> float:
        """Log slowdown that a mean may have over that of default clocks."""
        return math.log(max(1.0, self.deadline_s(default_s) / default_s))


def _read_granularity(value: object) -> str:
    """`computation` and `edge` are read until 0.3; `parse` makes changes of them."""
    known = choice("auto", "gpu", "changes")
    return str(value if value in ("computation", "edge") else known(value))


@dataclass(frozen=True, slots=True)
class ClockPolicy:
    """The operator's bounds, which override any plan.

    `granularity` is the finest one allowed. `changes` are those of a GPU per iteration.
    """

    granularity: GranularityAsked = key(
        _read_granularity,
        "auto",
        meaning="one clock per GPU, or a few changes within each iteration where the job's "
        "evidence carries them ([below](#granularity))",
    )
    changes: int = key(
        whole(2, CHANGES_MAX),
        2,
        meaning="most clock changes of a GPU per iteration",
    )
    min_mhz: int = key(
        whole(0, CLOCK_MHZ_MAX),
        0,
        meaning="lowest clock allowed. A clock below the lowest of the profile is never chosen",
    )
    min_dwell_s: float = key(
        duration(above_zero=False),
        10.0,
        name="min_dwell",
        default="10s",
        meaning="least time at a clock before it may be lowered again",
    )
    lock_mhz: int = key(
        whole(1, CLOCK_MHZ_MAX),
        0,
        default="none",
        meaning="a fixed highest clock of all the job's GPUs, in place of a plan: "
        "[fixed clocks and power limits](#fixed-clocks-and-power-limits)",
    )


@dataclass(frozen=True, slots=True)
class Verify:
    """How savings are measured: `holdout` is the share of time at default clocks, in windows of
    `window_s`, warm-up not counted.
    """

    holdout: float = key(
        percentage(HOLDOUT_PERCENT_MAX),
        0.0,
        default="0%",
        takes="0%, or 0.1% to 50%",
        meaning="share of time at default clocks, to measure the saving "
        "([hold-outs](savings.md#hold-outs)); not with `cluster.power_budget_w`",
    )
    window_s: float = key(
        duration(above_zero=True),
        300.0,  # thermal settling is a tenth of it, and a counter's step of 0.1 s nothing
        name="window",
        default="5min",
        takes="1min to 6h",
        meaning="length of one hold-out window; at least `clocks.min_dwell`. Beside a `warm_up` "
        "below 90s: at least two thirds of it, and 10s",
    )
    warm_up_s: float | None = key(
        duration(above_zero=True),
        None,
        name="warm_up",
        default="90s",
        takes="1s to 10min",
        meaning="time after a change of clocks that no window counts: three time constants of the "
        "heat sinks. Air-cooled ones have some 30 s, liquid-cooled ones less",
    )


@dataclass(frozen=True, slots=True)
class GpuRef:
    """One GPU as an operator names it: node and index."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class PodMatch:
    """Pods of a namespace that carry all these labels, and belong to `job` where it is given.
    Namespace and labels may be patterns: `*` fits any letters, `?` one.
    """

    namespace: str = key(
        name(
            r"[a-z0-9*?]([a-z0-9*?-]*[a-z0-9*?])?",
            63,  # Kubernetes allows no longer one
            "the name of a namespace: up to 63 of a-z, 0-9 and -, or a pattern with * and ?",
        )
    )
    labels: tuple[tuple[str, str], ...] = key(
        Named(
            name(
                r"([A-Za-z0-9*?]([A-Za-z0-9*?._-]*[A-Za-z0-9*?])?)?",
                63,  # as Kubernetes has it
                "the value of a label: up to 63 letters, digits and . _ -, or a pattern with * ?",
            )
        ),
        (),
    )
    job: str = ""


def _slurm_id(value: object) -> str:
    """Slurm's number of a job, in quotes: YAML reads the array task 4711_3 as job 47113."""
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,11}", value):
        return value
    unquoted = isinstance(value, int) and not isinstance(value, bool)
    raise Fault(
        f"{shown(value)} is {'not in quotes' if unquoted else 'not a job id'}",
        'a number as in SLURM_JOB_ID, in quotes: "4711"',
    )


def _slurm_word(value: object) -> str:
    """A name or a pattern; of other signs of patterns none has a meaning."""
    word = text(253, "a name, or a pattern with * and ?")(value)
    if re.search(r"[][{}|^$\\]|\.[*+]", word):
        raise Fault(f"{shown(word)} is no pattern with * and ?", "? where one letter is any")
    return word


@dataclass(frozen=True, slots=True)
class SlurmJobMatch:
    """The Slurm job of this id, or those of this name, user, account and partition, as far as
    they are given; words but the id may be patterns with `*` and `?`.
    """

    job_name: str = key(_slurm_word, "")
    job_id: str = key(_slurm_id, "")
    user: str = key(_slurm_word, "")
    account: str = key(_slurm_word, "")
    partition: str = key(_slurm_word, "")

    @property
    def shown(self) -> str:
        """As written in the policy: `job_name: gpt3, user: alice`."""
        names = (field.name for field in fields(self))
        return ", ".join(f"{name}: {word}" for name in names if (word := getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the operator fixes on every GPU of a job; 0 leaves it free. With `unused` the clock is
    for as long as nothing uses the GPU, and 0 is the lowest allowed.
    """

    clock_mhz: int = 0
    power_w: float = 0.0
    unused: bool = False

    def __bool__(self) -> bool:
        return bool(self.clock_mhz or self.power_w or self.unused)

    def __str__(self) -> str:
        clock = f"{self.clock_mhz} MHz" if self.clock_mhz else ""
        if self.unused:
            return f"{clock or 'the lowest clock'} while nothing uses the GPUs"
        return " and ".join(filter(None, (clock, f"{self.power_w:g} W" if self.power_w else "")))


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """One job, or with `each` every running job of a class. `gpus` in the operator's order. Without
    `gpus`, `pods` and `slurm`: the GPUs that report this job.
    """

    name: str
    mode: Mode
    slo: Slo
    gpus: tuple[GpuRef, ...] = ()
    clocks: ClockPolicy = ClockPolicy()
    pipeline: Pipeline | None = None
    profile: Profile | None = None  # None: no change of clocks
    rate: RateQuery | None = None  # in place of reports of its own
    blocking_power_w: float = 0.0
    ranks: Ranks = "hook"  # source of the stage of each GPU
    weight: float = 1.0  # of its relative throughput, where a power budget is shared out
    pods: PodMatch | None = None
    slurm: SlurmJobMatch | None = None
    rank_order: str = "tp-cp-ep-dp-pp"  # the first changes fastest; asked where ranks are counted
    verify: Verify = Verify()
    tenant: str = ""  # for reports; empty: its Kubernetes namespace
    each: bool = False  # every running job that matches has an entry of its own
    excluded: tuple[PodMatch | SlurmJobMatch, ...] = ()  # from what `pods` or `slurm` match
    power_limit_w: float = 0.0  # of every GPU; 0: none is asked for
    warning: str = ""  # of a key that no longer has an effect
    found: bool = False  # no line of the policy names it
    parked: Fixed | None = field(default=None, metadata=MADE)  # its GPUs are unused now

    @property
    def fixed(self) -> Fixed:
        """The clock and power limit that stand in place of a plan; false where there is none."""
        return self.parked or Fixed(self.clocks.lock_mhz, self.power_limit_w)

    @property
    def is_order(self) -> bool:
        """Whether it is fixed without a target: neither reports nor measurements matter."""
        return bool(self.fixed) and (self.parked is not None or not self.slo.given_as)

    @property
    def found_by_allocation(self) -> bool:
        """Whether the job's GPUs follow from the owners that agents report."""
        return self.pods is not None or self.slurm is not None

    @property
    def is_placed(self) -> bool:
        """Whether its GPUs are known without its reports."""
        return bool(self.gpus) or self.found_by_allocation


@dataclass(frozen=True, slots=True)
class Series:
    """Prices by the hour: a file, or an expression of a Prometheus; the other one is empty."""

    csv: str = key(text(4096, "a path"), "")
    promql: str = key(text(4096, "an expression"), "")

    def __str__(self) -> str:
        return self.csv or self.promql


@dataclass(frozen=True, slots=True)
class Cost:
    """Factors for savings at the wall; None where the operator gave none. `hour` says which prices
    by the hour are in force, and `stale` that a series has none: no file names these two.
    """

    gpu_hour: float | None = key(number(0.0, PRICE_MAX), None, meaning="price of one GPU hour")
    kwh: float | None = key(
        number(0.0, PRICE_MAX), None, meaning="price of one kWh, in the same currency"
    )
    host_power_w: float = key(
        number(0.0, POWER_W_MAX, unit="watts"),
        0.0,
        meaning="the host's power per GPU, charged for the whole iteration: it raises the cost of "
        "slow plans",
    )
    pue: float = key(
        number(1.0, PUE_MAX),
        1.0,
        meaning="power usage effectiveness: power at the wall over power of the machines",
    )
    co2_g_per_kwh: float | None = key(
        number(0.0, CO2_G_PER_KWH_MAX, above=True, unit="grams"),
        None,
        meaning="emission of the grid per kWh; `joulecut report --co2` takes precedence",
    )

    co2_tonne: float = key(
        number(0.0, PRICE_MAX),
        0.0,
        meaning="price of a tonne of CO2 in the same currency, on top of `kwh`",
    )
    kwh_series: Series | None = key(
        Series,
        None,
        default="none",
        takes="`{csv: prices.csv}`, `{promql: EXPRESSION}`",
        meaning="prices of a kWh by the hour in place of `kwh` ([below](#prices-by-the-hour))",
    )
    co2_series: Series | None = key(
        Series,
        None,
        default="none",
        takes="the same",
        meaning="grams of CO2 per kWh by the hour in place of `co2_g_per_kwh`",
    )
    currency: str = key(
        CURRENCY,
        "",
        default="none",
        meaning="the currency of all prices, such as `EUR`; shown beside every amount",
    )
    hour: str = field(default="", metadata=MADE)
    stale: bool = field(default=False, metadata=MADE)

    def prices(self, *, hosts: bool = True) -> Prices:
        """With usual prices, named in `assumed`, where the operator gave none. Without `hosts` for
        energies that have the hosts' in them.
        """
        usual = Prices()
        given = {"gpu_hour": self.gpu_hour, "kwh": self.kwh}
        assumed = tuple(name for name, price in given.items() if price is None)
        nothing = len(assumed) == len(given) and self.pue == 1.0
        carbon = (self.co2_g_per_kwh or 0.0) * self.co2_tonne / GRAMS_PER_TONNE
        return Prices(
            gpu_hour=usual.gpu_hour if self.gpu_hour is None else self.gpu_hour,
            kwh=(usual.kwh if self.kwh is None else self.kwh) + carbon,
            pue=usual.pue if nothing else self.pue,
            host_power_w=self.host_power_w if hosts else 0.0,
            assumed=(*assumed, "pue") if nothing else assumed,
            currency=self.currency,
            hour=self.hour,
        )


@dataclass(frozen=True, slots=True)
class FoundJobsPolicy:
    """Running jobs that no entry takes: recommended at this slowdown, or left out."""

    mode: Literal["recommend", "off"] = key(
        choice("recommend", "off"),
        "recommend",
        meaning="running jobs that no entry takes: recommended, without a command "
        "([below](#jobs-without-an-entry)), or left out",
    )
    max_slowdown: float = key(
        SLOWDOWN,
        FOUND_SLOWDOWN_RATIO,
        default="0%",
        meaning="the slowdown at which they are recommended",
    )


@dataclass(frozen=True, slots=True)
class PredictPolicy:
    """What predictions of jobs that never ran at lower clocks are made from."""

    forest: bool = key(
        flag,
        True,
        meaning="whether measured jobs of this cluster correct the predictions of others; off: "
        "they rest on public sweeps alone ([predictors](predictors.md#before-any-probe))",
    )


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """GPUs that a job holds and does not use."""

    after_s: float = key(
        duration(above_zero=True),
        300.0,  # a checkpoint or a stalled loader is over by then
        name="after",
        default="5min",
        takes="1min to 24h",
        meaning="a GPU that a job holds is unused once it did nothing for so long "
        "([unused GPUs](savings.md#gpus-that-are-held-and-not-used))",
    )
    mode: Mode = key(
        choice("recommend", "enforce", "off"),
        "recommend",
        meaning="whether unused GPUs are shown, with watts and money; with `enforce` their clocks "
        "are low, under leases, until the first work",
    )
    lock_mhz: int = key(
        whole(1, CLOCK_MHZ_MAX),
        0,
        default="the lowest",
        takes="MHz",
        meaning="clock of an unused GPU with `mode: enforce`: the highest supported one up to it, "
        "and never below `clocks.min_mhz` or the site's bound",
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy file in force. `digest` names its content in the audit trail.

    `hourly` has the series of files by path; `cost` is of this hour and then `written` is that of
    the file.
    """

    mode: Mode = "recommend"
    jobs: tuple[JobPolicy, ...] = ()
    found_jobs: FoundJobsPolicy = FoundJobsPolicy()
    predict: PredictPolicy = PredictPolicy()
    idle: IdlePolicy = IdlePolicy()
    cost: Cost = Cost()
    power_budget_w: float | None = None  # of all GPUs together, host power included
    node_power_w: float | None = None  # what the power limits of one node can sum to
    source: str = ""
    digest: str = ""
    hourly: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict, metadata=MADE)
    written: Cost | None = field(default=None, metadata=MADE)

    @property
    def enforces(self) -> bool:
        """Whether anything is set under it: in mode enforce, or where some job is."""
        modes = (self.mode, self.idle.mode, *(job.mode for job in self.jobs))
        return "enforce" in modes


DIGEST_LENGTH = 12  # hexadecimal digits, as of a policy


def policy_json(policy: Policy) -> dict[str, Any]:
    """The policy with its entries in their order, since the first match wins; without what no line
    names: jobs that were found, and slowdowns that follow from prices. Units in the keys.
    """
    jobs = tuple(
        [
            replace(job, slo=job.slo.at_cost(0.0)) if job.slo.least_cost else job
            for job in policy.jobs
            if not job.found
        ]
    )
    shown: dict[str, Any] = _plain(replace(policy, jobs=jobs, cost=policy.written or policy.cost))
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Profile):
        return value.source
    if isinstance(value, GpuRef):
        return f"{value.node}/{value.index}"
    if is_dataclass(value):
        named = (field.name for field in fields(value) if field.metadata != MADE)
        return {name: _plain(getattr(value, name)) for name in named}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
