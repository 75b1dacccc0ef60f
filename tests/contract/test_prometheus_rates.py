"""Rates of jobs, asked of a real Prometheus."""

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from running_prometheus import prometheus_in

from joulecut_controller.policy.policy import JobPolicy, Slo
from joulecut_controller.policy.rate_query import RateQuery
from joulecut_controller.ports import RateSample
from joulecut_controller.sources.prometheus import KEYS, Access
from joulecut_controller.sources.prometheus_rates import PrometheusRates, RateServer

PATIENCE_S = 60.0
QUERIES = {
    "steps": "rate(steps_total[4s])",
    "none": "rate(absent_total[4s])",
    "many": '{__name__=~"up|scrape_duration_seconds"}',
    "idle": "0 * rate(steps_total[4s])",
    "wrong": "sum(",
}


def _job(name: str, promql: str) -> JobPolicy:
    return JobPolicy(name, "recommend", Slo(max_slowdown=0.01), rate=RateQuery(promql, 1.0))


async def _asked(
    rates: PrometheusRates, jobs: list[JobPolicy], samples: int
) -> tuple[list[RateSample], dict[str, str]]:
    """Samples, and the newest fault of each job, once there are that many samples."""
    running = asyncio.create_task(rates.run(lambda: jobs))
    found: list[RateSample] = []
    until_s = time.monotonic() + PATIENCE_S
    faults: dict[str, str] = {}
    while time.monotonic() < until_s:
        await asyncio.sleep(0.05)
        found += rates.take()
        faults = {one.job: one.text for one in rates.faults(time.monotonic())}
        settled = all("no value" not in faults.get(name, "") for name in ("many", "idle"))
        right = not samples or (found and abs(found[-1].duration_s - 0.25) < 0.05)
        if right and len(found) >= samples and len(faults) >= len(jobs) - bool(samples) and settled:
            break
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return found, faults


class Steps(BaseHTTPRequestHandler):
    """A job's exporter: four steps a second."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f"# TYPE steps_total counter\nsteps_total {4 * time.time()}\n".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Steps) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.prometheus
def test_a_rate_is_one_sample_per_range_and_all_else_one_line(
    exporter: str, tmp_path: Path
) -> None:
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
        f"scrape_configs: [{{job_name: a, static_configs: [{{targets: ['{exporter}']}}]}}]\n"
    )
    with prometheus_in(tmp_path) as url:
        rates = PrometheusRates(RateServer(url, Access(words=KEYS)), time.monotonic)
        jobs = [_job(name, promql) for name, promql in QUERIES.items()]
        samples, faults = asyncio.run(_asked(rates, jobs, 3))
    assert {one.job for one in samples} == {"steps"}
    assert abs(samples[-1].duration_s - 0.25) < 0.05
    assert [one.number for one in samples] == list(range(1, len(samples) + 1))
    for before, after in pairwise(samples):
        assert after.arrived_s - after.span_s >= before.arrived_s - 1e-6
    assert "no value" in faults["none"]
    assert "2 series" in faults["many"]
    assert "no work" in faults["idle"]
    assert "parse error" in faults["wrong"]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9"])
def test_no_prometheus_is_one_line(url: str) -> None:
    server = RateServer(url, Access(words=KEYS)) if url else None
    rates = PrometheusRates(server, time.monotonic)
    samples, faults = asyncio.run(_asked(rates, [_job("a", "rate(x[10s])")], 0))
    assert not samples
    assert "rometheus" in faults["a"]
    assert "\n" not in faults["a"]
