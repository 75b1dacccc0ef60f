"""`/metrics` from the last reading: a scrape waits for neither device nor keeper.

What could not be read is absent: a missing number is noticed, a stale one would be believed.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from joulecut_agent import __version__
from joulecut_agent.control.clock_schedule import ClockSchedules
from joulecut_agent.control.drift_watch import DriftWatch
from joulecut_agent.control.maintenance_window import MaintenanceWindow
from joulecut_agent.control.set_latency import SetLatency
from joulecut_agent.counters import BUCKETS_S, Counters
from joulecut_agent.jobs.owner import OWNERS_LABEL
from joulecut_agent.jobs.rank_count import RankCount
from joulecut_agent.keeper.client import KeeperClient, Status
from joulecut_agent.keeper.lease import STUCK
from joulecut_agent.monitor.job_energy import Books
from joulecut_agent.monitor.sampler import NodeReading, Sampler
from joulecut_agent.ports.reader import HardwareCounters
from joulecut_wire import metrics as names
from joulecut_wire.messages import Allocation, GpuDescription, GpuSnapshot, IterationTiming
from joulecut_wire.metrics import Metric

HZ_PER_MHZ = 1e6
COUNTED = (
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
)


class Families(Collector):
    """The metric families of one scrape, in the order of their first series."""

    def __init__(self, process: Iterable[Family] = ()) -> None:
        """`process` are those of the process itself, which follow."""
        self._families: dict[str, Family] = {}
        self._process = process

    def collect(self) -> Iterable[Family]:
        return (*self._families.values(), *self._process)

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Adds one series; none if the value is None."""
        if value is not None:
            pairs = dict(zip(metric.labels, labels, strict=True))
            self._family(metric).add_sample(metric.full_name, pairs, value)

    def add_durations(self, metric: Metric, rows: Iterable[tuple[str, list[int], float]]) -> None:
        """Adds a histogram with the rows of `Counters.durations`."""
        family, (label,) = self._family(metric), metric.labels
        for call, counts, total_s in rows:
            running = 0
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
                running += count
                pairs = {label: call, "le": bound}
                family.add_sample(f"{metric.full_name}_bucket", pairs, running)
            family.add_sample(f"{metric.full_name}_count", {label: call}, running)
            family.add_sample(f"{metric.full_name}_sum", {label: call}, total_s)

    def _family(self, metric: Metric) -> Family:
        family = self._families.get(metric.name)
        if family is None:
            name = metric.full_name.removesuffix("_total").removesuffix("_info")
            family = self._families[metric.name] = Family(name, metric.help, metric.kind)
        return family


