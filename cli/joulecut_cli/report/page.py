"""The report as one HTML file that needs no script, font or network.

Totals first, then for every job the measured saving beside the predicted one, with every window
that was measured.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from joulecut_cli.figures import moment, sentence
from joulecut_cli.page import document, table
from joulecut_cli.report.table import (
    SWITCH,
    UNKNOWN,
    clocks,
    energy,
    notes,
    one_share,
    second,
    share,
    spread,
)
from joulecut_engine.panel import WIDTH, Item, Line, Mark, Panel, html

Json = dict[str, Any]

FIGURES = (
    ("energy_j", "energy per iteration, kJ", 1e-3),
    ("iteration_time_s", "iteration time, s", 1.0),
)
ARMS = (("plan", "ours", "under a plan"), ("default", "perseus", "at default clocks"))
NAME_LENGTH_MAX = 26
DAY_S = 86_400.0
STYLE = """
.sums{display:flex;flex-wrap:wrap;gap:14px 34px}
.sums b{display:block;font-size:22px;font-weight:600;letter-spacing:-.01em}
.sums span{color:var(--muted);font-size:12.5px}
td{white-space:nowrap}td.text{white-space:normal}
"""


def report_html(report: Json, source: str) -> str:
    """The whole report; `report` includes points."""
    title = "Energy saved by Joulecut"
    body = [f"<p>{_period(report)}, by {escape(source)}</p>"]
    if not report["jobs"]:
        body.append(
            f"<section><p>Nothing was measured in this period: {escape(SWITCH)}.</p></section>"
        )
        return _page(title, body)
    body.append(_sums(report["total"]))
    if any(job["measured"]["saved_ratio"] for job in report["jobs"]):
        body.append(
            "<section><h2>Energy saved, measured beside predicted</h2>"
            f"{html(savings_panel(report['jobs']), width=WIDTH)}<p class='note'>Dot and bar: "
            "measured, with its 95 % interval. Ring: predicted.</p></section>"
        )
    body.append(_table(report))
    body += [_job(job) for job in report["jobs"]]
    body += [f'<p class="note">{escape(note)}</p>' for note in notes(report)]
    return _page(title, body)


def receipt_html(receipt: Json, source: str) -> str:
    """One job's receipt; `receipt` includes points."""
    title = f"Receipt of {receipt['job']}"
    body = [f"<p>{_period(receipt)}, by {escape(source)}</p>"]
    job = receipt["report"]
    if job is None:
        body.append(
            f"<section><p>Nothing was measured in this period: {escape(SWITCH)}.</p></section>"
        )
    else:
        wall = job["wall"] or {}
        body.append(_cards(_job_sums(job, wall)))
        body.append(_job(job))
    rows = [
        (
            second(change["at_unix_s"]),
            change["kind"],
            str(change["generation"] or ""),
            clocks(change),
            " -- because: ".join(part for part in (change["text"], change["reason"]) if part),
        )
        for change in receipt["changes"]
    ]
    body.append(
        f"<section><h2>Changes of its clocks: {len(rows)}</h2>"
        + table(("WHEN, UTC", "KIND", "PLAN", "GPUS", "WHAT AND WHY"), rows, texts={1, 3, 4})
        + "</section>"
    )
    return _page(title, body)


def _page(title: str, body: Sequence[str]) -> str:
    return document(title, body, rules=STYLE)


def _period(shown: Json) -> str:
    return f"{moment(shown['since_unix_s'])} to {moment(shown['until_unix_s'])} UTC"


def _sums(total: Json) -> str:
    wall = total["wall"] or {}
    unknown = f" ({total['jobs_unknown']} of {total['jobs']} jobs unknown)"
    return _cards(
        (
            (spread(total["saved_kwh"]), "kWh saved at the GPUs"),
            *_at_the_wall(wall),
            (str(total["jobs"]), "jobs" + (unknown if total["jobs_unknown"] else "")),
        )
    )


def _job_sums(job: Json, wall: Json) -> Iterator[tuple[str, str]]:
    yield spread(job["saved"]["kwh"]), "kWh saved at the GPUs"
    yield share(job["measured"]["saved_ratio"]), "of its energy"
    yield share(job["measured"]["slowdown_ratio"], signed=True), "iteration time"
    yield from _at_the_wall(wall)


