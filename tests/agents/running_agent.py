"""A real agent with its keeper, as processes of their own, over simulated GPUs of this test.

    from running_agent import RunningAgent, eventually

The GPUs live in a file that outlives every process, so a test sees from outside what a
SIGKILL leaves behind.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import yaml

from joulecut_sim.card import StateFile
from joulecut_wire import codec
from joulecut_wire.messages import (
    Command,
    GpuSnapshot,
    NodeDescription,
    Result,
    Setting,
    WatchTick,
)
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc

PATIENCE_S = 90.0  # for a machine that stands still now and then; met early on every other
LOWER = {0: 1005, 1: 1200, 2: 810, 3: 1005}  # a clock for each GPU, in MHz
COMMAND = str(Path(sys.executable).with_name("joulecut-agent"))
LATE = re.compile(r"does not answer|no answer to a call")
T = TypeVar("T")


def eventually(what: str, probe: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The first true answer of `probe`; fails when there is none in time."""
    begun_s = time.monotonic()
    while True:
        if found := probe():
            return found
        waited_s = time.monotonic() - begun_s
        if waited_s > patience_s:
            raise AssertionError(f"{what}: not within {patience_s:g} s")
        time.sleep(min(0.1, 0.02 + 0.05 * waited_s))  # a probe is a call: not as fast as it may be


def accepted(results: tuple[Result, ...]) -> bool:
    """Whether a command did what it was to do; one that named no GPU did not."""
    assert results
    return all(result.accepted for result in results)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
        return False


