"""A query as Grafana would send it: variables filled in, so that a real Prometheus can answer."""

import json
import urllib.error
import urllib.parse
import urllib.request
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
    """The `data` of one answer. Raises Unavailable with what the server said."""
    url = f"{server}/api/v1/{path}?" + urllib.parse.urlencode(fields)
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WAIT_S) as answer:  # noqa: S310 -- a person's own server
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        try:
            told = json.loads(error.read())["error"]
        except (ValueError, KeyError, TypeError):  # a server that still starts says it in words
            raise Unavailable(f"{server} does not answer: {error.reason}") from None
        raise Unavailable(f"{server}: {told}: {fields.get('query', path)}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{server} does not answer: {error}") from None
