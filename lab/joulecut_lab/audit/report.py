"""An audit as text and JSON.

The text has known figures in columns, and the reason of each unknown one below them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from joulecut_cli.figures import NONE, length, moment, percent, table
from joulecut_cli.money import prices_text
from joulecut_engine.money import JOULES_PER_KWH, Iteration, Prices, Worth, signed, worth
from joulecut_lab.audit.finding import Audit, FirstSaving, JobFinding
from joulecut_lab.audit.reading import POSSIBLE

JOBS_SHOWN = 40  # a screen; --json has them all


@dataclass(frozen=True, slots=True)
class About:
    """Source, time and prices of an audit."""

    source: str
    ended_unix_s: float
    step_s: float
    prices: Prices

    def money(self, joules: float | None) -> float | None:
        """Price of this energy at the wall."""
        return None if joules is None else joules * self.prices.per_joule

    def worth(self, job: JobFinding, one: FirstSaving) -> Worth | None:
        """Of a predicted clock, beside the time that the job held its GPUs."""
        if not job.gpu_s:
            return None
        held_s = job.gpu_s / job.gpus
        default = Iteration(held_s, job.energy_j)
        plan = Iteration(held_s * (1.0 + one.slowdown), job.energy_j - one.joules)
        return worth(default, plan, job.gpus, self.prices)


def kwh(joules: float | None) -> str:
    if joules is None:
        return NONE
    value = joules / JOULES_PER_KWH
    return f"{value:.2f}" if value >= 1.0 or not value else f"{value:.2g}"


def money(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def whole(ratio: float) -> str:
    return f"{100.0 * ratio:.0f} %"


def text(audit: Audit, about: About) -> str:
    """The whole page."""
    parts = [_head(audit, about), _jobs(audit, about), _why(audit), _savings(audit, about)]
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def _head(audit: Audit, about: About) -> Iterator[str]:
    yield (
        f"Audit of {about.source}: {length(audit.seconds)} to {moment(about.ended_unix_s)} UTC, "
        f"steps of {length(about.step_s)}"
    )
    price = money(about.money(audit.energy_j))
    yield f"{audit.gpus} GPUs, {kwh(audit.energy_j)} kWh, {price} of energy"
    yield prices_text(about.prices)
    looked_s = sum(job.gpu_s for job in audit.jobs) + audit.rest.free_gpu_s
    if looked_s and audit.gap_s > 0.01 * looked_s:
        gap = length(audit.gap_s)
        yield f"! {gap} of GPU time have no readings: series were missing."
    if looked_s and audit.energy_unknown_s > 0.01 * looked_s:
        yield f"! {length(audit.energy_unknown_s)} of GPU time have no energy, and are not counted."
    for name, count in audit.impossible:
        low, high = POSSIBLE[name]
        yield f"! {count} readings of {name} are not from {low:g} to {high:g}, and left out."
    yield from (f"! Contradiction: {line}." for line in audit.contradictions)
    if audit.resets:
        yield f"! {audit.resets} energy counters were reset by a driver reload."


def _jobs(audit: Audit, about: About) -> list[str]:
    head = ("JOB", "GPUS", "BUSY", "KWH", "COST", "IDLE")
    rows = [_job_row(job, about) for job in audit.jobs[:JOBS_SHOWN]]
    rows += _rest_rows(audit, about)
    lines = table(head, rows, frozenset(head[1:]))
    if len(audit.jobs) > JOBS_SHOWN:
        lines.append(f"  and {len(audit.jobs) - JOBS_SHOWN} smaller jobs")
    idle = [job.idle_j for job in audit.jobs if job.idle_j is not None]
    if idle:
        price = money(about.money(sum(idle)))
        lines += ["", f"  idle: {price} in {len(idle)} of {len(audit.jobs)} jobs"]
    return [*lines, "  IDLE in kWh; - is unknown, see Basis."]


def _job_row(job: JobFinding, about: About) -> tuple[str, ...]:
    busy = NONE if job.busy_s is None or not job.gpu_s else whole(job.busy_s / job.gpu_s)
    spent = kwh(job.energy_j), money(about.money(job.energy_j))
    return (job.name, str(job.gpus), busy, *spent, kwh(job.idle_j))


def _rest_rows(audit: Audit, about: About) -> Iterator[tuple[str, ...]]:
    rest = audit.rest
    for name, joules, idle_j in (
        ("no job", rest.free_j, rest.free_idle_j),
        ("shared GPUs", rest.shared_j, None),
        ("reassigned between samples", rest.unseen_j, None),
    ):
        if joules:
            price = money(about.money(joules))
            yield (name, NONE, NONE, kwh(joules), price, kwh(idle_j))


def _why(audit: Audit) -> list[str]:
    """The basis of every amount, or the missing input."""
    lines = [f"  {job.name}: idle {_basis(job)}: {job.idle_text}"
             for job in audit.jobs[:JOBS_SHOWN]]  # fmt: skip
    return ["Basis", *lines] if lines else []


def _basis(job: JobFinding) -> str:
    return "unknown" if job.idle_j is None else "measured"


def _savings(audit: Audit, about: About) -> list[str]:
    rows = [
        (job.name, _saved(one), kwh(one.joules),
         *_worth_cells(about.worth(job, one)), one.text)
        for job in audit.jobs[:JOBS_SHOWN]
        for one in job.savings
    ]  # fmt: skip
    if not rows:
        return []
    head = ("JOB", "SAVED", "KWH", "BREAK-EVEN", "NET/GPU-HOUR", "NET/YEAR", "BASIS")
    return [
        "Savings by one lower clock (predicted)",
        *table(head, rows, frozenset(head[1:6])),
        "  BREAK-EVEN: the slowdown at which lost GPU time eats the saving.",
    ]


def _worth_cells(found: Worth | None) -> tuple[str, str, str]:
    if found is None:
        return (NONE, NONE, NONE)
    return (found.break_even_text, signed(found.net_per_gpu_hour), signed(found.net_per_year))


def _saved(one: FirstSaving) -> str:
    """The share of energy, with its band."""
    return f"{percent(one.ratio)} ({100.0 * one.low:.0f} to {100.0 * one.high:.0f})"


def as_json(audit: Audit, about: About) -> dict[str, Any]:
    """Energies in kWh, times in seconds, shares as fractions; null is unknown."""
    rest = audit.rest
    return {
        "source": about.source,
        "begun_unix_s": round(about.ended_unix_s - audit.seconds, 3),
        "ended_unix_s": round(about.ended_unix_s, 3),
        "step_s": about.step_s,
        "price_kwh": about.prices.kwh,
        "pue": about.prices.pue,
        "prices": asdict(about.prices),
        "gpus": audit.gpus,
        "energy_kwh": _kwh(audit.energy_j),
        "cost": about.money(audit.energy_j),
        "counter_resets": audit.resets,
        "impossible_readings": dict(audit.impossible),
        "contradictions": list(audit.contradictions),
        "unseen_gpu_s": audit.gap_s,
        "untold_gpu_s": audit.energy_unknown_s,
        "jobs": [_job(job, about) for job in audit.jobs],
        "no_job": {
            "gpu_s": rest.free_gpu_s,
            "energy_kwh": _kwh(rest.free_j),
            "cost": about.money(rest.free_j),
            "idle_kwh": _kwh(rest.free_idle_j),
        },
        "shared_kwh": _kwh(rest.shared_j),
        "changed_hands_kwh": _kwh(rest.unseen_j),
    }


def _job(job: JobFinding, about: About) -> dict[str, Any]:
    return {
        "name": job.name,
        "gpus": job.gpus,
        "gpu_s": job.gpu_s,
        "busy_s": job.busy_s,
        "energy_known_s": job.energy_known_s,
        "energy_kwh": _kwh(job.energy_j),
        "cost": about.money(job.energy_j),
        "idle": {
            "kwh": _kwh(job.idle_j),
            "cost": about.money(job.idle_j),
            "basis": _basis(job),
            "text": job.idle_text,
        },
        "savings": [
            {
                "ratio": one.ratio,
                "ratio_low": one.low,
                "ratio_high": one.high,
                "kwh": _kwh(one.joules),
                "text": one.text,
                "worth": (found := about.worth(job, one)) and found.as_json(),
            }
            for one in job.savings
        ],
    }


def _kwh(joules: float | None) -> float | None:
    return None if joules is None else joules / JOULES_PER_KWH
