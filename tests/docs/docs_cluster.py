"""One node of four simulated GPUs with keeper, job and controller, for the commands of the docs."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import yaml
from held_port import held_port

from joulecut_sim.profile import rows, write
from joulecut_sim.skus import find

BIN = Path(sys.executable).parent
JOB = "gpt3-175b"  # as the docs call it
NODE = "node1"
LIMIT_S = 300.0  # for a machine that stands still now and then; met early on every other
SCALE = 0.06
NOBODY = "http://127.0.0.1:1"  # a port that nothing of ours, nor of a test's, listens on
DEFAULTS = {"9430": "metrics", "9431": "grpc", "9440": "http"}


class DocsCluster:
    """`typed` turns a line of the docs into one for this cluster; leaving it ends everything."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jcd"))
        self._children: list[subprocess.Popen[bytes]] = []
        self._held = ExitStack()
        self.ports = {old: str(self._held.enter_context(held_port())) for old in DEFAULTS}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['9440']}"

    @property
    def agent(self) -> str:
        return f"unix:{self.folder}/grpc.sock"

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        self._write()
        self._start("joulecut-agent", "run", "--config", "agent.yaml")
        self._until("the agent", f"http://127.0.0.1:{self.ports['9430']}/healthz")
        self._start("python", "-m", "joulecut_sim.job", "--config", "job.yaml")
        self._start("joulecut-controller", "--config", "controller.yaml")
        self._until("the controller", f"{self.url}/healthz")
        end_s = time.monotonic() + LIMIT_S
        while "Plan 1 " not in self._joulecut("explain", JOB, "--controller", self.url):
            assert time.monotonic() < end_s, "no plan"
            time.sleep(0.3)

    def __exit__(self, *exception: object) -> None:
        for child in reversed(self._children):
            child.send_signal(signal.SIGTERM)
        for child in reversed(self._children):
            try:
                child.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def typed(self, text: str) -> str:
        """Names of this cluster in place of the docs' own."""
        for old, new in self.ports.items():
            text = re.sub(rf"(?<=:){old}\b", new, text)
        text = text.replace(" --cert me.crt --key me.key --ca ca.crt", "")
        text = text.replace("/etc/joulecut/controller.yaml", "controller.yaml")
        text = re.sub(r"node1:\d+,node2:\d+", self.agent, text)
        text = text.replace("unix:/run/joulecut/agent.sock", self.agent)
        text = re.sub(r"\bJOB\b", JOB, re.sub(r"\bNODE\b", NODE, text))
        of_agent = re.match(r"joulecut (clear|release)\b|joulecut resume \S+:\d", text)
        if of_agent and "--agent" not in text:
            return text
        if text.startswith("joulecut report") and not re.search(r"--(store|config)\b", text):
            return f"{text.partition(' #')[0]} --config controller.yaml"
        asks = re.match(
            r"joulecut (status|explain|doctor|recommend|pause|resume|restore)",
            text,
        )
        if asks and not re.search(r"--(controller|store|agents?|config)\b", text):
            text = f"{text.partition(' #')[0]} --controller {self.url}"
        elif asks and asks[1] == "restore" and "--controller" not in text:
            # For where no controller answers. At its default address there may be one, of the
            # person who runs these tests, and that would give its GPUs back.
            text = f"{text.partition(' #')[0]} --controller {NOBODY}"
        return text

    def as_before(self) -> None:
        """Ends what a command began: a pause, a release window."""
        self._joulecut("resume", "--all", "--controller", self.url)
        self._joulecut("resume", "--agent", self.agent)

    def _joulecut(self, *words: str) -> str:
        done = subprocess.run(
            [str(BIN / "joulecut"), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        return done.stdout

    def _start(self, *argv: str) -> None:
        log = (self.folder / f"{len(self._children)}.log").open("wb")
        with log:
            self._children.append(
                subprocess.Popen(
                    [str(BIN / argv[0]), *argv[1:]], stdout=log, stderr=log, cwd=self.folder
                )
            )

    def _until(self, what: str, url: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while subprocess.run(["curl", "-sf", url], capture_output=True, check=False).returncode:
            logs = "\n".join(log.read_text() for log in sorted(self.folder.glob("*.log")))
            assert time.monotonic() < end_s, f"{what}: {logs}"
            time.sleep(0.1)

    def _write(self) -> None:
        def put(name: str, data: object) -> None:
            (self.folder / name).write_text(yaml.safe_dump(data))

        here, ports = "127.0.0.1", self.ports
        listen = {
            "metrics": f"{here}:{ports['9430']}",
            "grpc": f"{here}:{ports['9431']}",
            "socket": "jobs.sock",
        }
        put(
            "agent.yaml",
            {
                "node": NODE,
                "device": "simulated",
                "simulated": {"state": "gpus.state", "cards": 4, "sku": "a100-sxm"},
                "listen": listen,
                "state_dir": ".",
                "sample_interval_s": 0.25,
            },
        )
        gpus = [{"state": "gpus.state", "index": i, "socket": "jobs.sock"} for i in range(4)]
        put(
            "job.yaml",
            {
                "job": JOB,
                "pipeline": {"schedule": "1f1b", "microbatches": 24},
                "time_scale": SCALE,
                "seed": 1,
                "gpus": gpus,
            },
        )
        with (self.folder / "gpt3.csv").open("w") as file:
            write(rows(find("a100-sxm", "--card"), 4, scale=SCALE, noise=0.0, seed=1), file)
        pipeline = {
            "schedule": "1f1b",
            "stages": 4,
            "microbatches": 24,
            "profile": "gpt3.csv",
            "blocking_power_w": 83.64,
        }
        job = {"name": JOB, "slo": {"max_slowdown": "2%"}, "pipeline": pipeline}
        put("policy.yaml", {"apiVersion": "joulecut/v1", "kind": "Policy", "jobs": [job]})
        put(
            "controller.yaml",
            {
                "agents": [self.agent],
                "policy": "policy.yaml",
                "store": "sqlite:///controller.db",
                "listen": {"http": f"{here}:{ports['9440']}"},
                "interval_s": 0.5,
            },
        )
