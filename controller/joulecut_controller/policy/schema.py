"""Schema of the policy file: every key, its values and its meaning.

Holds planned keys as well, so that a planned key is refused by name and a typing error as unknown.
Shapes only: `validation` checks keys against each other, and refuses what is not available. Pure.
"""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from joulecut_controller.policy import quantity
from joulecut_controller.policy.policy import FOUND_SLOWDOWN_RATIO, TOLERANCE_RATIO, GpuRef, Mode
from joulecut_controller.policy.quantity import POWER_W_MAX, references
from joulecut_controller.policy.rate_query import RateQuery, Unusable, rate_query
from joulecut_engine.graph.pipeline import SCHEDULES_ALL
from joulecut_engine.graph.shape import CHUNKS_MAX, MICROBATCHES_MAX, SCHEDULES_LATER, STAGES_MAX

API_VERSION = "joulecut/v1"
KIND = "Policy"

MODES = ("recommend", "enforce", "off")
RANK_SOURCES = ("hook", "list", "completion-index")
RANK_SOURCES_LATER = ("slurm_procid",)
RANK_ORDER = "tp-cp-ep-dp-pp"  # the first changes fastest (Megatron-LM's default)
RATE_UNITS_S = {"iterations/s": 1.0, "iterations/min": 60.0, "iterations/h": 3600.0}

CHANGES_MAX = 16  # of a GPU's clock in an iteration: more save 0.1 % where so many fit in it
CLOCK_MHZ_MAX = 10_000  # no GPU comes near
PARALLEL_MAX = 65_536
SLOWDOWN_PERCENT_MAX = 100.0  # half the speed is not a slowdown budget
TOLERANCE_PERCENT_MAX = 5.0
HOLDOUT_PERCENT_MAX = 50.0
HOLDOUT_MIN = 0.001  # one window of five minutes in four days; less measures nothing
WINDOW_S = 300.0  # thermal settling is a tenth of it, and a counter's step of 0.1 s nothing
WINDOW_S_MIN = 60.0  # below it warm-ups take more than a third of the time at default clocks
WINDOW_S_MAX = 6 * 3600.0  # a job drifts meanwhile, and windows far apart cannot be compared
PRICE_MAX = 1e6  # per GPU hour or kWh, in whatever currency
WEIGHT_MAX = 1e6  # one job that counts as much as a million others
CO2_G_PER_KWH_MAX = 10_000.0  # coal alone is around 1000
PUE_MAX = 10.0  # the worst published figures are around 3

JobName = Annotated[
    str,
    PlainValidator(
        quantity.name(
            r"[A-Za-z0-9][A-Za-z0-9._:-]*",
            253,  # as long as a job may call itself in its reports
            "up to 253 letters, digits and . _ : - after a letter or digit",
        )
    ),
]
ModeWord = Annotated[Mode, PlainValidator(quantity.choice(*MODES))]
Slowdown = Annotated[float, PlainValidator(quantity.percentage(SLOWDOWN_PERCENT_MAX))]
Tolerance = Annotated[float, PlainValidator(quantity.percentage(TOLERANCE_PERCENT_MAX))]
Holdout = Annotated[float, PlainValidator(quantity.percentage(HOLDOUT_PERCENT_MAX))]
PositiveTime = Annotated[float, PlainValidator(quantity.duration(above_zero=True))]
Time = Annotated[float, PlainValidator(quantity.duration(above_zero=False))]
Parallel = Annotated[int, PlainValidator(quantity.whole(1, PARALLEL_MAX))]
Price = Annotated[float, PlainValidator(quantity.number(0.0, PRICE_MAX))]
Power = Annotated[float, PlainValidator(quantity.number(0.0, POWER_W_MAX))]
Gpus = Annotated[tuple[GpuRef, ...], PlainValidator(references)]
Text = Annotated[str, PlainValidator(quantity.text(253, "a name"))]
Label = Annotated[
    str,
    PlainValidator(
        quantity.name(
            r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?",
            63,  # as Kubernetes has it
            "the value of a label: up to 63 letters, digits and . _ -",
        )
    ),
]


