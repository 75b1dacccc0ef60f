"""Real processes: agents with keepers, a simulated job, and a controller that is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulecut_sim.card import StateFile
from joulecut_sim.profile import rows, write
from joulecut_sim.skus import find

LIMIT_S = 90.0  # generous: eight processes share two cores with other tests
TTL_S = 4.0
NODES = ("n1", "n2")
CARDS = 2
STAGES = len(NODES) * CARDS
MICROBATCHES = 16
SCALE = 0.06  # an iteration of 0.2 s
BIN = Path(sys.executable).parent


@dataclass
class Process:
    """A child whose lines are kept in a file."""

    child: subprocess.Popen[bytes]
    log: Path

    def line(self, pattern: str) -> re.Match[str]:
        """Waits for a line on standard output."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            found = re.search(pattern, self.log.read_text(), re.MULTILINE)
            if found:
                return found
            assert self.child.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no line {pattern!r} in {self.log.read_text()}")


@dataclass
class Cluster:
    """Two nodes of two simulated A100, and a four-stage job on them."""

    folder: Path
    processes: list[Process] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)

    def start(self, *argv: str) -> Process:
        log = self.folder / f"{len(self.processes)}.log"
        with log.open("wb") as out:
            child = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        process = Process(child, log)
        self.processes.append(process)
        return process

    def put(self, name: str, data: Any) -> str:
        path = self.folder / name
        path.write_text(yaml.safe_dump(data))
        return str(path)

    def up(self) -> None:
        waiting = [self._agent(node) for node in NODES]
        for process in waiting:
            ready = process.line(r"^joulecut-agent ready .*metrics=(\S+) grpc=(\S+)")
            self.metrics.append(ready[1])
            self.agents.append(ready[2])
        with (self.folder / "profile.csv").open("w") as out:
            write(rows(find("a100-sxm", ""), STAGES, scale=SCALE, noise=1.0, seed=1), out)
        gpus = [
            {"state": str(self.state(n)), "index": i, "socket": str(self.folder / f"{n}.sock")}
            for n in NODES
            for i in range(CARDS)
        ]
        job = {
            "job": "demo",
            "pipeline": {"schedule": "1f1b", "microbatches": MICROBATCHES},
            "time_scale": SCALE,
            "gpus": gpus,
        }
        config = self.put("job.yaml", job)
        self.start(sys.executable, "-m", "joulecut_sim.job", "--config", config).line("ready")

    def _agent(self, node: str) -> Process:
        config = {
            "node": node,
            "device": "simulated",
            "simulated": {
                "state": str(self.state(node)),
                "cards": CARDS,
                "sku": "a100-sxm",
                "node": node,
            },
            "listen": {
                "metrics": "127.0.0.1:0",
                "grpc": "127.0.0.1:0",
                "socket": str(self.folder / f"{node}.sock"),
            },
            "state_dir": str(self.folder / node),
            "sample_interval_s": 0.25,
            "lease": {"ttl_s_max": TTL_S},
        }
        return self.start(
            str(BIN / "joulecut-agent"), "run", "--config", self.put(f"{node}.yaml", config)
        )

    def policy(self, mode: str) -> None:
        spare = self.folder / "policy.new"
        spare.write_text(
            "apiVersion: joulecut/v1\nkind: Policy\njobs:\n  - name: demo\n"
            f"    mode: {mode}\n"
            "    match: {gpus: [n1/0-1, n2/0-1]}\n"
            "    slo: {max_slowdown: 5%, rate: hook}\n"
            "    clocks: {granularity: gpu, min_mhz: 900, min_dwell: 1s}\n"
            f"    pipeline: {{schedule: 1f1b, stages: {STAGES}, microbatches: {MICROBATCHES},"
            " profile: profile.csv, blocking_power_w: 83.64}\n"
        )
        os.replace(spare, self.folder / "policy.yaml")

    def controller(self) -> tuple[Process, str, int]:
        """A controller that leads: its process, URL and epoch."""
        config = {
            "agents": self.agents,
            "policy": "policy.yaml",
            "store": "sqlite:///controller.db",
            "listen": {"http": "127.0.0.1:0"},
            "interval_s": 0.5,
            "lease": {"ttl_s": TTL_S},
        }
        process = self.start(
            str(BIN / "joulecut-controller"), "--config", self.put("controller.yaml", config)
        )
        ready = process.line(r"^joulecut-controller ready http=(\S+) epoch=(\d+)")
        return process, f"http://{ready[1]}", int(ready[2])

    def state(self, node: str) -> Path:
        return self.folder / f"{node}.state"

    def locks_mhz(self) -> list[int]:
        """The clock lock of every GPU as the device has it, 0 for none."""
        found = []
        for node in NODES:
            state = StateFile.open(self.state(node))
            found += [state.lock_mhz(index)[1] for index in range(state.cards)]
            state.close()
        return found

    def commands(self) -> dict[str, float]:
        """Settings that reached the agents, by operation."""
        counted: dict[str, float] = {}
        for address in self.metrics:
            for line in get(f"http://{address}/metrics").splitlines():
                found = re.match(r'joulecut_control_commands_total\{op="(\w+)".*\} (\S+)', line)
                if found:
                    counted[found[1]] = counted.get(found[1], 0.0) + float(found[2])
        return counted

    def down(self) -> None:
        for process in reversed(self.processes):
            if process.child.poll() is None:
                process.child.send_signal(signal.SIGCONT)
                process.child.terminate()
        for process in self.processes:
            process.child.wait(30)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> float:
    """Polls; answers how long it took."""
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < limit_s, what
        time.sleep(0.1)
    return time.monotonic() - begun_s


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="jc") as folder:
        made = Cluster(Path(folder))
        try:
            made.up()
            yield made
        finally:
            made.down()


