"""What a report is read from: a controller's store, and the policy with its prices and tenants."""

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from joulecut_cli.controller_client import Json
from joulecut_controller import config
from joulecut_controller.policy.policy import Policy
from joulecut_controller.savings.record import REPORT
from joulecut_controller.savings.stored import known_jobs, read_report
from joulecut_controller.sources.policy_file import load
from joulecut_controller.store.database import open_store
from joulecut_controller.store.sqlite import PREFIX, file_of
from joulecut_wire.errors import BadInput


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
    now_s = time.time()
    store = open_store(place.store, base=place.base, password_file=place.password_file)
    with closing(store):
        policy = Policy()
        if place.policy is not None:
            policy = load(place.policy, profiles=place.profiles)
        cost = policy.cost
        made = read_report(
            store,
            since_unix_s=now_s - since_s,
            until_unix_s=now_s,
            prices=cost if co2_g_per_kwh is None else replace(cost, co2_g_per_kwh=co2_g_per_kwh),
            known=known_jobs(policy.jobs),
            job=job,
        )
    if job and not made.jobs and not made.changes:
        raise BadInput("--job", f"no job {job!r}", f"a job in {place.name}")
    return REPORT.json(made)
