"""SIGKILL of an agent and keeper of the test's own, while they hold a clock.

Only where no lease exists on the node: the node's own keeper stays as it is. What must give the
clock back is `joulecut-agent restore`, as systemd runs it after a keeper.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from joulecut_agent.keeper.evidence import CLOCK_SLACK_MHZ
from joulecut_agent.selftest.watcher import Watcher
from joulecut_cli.agent_client import Agent
from joulecut_cli.agent_lease import AgentLease, agent_at
from joulecut_wire.errors import Unavailable

JOB = "joulecut-selftest-kill"
START_S = 30.0
RESTORE_S = 30.0
CONFIG = """\
device: nvml
nvml: {permission: driver}
listen: {metrics: 127.0.0.1:0, grpc: 127.0.0.1:0, socket: jobs.sock, otlp_grpc: off, otlp_http: off}
state_dir: state
keeper: PATH/state/keeper.sock
"""


def killed(agent: Agent, watcher: Watcher) -> None:
    """Notes how long the clock took to be free. Raises Unavailable where it cannot be tried."""
    held = [gpu.lease.job for gpu in agent.seen().gpus if gpu.lease is not None]
    if held:
        raise Unavailable(f"--kill: job {held[0]} has a lease on this node")
    command = shutil.which("joulecut-agent")
    if command is None:
        raise Unavailable("--kill: joulecut-agent is not on the path")
    with tempfile.TemporaryDirectory(prefix="joulecut-selftest-") as folder:
        home = Path(folder)
        (home / "state").mkdir()
        config = home / "agent.yaml"
        config.write_text(CONFIG.replace("PATH", folder))
        words = [command, "restore", "--config", str(config)]
        children = list[subprocess.Popen[bytes]]()
        try:
            for role in ("keeper", "run"):
                children.append(_started([command, role, "--config", str(config)]))
            watcher.evidence.kill_tried = True
            _hold_and_kill(home, children, watcher)
            began_s = time.monotonic()
            _restored(words)
            if watcher.until(lambda one: not _near(one.clock_mhz, _clock_mhz(watcher)), RESTORE_S):
                watcher.evidence.killed_s = time.monotonic() - began_s
        finally:
            for child in children:
                _kill(child)
            _restored(words)
            watcher.locked(None)


def _hold_and_kill(home: Path, children: list[subprocess.Popen[bytes]], watcher: Watcher) -> None:
    lease = AgentLease(_answering(home / "state" / "grpc.sock"), JOB, (watcher.uuid,))
    clock_mhz = _clock_mhz(watcher)
    if refused := lease.lock({watcher.uuid: (clock_mhz, clock_mhz)}, patience_s=START_S):
        raise Unavailable(f"--kill: its own agent refuses {clock_mhz} MHz: {refused}")
    watcher.locked((clock_mhz, clock_mhz))
    watcher.until(lambda one: _near(one.clock_mhz, clock_mhz), 2.0)
    lease.abandon()
    for child in reversed(children):
        _kill(child)


def _answering(path: Path) -> Agent:
    """The agent behind a socket, once it answers. Raises Unavailable."""
    until_s, agent = time.monotonic() + START_S, agent_at("--kill", f"unix:{path}")
    while True:
        try:
            agent.describe()
            return agent
        except Unavailable:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.2)


def _restored(words: list[str]) -> None:
    quiet = subprocess.DEVNULL
    subprocess.run(words, check=False, timeout=RESTORE_S, stdout=quiet, stderr=quiet)  # noqa: S603


def _started(words: list[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 -- our own command
        words, stdout=quiet, stderr=quiet, start_new_session=True
    )


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The process and those that it started, such as the writer process of a keeper."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _clock_mhz(watcher: Watcher) -> int:
    clocks = watcher.evidence.clocks_mhz
    return clocks[len(clocks) // 4]


def _near(clock_mhz: int | None, wanted_mhz: int) -> bool:
    return abs((clock_mhz or 0) - wanted_mhz) <= CLOCK_SLACK_MHZ
