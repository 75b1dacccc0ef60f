"""Sources of a report: a running controller; `stored` reads a store without one."""

from dataclasses import dataclass
from typing import Protocol

from joulecut_cli.controller_client import Controller, Json


@dataclass(frozen=True, slots=True)
class Asked:
    """One query, for either source."""

    since_s: float
    co2_g_per_kwh: float | None
    job: str = ""
    points: bool = False


class Source(Protocol):
    """Raises BadInput for an unknown job, Unavailable where there is no answer."""

    @property
    def name(self) -> str: ...

    def report(self, asked: Asked) -> Json: ...

    def receipt(self, asked: Asked) -> Json: ...


class FromController:
    """A running controller, with prices, tenants and jobs of its policy."""

    def __init__(self, url: str) -> None:
        self._controller = Controller(url)
        self.name = self._controller.url

    def report(self, asked: Asked) -> Json:
        """Raises Unavailable."""
        return self._controller.report(_query(asked) | {"job": asked.job})

    def receipt(self, asked: Asked) -> Json:
        """Raises BadInput for an unknown job, Unavailable."""
        return self._controller.receipt(asked.job, _query(asked))


def _query(asked: Asked) -> dict[str, str]:
    query = {"since_s": f"{asked.since_s:g}"}
    if asked.co2_g_per_kwh is not None:
        query["co2"] = f"{asked.co2_g_per_kwh:g}"
    if asked.points:
        query["points"] = "1"
    return query
