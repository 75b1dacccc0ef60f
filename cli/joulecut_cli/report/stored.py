"""What a report is read from: a controller's store, and the policy with its prices and tenants."""

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from joulecut_cli.report.record import NO_TENANT, Json, Known, changes_json, energy_json, record
from joulecut_controller import config
from joulecut_controller.policy.policy import JobPolicy, Policy
from joulecut_controller.savings.stored import HOURS_MAX, read_prices, read_savings
from joulecut_controller.sources.policy_file import load
from joulecut_controller.store.database import open_store
from joulecut_controller.store.sqlite import PREFIX, file_of
from joulecut_controller.trust import energy_ledger
from joulecut_wire.errors import BadInput

EVENTS_MAX = 20_000  # of one job: months of hold-outs, each with two changes


@dataclass(frozen=True, slots=True)
class Place:
    """`store` is a URL; the files that it needs beside are relative to `base`."""

    store: str
    policy: Path | None = None
    profiles: Path | None = None
    base: Path = Path()
    password_file: Path | None = None

    @property
    def name(self) -> str:
        """Without a password."""
        return self.store.rpartition("@")[2] if "@" in self.store else self.store


def of_controller(path: Path) -> Place:
    """Those of a controller's configuration. Raises BadInput."""
    found = config.read(path)
    places = found.policy, found.profiles, found.base, found.store_password_file
    return Place(found.store, *places)


def report_of(place: Place, since_s: float, co2_g_per_kwh: float | None, job: str) -> Json:
    """Of all jobs, or of one. Raises BadInput, also for an unknown job, and Unavailable."""
    if place.store.startswith(PREFIX):
        file = file_of(place.store)
        if not file.is_file() or not file.stat().st_size:  # opening it would make it a store
            raise BadInput("--store", f"no file {file}, or an empty one", "a controller's store")
    until_s = time.time()
    since_s = until_s - since_s
    store = open_store(place.store, base=place.base, password_file=place.password_file)
    with closing(store):
        policy = Policy()
        if place.policy is not None:
            policy = load(place.policy, profiles=place.profiles)
        cost = policy.cost
        if co2_g_per_kwh is not None:
            cost = replace(cost, co2_g_per_kwh=co2_g_per_kwh)
        found, truncated = read_savings(
            store,
            since_unix_s=since_s,
            until_unix_s=until_s,
            known=[one.name for one in policy.jobs if not one.each],
            job=job,
        )
        trail = store.events(job=job, limit=EVENTS_MAX) if job else ()
        sheets = store.records(energy_ledger.TOPIC, since_unix_s=since_s, limit=HOURS_MAX)
        texts = [*(record.content for record in sheets), store.learnt(energy_ledger.TOPIC)]
        prices = read_prices(store, cost, since_s, until_s)
    changes = changes_json(trail, job, since_s)
    if job and not found and not changes:
        raise BadInput("--job", f"no job {job!r}", f"a job in {place.name}")
    known = known_jobs(policy.jobs)
    period = {"since_unix_s": since_s, "until_unix_s": until_s}
    return record(found, prices=prices, known=known, **period) | {
        "truncated": truncated,
        "energy": energy_json(energy_ledger.total(texts, since_s)),
        "changes": changes,
        "changes_cut": len(trail) == EVENTS_MAX and trail[-1].at_unix_s > since_s,
    }


def known_jobs(policies: Iterable[JobPolicy]) -> dict[str, Known]:
    """By name, as `record` takes them."""
    return {one.name + ":" * one.each: Known(_tenant(one), one.verify.holdout) for one in policies}


def _tenant(policy: JobPolicy) -> str:
    """As the policy says, else the namespace or Slurm account that its `match` names."""
    if policy.tenant:
        return policy.tenant
    account = policy.slurm.account if policy.slurm is not None else ""
    return policy.pods.namespace if policy.pods is not None else account or NO_TENANT