@dataclass(frozen=True, kw_only=True)
class AgentCollector:
    """Everything this agent measures and counts, from memory.

    `certificates` are the ends of those in use, in unix seconds, by use.
    """

    node: str
    sampler: Sampler
    keeper: KeeperClient
    counters: Counters
    allocations: Callable[[], Mapping[str, Allocation]]
    keeper_wanted: bool
    drift_watch: DriftWatch
    window: MaintenanceWindow
    latency: SetLatency
    schedules: ClockSchedules
    ranks: RankCount
    certificates: Mapping[str, Callable[[], float | None]]
    process: ProcessCollector = field(default_factory=lambda: ProcessCollector(registry=None))

    def families(self) -> Families:
        families = Families(self.process.collect())
        reading = self.sampler.latest()
        status = self.keeper.status
        families.add(names.BUILD_INFO, 1, "agent", __version__)
        for use, expires_unix_s in self.certificates.items():
            families.add(names.CERTIFICATE_EXPIRES, expires_unix_s(), use)
        families.add(names.COLLECT_SUCCESS, float(reading is not None and reading.complete))
        families.add(names.COLLECT_TIMESTAMP, self.sampler.last_tick_unix_s)
        released = bool(self.window.left_s)
        if self.keeper_wanted and not (released and status is None):
            families.add(names.KEEPER_UP, float(status is not None))
            families.add(names.KEEPER_VERSION_MISMATCH, float(bool(self.keeper.mismatch)))
        families.add(names.AGENT_RELEASED, float(released))
        families.add(names.CONTROL_STOPPED, float(released or bool(status and status.stopped)))
        if reading is not None:
            self._add_gpus(families, reading)
        self._add_xids(families)
        for timing in self.schedules.timings(self.latency.change_error_s):
            _add_timing(families, timing)
        account = self.sampler.account
        _add_energy(families, account.books, account.books_of_integrals, reading)
        for job, ranks in self.ranks.counts(time.monotonic()).items():
            families.add(names.JOB_RANKS, float(len(ranks.heard)), job, "heard")
            families.add(names.JOB_RANKS, float(len(ranks.running)), job, "running")
        for uuid in self.sampler.unresponsive:
            families.add(names.DRIVER_UNRESPONSIVE, 1, uuid)
        for index in self.sampler.unread:
            families.add(names.GPU_UNREAD, 1, str(index))
        if status is not None:
            _add_control(families, status)
            self._add_slowed(families)
        for metric in COUNTED:
            for labels, count in self.counters.counts(metric.name):
                families.add(metric, count, *labels)
        families.add_durations(names.NVML_CALL_DURATION, self.counters.durations())
        return families

    def _add_gpus(self, families: Families, reading: NodeReading) -> None:
        described = self.drift_watch.described(self.sampler.gpus)
        descriptions = {gpu.uuid: gpu for gpu in described}
        allocations = self.allocations()
        for gpu in self.drift_watch.seen(reading.snapshot.gpus):
            description = descriptions[gpu.uuid]
            _add_gpu(families, self.node, gpu, description)
            if hardware := self.sampler.hardware.latest(gpu.uuid):
                _add_hardware(families, gpu.uuid, hardware)
            _add_drift(families, gpu)
            latencies = self.latency.latencies(gpu.uuid)
            families.add(names.GPU_SET_LATENCY, latencies.p95_s or None, gpu.uuid)
            families.add(names.GPU_SET_LATENCY_SPREAD, latencies.spread_s or None, gpu.uuid)
            _add_allocation(families, allocations.get(gpu.uuid, Allocation(gpu.uuid, "")))

    def _add_xids(self, families: Families) -> None:
        """Counts of this agent: a lost GPU keeps its series."""
        for uuid, xid, count, last_unix_s in self.sampler.hardware.xid_errors():
            families.add(names.GPU_XID_ERRORS, count, uuid, str(xid))
            families.add(names.GPU_XID_LAST, last_unix_s, uuid, str(xid))

    def _add_slowed(self, families: Families) -> None:
        """For health checks, which would drain a node with GPUs below their clocks."""
        for uuid, (job, ratio) in self.drift_watch.slowed().items():
            families.add(names.GPU_INTENT_INFO, 1, uuid, job)
            families.add(names.GPU_INTENT_SLOWDOWN, ratio, uuid)


def _add_allocation(families: Families, one: Allocation) -> None:
    """Always one series, or joins by GPU fail while a GPU changes its owner."""
    labels = (one.uuid, one.job, one.namespace, one.pod, one.source or "none")
    families.add(names.GPU_ALLOCATION_INFO, 1, *labels)
    if owners := one.labels.get(OWNERS_LABEL):
        families.add(names.GPU_OWNERS, float(owners), one.uuid)


def _add_energy(
    families: Families, counted: Books, integrated: Books, reading: NodeReading | None
) -> None:
    """A job has its series to its end and after; a GPU only while it can be read."""
    seen = {gpu.uuid for gpu in reading.snapshot.gpus} if reading else set[str]()
    whole = dict(integrated.measured_j)  # with equal shares: an integral is no count anyway
    for job, joules in integrated.estimated_j.items():
        whole[job] = whole.get(job, 0.0) + joules
    for metric, joules_by_name in (
        (names.JOB_ENERGY, counted.measured_j),
        (names.JOB_ENERGY_ESTIMATED, counted.estimated_j),
        (names.GPU_IDLE_ENERGY, counted.idle_j),
        (names.JOB_ENERGY_INTEGRATED, whole),
        (names.GPU_IDLE_ENERGY_INTEGRATED, integrated.idle_j),
    ):
        for name, joules in sorted(joules_by_name.items()):
            if metric.labels == ("workload",) or name in seen:
                families.add(metric, joules, name)


