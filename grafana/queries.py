"""Queries of a dashboard as Grafana puts them to a Prometheus, for tests and pictures."""

import json
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from typing import Any

from joulecut_wire.errors import Unavailable

WIDTH = 24  # Grafana's grid
RANGE_S, STEP_S = 480.0, 2.0  # a demo's life; a scrape a second
RATE_INTERVAL = "20s"  # beside hold-outs of half a minute; Grafana chooses a minute or more
ANSWER_WAIT_S = 20.0

Json = dict[str, Any]  # a dashboard, or one of its panels


def ask(server: str, path: str, **fields: str) -> Any:
    """The `data` of one answer of a Prometheus. Raises Unavailable with the server's error."""
    url = f"{server}/api/v1/{path}?" + urllib.parse.urlencode(fields)
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WAIT_S) as answer:  # noqa: S310 -- a URL from the command line
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error)
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # plain text while it starts
            raise Unavailable(f"{server} does not answer: {error}") from None
        raise Unavailable(f"{server}: {reason}: {fields.get('query', path)}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{server} does not answer: {error}") from None


def filled(expr: str, dashboard: Json, *, rate_interval: str, over: str) -> str:
    """`expr` as Grafana would send it: choices at All, text boxes at their default."""
    values = {"__rate_interval": rate_interval, "__range": over}
    for variable in dashboard["templating"]["list"]:
        values[variable["name"]] = variable.get("allValue", variable["query"])
    for name in sorted(values, key=len, reverse=True):
        expr = expr.replace(f"${name}", str(values[name]))
    return expr


def _reason(error: urllib.error.HTTPError) -> str:
    """The error of a Prometheus where it sends one, else the status's text."""
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason
