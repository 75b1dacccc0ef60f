"""The text of `/metrics`: series of a leader or a standby, and of the process, at every scrape.

They are read off the current board. Nothing is kept between scrapes but high-water marks of
counters, so a job that left the policy leaves no stale series behind, and the metrics cannot
disagree with the page.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.worth import job_worth
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.metrics.job_metrics import SAMPLES, Row, rows, saved_j
from joulecut_controller.reconcile.loop_metrics import BUCKETS_S, Histogram, LoopMetrics
from joulecut_controller.reconcile.reconciler import Reconciler
from joulecut_wire import metrics as m

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily | InfoMetricFamily


@dataclass(eq=False)
class BoardCollector(Collector):
    """Metric families of the current board. Without `meters` those of a standby: that it does not
    lead, and the agents it sees.
    """

    board: Callable[[], Board | None]
    meters: LoopMetrics | None = None
    epoch: Callable[[], int] = lambda: 0
    leads: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._saved_most: dict[tuple[str, ...], float] = {}

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        board = self.board()
        build = {"role": "controller", "version": version("joulecut")}
        name = m.BUILD_INFO.full_name.removesuffix("_info")
        yield InfoMetricFamily(name, m.BUILD_INFO.help, build)
        yield _family(m.CONTROLLER_LEADER, [((), float(self.leads()))])
        if self.meters is not None:
            yield from self._loop(self.meters)
            yield from _budget(board)
        yield from _agents(board)
        if self.meters is not None:
            jobs = board.jobs if board else ()
            for metric, samples in SAMPLES:
                yield _family(metric, (row for job in jobs for row in rows(job, samples)))
            yield _worth(board)
            yield self._savings(jobs)

    def _loop(self, meters: LoopMetrics) -> Iterator[Family]:
        yield _family(m.CONTROLLER_EPOCH, [((), float(self.epoch()))])
        yield _histogram(m.PLAN_SECONDS, meters.plans)
        yield _histogram(m.RECONCILE_SECONDS, meters.passes)
        yield _histogram(m.LOOP_LAG_SECONDS, meters.lag)
        passes = [((result,), float(count)) for result, count in meters.results.items()]
        yield _family(m.RECONCILE_PASSES, passes)
        yield _family(m.CONTROLLER_DRIFTS, [((), float(meters.drifts))])
        if meters.last_success_unix_s is not None:
            yield _family(m.RECONCILE_LAST_SUCCESS, [((), meters.last_success_unix_s)])

    def _savings(self, jobs: tuple[JobBoard, ...]) -> Family:
        """Counters never fall: under a plan that costs energy they stand still. The board shows
        the signed value.
        """
        before, self._saved_most = self._saved_most, {}
        for job in jobs:
            for key, joules in rows(job, saved_j):
                self._saved_most[key] = max(before.get(key, 0.0), joules)
        return _family(m.JOB_ENERGY_SAVED, self._saved_most.items())


class CertificateCollector(Collector):
    """Ends of the certificates in use, in unix seconds, by use; None where there is none."""

    def __init__(self, certificates: Mapping[str, Callable[[], float | None]]) -> None:
        self._certificates = certificates

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        ends = [((use,), expires_unix_s()) for use, expires_unix_s in self._certificates.items()]
        known = ((labels, end) for labels, end in ends if end is not None)
        yield _family(m.CERTIFICATE_EXPIRES, known)


def _budget(board: Board | None) -> Iterator[Family]:
    budget, limits = (board.budget, board.power_limits) if board else (None, None)
    yield _family(m.POWER_BUDGET, [((), budget.limit_w)] if budget else [])
    yield _family(m.POWER_BUDGET_EXPECTED, [((), budget.power_w)] if budget else [])
    kept = [limits] if limits and limits.budget_w else []
    yield _family(m.POWER_BUDGET_LIMITS, [((), one.in_force_w + one.hosts_w) for one in kept])
    uncertain = [
        ((), float(bool(one.best_effort) or one.state != "kept"))
        for one in kept
        if one.state != "recommended"
    ]
    yield _family(m.POWER_BUDGET_BEST_EFFORT, uncertain)
    yield _family(m.PRIOR_ERROR, [])


def _worth(board: Board | None) -> Family:
    """Of jobs whose prices are the site's own, not assumed ones."""
    found = [(job, job_worth(job, board.policy)) for job in board.jobs] if board else []
    return _family(
        m.JOB_WORTH,
        [
            ((job.view.policy.name, one.basis, one.plan.currency), one.plan.net_per_gpu_hour)
            for job, one in found
            if one is not None and not one.prices.assumed
        ],
    )


def _agents(board: Board | None) -> Iterator[Family]:
    nodes = board.view.nodes if board else ()
    connected = sum(node.connected for node in nodes)
    states = [(("connected",), float(connected)), (("lost",), float(len(nodes) - connected))]
    yield _family(m.RECONCILE_AGENTS, states)
    causes = [
        (("quarantine",), float(sum(bool(node.quarantine) for node in nodes))),
        (("conflict",), float(sum(bool(node.conflict) for node in nodes))),
    ]
    yield _family(m.RECONCILE_DISTRUSTED, causes)
    yield _family(m.CONTROLLER_OTHERS, [((), float(sum(node.is_shared for node in nodes)))])


def _family(metric: m.Metric, rows: Iterable[Row]) -> Family:
    """A counter, or a gauge for all else; the client library adds a counter's suffix itself."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    name = metric.full_name.removesuffix("_total")
    family = kind(name, metric.help, labels=metric.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _histogram(metric: m.Metric, counted: Histogram) -> HistogramMetricFamily:
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    buckets = list(zip(bounds, map(float, counted.counts), strict=True))
    family = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
    family.add_metric((), buckets, counted.sum_s)
    return family


class MetricsEndpoint:
    """One collector at a time; no series before the first board."""

    def __init__(
        self, certificates: Mapping[str, Callable[[], float | None]] = MappingProxyType({})
    ) -> None:
        """`certificates` are the ends of those in use, in unix seconds, by use."""
        self._certificates = CertificateCollector(certificates)
        self._registry = CollectorRegistry()
        self._process = ProcessCollector(registry=None)
        self._one_at_a_time = threading.Lock()  # scrapes share the high-water marks of counters

    def show(self, reconciler: Reconciler, leadership: Leadership) -> None:
        self._collect(
            BoardCollector(
                lambda: reconciler.board,
                reconciler.metrics,
                epoch=lambda: reconciler.epoch,
                leads=lambda: reconciler.leads and reconciler.claims.leads and leadership.proven,
            )
        )

    def stand_by(self, board: Board) -> None:
        self._collect(BoardCollector(lambda: board))

    def text(self, as_openmetrics: bool) -> bytes:
        """In the format of Prometheus, or of OpenMetrics."""
        write = openmetrics.generate_latest if as_openmetrics else generate_latest
        with self._one_at_a_time:
            return bytes(write(self._registry))

    def _collect(self, collector: Collector) -> None:
        registry = CollectorRegistry()  # a new one: a scrape in another thread keeps the old
        registry.register(collector)
        registry.register(self._certificates)
        registry.register(self._process)
        self._registry = registry
