"""Prices by the hour from a Prometheus: answers, silence and answers that are no price."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from joulecut_controller.policy.hourly import HOLDS_S, at_hour
from joulecut_controller.policy.policy import Cost, Policy, Series
from joulecut_controller.sources.prometheus import Access
from joulecut_controller.sources.prometheus_prices import PrometheusPrices
from joulecut_controller.sources.prometheus_rates import RateServer

POLICY = Policy(cost=Cost(gpu_hour=2.0, kwh=0.08, kwh_series=Series(promql="day_ahead")))


class Answering(HTTPServer):
    """Answers every instant query with `values`, one series each."""

    values: tuple[str, ...] = ()


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        rows = [{"metric": {}, "value": [0.0, one]} for one in self.server.values]
        body = json.dumps({"data": {"resultType": "vector", "result": rows}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("values", "kwh"),
    [(("0.31",), 0.31), ((), 0.08), (("0.3", "0.4"), 0.08), (("NaN",), 0.08), (("-0.1",), 0.0)],
)
def test_one_finite_value_is_the_price_of_the_hour(
    server: Answering, values: tuple[str, ...], kwh: float
) -> None:
    server.values = values
    url = f"http://127.0.0.1:{server.server_address[1]}"
    prices = PrometheusPrices(RateServer(url, Access()), lambda: 1_000.0)
    asyncio.run(prices.ask(POLICY))
    now = at_hour(POLICY, 1_010.0, prices.asked).cost
    assert (now.prices().kwh, now.stale) == (kwh, kwh == 0.08)
    assert at_hour(POLICY, 1_000.0 + HOLDS_S, prices.asked).cost.stale


def test_without_a_server_the_constant_counts() -> None:
    prices = PrometheusPrices(None, lambda: 1_000.0)
    asyncio.run(prices.ask(POLICY))
    assert at_hour(POLICY, 1_000.0, prices.asked).cost.stale
    asyncio.run(prices.ask(Policy()))
    assert prices.asked == {}