def _add_gpu(families: Families, node: str, gpu: GpuSnapshot, about: GpuDescription) -> None:
    uuid, controllable = gpu.uuid, "true" if about.controllable else "false"
    scope = about.energy_scope or "unknown"
    labels = (uuid, node, str(about.index), about.model, controllable, about.reason, scope)
    families.add(names.GPU_INFO, 1, *labels)
    families.add(names.GPU_ENERGY, gpu.energy_j, uuid)
    families.add(names.GPU_ENERGY_INTEGRATED, gpu.energy_integrated_j, uuid)
    families.add(names.GPU_POWER, gpu.power_average_w, uuid, "average")
    families.add(names.GPU_POWER, gpu.power_instant_w, uuid, "instant")
    families.add(names.GPU_POWER_LIMIT, gpu.power_limit_enforced_w, uuid, "enforced")
    for kind, limit_w in (
        ("default", about.power_limit_default_w),
        ("min", about.power_limit_min_w),
        ("max", about.power_limit_max_w),
    ):
        families.add(names.GPU_POWER_LIMIT, limit_w or None, uuid, kind)
    for domain, clock_mhz in (("sm", gpu.clock_sm_mhz), ("memory", gpu.clock_memory_mhz)):
        if clock_mhz is not None:
            families.add(names.GPU_CLOCK, clock_mhz * HZ_PER_MHZ, uuid, domain)
    for reason in gpu.event_reasons:
        families.add(names.GPU_CLOCK_EVENT, 1, uuid, reason)
    for profile in gpu.power_profiles:
        families.add(names.GPU_POWER_PROFILE, 1, uuid, profile)
    families.add(names.GPU_UTILIZATION, gpu.utilization_gpu_ratio, uuid, "gpu")
    families.add(names.GPU_UTILIZATION, gpu.utilization_memory_ratio, uuid, "memory")
    families.add(names.GPU_TEMPERATURE, gpu.temperature_celsius, uuid, "gpu")
    families.add(names.GPU_MEMORY_USED, gpu.memory_used_bytes, uuid)


def _add_hardware(families: Families, uuid: str, counters: HardwareCounters) -> None:
    for error, scope, count in counters.ecc_errors:
        families.add(names.GPU_ECC_ERRORS, count, uuid, error, scope)
    for direction, sent_bytes in counters.nvlink_bytes:
        families.add(names.GPU_NVLINK_BYTES, sent_bytes, uuid, direction)
    for kind, count in counters.nvlink_errors:
        families.add(names.GPU_NVLINK_ERRORS, count, uuid, kind)


def _add_timing(families: Families, one: IterationTiming) -> None:
    families.add(names.GPU_ITERATION_TIME, one.iteration_time_s, one.uuid, one.source)
    families.add(names.GPU_STARTS, one.starts_per_minute, one.uuid)
    families.add(names.GPU_START_JITTER, one.start_jitter_s, one.uuid)
    families.add(names.GPU_STARTS_MISSED, one.missed_ratio, one.uuid)
    families.add(names.GPU_CHANGE_ERROR, one.change_error_s or None, one.uuid)


def _add_drift(families: Families, gpu: GpuSnapshot) -> None:
    if gpu.drift:
        families.add(names.GPU_DRIFT, 1, gpu.uuid, gpu.drift)
    if gpu.slow_reason:
        families.add(names.GPU_SLOW, 1, gpu.uuid, gpu.slow_reason)
    families.add(names.GPU_STANDS_BACK, gpu.backoff_s or None, gpu.uuid)


def _add_control(families: Families, status: Status) -> None:
    now_s, unix_s = time.monotonic(), time.time()
    for uuid, slot in status.slots.items():
        if slot.reason.startswith(STUCK):
            families.add(names.GPU_STUCK, 1, uuid)
        if slot.kept_power_mw:
            families.add(names.GPU_POWER_LIMIT, status.power_limit_kept_w(uuid), uuid, "kept")
            if isfinite(slot.kept_left_s):
                ends_s = unix_s + slot.kept_left_s - (now_s - status.taken_at_s)
                families.add(names.CONTROL_KEPT_LIMIT_ENDS, ends_s, uuid)
        lease = status.lease(uuid, now_s)
        if slot.written_mhz and lease is None:
            families.add(names.GPU_RESET_UNREAD, 1, uuid)
        if lease is not None:
            if lease.clock_min_mhz:
                families.add(names.GPU_CLOCK_LIMIT, lease.clock_min_mhz * HZ_PER_MHZ, uuid, "min")
            if lease.clock_max_mhz:
                families.add(names.GPU_CLOCK_LIMIT, lease.clock_max_mhz * HZ_PER_MHZ, uuid, "max")
            families.add(names.GPU_POWER_LIMIT, lease.power_limit_w, uuid, "requested")
            families.add(names.CONTROL_LEASE_EXPIRES, unix_s + lease.expires_in_s, uuid)
        for cause, count in sorted(slot.restores.items()):
            families.add(names.CONTROL_RESTORES, count, uuid, cause)
