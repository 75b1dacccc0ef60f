"""Reports as plain values, for `--json`, and the week for the API.

Units are in the keys; an interval is three numbers; an unknown value is null.
"""

import math
from dataclasses import asdict

from joulecut_controller import answer as a
from joulecut_controller.answer import Answer, Json, Key, listed, maybe
from joulecut_controller.savings.report import JobReport, Report
from joulecut_controller.trust.energy_ledger import Sheet
from joulecut_controller.trust.interval import Interval
from joulecut_engine.money import JOULES_PER_KWH, Worth


def _energy(sheet: Sheet) -> Json:
    """Owners, idle and unknown add up to the boards' counters."""
    return {
        "since_unix_s": sheet.since_unix_s,
        "until_unix_s": sheet.until_unix_s,
        "owners": [
            asdict(payer) | {"energy_j": joules, "gpu_s": sheet.gpu_s.get(payer, 0.0)}
            for payer, joules in sorted(sheet.joules.items())
        ],
        "total_j": math.fsum(sheet.joules.values()),
    }


def _kwh(saved_j: Interval | None) -> Json | None:
    return None if saved_j is None else INTERVAL.json(saved_j.scaled(1.0 / JOULES_PER_KWH))


def _predicted_kwh(report: Report) -> float:
    """Of the jobs that are in the measured sum."""
    predicted_j = sum(
        job.spent.all.energy_j * ratio / (1.0 - ratio)
        for job in report.jobs
        if job.saved_j is not None
        and (ratio := job.saving.predicted_saved_ratio) is not None
        and ratio < 1.0
    )
    return predicted_j / JOULES_PER_KWH


INTERVAL = Answer(
    "Interval", mid=a.NUMBER, low=a.NUMBER, high=a.NUMBER
)  # of 95 %, and the estimate
_INTERVAL = maybe(INTERVAL)
_KWH = Key(_INTERVAL.schema, _kwh, "saved_j")
_WALL = maybe(Key(a.OBJECT.schema, asdict))
_SPENT = Answer(energy_j=a.NUMBER, time_s=a.NUMBER, iterations=a.NUMBER)
_SAVING = Answer(
    shape=a.TEXT,
    phase=a.WORD,
    gpus=a.COUNT,
    reason=a.WORD,
    measured=Answer(
        saved_ratio=_INTERVAL,
        slowdown_ratio=_INTERVAL,
        default=Answer(
            energy_j=a.NUMBER.at("default_energy_j"), iteration_time_s=a.NUMBER.at("default_time_s")
        ).key.here,
        plan=Answer(
            energy_j=a.NUMBER.at("plan_energy_j"), iteration_time_s=a.NUMBER.at("plan_time_s")
        ).key.here,
        cooler_celsius=a.NUMBER,
        point_in_s=a.NUMBER,
    ).key.here,
    predicted=Answer(
        saved_ratio=a.NUMBER.at("predicted_saved_ratio"),
        slowdown_ratio=a.NUMBER.at("predicted_slowdown_ratio"),
    ).key.here,
    windows=Answer(
        default=a.COUNT.at("windows_default"),
        plan=a.COUNT.at("windows_plan"),
        compared_holdouts=a.COUNT.at("holdouts"),
        unusable=a.COUNT,
        begun_unix_s=a.NUMBER,
        ended_unix_s=a.NUMBER,
        days=a.NUMBER,
    ).key.here,
)
_JOB = Answer(
    spent_under_plans=Answer(
        in_windows=_SPENT.key.at("spent.measured"),
        between_windows=_SPENT.key.at("spent.between"),
        energy_without_ratio_j=a.NUMBER.at("uncounted_j"),
    ).key.here,
    saved=Answer(
        in_windows_j=_INTERVAL.at("saved_in_windows_j"), j=_INTERVAL.at("saved_j"), kwh=_KWH
    ).key.here,
    wall=_WALL,
    break_even_slowdown_ratio=a.NUMBER.at(lambda job: job.worth and job.worth.break_even_slowdown),
    worth=maybe(Key(a.OBJECT.schema, Worth.as_json)),
    shapes=listed(_SAVING),
)
_SUM = Answer(
    name=a.TEXT, jobs=a.COUNT, jobs_unknown=a.COUNT.at("unknown"), saved_kwh=_KWH, wall=_WALL
)
# Of all jobs, for the first screen. Money and CO2 are null without a price and an intensity.
WEEK = Answer(
    since_unix_s=a.NUMBER,
    until_unix_s=a.NUMBER,
    jobs=a.COUNT.at("total.jobs"),
    jobs_unknown=a.COUNT.at("total.unknown"),
    saved_kwh=_KWH.at("total.saved_j"),
    predicted_kwh=a.NUMBER.at(_predicted_kwh),
    energy_money=_INTERVAL.at(lambda found: found.total.wall and found.total.wall.energy_money),
    co2_kg=_INTERVAL.at(lambda found: found.total.wall and found.total.wall.co2_kg),
)
_CHANGE = Answer(
    at_unix_s=a.NUMBER,
    kind=a.TEXT,
    generation=a.COUNT,
    text=a.TEXT,
    reason=a.WORD,
    clocks=listed(
        Answer(
            clock_mhz=a.CLOCK.at(lambda one: one[0] or None), gpus=a.COUNT.at(lambda one: one[1])
        )
    ),
)


def job_json(job: JobReport) -> Json:
    return {"job": job.job, "tenant": job.tenant, **_SAVING.json(job.saving), **_JOB.json(job)}


REPORT = Answer(
    since_unix_s=a.NUMBER,
    until_unix_s=a.NUMBER,
    truncated=a.FLAG,
    factors=Key(a.OBJECT.schema, asdict, "prices"),
    jobs=listed(Key(a.OBJECT.schema, job_json)),
    tenants=listed(_SUM),
    total=_SUM.key,
    energy=maybe(Key(a.OBJECT.schema, _energy)),
    changes=listed(_CHANGE),
    changes_cut=a.FLAG,
)
