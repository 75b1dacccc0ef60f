"""The controller's metrics, read from the last board at every scrape.

Nothing is kept between scrapes but high-water marks, so a job that left the policy leaves
no stale series behind, and the metrics cannot disagree with the page.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.reconcile.meters import BUCKETS_S, Histogram, Meters
from joulecut_wire import metrics as m

HERTZ_PER_MHZ = 1e6
MODES = ("off", "recommend", "enforce")

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily | InfoMetricFamily
Row = tuple[tuple[str, ...], float]


class BoardCollector(Collector):
    """Yields metric families from whatever the board says now."""

    def __init__(
        self,
        board: Callable[[], Board | None],
        meters: Meters,
        *,
        epoch: int,
        leads: Callable[[], bool],
    ) -> None:
        self.board = board
        self._meters = meters
        self._epoch = epoch
        self._leads = leads
        self._saved_most: dict[tuple[str, str], float] = {}

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        board = self.board()
        yield from self.own(board)
        yield from self.of_jobs(board.jobs if board else ())

    def of_jobs(self, jobs: tuple[JobBoard, ...], *, clocks: bool = True) -> Iterator[Family]:
        """What the board says of each job; planned clocks as a family without samples where
        somebody else has them at hand.
        """
        for metric, rows_of in _JOB_ROWS:
            told = jobs if clocks or metric is not m.PLAN_CLOCK else ()
            yield _gauge(metric, (row for job in told for row in rows_of(job)))
        yield _counter(m.PREDICT_REFUSED, _refused(jobs))
        yield _counter(m.JOB_HOLDOUT_WINDOWS, _windows(jobs))
        yield self._savings(jobs)

    def own(self, board: Board | None) -> Iterator[Family]:
        """What the controller says of itself."""
        meters = self._meters
        yield _build()
        yield _gauge(m.CONTROLLER_LEADER, [((), float(self._leads()))])
        yield _gauge(m.CONTROLLER_EPOCH, [((), float(self._epoch))])
        yield _histogram(m.PLAN_SECONDS, meters.plans)
        yield _histogram(m.RECONCILE_SECONDS, meters.passes)
        passes = [((result,), float(count)) for result, count in meters.results.items()]
        yield _counter(m.RECONCILE_PASSES, passes)
        if meters.last_success_unix_s is not None:
            yield _gauge(m.RECONCILE_LAST_SUCCESS, [((), meters.last_success_unix_s)])
        budget = board.budget if board else None
        yield _gauge(m.POWER_BUDGET, [((), budget.limit_w)] if budget else [])
        yield _gauge(m.POWER_BUDGET_EXPECTED, [((), budget.power_w)] if budget else [])
        yield _agents(board)

    def _savings(self, jobs: tuple[JobBoard, ...]) -> Family:
        """Counters never fall: a plan that costs energy makes them stand still, and the
        board, which is signed, says so.
        """
        most: dict[tuple[str, str], float] = {}
        for job in jobs:
            for basis, saved_j in (
                ("predicted", job.saved_predicted_j),
                ("measured", job.saved_measured_j),
            ):
                key = (job.view.policy.name, basis)
                most[key] = max(self._saved_most.get(key, 0.0), saved_j)
        self._saved_most = most
        return _counter(m.JOB_ENERGY_SAVED, most.items())


def clocks_of(jobs: Iterable[JobBoard]) -> Family:
    """The planned clock of every GPU of these jobs."""
    return _gauge(m.PLAN_CLOCK, (row for job in jobs for row in _clock(job)))


class StandbyCollector(Collector):
    """A controller that does not lead says so, and what it sees of the agents."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        yield _build()
        yield _gauge(m.CONTROLLER_LEADER, [((), 0.0)])
        yield _agents(self._board)


def _build() -> Family:
    build = InfoMetricFamily(_bare(m.BUILD_INFO), m.BUILD_INFO.help)
    build.add_metric((), {"role": "controller", "version": version("joulecut")})
    return build


def _agents(board: Board | None) -> Family:
    nodes = board.view.nodes if board else ()
    connected = sum(node.connected for node in nodes)
    states = [(("connected",), float(connected)), (("lost",), float(len(nodes) - connected))]
    return _gauge(m.RECONCILE_AGENTS, states)


def _iteration_time(job: JobBoard) -> Iterator[Row]:
    name, view = job.view.policy.name, job.view
    if view.current:
        yield (name, "measured"), view.current.time_mean_s
    if view.baseline:
        yield (name, "baseline"), view.baseline.time_mean_s
    if job.decision and job.decision.forecast:
        yield (name, "predicted"), job.decision.forecast.iteration_time_s


def _power(job: JobBoard) -> Iterator[Row]:
    name, view = job.view.policy.name, job.view
    if view.current and view.current.power_w is not None:
        yield (name, "measured"), view.current.power_w
    if view.baseline and view.baseline.power_w is not None:
        yield (name, "baseline"), view.baseline.power_w
    if job.decision and job.decision.forecast:
        forecast = job.decision.forecast
        yield (name, "predicted"), forecast.energy_j / forecast.iteration_time_s