def _rate(value: object) -> str | RateQuery:
    """`hook`, `power-signature`, or a mapping with an expression or preset and its labels."""
    if isinstance(value, dict) and "promql" in value and set(value) <= {"promql", "labels"}:
        promql, labels = value["promql"], value.get("labels", {})
        quantity.text(4096, "an expression")(promql)
        if not isinstance(labels, dict):
            raise quantity.Fault("labels that are not a mapping", "labels: {model_name: llama}")
        for label in labels.values():
            quantity.text(253, "the value of a label")(label)
        try:
            return rate_query(promql, {str(name): text for name, text in labels.items()})
        except Unusable as error:
            raise quantity.Fault(str(error), error.allowed) from None
    if isinstance(value, str) and value in {"hook", "power-signature"}:
        return value
    raise quantity.Fault(
        f"{quantity.shown(value)} is not a source of a rate",
        "hook, power-signature, {promql: EXPRESSION}",
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class KubernetesMatch(_Strict):
    """Pods of one namespace that carry all these labels."""

    namespace: Annotated[
        str,
        PlainValidator(
            quantity.name(
                r"[a-z0-9]([a-z0-9-]*[a-z0-9])?",
                63,  # Kubernetes allows no longer one
                "the name of a namespace: up to 63 of a-z, 0-9 and -",
            )
        ),
    ]
    labels: dict[str, Label] = Field(default_factory=dict)


def _slurm_id(value: object) -> str:
    """Slurm's number of a job, in quotes: YAML reads the array task 4711_3 as job 47113."""
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,11}", value):
        return value
    unquoted = isinstance(value, int) and not isinstance(value, bool)
    raise quantity.Fault(
        f"{quantity.shown(value)} is {'not in quotes' if unquoted else 'not a job id'}",
        'a number as in SLURM_JOB_ID, in quotes: "4711"',
    )


class SlurmMatch(_Strict):
    """The Slurm job of this id, or those of all the other words given."""

    job_name: Text | None = None
    job_id: Annotated[str, PlainValidator(_slurm_id)] | None = None
    user: Text | None = None
    account: Text | None = None
    partition: Text | None = None


class Match(_Strict):
    """The running job of this entry: exactly one of the three, or no match at all."""

    kubernetes: KubernetesMatch | None = None
    slurm: SlurmMatch | None = None
    gpus: list[Gpus] | None = None


class MinRate(_Strict):
    """The least iterations per second, minute or hour."""

    value: Annotated[float, PlainValidator(quantity.number(0.0, 1e6, above=True))]
    unit: Annotated[str, PlainValidator(quantity.choice(*RATE_UNITS_S))]

    @property
    def iteration_time_s(self) -> float:
        return RATE_UNITS_S[self.unit] / self.value


class SloKeys(_Strict):
    """The throughput target: exactly one of the first three."""

    max_slowdown: Slowdown | None = None
    min_rate: MinRate | None = None
    max_iteration_time: PositiveTime | None = None
    statistic: Annotated[str, PlainValidator(quantity.choice("mean", "p95"))] = "mean"
    tolerance: Tolerance = TOLERANCE_RATIO
    rate: Annotated[str | RateQuery, PlainValidator(_rate)] = "hook"


class ClockKeys(_Strict):
    """The operator's bounds on clocks."""

    min_mhz: Annotated[int, PlainValidator(quantity.whole(0, CLOCK_MHZ_MAX))] = 0
    granularity: (
        Annotated[
            str,
            PlainValidator(quantity.choice("auto", "gpu", "edge", "changes", "computation")),
        ]
        | None
    ) = None
    changes: Annotated[int, PlainValidator(quantity.whole(2, CHANGES_MAX))] = 2
    min_dwell: Time = 10.0