def job_of(url: str) -> dict[str, Any]:
    (job,) = json.loads(get(f"{url}/api/v1/board"))["jobs"]
    assert isinstance(job, dict)
    return job


@pytest.mark.slow
def test_recommend_enforce_kill_restart_stop(cluster: Cluster) -> None:
    cluster.policy("recommend")
    first, url, epoch = cluster.controller()
    until(lambda: (job_of(url).get("decision") or {}).get("actions"), "no plan was recommended")
    assert not any(cluster.commands().values()), "recommend commanded something"
    assert not any(cluster.locks_mhz())

    cluster.policy("enforce")
    until(lambda: any(cluster.locks_mhz()), "nothing was enforced")
    assert all(mhz == 0 or mhz >= 900 for mhz in cluster.locks_mhz())
    text = get(f"{url}/metrics")
    assert f"joulecut_controller_epoch {float(epoch)}" in text
    assert 'joulecut_controller_mode{job="demo",mode="enforce"} 1.0' in text
    assert "_created" not in text

    first.child.kill()
    first.child.wait(30)
    took_s = until(lambda: not any(cluster.locks_mhz()), "the lease did not end")
    assert took_s <= TTL_S + 2.0, "one lease, and a moment for a busy machine to notice"

    second, _, later = cluster.controller()
    assert later > epoch
    until(lambda: any(cluster.locks_mhz()), "the second controller did not enforce")
    second.child.send_signal(signal.SIGTERM)
    assert second.child.wait(30) == 0
    until(lambda: not any(cluster.locks_mhz()), "not given back", limit_s=3.0)
    assert "Traceback" not in second.log.read_text()


@pytest.mark.slow
def test_a_stopped_controller_is_a_dead_one(cluster: Cluster) -> None:
    """Frozen, not killed: its sockets stay open, and still the GPUs come back."""
    cluster.policy("enforce")
    process, _, _ = cluster.controller()
    until(lambda: any(cluster.locks_mhz()), "nothing was enforced")
    process.child.send_signal(signal.SIGSTOP)
    took_s = until(lambda: not any(cluster.locks_mhz()), "the lease did not end")
    assert took_s <= TTL_S + 2.0
    process.child.send_signal(signal.SIGCONT)
    until(lambda: any(cluster.locks_mhz()), "it did not take up its work again")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("agents: [127.0.0.1:1]\npolicy: none.yaml\nstore: sqlite:///c.db\n", "none.yaml"),
        ("agents: [127.0.0.1:1]\nstore: sqlite:///c.db\n", "key policy is missing"),
        ("agents: [8.8.8.8:1]\npolicy: p\nstore: sqlite:///c.db\n", "8.8.8.8 without encryption"),
        ("what", "not a mapping"),
    ],
)
def test_bad_input_is_one_line_and_status_two(tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text(text)
    argv = [str(BIN / "joulecut-controller"), "--config", str(config)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert expected in ended.stderr
    assert not (tmp_path / "c.db").exists()


def test_a_port_in_use_is_one_line_and_takes_no_term(tmp_path: Path) -> None:
    policy = "apiVersion: joulecut/v1\nkind: Policy\njobs: []\n"
    (tmp_path / "policy.yaml").write_text(policy)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "controller.yaml"
        config.write_text(
            "agents: [127.0.0.1:1]\npolicy: policy.yaml\nstore: sqlite:///c.db\n"
            f"listen: {{http: 127.0.0.1:{port}}}\n"
        )
        argv = [str(BIN / "joulecut-controller"), "--config", str(config)]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
