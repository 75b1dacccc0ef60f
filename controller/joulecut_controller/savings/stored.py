"""Reads from the store what savings are made of, for reports and the week's summary."""

import json
from collections.abc import Iterable
from dataclasses import replace

from joulecut_controller.policy.hourly import PRICES, mean_of
from joulecut_controller.policy.policy import Cost
from joulecut_controller.ports import Store
from joulecut_controller.savings.job_saving import JobSaving, job_saving
from joulecut_controller.trust.window import TOPIC, MeasuredWindow, from_json

WINDOWS_MAX = 50_000  # of all jobs: three seconds to read, 30 MB; a week of 75 jobs at 5 %
HOURS_MAX = 5_000  # as many as the store keeps


def read_savings(
    store: Store,
    *,
    since_unix_s: float,
    until_unix_s: float,
    known: Iterable[str] = (),
    job: str = "",
) -> tuple[dict[str, JobSaving], bool]:
    """Each job's saving in the period, `known` ones without windows too, and whether older windows
    of the period were left. With `job` of that one. Raises Unavailable.
    """
    windows: dict[str, list[MeasuredWindow]] = {name: [] for name in known if job in {"", name}}
    newest, truncated = read_windows(store, job, since_unix_s)
    for window in newest:
        if since_unix_s <= window.ended_unix_s <= until_unix_s:
            windows.setdefault(window.job, []).append(window)
    return {name: job_saving(of_job) for name, of_job in sorted(windows.items())}, truncated


def read_windows(
    store: Store, job: str, since_unix_s: float, most: int = WINDOWS_MAX
) -> tuple[list[MeasuredWindow], bool]:
    """The newest ones, and whether older ones of the period were left. Raises Unavailable."""
    records = store.records(TOPIC, job=job, since_unix_s=since_unix_s, limit=most)
    windows = []
    for record in records:
        try:
            windows.append(from_json(record.content))
        except ValueError:  # of a version that has another idea of a window, or damaged
            continue
    return windows, len(records) == most


def read_prices(store: Store, prices: Cost, since_unix_s: float, until_unix_s: float) -> Cost:
    """The prices of a period: means over its hours, where the policy has a series."""
    if prices.kwh_series is None and prices.co2_series is None:
        return prices
    hours = []
    for record in store.records(PRICES, since_unix_s=since_unix_s, limit=HOURS_MAX):
        try:
            kwh, grams, stale = json.loads(record.content)
        except ValueError:
            continue
        hour = replace(prices, kwh=kwh, co2_g_per_kwh=grams, stale=bool(stale))
        hours.append((record.at_unix_s, hour))
    return mean_of(prices, hours[::-1], until_unix_s)
