"""The report as CSV: a line for each job, each tenant and the whole; empty where unknown."""

import csv
import io
from typing import Any

Json = dict[str, Any]

HEAD = (
    "kind", "name", "tenant", "shape", "gpus", "jobs", "jobs_unknown",
    "saved_ratio", "saved_ratio_low", "saved_ratio_high", "predicted_saved_ratio",
    "slowdown_ratio", "slowdown_ratio_low", "slowdown_ratio_high", "predicted_slowdown_ratio",
    "compared_holdouts", "energy_in_windows_j", "energy_between_windows_j",
    "saved_kwh", "saved_kwh_low", "saved_kwh_high",
    "wall_saved_kwh", "wall_saved_kwh_low", "wall_saved_kwh_high",
    "energy_money", "time_money", "net_money", "net_money_low", "net_money_high",
    "co2_kg", "gpu_hours_longer", "break_even_slowdown_ratio", "reason",
)  # fmt: skip


def report_csv(report: Json) -> str:
    """RFC 4180, with a head; a text that a spreadsheet would take for a formula is quoted by '."""
    out = io.StringIO()
    writer = csv.DictWriter(out, HEAD, restval="", lineterminator="\r\n")
    writer.writeheader()
    for job in report["jobs"]:
        writer.writerow(_plain(_job(job)))
    for one in report["tenants"]:
        writer.writerow(_plain({"kind": "tenant", **_sum(one)}))
    writer.writerow(_plain({"kind": "total", **_sum(report["total"])}))
    return out.getvalue()


def _job(job: Json) -> Json:
    measured, spent = job["measured"], job["spent_under_plans"]
    return {
        "kind": "job",
        "name": job["job"],
        "tenant": job["tenant"],
        "shape": job["shape"],
        "gpus": job["gpus"] or None,
        **_interval("saved_ratio", measured["saved_ratio"]),
        "predicted_saved_ratio": job["predicted"]["saved_ratio"],
        **_interval("slowdown_ratio", measured["slowdown_ratio"]),
        "predicted_slowdown_ratio": job["predicted"]["slowdown_ratio"],
        "compared_holdouts": job["windows"]["compared_holdouts"],
        "energy_in_windows_j": spent["in_windows"]["energy_j"],
        "energy_between_windows_j": spent["between_windows"]["energy_j"],
        **_interval("saved_kwh", job["saved"]["kwh"]),
        **_wall(job["wall"]),
        "break_even_slowdown_ratio": job["break_even_slowdown_ratio"],
        "reason": job["reason"],
    }


def _sum(one: Json) -> Json:
    return {
        "name": one["name"],
        "jobs": one["jobs"],
        "jobs_unknown": one["jobs_unknown"],
        **_interval("saved_kwh", one["saved_kwh"]),
        **_wall(one["wall"]),
    }


def _wall(wall: Json | None) -> Json:
    if wall is None:
        return {}
    return {
        **_interval("wall_saved_kwh", wall["saved_kwh"]),
        "energy_money": (wall["energy_money"] or {}).get("mid"),
        "time_money": (wall["time_money"] or {}).get("mid"),
        **_interval("net_money", wall["net_money"]),
        "co2_kg": (wall["co2_kg"] or {}).get("mid"),
        "gpu_hours_longer": wall["gpu_hours_longer"]["mid"],
    }


def _interval(name: str, interval: Json | None) -> Json:
    if interval is None:
        return {}
    return {name: interval["mid"], f"{name}_low": interval["low"], f"{name}_high": interval["high"]}


def _plain(row: Json) -> dict[str, str]:
    return {key: _cell(value) for key, value in row.items() if value is not None}


def _cell(value: float | str) -> str:
    if not isinstance(value, str):
        return f"{value:.8g}"
    formula = value[:1] in {"=", "+", "-", "@", "\t", "\r"} and value != "-"
    return f"'{value}" if formula else value
