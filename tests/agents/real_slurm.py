"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd, on loopback alone.

    from real_slurm import RealSlurm

Its GPUs are device nodes without a driver behind them, for gres.conf. Needs root, which runs jobs
of other users, and Debian's slurm-wlm and munge; without them the test is skipped.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import pytest
from running_agent import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "setpriv")
NVIDIA = 195  # the driver's major number; nothing opens these nodes
USERS = ("games", "news")  # any two that Debian has, and that are not root


class RealSlurm:
    """`submit` as another user; leaving the context ends every process."""

    def __init__(self, words: dict[str, str], gpus: int = 2) -> None:
        """`words` is the environment of the shipped prolog and epilog."""
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing or os.getuid() != 0:
            pytest.skip(f"needs root, slurm-wlm and munge (missing: {', '.join(missing) or '-'})")
        self.home = Path(tempfile.mkdtemp(prefix="jcs"))
        self.home.chmod(0o755)
        self.node = socket.gethostname().partition(".")[0]
        self.env = {**os.environ, "SLURM_CONF": str(self.home / "slurm.conf")}
        self.gpus = gpus
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        asked = {"JOULECUT_ASK_S": "5", **words}
        for kind in ("prolog", "epilog"):
            (self.home / kind).mkdir()
            script = ROOT / "deploy" / "slurm" / f"{kind}.d" / "50-joulecut.sh"
            given = "".join(f"export {name}='{word}'\n" for name, word in asked.items())
            ours = self.home / kind / "50-joulecut.sh"
            ours.write_text(f"#!/bin/sh\n{given}exec {script} 2>>{self.home}/{kind}.log\n")
            ours.chmod(0o755)
        self._configure()

    def _configure(self) -> None:
        for index in range(self.gpus):
            try:
                os.mknod(self.home / f"gpu{index}", 0o20666, os.makedev(NVIDIA, index))
            except PermissionError:
                shutil.rmtree(self.home)
                pytest.skip("no device nodes may be made here")
        (self.home / "gres.conf").write_text(f"Name=gpu File={self.home}/gpu[0-{self.gpus - 1}]\n")
        (self.home / "munge.key").write_bytes(os.urandom(128))
        (self.home / "munge.key").chmod(0o400)
        with socket.socket() as one, socket.socket() as other:
            for held in (one, other):
                held.bind(("127.0.0.1", 0))
            ports = one.getsockname()[1], other.getsockname()[1]
        home = self.home
        lines = [
            "ClusterName=jc", f"SlurmctldHost={self.node}(127.0.0.1)", "SlurmUser=root",
            "SlurmdUser=root", f"SlurmctldPort={ports[0]}", f"SlurmdPort={ports[1]}",
            f"AuthInfo=socket={home}/munge.socket", f"StateSaveLocation={home}/state",
            f"SlurmdSpoolDir={home}/spool", f"SlurmctldPidFile={home}/slurmctld.pid",
            f"SlurmdPidFile={home}/slurmd.pid", "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none", "SwitchType=switch/none", "MpiDefault=none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "GresTypes=gpu",
            "ReturnToService=2", "SlurmdParameters=config_overrides",
            "PrologFlags=Alloc", f"Prolog={home}/prolog/*", f"Epilog={home}/epilog/*",
            "SchedulerParameters=sched_interval=1,batch_sched_delay=0", "PrivateData=jobs",
            f"NodeName={self.node} NodeAddr=127.0.0.1 CPUs={self.gpus} Gres=gpu:{self.gpus}",
            "PartitionName=short Nodes=ALL Default=YES State=UP",
            "PartitionName=long Nodes=ALL State=UP",
        ]  # fmt: skip
        (home / "slurm.conf").write_text("\n".join(lines) + "\n")
        for name in ("state", "spool"):
            (home / name).mkdir()

    def __enter__(self) -> Self:
        try:
            where = [f"--{name}={self.home}/munge.{name}" for name in ("socket", "pid-file")]
            more = [f"--log-file={self.home}/munge.log", f"--seed-file={self.home}/munge.seed"]
            self._start(
                "munged", "-F", "--force", f"--key-file={self.home}/munge.key", *where, *more
            )
            eventually("munge", (self.home / "munge.socket").exists)
            self._start("slurmctld", "-D")
            self.start_node()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_node(self) -> None:
        self._start("slurmd", "-D", "-N", self.node)
        eventually("an idle node", lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"))

    def _start(self, name: str, *argv: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            path = shutil.which(name) or name
            self.processes[name] = subprocess.Popen(
                [path, *argv], stdout=log, stderr=log, env=self.env
            )

    def run(self, *argv: str, user: str = "") -> str:
        become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--"]
        done = subprocess.run(
            [*(become if user else []), *argv], env=self.env, capture_output=True, text=True,
            check=False, timeout=PATIENCE_S, cwd="/",
        )  # fmt: skip
        return done.stdout.strip() or done.stderr.strip()

    def submit(self, *argv: str, user: str, script: str = "sleep 600") -> str:
        """The job's id."""
        said = self.run(
            "sbatch", "--parsable", "--output=/dev/null", "--requeue", "--gres=gpu:1", *argv,
            "--wrap", script, user=user,
        )  # fmt: skip
        assert said.isdigit(), said
        return said

    def states(self) -> dict[str, str]:
        """State by id, of jobs that have not ended."""
        rows = self.run("squeue", "-h", "-r", "-o", "%A %T").splitlines()
        return {row.split()[0]: row.split()[1] for row in rows if " " in row}

    def kill_node(self) -> None:
        """Kills the node's daemon; no epilog runs."""
        self.processes["slurmd"].kill()
        self.processes.pop("slurmd").wait()

    def __exit__(self, *_: object) -> None:
        if "slurmd" in self.processes and (left := self.states()):
            self.run("scancel", *left)
            eventually("the end of every job", lambda: not self.states())
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.home, ignore_errors=True)
