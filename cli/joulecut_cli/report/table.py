"""The report as text. An unknown value is `unknown`, never 0, with its reason."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from joulecut_cli.figures import (
    length,
    moment,
    percent,
    point_wait,
    sentence,
    table,
)
from joulecut_engine.money import JOULES_PER_KWH

UNKNOWN = "unknown"
DECIMALS_MAX = 6

Json = dict[str, Any]


def share(interval: Json | None, *, signed: bool = False) -> str:
    """`15.2 ± 0.3 %` of a fraction."""
    if interval is None:
        return UNKNOWN
    return f"{spread(interval, 100.0, signed=signed)} %"


def one_share(ratio: float | None, *, signed: bool = False) -> str:
    return UNKNOWN if ratio is None else percent(ratio, signed=signed)


def spread(interval: Json | None, factor: float = 1.0, *, signed: bool = False) -> str:
    """`12.3 ± 0.4`: the half width to two digits at most, the middle as far as that reaches."""
    if interval is None:
        return UNKNOWN
    half = (interval["high"] - interval["low"]) / 2.0 * abs(factor)
    mid = interval["mid"] * factor
    decimals = _decimals(half if half > 0.0 else abs(mid) / 1000.0)
    middle = round(mid, decimals) + 0.0
    sign = "+" if signed else ""
    return f"{middle:{sign}.{decimals}f} ± {half:.{decimals}f}"


def _decimals(half: float) -> int:
    """So many that a half width keeps one digit, or two where the first is small."""
    if half < 10.0**-DECIMALS_MAX:
        return DECIMALS_MAX if half > 0.0 else 1
    first = math.floor(math.log10(half))
    return min(DECIMALS_MAX, max(0, (1 if half / 10.0**first < 3.0 else 0) - first))


def energy(joules: float | None) -> str:
    """In kWh."""
    if joules is None:
        return UNKNOWN
    kwh = joules / JOULES_PER_KWH
    return f"{kwh:.{_decimals(abs(kwh) / 300.0)}f}"


def second(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unix_s))


SWITCH = "`verify: {holdout: 5%}` in a job's policy switches hold-outs on"


def report_text(report: Json, source: str) -> str:
    """The whole report for a terminal."""
    since, until = report["since_unix_s"], report["until_unix_s"]
    span = f"{moment(since)} to {moment(until)} UTC ({length(until - since)})"
    lines = [f"Savings, {span}, by {source}"]
    if not report["jobs"]:
        lines.append(f"Nothing was measured in this period: {SWITCH}.")
    else:
        lines += ["", *_ratios(report["jobs"])]
    if any(map(_measured, report["jobs"])):
        lines += ["", *_energies(report), *_tenants(report), "", *notes(report)]
    if report["changes"]:
        lines += ["", f"Changes of its clocks: {len(report['changes'])}"]
    if report["changes_cut"]:
        lines.append("  (older ones of this period were not read)")
    lines += [f"  {line}" for change in report["changes"] for line in _change(change)]
    return "\n".join(lines)


def notes(report: Json) -> Iterator[str]:
    """How the numbers were measured."""
    saved, measured = report["total"]["saved_kwh"], report["total"]["measured_kwh"]
    if saved is None:
        yield "Measured: no saving yet. An interval needs three hold-outs at default clocks."
    else:
        yield (
            f"Measured: {spread(measured)} kWh saved in windows under plans, against hold-outs at "
            "default clocks; ± is a 95 % interval."
        )
        yield (
            f"Assumed: {energy(JOULES_PER_KWH * (saved['mid'] - measured['mid']))} kWh more, at "
            "the same ratio, between two windows of one plan, whose clocks held. Nothing else is "
            "counted."
        )
    factors = report["factors"]
    missing = [
        name
        for name, value in (
            ("cluster.cost.kwh", factors["kwh"]),
            ("cluster.cost.gpu_hour", factors["gpu_hour"]),
            ("cluster.cost.co2_g_per_kwh (or --co2)", factors["co2_g_per_kwh"]),
        )
        if value is None
    ]
    yield (
        f"At the wall: PUE {factors['pue']:g}, {factors['host_power_w']:g} W of host per GPU"
        + (f"; not given: {', '.join(missing)}." if missing else ".")
    )
    if hour := factors["hour"]:
        yield f"Prices: {hour}."
    yield (
        f"Money: in {factors['currency'] or 'the currency of cluster.cost'}. GPU time: what "
        "the same work took longer. Break-even: the slowdown at which that eats what is saved on "
        "energy."
    )
    if report["truncated"]:
        yield "Truncated: only the newest windows of this period are included."


def clocks(change: Json) -> str:
    """`4 at 1200 MHz, 4 at default`; empty where none are recorded."""
    return ", ".join(
        f"{one['gpus']} at " + ("default" if (mhz := one["clock_mhz"]) is None else f"{mhz} MHz")
        for one in change["clocks"]
    )


def _ratios(jobs: Sequence[Json]) -> list[str]:
    head = ("JOB", "TENANT", "GPUS", "SAVED", "PREDICTED", "SLOWER", "PREDICTED", "HOLD-OUTS")
    rows = [
        (
            job["job"],
            job["tenant"],
            str(job["gpus"] or "-"),
            share(job["measured"]["saved_ratio"]),
            one_share(job["predicted"]["saved_ratio"]),
            share(job["measured"]["slowdown_ratio"], signed=True),
            one_share(job["predicted"]["slowdown_ratio"], signed=True),
            f"{job['windows']['compared_holdouts']}",
        )
        for job in jobs
    ]
    lines = table(head, rows, frozenset(head[2:]))
    lines += [f"  {job['job']}: {sentence(job['reason'])}" for job in jobs if job["reason"]]
    lines += [
        f"  {job['job']}: the interval is {wait}."
        for job in jobs
        if (wait := point_wait(job["measured"]["point_in_s"]))
    ]
    lines += [
        f"  {job['job']}: {len(job['shapes'])} shapes, ratios are of the newest: {job['shape']}."
        for job in jobs
        if len(job["shapes"]) > 1
    ]
    return lines


def _energies(report: Json) -> list[str]:
    head = (
        "JOB",
        "KWH SPENT",
        "KWH SAVED",
        "MEASURED",
        "AT THE WALL",
        "ENERGY",
        "GPU TIME",
        "NET",
        "CO2 KG",
        "BREAK-EVEN",
    )
    rows = [
        (
            job["job"],
            energy(_spent_j(job)),
            spread(job["saved"]["kwh"]),
            spread(job["saved"]["measured_kwh"]),
            *_wall(job["wall"]),
            one_share(job["break_even_slowdown_ratio"], signed=True),
        )
        for job in report["jobs"]
    ]
    return table(head, rows, frozenset(head[1:]))


def _spent_j(job: Json) -> float | None:
    joules: float = job["spent_under_plans"]["energy_j"]
    return joules if _measured(job) else None


def _wall(wall: Json | None) -> tuple[str, ...]:
    if wall is None:
        return (UNKNOWN,) * 5
    return (
        spread(wall["saved_kwh"]),
        spread(wall["energy_money"]),
        spread(wall["time_money"], -1.0) if wall["time_money"] else UNKNOWN,
        spread(wall["net_money"]),
        spread(wall["co2_kg"]),
    )


def _measured(job: Json) -> bool:
    """Whether the job has any window."""
    return bool(job["windows"]["default"] or job["windows"]["plan"])


def _tenants(report: Json) -> list[str]:
    """Sums by tenant, of two jobs or more."""
    if len(report["jobs"]) < 2:
        return []
    head = ("TENANT", "JOBS", "KWH SAVED", "AT THE WALL", "ENERGY", "GPU TIME", "NET", "CO2 KG")
    rows = [
        (
            one["name"],
            f"{one['jobs']}" + (f" ({one['jobs_unknown']} unknown)" if one["jobs_unknown"] else ""),
            spread(one["saved_kwh"]),
            *_wall(one["wall"]),
        )
        for one in (*report["tenants"], report["total"])
    ]
    return ["", *table(head, rows, frozenset(head[1:]))]


def _change(change: Json) -> Iterator[str]:
    about = f"plan {change['generation']}" if change["generation"] else ""
    shown = clocks(change)
    text = f"{change['text']} ({shown})" if shown else change["text"]
    yield f"{second(change['at_unix_s'])}  {change['kind']:<6}  {about:<9}  {text}"
    if change["reason"]:
        yield f"{'':<19}  {'':<6}  {'':<9}  because: {change['reason']}"
