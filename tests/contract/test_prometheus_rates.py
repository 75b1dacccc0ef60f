"""Rates of jobs, asked of a real Prometheus."""

import asyncio
import contextlib
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
from joulecut_controller.sources.prometheus import Access, Prometheus
from joulecut_controller.sources.prometheus_rates import PrometheusRates, RateServer
from joulecut_wire.errors import Unavailable

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
        rates = PrometheusRates(RateServer(url, Access()), time.monotonic)
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
    server = RateServer(url, Access()) if url else None
    rates = PrometheusRates(server, time.monotonic)
    samples, faults = asyncio.run(_asked(rates, [_job("a", "rate(x[10s])")], 0))
    assert not samples
    assert "rometheus" in faults["a"]
    assert "\n" not in faults["a"]


NESTED = b"[" * 100_000 + b"]" * 100_000
HOSTILE = {
    "nested": b'{"x":' + NESTED + b',"data":{"resultType":"vector","result":' + NESTED + b"}}",
    "bytes": b'{"data":{"resultType":"vector","result":[{"metric":{"a":"\xff"},"value":[1,"1"]}]}}',
    "huge": b'{"data":{"resultType":"scalar","result":[1,1' + b"0" * 400 + b"]}}",
    "long": b'{"data":{"resultType":"scalar","result":[1,"' + b"9" * (2 << 20) + b'"]}}',
    "other": b'{"data":{"resultType":"vector","result":{"a":"b"}}}',
}


@pytest.fixture
def hostile() -> Iterator[str]:
    """A server that answers with one of `HOSTILE`, or one byte in 0.05 s and never the last."""
    closed = threading.Event()

    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            name = self.path.split("/")[1]
            self.send_header("Content-Length", str(len(HOSTILE.get(name, b"x" * 1000))))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(HOSTILE.get(name, b""))
                while name not in HOSTILE and not closed.wait(0.05):
                    self.wfile.write(b" ")
                    self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        closed.set()
        server.shutdown()


@pytest.mark.parametrize("name", [*HOSTILE, "slow"])
def test_a_hostile_answer_is_one_line(name: str, hostile: str) -> None:
    server = Prometheus(f"{hostile}/{name}", Access(), timeout_s=0.3 if name == "slow" else 60.0)
    asks = [lambda: server.now("up"), lambda: server.range("up", 0.0, 60.0, 15.0)]
    for ask in asks:
        with pytest.raises(Unavailable) as raised:
            ask()
        assert "\n" not in str(raised.value)


def test_hostile_answers_are_faults_of_their_job_and_hold_up_no_other(hostile: str) -> None:
    rates = PrometheusRates(RateServer(f"{hostile}/nested", Access()), time.monotonic)
    jobs = [_job(f"job {n}", "up") for n in range(6)]
    samples, faults = asyncio.run(_asked(rates, jobs, 0))
    assert not samples
    assert set(faults) == {job.name for job in jobs}
