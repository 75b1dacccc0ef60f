"""`/metrics` from the last picture: a scrape never waits for a device, nor for the keeper.

What could not be read is absent. A stale number would be believed; a missing one is seen.
"""

import time
from collections.abc import Callable, Mapping

from joulecut_agent import __version__
from joulecut_agent.control.drift_watch import Oversight
from joulecut_agent.control.maintenance_window import Window
from joulecut_agent.control.set_latency import SetLatency
from joulecut_agent.control.slowdown_notice import until_label
from joulecut_agent.counters import Tally
from joulecut_agent.export.exposition import Heads, Table
from joulecut_agent.jobs.owner import OWNERS_LABEL
from joulecut_agent.keeper.client import KeeperClient, Status
from joulecut_agent.keeper.lease import CAUSES, STUCK
from joulecut_agent.monitor.job_energy import Books
from joulecut_agent.monitor.sampler import Picture, Sampler
from joulecut_wire import metrics as names
from joulecut_wire.messages import Allocation, GpuDescription, GpuSnapshot

HZ_PER_MHZ = 1e6


class Collector:
    """Tells everything this agent knows; each scrape is a pure reading of memory."""

    def __init__(
        self, *, sampler: Sampler, keeper: KeeperClient, tally: Tally,
        allocations: Callable[[], Mapping[str, Allocation]], keeper_wanted: bool,
        oversight: Oversight, window: Window, latency: SetLatency,
    ) -> None:  # fmt: skip
        self._sampler = sampler
        self._keeper = keeper
        self._tally = tally
        self._allocations = allocations
        self._keeper_wanted = keeper_wanted
        self._oversight = oversight
        self._window = window
        self._latency = latency
        self._heads: Heads = {}

    def text(self, *, openmetrics: bool) -> bytes:
        """Everything, in OpenMetrics or in the older text format."""
        table = Table(self._heads)
        picture = self._sampler.latest()
        status = self._keeper.status
        table.add(names.BUILD_INFO, 1, "agent", __version__)
        table.add(names.COLLECT_SUCCESS, float(picture is not None and picture.complete))
        table.add(names.COLLECT_TIMESTAMP, self._sampler.last_tick_unix_s)
        released = bool(self._window.left_s)
        if self._keeper_wanted and not (released and status is None):  # then it is not wanted now
            table.add(names.KEEPER_UP, float(status is not None))
        table.add(names.AGENT_RELEASED, float(released))
        table.add(names.CONTROL_STOPPED, float(released or bool(status and status.stopped)))
        if picture is not None:
            self._tell_gpus(table, picture)
        _tell_energy(table, self._sampler.books, picture)
        for uuid in self._sampler.unresponsive:
            table.add(names.DRIVER_UNRESPONSIVE, 1, uuid)
        if status is not None:
            _tell_control(table, status)
            self._tell_intent(table)
        for metric in (
            names.ACCESS_DENIED,
            names.AUDIT_LOST,
            names.CONFIG_KEYS_IGNORED,
            names.CONTROL_COMMANDS,
            names.CONTROL_DRIFT,
            names.CONTROL_STEPS,
            names.NVML_ERRORS,
            names.REPORTS,
            names.REQUESTS_MALFORMED,
            names.REPORTS_REFUSED,
        ):
            for labels, count in self._tally.counts(metric.name):
                table.add(metric, count, *labels)
        table.add_durations(names.NVML_CALL_DURATION, self._tally.durations())
        return table.text(openmetrics=openmetrics)

    def _tell_gpus(self, table: Table, picture: Picture) -> None:
        described = self._oversight.described(self._sampler.gpus)
        descriptions = {gpu.uuid: gpu for gpu in described}
        allocations = self._allocations()
        for gpu in self._oversight.seen(picture.snapshot.gpus):
            description = descriptions[gpu.uuid]
            _tell_identity(table, description)
            _tell_gpu(table, gpu, description)
            _tell_trouble(table, gpu)
            table.add(names.GPU_SET_LATENCY, self._latency.p95_s(gpu.uuid) or None, gpu.uuid)
            _tell_allocation(table, allocations.get(gpu.uuid, Allocation(gpu.uuid, "")))

    def _tell_intent(self, table: Table) -> None:
        for uuid, one in self._oversight.intents().items():
            ratio = "" if one.max_slowdown_ratio is None else f"{one.max_slowdown_ratio:g}"
            until = until_label(one.until_unix_s)
            table.add(names.GPU_INTENT_INFO, 1, uuid, one.job, one.reason, until, ratio)


