"""Samples of one job: rows of label values and a value, read from its board.

An unknown figure has no row: absence differs from zero. Pure.
"""

from collections.abc import Callable, Iterator

from joulecut_controller.board import JobBoard
from joulecut_controller.cluster.bloat import bloat_w
from joulecut_controller.trust.default_windows import ASKERS
from joulecut_wire import metrics as m

HERTZ_PER_MHZ = 1e6
MODES = ("off", "recommend", "enforce")

Row = tuple[tuple[str, ...], float]
Rows = Callable[[JobBoard], Iterator[Row]]


def _iteration_time(job: JobBoard) -> Iterator[Row]:
    name, view = job.view.policy.name, job.view
    if view.measured.current:
        yield (name, "measured"), view.measured.current.time_mean_s
    if view.measured.baseline:
        yield (name, "baseline"), view.measured.baseline.time_mean_s
    if job.decision and job.decision.forecast:
        yield (name, "predicted"), job.decision.forecast.iteration_time_s


def _power(job: JobBoard) -> Iterator[Row]:
    name, measured = job.view.policy.name, job.view.measured
    for kind, window in (("measured", measured.current), ("baseline", measured.baseline)):
        if window is not None and window.power_w is not None:
            yield (name, kind), window.power_w
    if job.decision and job.decision.forecast:
        forecast = job.decision.forecast
        yield (name, "predicted"), forecast.energy_j / forecast.iteration_time_s


def _bloat(job: JobBoard) -> Iterator[Row]:
    for kind, watts in bloat_w(job).items():
        yield (job.view.policy.name, kind), watts


def _slowdown(job: JobBoard) -> Iterator[Row]:
    if job.slowdown_ratio is not None:
        yield (job.view.policy.name,), job.slowdown_ratio


def _margin(job: JobBoard) -> Iterator[Row]:
    """Of the statistic that the policy holds to the target, here and at default clocks alike."""
    current, baseline, slo = (
        job.view.measured.current,
        job.view.measured.baseline,
        job.view.policy.slo,
    )
    if current and baseline:
        deadline_s = slo.deadline_s(slo.statistic_s(baseline.time_mean_s, baseline.time_sd_s))
        now_s = slo.statistic_s(current.time_mean_s, current.time_sd_s)
        yield (job.view.policy.name,), 1.0 - now_s / deadline_s


def _generation(job: JobBoard) -> Iterator[Row]:
    if job.decision:
        yield (job.view.policy.name,), float(job.decision.generation)


def _gap(job: JobBoard) -> Iterator[Row]:
    forecast = job.decision.forecast if job.decision else None
    if forecast is not None and forecast.bounded:
        yield (job.view.policy.name,), forecast.gap_ratio


def _clocks(job: JobBoard) -> Iterator[Row]:
    """The planned clock of each of its GPUs."""
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


def _refused(job: JobBoard) -> Iterator[Row]:
    for reason, count in job.refused:
        yield (job.view.policy.name, reason), float(count)


def _windows(job: JobBoard) -> Iterator[Row]:
    for arm, outcome, count in job.holdout.outcomes if job.holdout else ():
        yield (job.view.policy.name, arm, outcome), float(count)


def _phases(job: JobBoard) -> Iterator[Row]:
    for kind, seconds in job.view.measured.phases_s:
        yield (job.view.policy.name, kind), seconds


def _baseline_age_s(job: JobBoard) -> Iterator[Row]:
    if job.default_time and job.default_time.age_s is not None:
        yield (job.view.policy.name,), job.default_time.age_s


def _short_ratio(job: JobBoard) -> Iterator[Row]:
    if job.default_time:
        yield (job.view.policy.name,), job.default_time.short_share


def _default_ratio(job: JobBoard) -> Iterator[Row]:
    for asker in ASKERS if job.default_time else ():
        shares = job.default_time.shares if job.default_time else {}
        yield (job.view.policy.name, asker), shares.get(asker, 0.0)


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


def _delay(job: JobBoard) -> Iterator[Row]:
    if job.delay is not None:
        part = job.delay.part
        yield (job.view.policy.name, part.name, job.delay.cause), part.delay_ratio


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


# In the order in which they are written.
GAUGES: tuple[tuple[m.Metric, Rows], ...] = (
    (m.JOB_ITERATION_TIME, _iteration_time),
    (m.JOB_POWER, _power),
    (m.JOB_ENERGY_BLOAT, _bloat),
    (m.JOB_SLOWDOWN, _slowdown),
    (m.JOB_SLO_MARGIN, _margin),
    (m.PLAN_GENERATION, _generation),
    (m.PLAN_GAP, _gap),
    (m.PLAN_CLOCK, _clocks),
    (m.PREDICT_ERROR, _errors),
    (m.SHADOW_ERROR, _shadow_errors),
    (m.JOB_ADVISABLE, _advisable),
    (m.PREDICT_DRIFT, _drift),
    (m.JOB_DELAY, _delay),
    (m.JOB_BASELINE_AGE, _baseline_age_s),
    (m.JOB_BASELINE_LOOK, _short_ratio),
    (m.JOB_DEFAULT_RATIO, _default_ratio),
    (m.JOB_HOLDOUT_ACTIVE, _held_out),
    (m.JOB_ENERGY_SAVED_RATIO, _saved_ratio),
    (m.CONTROLLER_MODE, _mode),
    (m.JOB_HOLD_INFO, _holds),
    (m.BREAKER_TRIPS, _trips),
)
COUNTERS: tuple[tuple[m.Metric, Rows], ...] = (
    (m.PREDICT_REFUSED, _refused),
    (m.JOB_HOLDOUT_WINDOWS, _windows),
    (m.JOB_PHASE_SECONDS, _phases),
)
