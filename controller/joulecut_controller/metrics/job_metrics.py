"""Samples of one job, read from its board: a value, or one for each value of the metric's label.

An unknown figure is None and has no row: absence differs from zero. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from joulecut_controller.board import JobBoard
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.trust.default_windows import ASKERS
from joulecut_wire import metrics as m

HERTZ_PER_MHZ = 1e6
MODES = ("off", "recommend", "enforce")

Row = tuple[tuple[str, ...], float]
# By the label beside the job's name, or by several of them.
Samples = float | None | Mapping[Any, float | None]


def rows(job: JobBoard, samples: Callable[[JobBoard], Samples]) -> list[Row]:
    """The samples that are known, with all their labels."""
    name, found = job.view.policy.name, samples(job)
    if not isinstance(found, Mapping):
        return [] if found is None else [((name,), float(found))]
    return [
        ((name, labels) if isinstance(labels, str) else (name, *labels), float(value))
        for labels, value in found.items()
        if value is not None
    ]


def _promised(job: JobBoard) -> Forecast | None:
    """Of the newest plan, unless it changes no clock."""
    return None if job.decision is None or job.decision.changes_nothing else job.decision.forecast


def _iteration_time(job: JobBoard) -> Samples:
    current, baseline = job.view.measured.current, job.view.measured.baseline
    forecast = _promised(job)
    return {
        "measured": current.time_mean_s if current else None,
        "baseline": baseline.time_mean_s if baseline else None,
        "predicted": forecast.iteration_time_s if forecast else None,
    }


def _power(job: JobBoard) -> Samples:
    current, baseline = job.view.measured.current, job.view.measured.baseline
    forecast = _promised(job)
    return {
        "measured": current.power_w if current else None,
        "baseline": baseline.power_w if baseline else None,
        "predicted": forecast.energy_j / forecast.iteration_time_s if forecast else None,
    }


def _margin(job: JobBoard) -> Samples:
    current, deadline_s = job.view.measured.current, job.view.deadline_s
    return 1.0 - current.time_mean_s / deadline_s if current and deadline_s else None


def _generation(job: JobBoard) -> Samples:
    return {job.plan_state: job.decision.generation if job.decision else None}


def _gap(job: JobBoard) -> Samples:
    forecast = job.decision.forecast if job.decision else None
    bounded = forecast is not None and forecast.bounded
    return {job.plan_state: forecast.gap_ratio if forecast is not None and bounded else None}


def _plan_saved(job: JobBoard) -> Samples:
    forecast = _promised(job)
    if forecast is None:
        return None
    bounds = {"mid": forecast.saved_ratio}
    if forecast.band is not None:
        bounds |= {"low": forecast.band.saved_low_ratio, "high": forecast.band.saved_high_ratio}
    return {(job.plan_state, bound): ratio for bound, ratio in bounds.items()}


def _clocks(job: JobBoard) -> Samples:
    """The planned clock of each of its GPUs."""
    actions = job.decision.actions if job.decision else ()
    return {
        (one.uuid, job.plan_state): one.clock_mhz * HERTZ_PER_MHZ
        for one in actions
        if one.clock_mhz is not None
    }


def _errors(job: JobBoard) -> Samples:
    return {"time": job.predict_error_time_ratio, "power": job.predict_error_power_ratio}


def _shadow_errors(job: JobBoard) -> Samples:
    verdict = job.advisable
    return {"time": verdict.time_error, "energy": verdict.energy_error} if verdict else None


def saved_j(job: JobBoard) -> Samples:
    return {"predicted": job.account.predicted_j, "measured": job.account.measured_j}


def _default_ratio(job: JobBoard) -> Samples:
    time = job.default_time
    return {asker: time.shares.get(asker, 0.0) for asker in ASKERS} if time else None


def _windows(job: JobBoard) -> Samples:
    outcomes = job.holdout.outcomes if job.holdout else ()
    return {(arm, outcome): float(count) for arm, outcome, count in outcomes}


def _saved_ratio(job: JobBoard) -> Samples:
    saving = job.holdout.saving if job.holdout else None
    interval = saving.saved_ratio if saving else None
    return asdict(interval) if interval else None


def _delay(job: JobBoard) -> Samples:
    delay = job.delay
    return {(delay.places[0], delay.cause): delay.delay_ratio} if delay else None


# In the order in which they are written.
SAMPLES: tuple[tuple[m.Metric, Callable[[JobBoard], Samples]], ...] = (
    (m.JOB_ITERATION_TIME, _iteration_time),
    (m.JOB_POWER, _power),
    (m.JOB_ENERGY_BLOAT, lambda job: job.bloat_w),
    (m.JOB_REPORT_AGE, lambda job: job.view.placement.report_age_s),
    (m.JOB_SLOWDOWN, lambda job: job.slowdown_ratio),
    (m.JOB_SLO_MARGIN, _margin),
    (m.PLAN_GENERATION, _generation),
    (m.PLAN_GAP, _gap),
    (m.PLAN_SAVED, _plan_saved),
    (m.JOB_SOLVER_WAIT, lambda job: job.solver_wait.waited_s if job.solver_wait else 0.0),
    (m.PLAN_CLOCK, _clocks),
    (m.PREDICT_ERROR, _errors),
    (m.SHADOW_ERROR, _shadow_errors),
    (m.JOB_ADVISABLE, lambda job: job.advisable.yes if job.advisable else None),
    (m.PREDICT_DRIFT, lambda job: len(job.learnt.drifting)),
    (m.JOB_DELAY, _delay),
    (m.JOB_BASELINE_AGE, lambda job: job.default_time.age_s if job.default_time else None),
    (m.JOB_BASELINE_LOOK, lambda job: job.default_time.short_share if job.default_time else None),
    (m.JOB_DEFAULT_RATIO, _default_ratio),
    (m.JOB_HOLDOUT_ACTIVE, lambda job: job.holdout.held_out if job.holdout else None),
    (m.JOB_ENERGY_SAVED_RATIO, _saved_ratio),
    (m.CONTROLLER_MODE, lambda job: {mode: job.mode == mode for mode in MODES}),
    (m.JOB_HOLD_INFO, lambda job: dict.fromkeys(sorted({one.kind for one in job.holds}), 1.0)),
    (m.BREAKER_TRIPS, lambda job: job.trips),
    (m.PREDICT_REFUSED, lambda job: dict(job.refused)),
    (m.JOB_HOLDOUT_WINDOWS, _windows),
    (m.JOB_PHASE_SECONDS, lambda job: dict(job.view.measured.phases_s)),
)