def _tell_allocation(table: Table, one: Allocation) -> None:
    """Always one series, or a join of two metrics by GPU fails while a GPU changes hands."""
    words = (one.uuid, one.job, one.namespace, one.pod, one.source or "none")
    table.add(names.GPU_ALLOCATION_INFO, 1, *words)
    if owners := one.labels.get(OWNERS_LABEL):
        table.add(names.GPU_OWNERS, float(owners), one.uuid)


def _tell_energy(table: Table, books: Books, picture: Picture | None) -> None:
    """A job is told of to its end and after; a GPU only while it can be read."""
    seen = {gpu.uuid for gpu in picture.snapshot.gpus} if picture else set[str]()
    idle_j = {uuid: joules for uuid, joules in books.idle_j.items() if uuid in seen}
    for metric, joules_by_name in (
        (names.JOB_ENERGY, books.measured_j),
        (names.JOB_ENERGY_ESTIMATED, books.estimated_j),
        (names.GPU_IDLE_ENERGY, idle_j),
    ):
        for name, joules in sorted(joules_by_name.items()):
            table.add(metric, joules, name)


def _tell_identity(table: Table, gpu: GpuDescription) -> None:
    controllable = "true" if gpu.controllable else "false"
    labels = (gpu.uuid, str(gpu.index), gpu.model, controllable, gpu.reason)
    table.add(names.GPU_INFO, 1, *labels)


def _tell_gpu(table: Table, gpu: GpuSnapshot, about: GpuDescription) -> None:
    uuid = gpu.uuid
    table.add(names.GPU_ENERGY, gpu.energy_j, uuid)
    table.add(names.GPU_POWER, gpu.power_average_w, uuid, "average")
    table.add(names.GPU_POWER, gpu.power_instant_w, uuid, "instant")
    table.add(names.GPU_POWER_LIMIT, gpu.power_limit_enforced_w, uuid, "enforced")
    for kind, limit_w in (
        ("default", about.power_limit_default_w),
        ("min", about.power_limit_min_w),
        ("max", about.power_limit_max_w),
    ):
        table.add(names.GPU_POWER_LIMIT, limit_w or None, uuid, kind)
    for domain, clock_mhz in (("sm", gpu.clock_sm_mhz), ("memory", gpu.clock_memory_mhz)):
        if clock_mhz is not None:
            table.add(names.GPU_CLOCK, clock_mhz * HZ_PER_MHZ, uuid, domain)
    for reason in gpu.event_reasons:
        table.add(names.GPU_CLOCK_EVENT, 1, uuid, reason)
    for profile in gpu.power_profiles:
        table.add(names.GPU_POWER_PROFILE, 1, uuid, profile)
    table.add(names.GPU_UTILIZATION, gpu.utilization_gpu_ratio, uuid, "gpu")
    table.add(names.GPU_UTILIZATION, gpu.utilization_memory_ratio, uuid, "memory")
    table.add(names.GPU_TEMPERATURE, gpu.temperature_celsius, uuid, "gpu")
    table.add(names.GPU_MEMORY_USED, gpu.memory_used_bytes, uuid)


def _tell_trouble(table: Table, gpu: GpuSnapshot) -> None:
    if gpu.drift:
        table.add(names.GPU_DRIFT, 1, gpu.uuid, gpu.drift)
    if gpu.slow_reason:
        table.add(names.GPU_SLOW, 1, gpu.uuid, gpu.slow_reason)
    table.add(names.GPU_STANDS_BACK, gpu.stands_back_s or None, gpu.uuid)


def _tell_control(table: Table, status: Status) -> None:
    now_s, unix_s = time.monotonic(), time.time()
    for uuid, slot in status.slots.items():
        if slot.reason.startswith(STUCK):
            table.add(names.GPU_STUCK, 1, uuid)
        lease = status.lease(uuid, now_s)
        if lease is not None:
            if lease.clock_min_mhz:
                table.add(names.GPU_CLOCK_LIMIT, lease.clock_min_mhz * HZ_PER_MHZ, uuid, "min")
            if lease.clock_max_mhz:
                table.add(names.GPU_CLOCK_LIMIT, lease.clock_max_mhz * HZ_PER_MHZ, uuid, "max")
            table.add(names.GPU_POWER_LIMIT, lease.power_limit_w, uuid, "requested")
            table.add(names.CONTROL_LEASE_EXPIRES, unix_s + lease.expires_in_s, uuid)
        for cause, count in zip(CAUSES, slot.restores, strict=True):
            table.add(names.CONTROL_RESTORES, count or None, uuid, cause)
