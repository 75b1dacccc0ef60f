"""A demo cluster that a real Prometheus scrapes, with the scrape file and rules as shipped."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from running_prometheus import prometheus_in

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "grafana"
sys.path.insert(0, str(GRAFANA))

COMMAND = (str(Path(sys.executable).with_name("joulecut")), "demo", "--no-browser")
START_S = 600.0  # for a machine that stands still now and then
END_S = 120.0


def _agents(pid: int) -> Path:
    """The demo's folder, from the command line of one of its processes."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    path = next(Path(word.decode()) for word in words if b"jcdemo" in word)
    return next(parent for parent in path.parents if parent.name.startswith("jcdemo"))


@pytest.fixture
def cluster() -> Iterator[dict[str, list[str]]]:
    """Addresses of a running demo's metrics, by scrape job."""
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        rest = threading.Thread(target=demo.stdout.read if demo.stdout else None)
        try:
            addresses = _addresses(demo)
            rest.start()  # a full pipe would stop it
            yield addresses
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(END_S)
            if rest.ident is not None:
                rest.join(END_S)


def _addresses(demo: subprocess.Popen[str]) -> dict[str, list[str]]:
    """From what the demo says up to where it recommends."""
    assert demo.stdout is not None
    killer = threading.Timer(START_S, demo.kill)
    killer.start()
    said: list[str] = []
    for line in demo.stdout:
        said.append(line)
        if line.startswith("recommend:"):
            break
    killer.cancel()
    text = "".join(said)
    page = re.search(r"http://(\S+?)/", text)
    agent = re.search(r"agent \S+ +pid (\d+)", text)
    assert page is not None, text
    assert agent is not None, text
    files = sorted(_agents(int(agent[1])).glob("*/agent.yaml"))
    metrics = [yaml.safe_load(file.read_text())["listen"]["metrics"] for file in files]
    return {"joulecut-agent": metrics, "joulecut-controller": [page[1]]}


@pytest.fixture
def prometheus(cluster: dict[str, list[str]], tmp_path: Path) -> Iterator[str]:
    config: dict[str, Any] = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(tmp_path / "rules.yaml")]
    for scrape in config["scrape_configs"]:
        scrape["static_configs"] = [{"targets": cluster[scrape["job_name"]]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = (GRAFANA / "alerts" / "joulecut.rules.yaml").read_text()
    (tmp_path / "rules.yaml").write_text(rules.replace("interval: 30s", "interval: 1s"))
    with prometheus_in(tmp_path) as url:
        yield url
