"""A report without a controller: from its store, with prices and tenants from a policy file."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from joulecut_cli.controller_client import Json, Period
from joulecut_controller.policy.policy import Policy
from joulecut_controller.savings.record import receipt_json, report_json
from joulecut_controller.savings.report import Known
from joulecut_controller.savings.stored import read_receipt, read_report, tenant_of
from joulecut_controller.savings.wall import prices
from joulecut_controller.sources.policy_file import load
from joulecut_controller.store.database import open_store
from joulecut_controller.store.sqlite import PREFIX, file_of
from joulecut_wire.errors import BadInput


class FromStore:
    """A store, with prices and tenants of a policy file where one is given."""

    def __init__(self, url: str, policy: Path | None) -> None:
        """Raises BadInput for a malformed URL or policy."""
        if url.startswith(PREFIX) and not file_of(url).is_file():
            raise BadInput("--store", f"no file {file_of(url)}", "the store of a controller")
        self._policy = load(policy) if policy is not None else Policy()
        self._url = url
        self.name = url.rpartition("@")[2] if "@" in url else url  # without a password

    def report(self, period: Period, job: str = "") -> Json:
        """Raises BadInput, Unavailable."""
        with closing(open_store(self._url)) as store:
            made = read_report(store, job=job, **self._asked(period))
        return report_json(made)

    def receipt(self, period: Period, job: str) -> Json:
        """Raises BadInput, also for an unknown job, and Unavailable."""
        with closing(open_store(self._url)) as store:
            made = read_receipt(store, job, **self._asked(period))
        if made is None:
            raise BadInput("--receipt", f"no job {job!r}", f"a job in {self.name}")
        return receipt_json(made)

    def _asked(self, period: Period) -> dict[str, Any]:
        """What a report and a receipt have in common."""
        now_s, policy = time.time(), self._policy
        return {
            "since_unix_s": now_s - period.since_s,
            "until_unix_s": now_s,
            "prices": prices(policy.cost, period.co2_g_per_kwh),
            "known": {job.name: Known(tenant_of(job), job.verify.holdout) for job in policy.jobs},
        }
