"""Reports and receipts as plain values: one shape for the API and `--json`.

Units are in the keys; an interval is three numbers; an unknown value is null.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from joulecut_controller.trust.energy_ledger import Sheet
from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.receipt import Change, Receipt
from joulecut_controller.trust.report import JobReport, Report, Sum
from joulecut_controller.trust.saving import Saving
from joulecut_controller.trust.spent import Spent
from joulecut_controller.trust.wall import JOULES_PER_KWH
from joulecut_controller.trust.window import MeasuredWindow

Json = dict[str, Any]

POINTS_MAX = 1_500  # of a job, for a picture: more than it has pixels across
POINTS_MIN = 40  # of a job, among many
POINTS_ALL = 30_000  # of all jobs: a page of some 10 MB


def report_json(report: Report, *, points: bool = False) -> Json:
    """The whole report; with `points` each job's windows, thinned to what a picture can show."""
    each = max(POINTS_MIN, min(POINTS_MAX, POINTS_ALL // max(1, len(report.jobs))))
    return {
        "since_unix_s": report.since_unix_s,
        "until_unix_s": report.until_unix_s,
        "truncated": report.truncated,
        "factors": asdict(report.prices),
        "jobs": [job_json(job, points=each if points else 0) for job in report.jobs],
        "tenants": [_sum(tenant) for tenant in report.tenants],
        "total": _sum(report.total),
        "energy": report.energy and _energy(report.energy),
    }


def _energy(sheet: Sheet) -> Json:
    """Owners, idle and unknown add up to the boards' counters."""
    return {
        "since_unix_s": sheet.since_unix_s,
        "until_unix_s": sheet.until_unix_s,
        "owners": [
            asdict(payer) | {"energy_j": joules} for payer, joules in sorted(sheet.joules.items())
        ],
        "total_j": math.fsum(sheet.joules.values()),
    }


def receipt_json(receipt: Receipt, *, points: bool = False) -> Json:
    return {
        "job": receipt.job,
        "since_unix_s": receipt.since_unix_s,
        "until_unix_s": receipt.until_unix_s,
        "report": receipt.report and job_json(receipt.report, points=POINTS_MAX if points else 0),
        "changes": [_change(change) for change in receipt.changes],
        "changes_cut": receipt.cut,
    }


def job_json(job: JobReport, *, points: int = 0) -> Json:
    """One job; with `points` so many of its windows at most."""
    shown = {
        "job": job.job,
        "tenant": job.tenant,
        **_saving(job.saving),
        "spent_under_plans": {
            "in_windows": _spent(job.spent.measured),
            "between_windows": _spent(job.spent.between),
            "energy_without_ratio_j": job.uncounted_j,
        },
        "saved": {
            "in_windows_j": interval_json(job.saved_in_windows_j),
            "j": interval_json(job.saved_j),
            "kwh": interval_json(job.saved_j, 1.0 / JOULES_PER_KWH),
        },
        "wall": job.wall and asdict(job.wall),
        "break_even_slowdown_ratio": job.break_even_slowdown,
        "shapes": [_saving(one) for one in job.shapes],
    }
    if points:
        shown["points"] = [_point(window) for window in thinned(job.windows, points)]
    return shown


def interval_json(interval: Interval | None, factor: float = 1.0) -> Json | None:
    if interval is None:
        return None
    return {
        "mid": interval.mid * factor,
        "low": interval.low * factor,
        "high": interval.high * factor,
    }


def thinned(windows: Sequence[MeasuredWindow], most: int) -> list[MeasuredWindow]:
    """At most so many, evenly; of the few at default clocks as many as can be."""
    held = [window for window in windows if window.arm == "default"]
    plan = [window for window in windows if window.arm == "plan"]
    held = _evenly(held, most // 2)
    plan = _evenly(plan, most - len(held))
    return sorted([*held, *plan], key=lambda window: window.begun_unix_s)


def _evenly(windows: list[MeasuredWindow], most: int) -> list[MeasuredWindow]:
    if len(windows) <= most:
        return windows
    return [windows[place * len(windows) // most] for place in range(most)]


def _saving(saving: Saving) -> Json:
    return {
        "shape": saving.shape,
        "phase": saving.phase or None,
        "gpus": saving.gpus,
        "reason": saving.reason or None,
        "measured": {
            "saved_ratio": interval_json(saving.saved_ratio),
            "slowdown_ratio": interval_json(saving.slowdown_ratio),
            "default": {
                "energy_j": saving.default_energy_j,
                "iteration_time_s": saving.default_time_s,
            },
            "plan": {"energy_j": saving.plan_energy_j, "iteration_time_s": saving.plan_time_s},
            "cooler_celsius": saving.cooler_celsius,
            "point_in_s": saving.point_in_s,
        },
        "predicted": {
            "saved_ratio": saving.predicted_saved_ratio,
            "slowdown_ratio": saving.predicted_slowdown_ratio,
        },
        "windows": {
            "default": saving.windows_default,
            "plan": saving.windows_plan,
            "compared_holdouts": saving.holdouts,
            "unusable": saving.unusable,
            "begun_unix_s": saving.begun_unix_s,
            "ended_unix_s": saving.ended_unix_s,
            "days": saving.days,
        },
    }


def _spent(spent: Spent) -> Json:
    return {"energy_j": spent.energy_j, "time_s": spent.time_s, "iterations": spent.iterations}


def _sum(one: Sum) -> Json:
    return {
        "name": one.name,
        "jobs": one.jobs,
        "jobs_unknown": one.unknown,
        "saved_kwh": interval_json(one.saved_j, 1.0 / JOULES_PER_KWH),
        "wall": one.wall and asdict(one.wall),
    }


def _change(change: Change) -> Json:
    return {
        "at_unix_s": change.at_unix_s,
        "kind": change.kind,
        "generation": change.generation,
        "text": change.text,
        "reason": change.reason or None,
        "clocks": [
            {"clock_mhz": clock_mhz or None, "gpus": gpus} for clock_mhz, gpus in change.clocks
        ],
    }


def _point(window: MeasuredWindow) -> Json:
    return {
        "arm": window.arm,
        "generation": window.generation,
        "begun_unix_s": window.begun_unix_s,
        "ended_unix_s": window.ended_unix_s,
        "iterations": window.iterations,
        "energy_j": window.energy_j,
        "iteration_time_s": window.time_mean_s,
        "temperature_celsius": window.temperature_celsius,
    }
