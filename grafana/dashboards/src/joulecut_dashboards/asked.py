"""Queries with their variables filled in, as Grafana sends them, for a real Prometheus."""

import json
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from typing import Any

from joulecut_dashboards.panels import Dashboard
from joulecut_wire.errors import Unavailable

ANSWER_WAIT_S = 20.0
Series = list[dict[str, Any]]


def filled(expr: str, dashboard: Dashboard, *, rate_interval: str, over: str) -> str:
    """`expr` with every choice left at All, and every entry at its default."""
    values = {"__rate_interval": rate_interval, "__range": over}
    values |= {choice.name: ".+" for choice in dashboard.choices}
    values |= {entry.name: entry.default for entry in dashboard.entries}
    for name in sorted(values, key=len, reverse=True):
        expr = expr.replace(f"${name}", values[name])
    return expr


def ask(server: str, path: str, **fields: str) -> Any:
    """The `data` of one answer. Raises Unavailable with the server's error."""
    url = f"{server}/api/v1/{path}?" + urllib.parse.urlencode(fields)
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WAIT_S) as answer:  # noqa: S310 -- a URL of the user's choice
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        with error:
            told = _told(error)
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # plain text while it starts
            raise Unavailable(f"{server} does not answer: {error}") from None
        raise Unavailable(f"{server}: {told}: {fields.get('query', path)}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{server} does not answer: {error}") from None


def _told(error: urllib.error.HTTPError) -> str:
    """Prometheus's error text, else the reason of the HTTP status."""
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason
