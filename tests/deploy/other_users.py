"""Programs of ours as other users of this machine.

from other_users import PYTHONPATH, Home, become, python_for_others
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest
from manifests import ROOT
from running_agent import PATIENCE_S

from joulecut_sim.card import StateFile

PACKAGES = ("agent", "cli", "client", "controller", "engine", "protos", "sim")
# Any Python of our version that another user may run and read: ours may be in a home directory.
PYTHONS = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
PYTHONPATH = os.pathsep.join(
    [sysconfig.get_path("purelib"), *(str(ROOT / package) for package in PACKAGES)]
)


def python_for_others() -> str:
    """A Python that other users may run; skips the test without one, or without root."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to become other users")
    python = next(filter(_runs_for_others, PYTHONS), "")
    if not python:
        pytest.skip("no Python here that another user may run")
    return python


def become(uid: int, gid: int, groups: tuple[int, ...], *argv: str | Path) -> list[str]:
    """`argv` as this user, without capabilities."""
    supplementary = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return [
        "setpriv", "--reuid", str(uid), "--regid", str(gid), *supplementary,
        "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", "--", *map(str, argv),
    ]  # fmt: skip


class Home:
    """A folder with simulated GPUs and `joulecut-agent` for any user, and processes in it."""

    def __init__(self, python: str, cards: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="jc"))
        self.home.chmod(0o755)
        self.gpus = StateFile.open(self.home / "gpus", cards=cards, node="n1")
        (self.home / "gpus").chmod(0o666)
        (self.home / "bin").mkdir(mode=0o755)
        self.command = self.home / "bin" / "joulecut-agent"
        self.command.write_text(f'#!/bin/sh\nexec {python} -m joulecut_agent.main "$@"\n')
        self.command.chmod(0o755)
        self.env = {
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": PYTHONPATH,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[str]] = []
        self.log = (self.home / "log").open("a")

    def here(self, data: dict[str, Any]) -> dict[str, Any]:
        """The agent's configuration on these GPUs, at free ports."""
        data |= {"device": "simulated", "node": "n1"}
        data["simulated"] = {"state": str(self.home / "gpus"), "set_latency_s": 0.0}
        if "listen" in data:
            data["listen"] |= {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0"}
        return data

    def spawn(self, argv: list[str], umask: int = -1) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.env, umask=umask
        )
        self.processes.append(process)
        return process

    def ready(self, process: subprocess.Popen[str]) -> dict[str, str]:
        """What the agent says of itself once it is ready."""
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("joulecut-agent ready"), (self.home / "log").read_text()
        return dict(part.split("=", 1) for part in line.split()[2:])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(timeout=PATIENCE_S)
            if process.stdout:
                process.stdout.close()
        self.log.close()
        self.gpus.close()
        shutil.rmtree(self.home)


def _runs_for_others(python: str) -> bool:
    """As a child of its own, too: the agent starts one."""
    child = "import joulecut_agent.main, joulecut_sim.device, grpc"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{child}'], check=True)"
    become = ["setpriv", "--reuid", "65532", "--regid", "65532", "--clear-groups", "--"]
    try:
        done = subprocess.run(
            [*become, python, "-c", code],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH},
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0
