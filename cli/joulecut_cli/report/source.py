"""Where a report comes from; a store is another module, with all that reading one needs."""

from dataclasses import dataclass
from typing import Protocol

from joulecut_cli.controller_client import Controller, Json


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of either source."""

    since_s: float
    co2_g_per_kwh: float | None
    job: str = ""
    points: bool = False


class Source(Protocol):
    """Raises BadInput for a job that nobody knows, Unavailable where there is no answer."""

    @property
    def name(self) -> str: ...

    def report(self, asked: Asked) -> Json: ...

    def receipt(self, asked: Asked) -> Json: ...


class FromController:
    """A running controller: knows prices, tenants and jobs from its policy."""

    def __init__(self, url: str) -> None:
        self._controller = Controller(url)
        self.name = self._controller.url

    def report(self, asked: Asked) -> Json:
        """Raises Unavailable."""
        return self._controller.report(_query(asked))

    def receipt(self, asked: Asked) -> Json:
        """Raises BadInput for a job that nobody knows, Unavailable."""
        return self._controller.receipt(asked.job, _query(asked))


def _query(asked: Asked) -> dict[str, str]:
    query = {"since_s": f"{asked.since_s:g}", "job": asked.job}
    if asked.co2_g_per_kwh is not None:
        query["co2"] = f"{asked.co2_g_per_kwh:g}"
    if asked.points:
        query["points"] = "1"
    return query
