"""A report without a controller: from its store, with prices and tenants from a policy file."""

import time
from pathlib import Path

from joulecut_cli.controller_client import Json
from joulecut_cli.report.source import Asked
from joulecut_controller.policy.policy import Policy
from joulecut_controller.savings import read_receipt, read_report, tenant_of
from joulecut_controller.sources.policy_file import load
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.store.sqlite import PREFIX, file_of
from joulecut_controller.trust.record import receipt_json, report_json
from joulecut_controller.trust.report import Known
from joulecut_controller.trust.wall import Prices, prices
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

    def report(self, asked: Asked) -> Json:
        """Raises BadInput, Unavailable."""
        now_s, store = time.time(), self._open()
        try:
            made = read_report(
                store,
                since_unix_s=now_s - asked.since_s,
                until_unix_s=now_s,
                prices=self._prices(asked),
                known=self._known(),
                job=asked.job,
            )
        finally:
            store.close()
        return report_json(made, points=asked.points)

    def receipt(self, asked: Asked) -> Json:
        """Raises BadInput, also for an unknown job, and Unavailable."""
        now_s, store = time.time(), self._open()
        try:
            made = read_receipt(
                store,
                asked.job,
                since_unix_s=now_s - asked.since_s,
                until_unix_s=now_s,
                prices=self._prices(asked),
                known=self._known(),
            )
        finally:
            store.close()
        if made is None:
            raise BadInput("--receipt", f"no job {asked.job!r}", f"a job in {self.name}")
        return receipt_json(made, points=asked.points)

    def _open(self) -> DatabaseStore:
        return open_store(self._url)

    def _prices(self, asked: Asked) -> Prices:
        return prices(self._policy.cost, asked.co2_g_per_kwh)

    def _known(self) -> dict[str, Known]:
        return {job.name: Known(tenant_of(job), job.verify.holdout) for job in self._policy.jobs}
