"""A report as one JSON object. Units are in the keys; an interval is three numbers; an unknown
value is null, and `reason` says why.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from joulecut_controller.answer import number
from joulecut_controller.policy.policy import Cost
from joulecut_controller.ports import Event
from joulecut_controller.savings.job_saving import JobSaving
from joulecut_controller.savings.wall import Wall, sum_of
from joulecut_controller.trust.energy_ledger import Sheet
from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.saving import Saving
from joulecut_engine.money import JOULES_PER_KWH, Iteration, Worth, worth

Json = dict[str, Any]

NO_TENANT = "-"
SWITCH = "verify: {holdout: 5%}"
# Kinds of events of the audit log that change clocks, or say why they will be changed. A line is
# written before each command is sent, so they are complete.
CHANGES = frozenset({"apply", "clear", "verify", "drift", "hold", "policy"})


@dataclass(frozen=True, slots=True)
class Known:
    """A job as its policy knows it; `holdout` is None without a policy."""

    tenant: str = NO_TENANT
    holdout: float | None = None


def record(
    found: Mapping[str, JobSaving],
    *,
    since_unix_s: float,
    until_unix_s: float,
    prices: Cost,
    known: Mapping[str, Known],
) -> Json:
    """Savings of all jobs. `known` is by name; that of a class of jobs ends with a colon, as the
    names of its jobs go on.
    """

    def about(name: str) -> Known:
        return known.get(name) or known.get(name.partition(":")[0] + ":") or Known()

    tenants: dict[str, list[JobSaving]] = {}
    for name, one in found.items():
        tenants.setdefault(about(name).tenant, []).append(one)
    return {
        "since_unix_s": since_unix_s,
        "until_unix_s": until_unix_s,
        "factors": asdict(prices),
        "jobs": [_job(name, one, about(name), prices, until_unix_s) for name, one in found.items()],
        "tenants": [_sum(name, jobs, prices) for name, jobs in sorted(tenants.items())],
        "total": _sum("all", list(found.values()), prices),
    }


def _job(name: str, found: JobSaving, about: Known, prices: Cost, until_unix_s: float) -> Json:
    none = Saving(name, "", 0, until_unix_s, until_unix_s, 0, 0, reason=_unmeasured(about))
    newest = found.newest or none
    made = _worth(newest, prices)
    return {
        "job": name,
        "tenant": about.tenant,
        **_saving(newest),
        "spent_under_plans": {
            "energy_j": found.usage.energy_j,
            "measured_j": found.usage.measured_j,
            "time_s": found.usage.time_s,
            "iterations": found.usage.iterations,
            "energy_without_ratio_j": found.uncounted_j,
        },
        "saved": {
            "j": _interval(found.saved_j),
            "kwh": _kwh(found.saved_j),
            "measured_kwh": _kwh(found.measured_j),
        },
        "wall": _wall(sum_of([found], prices).wall),
        "break_even_slowdown_ratio": made and made.break_even_slowdown,
        "worth": made and made.as_json(),
        "shapes": [_saving(one) for one in found.shapes],
    }


def _saving(one: Saving) -> Json:
    return {
        "shape": one.shape,
        "phase": one.phase or None,
        "gpus": one.gpus,
        "reason": one.reason or None,
        "measured": {
            "saved_ratio": _interval(one.saved_ratio),
            "slowdown_ratio": _interval(one.slowdown_ratio),
            "default": {
                "energy_j": one.default_energy_j,
                "iteration_time_s": one.default_time_s,
            },
            "plan": {"energy_j": one.plan_energy_j, "iteration_time_s": one.plan_time_s},
            "point_in_s": number(one.point_in_s),
        },
        "predicted": {
            "saved_ratio": one.predicted_saved_ratio,
            "slowdown_ratio": one.predicted_slowdown_ratio,
        },
        "windows": {
            "default": one.windows_default,
            "plan": one.windows_plan,
            "compared_holdouts": one.holdouts,
            "unusable": one.unusable,
            "begun_unix_s": one.begun_unix_s,
            "ended_unix_s": one.ended_unix_s,
            "days": one.days,
        },
    }


def _unmeasured(about: Known) -> str:
    if about.holdout:
        share = f"{100.0 * about.holdout:.3g} %"
        return f"nothing measured yet: hold-outs are on, {share} of its time"
    return f"nothing measured: `{SWITCH}` in its policy switches hold-outs on"


def _worth(saving: Saving, given: Cost) -> Worth | None:
    """As measured; None where a price is missing or both are zero: nothing is filled in."""
    default = saving.default_time_s, saving.default_energy_j
    plan = saving.plan_time_s, saving.plan_energy_j
    if saving.saved_ratio is None or None in (*default, *plan) or not saving.gpus:
        return None
    if given.gpu_hour is None or given.kwh is None or not (given.gpu_hour or given.kwh):
        return None
    before, under = (Iteration(one[0] or 0.0, one[1] or 0.0) for one in (default, plan))
    return worth(before, under, saving.gpus, given.prices())


def _sum(name: str, jobs: list[JobSaving], prices: Cost) -> Json:
    made = sum_of(jobs, prices)
    return {
        "name": name,
        "jobs": made.jobs,
        "jobs_unknown": made.unknown,
        "saved_kwh": _kwh(made.saved_j),
        "measured_kwh": _kwh(made.measured_j),
        "wall": _wall(made.wall),
    }


def _wall(wall: Wall | None) -> Json | None:
    return asdict(wall) if wall else None


def _interval(value: Interval | None) -> Json | None:
    return asdict(value) if value else None


def _kwh(saved_j: Interval | None) -> Json | None:
    return asdict(saved_j.scaled(1.0 / JOULES_PER_KWH)) if saved_j else None


def energy_json(sheet: Sheet | None) -> Json | None:
    """Energy of all GPUs: owners, idle and unknown add up to the boards' counters."""
    if sheet is None:
        return None
    return {
        "since_unix_s": sheet.since_unix_s,
        "until_unix_s": sheet.until_unix_s,
        "owners": [
            asdict(payer) | {"energy_j": joules, "gpu_s": sheet.gpu_s.get(payer, 0.0)}
            for payer, joules in sorted(sheet.joules.items())
        ],
        "total_j": math.fsum(sheet.joules.values()),
    }


def changes_json(events: Iterable[Event], job: str, since_unix_s: float) -> list[Json]:
    """Events of the job's clocks since a time, oldest first; `events` is the audit log, newest
    first. `reason` is the plan's; null where `text` is complete, or where the log no longer has the
    plan. `clocks` counts GPUs; a clock of null is the default.
    """
    trail = [event for event in events if event.job == job][::-1]
    reasons = {event.generation: event.text for event in trail if event.kind == "plan"}
    return [
        {
            "at_unix_s": event.at_unix_s,
            "kind": event.kind,
            "generation": event.generation,
            "text": event.text,
            "reason": reasons.get(event.generation) if event.kind == "apply" else None,
            "clocks": _clocks(event.detail) if event.kind == "apply" else [],
        }
        for event in trail
        if event.kind in CHANGES and event.at_unix_s >= since_unix_s
    ]


def _clocks(detail: str) -> list[Json]:
    """GPUs by the clock set; empty where the line has no settings."""
    try:
        counts = Counter(int(mhz or 0) for mhz in json.loads(detail)["settings"].values())
    except (ValueError, LookupError, TypeError, AttributeError):
        return []
    return [{"clock_mhz": mhz or None, "gpus": gpus} for mhz, gpus in sorted(counts.items())]