def _at_the_wall(wall: Json) -> Iterator[tuple[str, str]]:
    yield spread(wall.get("saved_kwh")), "kWh saved at the wall"
    yield spread(wall.get("net_money")), "money saved, after GPU time"
    yield spread(wall.get("co2_kg")), "kg of CO2 avoided"


def _cards(cards: Any) -> str:
    cells = "".join(
        f"<div><b>{escape(figure)}</b><span>{escape(name)}</span></div>" for figure, name in cards
    )
    return f'<section class="sums">{cells}</section>'


def _table(report: Json) -> str:
    head = (
        "JOB",
        "TENANT",
        "SAVED",
        "PREDICTED",
        "SLOWER",
        "BREAK-EVEN",
        "KWH",
        "AT THE WALL",
        "NET",
    )
    rows = [
        (
            job["job"],
            job["tenant"],
            share(job["measured"]["saved_ratio"]),
            one_share(job["predicted"]["saved_ratio"]),
            share(job["measured"]["slowdown_ratio"], signed=True),
            one_share(job["break_even_slowdown_ratio"], signed=True),
            spread(job["saved"]["kwh"]),
            spread((job["wall"] or {}).get("saved_kwh")),
            spread((job["wall"] or {}).get("net_money")),
        )
        for job in report["jobs"]
    ]
    tenants = [
        (one["name"], str(one["jobs"]), spread(one["saved_kwh"]),
         spread((one["wall"] or {}).get("saved_kwh")), spread((one["wall"] or {}).get("net_money")))
        for one in report["tenants"]
    ]  # fmt: skip
    by_tenant = table(("TENANT", "JOBS", "KWH", "AT THE WALL", "NET"), tenants)
    return f"<section><h2>Jobs</h2>{table(head, rows, texts={1})}{by_tenant}</section>"


def _job(job: Json) -> str:
    spent, windows = job["spent_under_plans"], job["windows"]
    parts = [f"<section><h2>{escape(job['job'])}</h2>"]
    if job["reason"]:
        parts.append(f"<p>{UNKNOWN}: {escape(sentence(job['reason'], [job['job']]))}</p>")
    if windows["default"] or windows["plan"]:
        parts.append(
            f"<p>{windows['compared_holdouts']} hold-outs compared: {windows['default']} "
            f"windows at default clocks and {windows['plan']} under plans. Spent under plans: "
            f"{energy(spent['in_windows']['energy_j'])} kWh measured in windows, "
            f"{energy(spent['between_windows']['energy_j'])} kWh between windows of one plan.</p>"
        )
    if job.get("points"):
        parts += [html(windows_panel(job["points"], *one), width=WIDTH) for one in FIGURES]
    return "".join([*parts, "</section>"])


def windows_panel(points: Sequence[Json], key: str, name: str, factor: float) -> Panel:
    """Every window of a job as a line of its own length, hold-outs on top."""
    lines = []
    for arm, colour, arm_name in ARMS:
        ends = tuple(
            (point[end] / DAY_S, point[key] * factor)
            for point in points
            if point["arm"] == arm
            for end in ("begun_unix_s", "ended_unix_s")
        )
        if ends:
            lines.append(Line(arm_name, colour, ends, "level"))
    return Panel(name, "", "", tuple(lines), dates=True)


def savings_panel(jobs: Sequence[Json]) -> Panel:
    """A row per job: the measured interval, and the predicted saving as a ring."""
    shown = [job for job in jobs if job["measured"]["saved_ratio"] is not None]
    items: list[Item] = []
    for row, job in enumerate(shown):
        measured, predicted = job["measured"]["saved_ratio"], job["predicted"]["saved_ratio"]
        low, mid, high = (measured[end] * 100 for end in ("low", "mid", "high"))
        items.append(Line("", "ours", ((low, float(row)), (high, float(row))), "level"))
        items.append(Mark("measured", "ours", (mid, float(row)), label=share(measured)))
        if predicted is not None:
            items.append(Mark("predicted", "perseus", (predicted * 100, float(row)), "ring"))
    names = tuple(_short(job["job"]) for job in shown)
    return Panel("Energy saved", "%", "", tuple(items), names)


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH_MAX else name[: NAME_LENGTH_MAX - 1] + "…"