def _bloat(job: JobBoard) -> Iterator[Row]:
    """Of the clocks that run: once the plan is applied only its gap to the bound is left."""
    forecast = job.decision.forecast if job.decision else None
    if forecast is None:
        return
    name = job.view.policy.name
    if job.applied is not None and job.applied == job.decision:
        left_w = (forecast.energy_j - forecast.lower_bound_j) / forecast.iteration_time_s
        yield (name, "intrinsic"), max(0.0, left_w)
        yield (name, "extrinsic"), 0.0
        return
    if forecast.intrinsic_bloat_w is not None:
        yield (name, "intrinsic"), forecast.intrinsic_bloat_w
    if forecast.extrinsic_bloat_w is not None:
        yield (name, "extrinsic"), forecast.extrinsic_bloat_w


def _slowdown(job: JobBoard) -> Iterator[Row]:
    current, baseline = job.view.current, job.view.baseline
    if current and baseline:
        yield (job.view.policy.name,), current.time_mean_s / baseline.time_mean_s - 1.0


def _margin(job: JobBoard) -> Iterator[Row]:
    current, baseline = job.view.current, job.view.baseline
    if current and baseline:
        deadline_s = job.view.policy.slo.deadline_s(baseline.time_mean_s)
        yield (job.view.policy.name,), 1.0 - current.time_mean_s / deadline_s


def _generation(job: JobBoard) -> Iterator[Row]:
    if job.decision:
        yield (job.view.policy.name,), float(job.decision.generation)


def _gap(job: JobBoard) -> Iterator[Row]:
    if job.decision and job.decision.forecast:
        yield (job.view.policy.name,), job.decision.forecast.gap_ratio


def _clock(job: JobBoard) -> Iterator[Row]:
    for action in job.decision.actions if job.decision else ():
        if action.clock_mhz is not None:
            yield (job.view.policy.name, action.uuid), action.clock_mhz * HERTZ_PER_MHZ


def _errors(job: JobBoard) -> Iterator[Row]:
    for target, ratio in (
        ("time", job.predict_error_time_ratio),
        ("power", job.predict_error_power_ratio),
    ):
        if ratio is not None:
            yield (job.view.policy.name, target), ratio


def _shadow_errors(job: JobBoard) -> Iterator[Row]:
    verdict, name = job.advisable, job.view.policy.name
    if verdict is not None and verdict.time_error is not None:
        yield (name, "time"), verdict.time_error
    if verdict is not None and verdict.energy_error is not None:
        yield (name, "energy"), verdict.energy_error


def _advisable(job: JobBoard) -> Iterator[Row]:
    if job.advisable is not None:
        yield (job.view.policy.name,), float(job.advisable.yes)


def _refused(jobs: Iterable[JobBoard]) -> Iterator[Row]:
    for job in jobs:
        for reason, count in job.learnt.refused:
            yield (job.view.policy.name, reason), float(count)


def _windows(jobs: Iterable[JobBoard]) -> Iterator[Row]:
    for job in jobs:
        for arm, outcome, count in job.holdout.outcomes if job.holdout else ():
            yield (job.view.policy.name, arm, outcome), float(count)


def _held_out(job: JobBoard) -> Iterator[Row]:
    if job.holdout:
        yield (job.view.policy.name,), float(job.holdout.held_out)


def _saved_ratio(job: JobBoard) -> Iterator[Row]:
    saving = job.holdout.saving if job.holdout else None
    if saving is not None and saving.saved_ratio is not None:
        interval, name = saving.saved_ratio, job.view.policy.name
        yield (name, "low"), interval.low
        yield (name, "mid"), interval.mid
        yield (name, "high"), interval.high


def _drift(job: JobBoard) -> Iterator[Row]:
    yield (job.view.policy.name,), float(len(job.learnt.drifting))


def _mode(job: JobBoard) -> Iterator[Row]:
    for mode in MODES:
        yield (job.view.policy.name, mode), float(job.mode == mode)


def _holds(job: JobBoard) -> Iterator[Row]:
    for kind in sorted({hold.kind for hold in job.holds}):
        yield (job.view.policy.name, kind), 1.0


def _trips(job: JobBoard) -> Iterator[Row]:
    yield (job.view.policy.name,), float(job.trips)


_JOB_ROWS: tuple[tuple[m.Metric, Callable[[JobBoard], Iterator[Row]]], ...] = (
    (m.JOB_ITERATION_TIME, _iteration_time),
    (m.JOB_POWER, _power),
    (m.JOB_ENERGY_BLOAT, _bloat),
    (m.JOB_SLOWDOWN, _slowdown),
    (m.JOB_SLO_MARGIN, _margin),
    (m.PLAN_GENERATION, _generation),
    (m.PLAN_GAP, _gap),
    (m.PLAN_CLOCK, _clock),
    (m.PREDICT_ERROR, _errors),
    (m.SHADOW_ERROR, _shadow_errors),
    (m.JOB_ADVISABLE, _advisable),
    (m.PREDICT_DRIFT, _drift),
    (m.JOB_HOLDOUT_ACTIVE, _held_out),
    (m.JOB_ENERGY_SAVED_RATIO, _saved_ratio),
    (m.CONTROLLER_MODE, _mode),
    (m.JOB_HOLD_INFO, _holds),
    (m.BREAKER_TRIPS, _trips),
)


def _bare(metric: m.Metric) -> str:
    """The name as the client library wants it: it puts the kind's suffix back itself."""
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
