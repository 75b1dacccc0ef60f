"""`/metrics` from the last picture: a scrape never waits for a device, nor for the keeper.

What could not be read is absent. A stale number would be believed; a missing one is seen.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector as Registered

from joulecut_agent import __version__
from joulecut_agent.keeper_client import KeeperClient, Status
from joulecut_agent.sampler import Picture, Sampler
from joulecut_agent.state import CAUSES
from joulecut_agent.tally import BUCKETS_S, Tally
from joulecut_wire import metrics as names
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuDescription, GpuSnapshot
from joulecut_wire.metrics import PREFIX, Metric

HZ_PER_MHZ = 1e6
SCRAPES_MAX = 8  # at once; one Prometheus and a few people
REQUEST_WAIT_S = 5.0  # who is slower than this holds a place for nothing


class Table:
    """Families by name, so that series of one GPU can be told together and come out apart."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Metric, list[tuple[tuple[str, ...], float]]]] = {}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """One series; nothing where the device had nothing to say."""
        if value is not None:
            self._rows.setdefault(metric.name, (metric, []))[1].append((labels, value))

    def families(self) -> Iterator[Family]:
        for metric, rows in self._rows.values():
            family = _family(metric)
            for labels, value in rows:
                if isinstance(family, InfoMetricFamily):
                    family.add_metric([], dict(zip(metric.labels, labels, strict=True)))
                else:
                    family.add_metric(labels, value)
            yield family


def _family(metric: Metric) -> Any:
    name, labels = PREFIX + metric.name, metric.labels
    if metric.kind == "info":
        return InfoMetricFamily(name.removesuffix("_info"), metric.help)
    if metric.kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=labels)
    return GaugeMetricFamily(name, metric.help, labels=labels)


class Collector(Registered):
    """Tells everything this agent knows; each scrape is a pure reading of memory."""

    def __init__(
        self, sampler: Sampler, keeper: KeeperClient, tally: Tally,
        working: Callable[[], Mapping[str, str]], keeper_wanted: bool,
    ) -> None:  # fmt: skip
        self._sampler = sampler
        self._keeper = keeper
        self._tally = tally
        self._working = working
        self._keeper_wanted = keeper_wanted

    def collect(self) -> Iterable[Family]:
        table = Table()
        picture = self._sampler.latest()
        status = self._keeper.status
        table.add(names.BUILD_INFO, 1, "agent", __version__)
        table.add(names.COLLECT_SUCCESS, float(picture is not None and picture.complete))
        table.add(names.COLLECT_TIMESTAMP, self._sampler.last_tick_unix_s)
        if self._keeper_wanted:
            table.add(names.KEEPER_UP, float(status is not None))
        if picture is not None:
            self._tell_gpus(table, picture)
        if status is not None:
            _tell_control(table, status)
        for metric in (names.CONTROL_COMMANDS, names.NVML_ERRORS, names.REPORTS):
            for labels, count in self._tally.counts(metric.name):
                table.add(metric, count, *labels)
        yield from table.families()
        yield self._durations()

    def _tell_gpus(self, table: Table, picture: Picture) -> None:
        descriptions = {gpu.uuid: gpu for gpu in self._keeper.described(self._sampler.gpus)}
        working = self._working()
        for gpu in picture.snapshot.gpus:
            description = descriptions[gpu.uuid]
            _tell_identity(table, description)
            _tell_gpu(table, gpu, description)
            if job := working.get(gpu.uuid):
                table.add(names.GPU_ALLOCATION_INFO, 1, gpu.uuid, job, "", "", "report")
        for job, joules in sorted(picture.job_j.items()):
            table.add(names.JOB_ENERGY, joules, job)

    def _durations(self) -> HistogramMetricFamily:
        metric = names.NVML_CALL_DURATION
        family = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for call, counts, total_s in self._tally.durations():
            running, buckets = 0, []
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
                running += count
                buckets.append((bound, float(running)))
            family.add_metric([call], buckets=buckets, sum_value=total_s)
        return family


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
    table.add(names.GPU_UTILIZATION, gpu.utilization_gpu_ratio, uuid, "gpu")
    table.add(names.GPU_UTILIZATION, gpu.utilization_memory_ratio, uuid, "memory")
    table.add(names.GPU_TEMPERATURE, gpu.temperature_celsius, uuid, "gpu")
    table.add(names.GPU_MEMORY_USED, gpu.memory_used_bytes, uuid)


def _tell_control(table: Table, status: Status) -> None:
    now_s, unix_s = time.monotonic(), time.time()
    for uuid, slot in status.slots.items():
        lease = status.lease(uuid, now_s)
        if lease is not None:
            if lease.clock_min_mhz:
                table.add(names.GPU_CLOCK_LIMIT, lease.clock_min_mhz * HZ_PER_MHZ, uuid, "min")
            table.add(names.GPU_CLOCK_LIMIT, lease.clock_max_mhz * HZ_PER_MHZ, uuid, "max")
            table.add(names.CONTROL_LEASE_EXPIRES, unix_s + lease.expires_in_s, uuid)
        for cause, count in zip(CAUSES, slot.restores, strict=True):
            table.add(names.CONTROL_RESTORES, count or None, uuid, cause)


class Exporter:
    """A small HTTP server: `/metrics`, and `/healthz` for this process alone."""

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        """Binds. Raises Unavailable where the address is taken."""
        registry = CollectorRegistry()
        registry.register(collector)
        seats = threading.BoundedSemaphore(SCRAPES_MAX)

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_WAIT_S
            server_version = f"joulecut-agent/{__version__}"
            sys_version = ""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    encode, kind = choose_encoder(self.headers.get("Accept") or "")
                    self._send(200, kind, encode(registry))
                elif path == "/healthz":
                    self._send(200, "text/plain; charset=utf-8", b"ok\n")
                else:
                    self._send(404, "text/plain; charset=utf-8", b"see /metrics and /healthz\n")

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """A scrape is no event."""

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 2 * SCRAPES_MAX

            def process_request(self, request: Any, client_address: Any) -> None:
                if seats.acquire(blocking=False):
                    super().process_request(request, client_address)
                else:
                    self.shutdown_request(request)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    seats.release()

            def handle_error(self, *_: object) -> None:
                """A client that hangs up is no event either."""

        if ":" in host:
            import socket  # noqa: PLC0415 -- for its one constant

            Http.address_family = socket.AF_INET6
        try:
            self._http = Http((host, port), Handler)
        except OSError as error:
            raise Unavailable(f"metrics cannot listen on {host}:{port}: {error.strerror}") from None
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        """Serves until the process ends: a shutdown is worth seeing too."""
        self._thread.start()

    def _serve(self) -> None:
        self._http.serve_forever(poll_interval=60.0)  # nobody ever asks it to stop
