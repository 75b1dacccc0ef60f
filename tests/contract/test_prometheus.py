"""A real Prometheus scrapes a real agent, and finds what the names promise."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_prometheus import prometheus_in

from joulecut_wire import metrics

pytestmark = pytest.mark.prometheus
PATIENCE_S = 180.0  # for a machine that stands still now and then; met early on every other
AGENT = str(Path(sys.executable).with_name("joulecut-agent"))


def _wait(what: str, probe: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.1)
    pytest.fail(f"{what} did not happen within {PATIENCE_S:g} s")


@pytest.fixture
def agent() -> Iterator[dict[str, str]]:
    home = Path(tempfile.mkdtemp(prefix="jc"))
    config = home / "agent.yaml"
    config.write_text(
        "device: simulated\n"
        "node: n1\n"
        f"listen: {{metrics: 127.0.0.1:0, grpc: 127.0.0.1:0, socket: {home}/jobs.sock}}\n"
        "state_dir: state\n"
        "sample_interval_s: 0.25\n"
    )
    with subprocess.Popen(
        [AGENT, "run", "--config", str(config)], stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        assert line.startswith("joulecut-agent ready "), line
        try:
            yield dict(part.split("=", 1) for part in line.split()[2:])
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def prometheus(agent: dict[str, str], tmp_path: Path) -> Iterator[str]:
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: joulecut-agent\n"
        f"    static_configs: [{{targets: ['{agent['metrics']}']}}]\n"
    )
    with prometheus_in(tmp_path) as url:
        yield url


def _query(server: str, expression: str) -> list[dict[str, Any]]:
    url = f"{server}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return list(json.load(answer)["data"]["result"])
    except (urllib.error.URLError, ConnectionError):
        return []


def test_prometheus_scrapes_an_agent(agent: dict[str, str], prometheus: str) -> None:
    _wait("a scrape", lambda: _query(prometheus, 'up{job="joulecut-agent"} == 1'))
    gpus = _wait("eight GPUs", lambda: _query(prometheus, metrics.GPU_INFO.full_name))
    assert len(gpus) == 8
    # A rate over fewer scrapes than its window holds is extrapolated, and means nothing yet. An
    # idle card's counter and its power gauge must tell the same watts: at last, where scrapes
    # were late.
    energy, power = metrics.GPU_ENERGY.full_name, f'{metrics.GPU_POWER.full_name}{{kind="average"}}'
    joined = _wait(
        "energy that grows as the power says, joined with a name",
        lambda: (
            len(
                found := _query(
                    prometheus,
                    f"(abs(rate({energy}[10s]) / on (uuid) {power} - 1) < 0.15"
                    f" and on (uuid) count_over_time({energy}[10s]) >= 9)"
                    f" * on (uuid) group_left (model) {metrics.GPU_INFO.full_name}",
                )
            )
            == len(gpus)
            and found
        ),
    )
    for row in joined:
        assert row["metric"]["model"]
    _wait(
        "a reading of all", lambda: _query(prometheus, f"{metrics.COLLECT_SUCCESS.full_name} == 1")
    )
    assert not _query(prometheus, metrics.GPU_CLOCK_LIMIT.full_name), "nothing was ever locked"


def test_the_exposition_is_clean(agent: dict[str, str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("Debian package prometheus is not installed")
    with urllib.request.urlopen(f"http://{agent['metrics']}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read()
    judged = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert b"_created" not in text
    known = {metric.full_name for metric in metrics.AGENT}
    told = {
        line.split()[2].decode()
        for line in text.splitlines()
        if line.startswith(b"# TYPE joulecut_")
    }
    assert told <= known | {name.removesuffix("_total") for name in known}
