"""Reads from the store what a report and a receipt are made of.

The web and, beside a store without a controller, the command line use it, so that both read the
same records in the same way.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from joulecut_controller.policy.hourly import PRICES, mean_of
from joulecut_controller.policy.owner import KUBERNETES
from joulecut_controller.policy.policy import Cost, JobPolicy
from joulecut_controller.ports import Store
from joulecut_controller.savings.receipt import Receipt, changes
from joulecut_controller.savings.report import NO_TENANT, Known, Report, report
from joulecut_controller.trust import energy_ledger
from joulecut_controller.trust.window import TOPIC, MeasuredWindow, from_json
from joulecut_controller.view import GpuView, JobState
from joulecut_wire import slurm

WINDOWS_MAX = 50_000  # of all jobs: three seconds to read, 30 MB; a week of 75 jobs at 5 %
SHEETS_MAX = 5_000  # hours: as many as the store keeps
EVENTS_MAX = 20_000  # of one job: months of hold-outs, each with two changes


def known_jobs(jobs: Iterable[JobState], gpus: Mapping[str, GpuView]) -> dict[str, Known]:
    """The jobs of a running controller, with whose they are."""
    found = {}
    for job in jobs:
        policy, running = job.policy, job.running
        owners = {
            gpu.allocation.namespace or slurm.of_labels(gpu.allocation.labels).account
            for stage in job.placement.stages
            for uuid in stage
            if (gpu := gpus.get(uuid)) and gpu.allocation
        } - {""}
        tenant = tenant_of(policy)
        if not policy.tenant and running and running.source == KUBERNETES and running.namespace:
            tenant = running.namespace
        elif tenant == NO_TENANT and len(owners) == 1:
            tenant = owners.pop()
        found[policy.name] = Known(tenant, policy.verify.holdout)
    return found


def tenant_of(policy: JobPolicy) -> str:
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
    """Of all jobs, or one. Raises Unavailable where the store cannot be read."""
    windows, truncated = read_windows(store, job, since_unix_s)
    sheets = store.records(energy_ledger.TOPIC, since_unix_s=since_unix_s, limit=SHEETS_MAX)
    texts = [*(record.content for record in sheets), store.learnt(energy_ledger.TOPIC)]
    prices = mean_of(prices, _hours(store, since_unix_s, prices), until_unix_s)
    return report(
        windows,
        since_unix_s=since_unix_s,
        until_unix_s=until_unix_s,
        prices=prices,
        known={name: about for name, about in known.items() if job in {"", name}},
        truncated=truncated,
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


def read_receipt(
    store: Store,
    job: str,
    *,
    since_unix_s: float,
    until_unix_s: float,
    prices: Cost,
    known: Mapping[str, Known],
) -> Receipt | None:
    """None for a job that neither policy nor store knows. Raises Unavailable."""
    found = read_report(
        store,
        since_unix_s=since_unix_s,
        until_unix_s=until_unix_s,
        prices=prices,
        known=known,
        job=job,
    )
    trail = store.events(job=job, limit=EVENTS_MAX)
    if not found.jobs and not trail:
        return None
    return Receipt(
        job=job,
        since_unix_s=since_unix_s,
        until_unix_s=until_unix_s,
        report=found.jobs[0] if found.jobs else None,
        changes=changes(trail, job, since_unix_s),
        cut=len(trail) == EVENTS_MAX and trail[-1].at_unix_s > since_unix_s,
    )


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
