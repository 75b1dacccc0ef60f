"""Real processes: agents with keepers on simulated cards, a simulated job, controllers.

from running_cluster import Cluster, get, job_of, until
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from joulecut_sim.card import StateFile
from joulecut_sim.profile import rows, write
from joulecut_sim.skus import find

LIMIT_S = 300.0  # generous: eight processes share two cores with other tests
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

    def is_stopped(self) -> bool:
        status = Path(f"/proc/{self.child.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"

    def line(self, pattern: str) -> re.Match[str]:
        """Waits for a line on standard output."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            ended = self.child.poll() is not None  # and has said all that it says
            found = re.search(pattern, self.log.read_text(), re.MULTILINE)
            if found:
                return found
            assert not ended, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no line {pattern!r} in {self.log.read_text()}")


@dataclass
class Cluster:
    """Two nodes of two simulated A100, and a four-stage job on them."""

    folder: Path
    processes: list[Process] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    sample_s: float = 0.25
    job: str = "demo"

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
            ready = process.line(r"^joulecut-agent ready .*metrics=(\S+) .*grpc_socket=(\S+)")
            self.metrics.append(ready[1])
            self.agents.append(f"unix:{ready[2]}")
        with (self.folder / "profile.csv").open("w") as out:
            write(rows(find("a100-sxm", ""), STAGES, scale=SCALE, noise=1.0, seed=1), out)
        gpus = [
            {"state": str(self.state(n)), "index": i, "socket": str(self.folder / f"{n}.sock")}
            for n in NODES
            for i in range(CARDS)
        ]
        job = {
            "job": self.job,
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
            "sample_interval_s": self.sample_s,
            "lease": {"ttl_s_max": TTL_S},
            "power": {"keep_hours": 1},
        }
        return self.start(
            str(BIN / "joulecut-agent"), "run", "--config", self.put(f"{node}.yaml", config)
        )

    def policy(self, mode: str) -> None:
        spare = self.folder / "policy.new"
        spare.write_text(
            f"apiVersion: joulecut/v1\nkind: Policy\njobs:\n  - name: {self.job}\n"
            f"    mode: {mode}\n"
            "    match: {gpus: [n1/0-1, n2/0-1]}\n"
            "    slo: {max_slowdown: 5%, rate: hook}\n"
            "    clocks: {granularity: gpu, min_mhz: 900, min_dwell: 1s}\n"
            f"    pipeline: {{schedule: 1f1b, stages: {STAGES}, microbatches: {MICROBATCHES},"
            " profile: profile.csv, blocking_power_w: 83.64}\n"
        )
        os.replace(spare, self.folder / "policy.yaml")

    def controller_config(self, name: str, **more: Any) -> str:
        """The path of a configuration; `more` are keys of it."""
        config = {
            "agents": self.agents,
            "policy": "policy.yaml",
            "store": "sqlite:///controller.db",
            "listen": {"http": "127.0.0.1:0"},
            "interval_s": 0.5,
            "lease": {"ttl_s": TTL_S},
            **more,
        }
        return self.put(f"{name}.yaml", config)

    def controller_process(self, name: str = "controller", **more: Any) -> Process:
        """A controller, leading or not."""
        config = self.controller_config(name, **more)
        return self.start(str(BIN / "joulecut-controller"), "--config", config)

    def controller(self) -> tuple[Process, str, int]:
        """A controller that leads: its process, URL and epoch."""
        process = self.controller_process()
        ready = process.line(r"^joulecut-controller ready http=(\S+) epoch=(\d+)")
        url = f"http://{ready[1]}"
        until(lambda: answers(f"{url}/healthz"), "its first pass does not end")
        return process, url, int(ready[2])

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

    def limits_w(self) -> list[float]:
        """The power limit of every GPU as the device has it."""
        found = []
        for node in NODES:
            state = StateFile.open(self.state(node))
            found += [state.card(index).power_limit_mw / 1000.0 for index in range(state.cards)]
            state.close()
        return found

    def commands(self) -> dict[str, float]:
        """Settings that reached the agents, by operation."""
        return self._counted("joulecut_control_commands_total", "op")

    def restores(self) -> dict[str, float]:
        """GPUs given back, by cause."""
        return self._counted("joulecut_control_restores_total", "cause")

    def _counted(self, name: str, label: str) -> dict[str, float]:
        counted: dict[str, float] = {}
        for address in self.metrics:
            for line in get(f"http://{address}/metrics").splitlines():
                found = re.match(rf'{name}\{{{label}="(\w+)".*\}} (\S+)', line)
                if found:
                    counted[found[1]] = counted.get(found[1], 0.0) + float(found[2])
        return counted

    def down(self) -> None:
        for process in reversed(self.processes):
            if process.child.poll() is None:
                process.child.send_signal(signal.SIGCONT)
                process.child.terminate()
        for process in self.processes:
            process.child.wait(LIMIT_S)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


def answers(url: str) -> bool:
    try:
        return bool(get(url))
    except urllib.error.HTTPError:
        return False


def until(condition: Callable[[], object], what: str) -> None:
    """Polls."""
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < LIMIT_S, what
        time.sleep(0.05)


def job_of(url: str) -> dict[str, Any]:
    (job,) = json.loads(get(f"{url}/api/v1/board"))["jobs"]
    assert isinstance(job, dict)
    return job
