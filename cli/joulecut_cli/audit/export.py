"""An audit for programs and for whoever asks for a file: JSON, CSV, a page of HTML."""

import csv
import io
from html import escape
from typing import Any

from joulecut_cli.audit.page import J_PER_KWH, KINDS, About, amounts, text
from joulecut_controller.audit.finding import Amount, Audit, JobFinding

_STYLE = "body{font:14px monospace;margin:2em}pre{white-space:pre;overflow-x:auto}"


def as_json(audit: Audit, about: About) -> dict[str, Any]:
    """Energies in kWh, times in seconds, shares as fractions; null is unknown."""
    rest = audit.rest
    return {
        "source": about.source,
        "begun_unix_s": round(about.ended_unix_s - audit.seconds, 3),
        "ended_unix_s": round(about.ended_unix_s, 3),
        "step_s": about.step_s,
        "notes": list(about.notes),
        "price_kwh": about.cost.kwh,
        "pue": about.cost.pue,
        "gpus": audit.gpus,
        "energy_kwh": _kwh(audit.energy_j),
        "cost": about.money(audit.energy_j),
        "counter_resets": audit.resets,
        "unseen_gpu_s": audit.gap_s,
        "untold_gpu_s": audit.untold_s,
        "jobs": [_job(job, about) for job in audit.jobs],
        "no_job": {
            "gpu_s": rest.free_gpu_s,
            "energy_kwh": _kwh(rest.free_j),
            "cost": about.money(rest.free_j),
            "idle_kwh": _kwh(rest.free_idle_j),
        },
        "shared_kwh": _kwh(rest.shared_j),
        "changed_hands_kwh": _kwh(rest.unseen_j),
        "slow_gpus": [
            {
                "uuid": one.uuid,
                "place": one.place,
                "model": one.model,
                "job": one.job,
                "cause": one.cause,
                "share": one.share,
                "clock_mhz": one.clock_mhz,
                "usual_clock_mhz": one.usual_mhz,
                "text": one.text,
            }
            for one in audit.slow
        ],
    }


def as_csv(audit: Audit, about: About) -> str:
    """One line a job, and one for what belongs to none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    told = [f"{kind}_{what}" for kind in KINDS for what in ("kwh", "basis")]
    writer.writerow(["job", "gpus", "gpu_s", "busy_s", "energy_kwh", "cost", *told])
    for job in audit.jobs:
        cells = [cell for _, amount in amounts(job) for cell in _cells(amount)]
        cost = about.money(job.energy_j)
        energy_kwh = _kwh(job.energy_j)
        writer.writerow([job.name, job.gpus, job.gpu_s, job.busy_s, energy_kwh, cost, *cells])
    rest = audit.rest
    blank = [""] * (len(told) - 2)
    idle = [_kwh(rest.free_idle_j), "measured" if rest.free_idle_j is not None else "unknown"]
    cost = about.money(rest.free_j)
    writer.writerow(["", "", rest.free_gpu_s, "", _kwh(rest.free_j), cost, *idle, *blank])
    return buffer.getvalue()


def as_html(audit: Audit, about: About) -> str:
    """The page of text, safe to mail; names in it may be anybody's words."""
    title = escape(f"Audit of {about.source}")
    body = escape(text(audit, about))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><pre>{body}</pre></body></html>\n"
    )


def _job(job: JobFinding, about: About) -> dict[str, Any]:
    return {
        "name": job.name,
        "gpus": job.gpus,
        "gpu_s": job.gpu_s,
        "busy_s": job.busy_s,
        "energy_known_s": job.told_s,
        "energy_kwh": _kwh(job.energy_j),
        "cost": about.money(job.energy_j),
        **{
            kind: {
                "kwh": _kwh(amount.joules),
                "cost": about.money(amount.joules),
                "basis": amount.basis,
                "text": amount.text,
            }
            for kind, amount in amounts(job)
        },
        "savings": [
            {
                "granularity": one.granularity,
                "ratio": one.ratio,
                "kwh": _kwh(one.joules),
                "text": one.text,
            }
            for one in job.savings
        ],
    }


def _cells(amount: Amount) -> tuple[object, object]:
    return _kwh(amount.joules), amount.basis


def _kwh(joules: float | None) -> float | None:
    return None if joules is None else joules / J_PER_KWH
