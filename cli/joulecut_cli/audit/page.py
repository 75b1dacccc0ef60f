"""An audit as a page of text: what is known in columns, what is not in sentences below them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from joulecut_cli.figures import NONE, percent, table
from joulecut_controller.audit.finding import Amount, Audit, JobFinding
from joulecut_controller.policy.policy import Cost

J_PER_KWH = 3.6e6
JOBS_SHOWN, SLOW_SHOWN = 40, 40  # a screen; --json and --csv have them all

KINDS = ("idle", "intrinsic", "extrinsic", "variability")


@dataclass(frozen=True, slots=True)
class About:
    """What was audited, and at what price."""

    source: str
    ended_unix_s: float
    step_s: float
    cost: Cost
    notes: tuple[str, ...] = ()

    def money(self, joules: float | None) -> float | None:
        """Price of this energy at the wall; None without a price."""
        if joules is None or self.cost.kwh is None:
            return None
        return joules / J_PER_KWH * self.cost.kwh * self.cost.pue


def kwh(joules: float | None) -> str:
    if joules is None:
        return NONE
    value = joules / J_PER_KWH
    return f"{value:.2f}" if value >= 1.0 or not value else f"{value:.2g}"


def money(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def whole(ratio: float) -> str:
    return f"{100.0 * ratio:.0f} %"


def moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))


def span(seconds: float) -> str:
    for limit, size, unit in ((7200.0, 60.0, "min"), (1e12, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / size:.4g} {unit}"
    return f"{seconds:.0f} s"


def amounts(job: JobFinding) -> tuple[tuple[str, Amount], ...]:
    return tuple(zip(KINDS, (job.idle, job.intrinsic, job.extrinsic, job.variability), strict=True))


def text(audit: Audit, about: About) -> str:
    """The whole page."""
    parts = [_head(audit, about), _jobs(audit, about), _why(audit), _savings(audit), _slow(audit)]
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def _head(audit: Audit, about: About) -> Iterator[str]:
    yield (
        f"Audit of {about.source}: {span(audit.seconds)} to {moment(about.ended_unix_s)}, "
        f"steps of {span(about.step_s)}"
    )
    price = about.money(audit.energy_j)
    cost = "no price given: --kwh-price says what a kWh costs"
    if price is not None and about.cost.kwh is not None:
        pue = f" and PUE {about.cost.pue:g}" if about.cost.pue != 1.0 else ""
        cost = f"{price:.2f} at {about.cost.kwh:g} a kWh{pue}"
    yield f"{audit.gpus} GPUs, {kwh(audit.energy_j)} kWh ({cost})"
    yield from (f"! {note}" for note in about.notes)
    looked_s = sum(job.gpu_s for job in audit.jobs) + audit.rest.free_gpu_s
    if looked_s and audit.gap_s > 0.01 * looked_s:
        yield f"! {span(audit.gap_s)} of GPU time were not looked at: series or agents were silent."
    if looked_s and audit.untold_s > 0.01 * looked_s:
        yield f"! The energy of {span(audit.untold_s)} of GPU time is not told, and not counted."
    if audit.resets:
        yield f"! {audit.resets} energy counters began anew: the driver was loaded again."


def _jobs(audit: Audit, about: About) -> list[str]:
    head = ("JOB", "GPUS", "BUSY", "KWH", "COST", *map(str.upper, KINDS))
    rows = [_job_row(job, about) for job in audit.jobs[:JOBS_SHOWN]]
    rows += _rest_rows(audit, about)
    lines = table(head, rows, frozenset(head[1:]))
    if len(audit.jobs) > JOBS_SHOWN:
        lines.append(f"  and {len(audit.jobs) - JOBS_SHOWN} smaller jobs")
    if about.cost.kwh is not None:
        lines += ["", *_wasted(audit, about)]
    lines.append("  IDLE and the three kinds of bloat in kWh; - is unknown, and why is said below.")
    return lines


def _job_row(job: JobFinding, about: About) -> tuple[str, ...]:
    busy = NONE if job.busy_s is None or not job.gpu_s else whole(job.busy_s / job.gpu_s)
    return (
        job.name,
        str(job.gpus),
        busy,
        kwh(job.energy_j),
        money(about.money(job.energy_j)),
        *(kwh(amount.joules) for _, amount in amounts(job)),
    )


def _rest_rows(audit: Audit, about: About) -> Iterator[tuple[str, ...]]:
    rest = audit.rest
    for name, joules, idle_j in (
        ("no job", rest.free_j, rest.free_idle_j),
        ("shared GPUs", rest.shared_j, None),
        ("changed hands unseen", rest.unseen_j, None),
    ):
        if joules:
            price = money(about.money(joules))
            yield (name, NONE, NONE, kwh(joules), price, kwh(idle_j), NONE, NONE, NONE)


def _wasted(audit: Audit, about: About) -> Iterator[str]:
    """The same in money, all jobs together."""
    for kind in KINDS:
        known = [dict(amounts(job))[kind].joules for job in audit.jobs]
        told = [joules for joules in known if joules is not None]
        if told:
            price = money(about.money(sum(told)))
            yield f"  {kind}: {price} in {len(told)} of {len(known)} jobs"


def _why(audit: Audit) -> list[str]:
    """The basis of every amount, or what would make it known; each sentence once."""
    lines = ["Basis"]
    for job in audit.jobs[:JOBS_SHOWN]:
        lines.append(f"  {job.name}")
        said: dict[str, list[str]] = {}
        for kind, amount in amounts(job):
            said.setdefault(f"{amount.basis}: {amount.text}", []).append(kind)
        lines += [f"    {', '.join(kinds)}: {why}" for why, kinds in said.items()]
    return lines if audit.jobs else []


def _savings(audit: Audit) -> list[str]:
    rows = [
        (job.name, one.granularity, percent(one.ratio), kwh(one.joules), one.text)
        for job in audit.jobs[:JOBS_SHOWN]
        for one in job.savings
    ]
    if not rows:
        return []
    head = ("JOB", "GRANULARITY", "LESS", "KWH", "BASIS")
    return ["What plans would save (predicted)", *table(head, rows, frozenset({"LESS", "KWH"}))]


def _slow(audit: Audit) -> list[str]:
    if not audit.slow:
        return ["No slow GPU was found."]
    head = ("SLOW GPU", "PLACE", "JOB", "CAUSE", "TIME", "MHZ", "OTHERS", "WHY")
    rows = [
        (
            one.uuid,
            one.place or NONE,
            one.job or NONE,
            one.cause,
            whole(one.share),
            f"{one.clock_mhz:.0f}",
            f"{one.usual_mhz:.0f}",
            one.text,
        )
        for one in audit.slow[:SLOW_SHOWN]
    ]
    lines = table(head, rows, frozenset({"TIME", "MHZ", "OTHERS"}))
    if len(audit.slow) > SLOW_SHOWN:
        lines.append(f"  and {len(audit.slow) - SLOW_SHOWN} more")
    return lines
