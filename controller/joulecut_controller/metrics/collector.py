"""The controller's metrics, read from the current board at every scrape.

Nothing is kept between scrapes but high-water marks of counters, so a job that left the policy
leaves no stale series behind, and the metrics cannot disagree with the page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from joulecut_controller.board import Board, JobBoard, PowerLimits
from joulecut_controller.metrics.job_metrics import COUNTERS, GAUGES, Row, rows
from joulecut_controller.reconcile.loop_metrics import BUCKETS_S, Histogram, LoopMetrics
from joulecut_wire import metrics as m

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily | InfoMetricFamily


class BoardCollector(Collector):
    """Metric families of the current board, for a controller that leads."""

    def __init__(
        self,
        board: Callable[[], Board | None],
        meters: LoopMetrics,
        *,
        epoch: int,
        leads: Callable[[], bool],
    ) -> None:
        self._board = board
        self._meters = meters
        self._epoch = epoch
        self._leads = leads
        self._saved_most: dict[tuple[str, str], float] = {}

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        board = self._board()
        yield from self._controller(board)
        yield from self._jobs(board.jobs if board else ())

    def _jobs(self, jobs: tuple[JobBoard, ...]) -> Iterator[Family]:
        for metric, samples in GAUGES:
            yield _gauge(metric, (row for job in jobs for row in rows(job, samples)))
        for metric, samples in COUNTERS:
            yield _counter(metric, (row for job in jobs for row in rows(job, samples)))
        yield self._savings(jobs)

    def _controller(self, board: Board | None) -> Iterator[Family]:
        meters = self._meters
        yield _build()
        yield _gauge(m.CONTROLLER_LEADER, [((), float(self._leads()))])
        yield _gauge(m.CONTROLLER_EPOCH, [((), float(self._epoch))])
        yield _histogram(m.PLAN_SECONDS, meters.plans)
        yield _histogram(m.RECONCILE_SECONDS, meters.passes)
        yield _histogram(m.LOOP_LAG_SECONDS, meters.lag)
        passes = [((result,), float(count)) for result, count in meters.results.items()]
        yield _counter(m.RECONCILE_PASSES, passes)
        yield _counter(m.CONTROLLER_DRIFTS, [((), float(meters.drifts))])
        if meters.last_success_unix_s is not None:
            yield _gauge(m.RECONCILE_LAST_SUCCESS, [((), meters.last_success_unix_s)])
        budget = board.budget if board else None
        yield _gauge(m.POWER_BUDGET, [((), budget.limit_w)] if budget else [])
        yield _gauge(m.POWER_BUDGET_EXPECTED, [((), budget.power_w)] if budget else [])
        limits = board.power_limits if board else None
        yield from _limits(limits if limits and limits.budget_w else None)
        yield _gauge(m.PRIOR_ERROR, [])
        yield from _agents(board)

    def _savings(self, jobs: tuple[JobBoard, ...]) -> Family:
        """Counters never fall: under a plan that costs energy they stand still. The board shows
        the signed value.
        """
        most: dict[tuple[str, str], float] = {}
        for job in jobs:
            for basis, saved_j in (
                ("predicted", job.account.predicted_j),
                ("measured", job.account.measured_j),
            ):
                if saved_j is None:
                    continue
                key = (job.view.policy.name, basis)
                most[key] = max(self._saved_most.get(key, 0.0), saved_j)
        self._saved_most = most
        return _counter(m.JOB_ENERGY_SAVED, most.items())


class StandbyCollector(Collector):
    """Metrics of a standby: that it does not lead, and the agents it sees."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        yield _build()
        yield _gauge(m.CONTROLLER_LEADER, [((), 0.0)])
        yield from _agents(self._board)


class CertificateCollector(Collector):
    """Ends of the certificates in use, in unix seconds, by use; None where there is none."""

    def __init__(self, certificates: Mapping[str, Callable[[], float | None]]) -> None:
        self._certificates = certificates

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        ends = [((use,), expires_unix_s()) for use, expires_unix_s in self._certificates.items()]
        known = ((labels, end) for labels, end in ends if end is not None)
        yield _gauge(m.CERTIFICATE_EXPIRES, known)


def _build() -> Family:
    build = InfoMetricFamily(_bare(m.BUILD_INFO), m.BUILD_INFO.help)
    build.add_metric((), {"role": "controller", "version": version("joulecut")})
    return build


def _limits(limits: PowerLimits | None) -> Iterator[Family]:
    in_force_w = limits.in_force_w + limits.hosts_w if limits else 0.0
    yield _gauge(m.POWER_BUDGET_LIMITS, [((), in_force_w)] if limits else [])
    uncertain = [
        ((), float(bool(limits.best_effort) or limits.state != "kept"))
        for limits in (limits,)
        if limits and limits.state != "recommended"
    ]
    yield _gauge(m.POWER_BUDGET_BEST_EFFORT, uncertain)


def _agents(board: Board | None) -> Iterator[Family]:
    nodes = board.view.nodes if board else ()
    connected = sum(node.connected for node in nodes)
    states = [(("connected",), float(connected)), (("lost",), float(len(nodes) - connected))]
    yield _gauge(m.RECONCILE_AGENTS, states)
    causes = [
        (("quarantine",), float(sum(bool(node.quarantine) for node in nodes))),
        (("conflict",), float(sum(bool(node.conflict) for node in nodes))),
    ]
    yield _gauge(m.RECONCILE_DISTRUSTED, causes)
    others = sum(node.is_shared for node in nodes)
    yield _gauge(m.CONTROLLER_OTHERS, [((), float(others))])


def _bare(metric: m.Metric) -> str:
    """The name without the suffix that the client library adds itself."""
    return metric.full_name.removesuffix("_total").removesuffix("_info")


def _gauge(metric: m.Metric, rows: Iterable[Row]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.full_name, metric.help, labels=metric.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _counter(metric: m.Metric, rows: Iterable[Row]) -> CounterMetricFamily:
    family = CounterMetricFamily(_bare(metric), metric.help, labels=metric.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _histogram(metric: m.Metric, counted: Histogram) -> HistogramMetricFamily:
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    buckets = list(zip(bounds, map(float, counted.counts), strict=True))
    family = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
    family.add_metric((), buckets, counted.sum_s)
    return family
