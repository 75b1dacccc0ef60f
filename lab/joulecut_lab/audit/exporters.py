"""Metric names of the exporters that an audit can read: Joulecut's agents, dcgm-exporter.

The exporter is recognised by the names in the Prometheus; fields that DCGM renamed are known under
both names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from joulecut_lab.audit.owners import of_dcgm, of_ours
from joulecut_wire import metrics
from joulecut_wire.errors import Unavailable

PURPOSE = "purpose"  # a column of no reading: its clock is held by this product


@dataclass(frozen=True, slots=True)
class Column:
    """One field of `GpuReading`: its possible names, required labels, and unit."""

    names: tuple[str, ...]
    labels: str = ""
    scale: float = 1.0
    last: bool = False  # the last sample of a step instead of its mean


@dataclass(frozen=True, slots=True)
class Exporter:
    """Metric names and labels of one exporter."""

    title: str
    uuid: str
    owner: Callable[[Mapping[str, str], str], str]
    columns: Mapping[str, Column]
    owners: tuple[str, ...]  # series whose labels name the owner; the first that exists


def _ours(
    metric: metrics.Metric, labels: str = "", scale: float = 1.0, *, last: bool = False
) -> Column:
    return Column((metric.full_name,), labels, scale, last)


DCGM = Exporter(
    title="dcgm-exporter",
    uuid="UUID",
    owner=of_dcgm,
    columns={
        "energy_j": Column(("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), scale=1e-3, last=True),
        # DCGM 4.6 gave fields new names; the old ones are aliases.
        "power_w": Column(("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")),
        "clock_mhz": Column(("DCGM_FI_DEV_SM_CLOCK",)),
        "busy_ratio": Column(("DCGM_FI_DEV_GPU_UTIL",), scale=0.01),
        "engine_ratio": Column(("DCGM_FI_PROF_GR_ENGINE_ACTIVE",)),
        "tensor_ratio": Column(
            ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO")
        ),
        "sm_ratio": Column(("DCGM_FI_PROF_SM_ACTIVE",)),
        "dram_ratio": Column(("DCGM_FI_PROF_DRAM_ACTIVE",)),
        "memory_ratio": Column(("DCGM_FI_DEV_MEM_COPY_UTIL",), scale=0.01),
        "power_limit_w": Column(
            ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS",
             "DCGM_FI_DEV_POWER_MGMT_LIMIT"), last=True,
        ),
    },
    owners=(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_BOARD_POWER_WATTS",
    ),
)  # fmt: skip
OURS = Exporter(
    title="Joulecut's agents",
    uuid="uuid",
    owner=of_ours,
    columns={
        "energy_j": _ours(metrics.GPU_ENERGY, last=True),
        "power_w": _ours(metrics.GPU_POWER, 'kind="average"'),
        "clock_mhz": _ours(metrics.GPU_CLOCK, 'domain="sm"', 1e-6),
        "busy_ratio": _ours(metrics.GPU_UTILIZATION, 'engine="gpu"'),
        "memory_ratio": _ours(metrics.GPU_UTILIZATION, 'engine="memory"'),
        "power_limit_w": _ours(metrics.GPU_POWER_LIMIT, 'kind="enforced"', last=True),
        PURPOSE: _ours(metrics.GPU_CLOCK_LIMIT, 'bound="max"', last=True),
    },
    owners=(metrics.GPU_ALLOCATION_INFO.full_name,),
)
EXPORTERS = (OURS, DCGM)


def any_of_ours(matcher: str) -> str:
    """Selector of every series that an exporter may use."""
    more = f",{matcher}" if matcher else ""
    return f'{{__name__=~"joulecut_.+|DCGM_FI_.+"{more}}}'


def exporter_of(names: frozenset[str], url: str) -> Exporter:
    """The exporter of these names. Raises Unavailable."""
    for exporter in EXPORTERS:
        energy, power = exporter.columns["energy_j"], exporter.columns["power_w"]
        if any(name in names for name in (*energy.names, *power.names)):
            return exporter
    if names:
        seen = ", ".join(sorted(names)[:3])
        raise Unavailable(
            f"{url} has GPU series in this time range ({seen}, ...), but neither energy nor power: "
            "configure dcgm-exporter to export DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION or "
            "DCGM_FI_DEV_POWER_USAGE"
        )
    raise Unavailable(
        f"{url} has no series of dcgm-exporter or of Joulecut's agents in this time range: "
        "check that it scrapes one of them, and check --for, --until and --match"
    )


# dcgm_structs.h: blanks of 64 bits. Those of 32 bits are no possible value.
_BLANK_FP64, _BLANK_INT64 = 140737488355328.0, 9223372036854775792.0


def blank(value: float) -> bool:
    """Whether a sample stands for no value."""
    return 0.0 <= value - _BLANK_FP64 <= 3.0 or value >= _BLANK_INT64
