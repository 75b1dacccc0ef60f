"""Reads from the store what a report is made of, for the command line and the week's summary."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from joulecut_controller.policy.hourly import PRICES, mean_of
from joulecut_controller.policy.policy import Cost, JobPolicy
from joulecut_controller.ports import Store
from joulecut_controller.savings.changes import changes
from joulecut_controller.savings.report import NO_TENANT, Known, Report, report
from joulecut_controller.trust import energy_ledger
from joulecut_controller.trust.window import TOPIC, MeasuredWindow, from_json

WINDOWS_MAX = 50_000  # of all jobs: three seconds to read, 30 MB; a week of 75 jobs at 5 %
SHEETS_MAX = 5_000  # hours: as many as the store keeps
EVENTS_MAX = 20_000  # of one job: months of hold-outs, each with two changes


def known_jobs(policies: Iterable[JobPolicy]) -> dict[str, Known]:
    """By name; the entry of a class of jobs ends with a colon, as the names of its jobs go on."""
    return {one.name + ":" * one.each: Known(_tenant(one), one.verify.holdout) for one in policies}


def _tenant(policy: JobPolicy) -> str:
    """As the policy says, else the namespace or Slurm account that its `match` names."""
    if policy.tenant:
        return policy.tenant
    account = policy.slurm.account if policy.slurm is not None else ""
    return policy.pods.namespace if policy.pods is not None else account or NO_TENANT


def read_report(
    store: Store,
    *,
    since_unix_s: float,
    until_unix_s: float,
    prices: Cost,
    known: Mapping[str, Known],
    job: str = "",
) -> Report:
    """Of all jobs, or one with every change of its clocks. Raises Unavailable."""
    windows, truncated = read_windows(store, job, since_unix_s)
    trail = store.events(job=job, limit=EVENTS_MAX) if job else ()
    sheets = store.records(energy_ledger.TOPIC, since_unix_s=since_unix_s, limit=SHEETS_MAX)
    texts = [*(record.content for record in sheets), store.learnt(energy_ledger.TOPIC)]
    prices = mean_of(prices, _hours(store, since_unix_s, prices), until_unix_s)
    found = report(
        windows,
        since_unix_s=since_unix_s,
        until_unix_s=until_unix_s,
        prices=prices,
        known=known,
        job=job,
    )
    return replace(
        found,
        truncated=truncated,
        changes=changes(trail, job, since_unix_s),
        changes_cut=len(trail) == EVENTS_MAX and trail[-1].at_unix_s > since_unix_s,
        energy=energy_ledger.total(texts, since_unix_s),
    )


def _hours(store: Store, since_unix_s: float, prices: Cost) -> list[tuple[float, Cost]]:
    """The prices by the hour, ascending, where the policy has a series."""
    if prices.kwh_series is None and prices.co2_series is None:
        return []
    found = []
    for record in store.records(PRICES, since_unix_s=since_unix_s, limit=SHEETS_MAX):
        try:
            kwh, grams, stale = json.loads(record.content)
        except ValueError:
            continue
        hour = replace(prices, kwh=kwh, co2_g_per_kwh=grams, stale=bool(stale))
        found.append((record.at_unix_s, hour))
    return found[::-1]


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