class PipelineKeys(_Strict):
    """Shape of one iteration, and its costs."""

    schedule: Annotated[str, PlainValidator(quantity.choice(*SCHEDULES_ALL, later=SCHEDULES_LATER))]
    stages: Annotated[int, PlainValidator(quantity.whole(1, STAGES_MAX))]
    microbatches: Annotated[int, PlainValidator(quantity.whole(1, MICROBATCHES_MAX))]
    chunks: Annotated[int, PlainValidator(quantity.whole(1, CHUNKS_MAX))] | None = None
    tensor_parallel: Parallel = 1
    context_parallel: Parallel = 1
    expert_parallel: Parallel = 1
    data_parallel: Parallel = 1
    sync: Annotated[str, PlainValidator(quantity.choice("iteration", "layer"))] = "iteration"
    profile: Annotated[str, PlainValidator(quantity.text(4096, "a path"))] | None = None
    model: Annotated[str, PlainValidator(quantity.text(4096, "a path"))] | None = None
    blocking_power_w: Power | None = None


class RankKeys(_Strict):
    """Source of the stage of each GPU."""

    order: Annotated[
        str,
        PlainValidator(
            quantity.name(
                r"(?!.*(tp|cp|ep|dp|pp).*\1)(tp|cp|ep|dp|pp)(-(tp|cp|ep|dp|pp)){4}",
                14,
                f"tp, cp, ep, dp and pp, each once, with dashes, like {RANK_ORDER}",
            )
        ),
    ] = RANK_ORDER
    source: Annotated[
        str, PlainValidator(quantity.choice(*RANK_SOURCES, later=RANK_SOURCES_LATER))
    ] = "hook"


class VerifyKeys(_Strict):
    """How savings are measured."""

    holdout: Holdout = 0.0
    window: PositiveTime = WINDOW_S


def _yes_or_no(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise quantity.Fault(f"{quantity.shown(value)} is neither true nor false", "true, false")


class OptInKeys(_Strict):
    """What jobs may ask for by themselves."""

    allow: Annotated[bool, PlainValidator(_yes_or_no)] = False
    max_slowdown_up_to: Slowdown | None = None
    slurm: SlurmMatch | None = None


class JobKeys(_Strict):
    """One job."""

    name: JobName
    match: Match | None = None
    slo: SloKeys
    clocks: ClockKeys = ClockKeys()
    pipeline: PipelineKeys | None = None
    ranks: RankKeys = RankKeys()
    weight: Annotated[float, PlainValidator(quantity.number(0.0, WEIGHT_MAX, above=True))] = 1.0
    mode: ModeWord | None = None
    verify: VerifyKeys = VerifyKeys()
    tenant: Text | None = None
    opt_in: OptInKeys = OptInKeys()


class CostKeys(_Strict):
    """Factors for savings at the wall."""

    gpu_hour: Price | None = None
    kwh: Price | None = None
    host_power_w: Power = 0.0
    pue: Annotated[float, PlainValidator(quantity.number(1.0, PUE_MAX))] = 1.0
    co2_g_per_kwh: (
        Annotated[float, PlainValidator(quantity.number(0.0, CO2_G_PER_KWH_MAX, above=True))] | None
    ) = None


class ClusterKeys(_Strict):
    """Keys for all jobs together."""

    power_budget_w: (
        Annotated[float, PlainValidator(quantity.number(0.0, 1e9, above=True))] | None
    ) = None
    cost: CostKeys = CostKeys()


class FoundJobsKeys(_Strict):
    """Running jobs that no entry takes."""

    mode: Annotated[str, PlainValidator(quantity.choice("recommend", "off"))] = "recommend"
    max_slowdown: Slowdown = FOUND_SLOWDOWN_RATIO


class PolicyKeys(_Strict):
    """The whole file."""

    apiVersion: str  # noqa: N815 -- the key as it is written
    kind: str
    mode: ModeWord = "recommend"
    cluster: ClusterKeys = ClusterKeys()
    found_jobs: FoundJobsKeys = FoundJobsKeys()
    jobs: list[JobKeys] = Field(default_factory=list)