def _words_of(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:  # it has ended
        return []


class RunningAgent:
    """One node. `start` returns when the agent is ready; leaving the context ends everything."""

    def __init__(self, cards: int = 4, env: Mapping[str, str] | None = None, **config: Any) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="jc"))
        self.state_dir = self.home / "state"
        self.state_dir.mkdir()
        self.gpus = StateFile.open(self.state_dir / "gpus.state", cards=cards, node="t")
        self.env = dict(env) if env is not None else dict(os.environ)
        self.config: dict[str, Any] = {
            "device": "simulated",
            "simulated": {"set_latency_s": 0.0},
            "node": "n1",
            "listen": {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock"},
            "state_dir": "state",
            "sample_interval_s": 0.2,
            "bounds": {"min_dwell_s": 0.0, "writes_per_minute": 600},
            **config,
        }
        self.ready: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        self.keepers: list[subprocess.Popen[str]] = []
        self.channel: grpc.Channel | None = None
        self.flags: tuple[str, ...] = ()  # of `run` and `keeper`
        self.epoch = 1  # of commands that name none
        self._logged = 0  # bytes of the log that `afresh` has left behind
        self._log = (self.home / "log").open("a")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        children = [self.process, *self.keepers]
        for child in filter(None, children):
            if child.poll() is None:
                child.terminate()
            try:
                child.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout:
                child.stdout.close()
        self._log.close()
        self.gpus.close()
        shutil.rmtree(self.home, ignore_errors=True)

    # -- processes -----------------------------------------------------------------------

    def write_config(self) -> Path:
        path = self.home / "agent.yaml"
        path.write_text(yaml.safe_dump(self.config))
        return path

    def start(self) -> Self:
        self.disconnect()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = self._spawn("run")
        line = self.process.stdout.readline()
        assert line.startswith("joulecut-agent ready "), (line, self.log)
        self.ready = dict(part.split("=", 1) for part in line.split()[2:])
        self.connect()
        return self

    def start_keeper(self) -> subprocess.Popen[str]:
        """A keeper of its own, as under its own systemd unit."""
        keeper = self._spawn("keeper")
        self.keepers.append(keeper)
        eventually("the keeper's socket", (self.state_dir / "keeper.sock").exists)
        return keeper

    def _spawn(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, command, "--config", str(self.write_config()), *self.flags],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self.env,
        )

    def restore(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, "restore", "--config", str(self.write_config())],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env=self.env,
        )

    @property
    def address(self) -> str:
        """Where the agent takes commands: its unix socket."""
        return f"unix:{self.ready['grpc_socket']}"

    @property
    def keeper_pid(self) -> int:
        """Of the agent's keeper; of the last one where it has no other yet."""
        pid = self.ready["keeper_pid"]  # "-" where it began without one
        known = int(pid) if pid != "-" else 0
        if not alive(known) and self.process is not None and self.process.poll() is None:
            pid = self.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            known = int(next((one for one in children if "keeper" in _words_of(one)), known))
            self.ready["keeper_pid"] = str(known)
        return known

    def kill(self, which: signal.Signals = signal.SIGKILL) -> int:
        """Signals the agent and waits for its end; its exit status."""
        assert self.process is not None
        if self.ready:
            self.ready["keeper_pid"] = str(self.keeper_pid or "-")  # nothing tells it afterwards
        self.process.send_signal(which)
        return self.process.wait(timeout=PATIENCE_S)

    def kill_keeper(self) -> None:
        """Kills the agent's child, and waits for its end."""
        pid = self.keeper_pid
        assert pid > 0
        os.kill(pid, signal.SIGKILL)
        eventually("the keeper's end", lambda: not alive(pid))

    def replace_keeper(self) -> None:
        """Kills it while it holds a lock, and waits until the next one has given back and governs.

        Given back is the sign: for a moment the agent still shows what the dead one said.
        """
        assert self.locked()
        self.kill_keeper()
        eventually("given back", lambda: not self.locked())
        self.regains_control()

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()[self._logged :]

    def afresh(self) -> Self:
        """For the next test of several on one node: it runs, no GPU is held, the log is empty, and
        commands are of a term of their own.
        """
        self._logged += len(self.log)
        if self.process is None or self.process.poll() is not None:
            self.start()
        self.regains_control()
        self.epoch = self.describe().epoch_seen + 1
        self.clear()
        eventually("free", lambda: not self.locked())
        return self

    # -- what is said to it --------------------------------------------------------------

    def connect(self) -> None:
        self.channel = grpc.insecure_channel(self.address)
        self.stub = agent_pb2_grpc.AgentServiceStub(self.channel)

    def disconnect(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = None

    def describe(self) -> NodeDescription:
        return codec.decode_node(self.stub.Describe(pb.DescribeRequest(), timeout=PATIENCE_S))

    def apply(
        self,
        clocks_mhz: Mapping[int, int],
        *,
        epoch: int = 0,
        generation: int = 1,
        ttl_s: float = 60.0,
        job: str = "demo",
    ) -> tuple[Result, ...]:
        """Maximum clocks by GPU index. Where the process that writes stood still meanwhile, all was
        reverted and is asked for again, as a controller would.
        """
        settings = tuple(Setting(self.gpus.uuid(i), mhz) for i, mhz in clocks_mhz.items())
        command = Command(epoch or self.epoch, job, generation, ttl_s, settings, "test")
        until_s = time.monotonic() + PATIENCE_S
        while True:
            answer = self.stub.Apply(codec.encode_command(command), timeout=PATIENCE_S)
            results = codec.decode_results(answer)
            stood_still = any("lock does not answer" in result.reason for result in results)
            if not stood_still or time.monotonic() > until_s:
                return results
            time.sleep(0.2)

    def obey(
        self, clocks_mhz: Mapping[int, int], *, generation: int = 1, ttl_s: float = 60.0
    ) -> tuple[Result, ...]:
        """As `apply`, and again where the driver was late: nothing is wrong with it here, but with
        a machine that stood still.
        """
        results: tuple[Result, ...] = ()

        def in_time() -> bool:
            nonlocal results
            results = self.apply(clocks_mhz, generation=generation, ttl_s=ttl_s)
            return not any(LATE.search(result.reason) for result in results)

        eventually("an answer in time", in_time)
        return results

    def order(
        self,
        *uuids: str,
        clock_mhz: int,
        generation: int = 1,
        ttl_s: float = 60.0,
        limit_w: float | None = None,
    ) -> tuple[Result, ...]:
        """One maximum clock for GPUs by name, as the driver of a test names them."""
        settings = tuple(Setting(uuid, clock_mhz, power_limit_w=limit_w) for uuid in uuids)
        command = codec.encode_command(
            Command(self.epoch, "demo", generation, ttl_s, settings, "test")
        )
        return codec.decode_results(self.stub.Apply(command, timeout=PATIENCE_S))

    def regains_control(self) -> None:
        eventually("control again", lambda: all(g.controllable for g in self.describe().gpus))

    def renew(
        self, *, epoch: int = 0, generation: int = 1, ttl_s: float = 60.0, job: str = "demo"
    ) -> tuple[Result, ...]:
        epoch = epoch or self.epoch
        request = pb.RenewRequest(epoch=epoch, job=job, generation=generation, ttl_s=ttl_s)
        return codec.decode_results(self.stub.Renew(request, timeout=PATIENCE_S))

    def clear(self, *uuids: str, epoch: int | None = None, job: str = "demo") -> tuple[Result, ...]:
        epoch = self.epoch if epoch is None else epoch
        request = pb.ClearRequest(epoch=epoch, job=job, uuids=uuids)
        return codec.decode_results(self.stub.Clear(request, timeout=PATIENCE_S))

    def watch(self) -> WatchTick:
        call = self.stub.Watch(pb.WatchRequest(interval_s=0.1), timeout=PATIENCE_S)
        try:
            return codec.decode_tick(next(call))
        finally:
            call.cancel()

    def gpu(self, place: int = 0) -> GpuSnapshot:
        """As the newest reading shows it: there is none where the reader stood still just now."""
        shown = eventually("it is shown", lambda: self.watch().gpus[place : place + 1])
        return shown[0]

    def metrics(self, path: str = "/metrics") -> str:
        url = f"http://{self.ready['metrics']}{path}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    # -- what became of the GPUs ---------------------------------------------------------

    def locked(self) -> dict[int, int]:
        """Maximum clock by index of every GPU under a lock."""
        asked = {index: self.gpus.asked_mhz(index)[1] for index in range(self.gpus.cards)}
        return {index: mhz for index, mhz in asked.items() if mhz}

    def writes(self) -> int:
        return sum(self.gpus.card(index).writes for index in range(self.gpus.cards))
