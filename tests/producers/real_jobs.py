"""Small real trainings on CPUs that report to a real agent over the fake driver.

The truth is the script's own clock: `own_clock.ended()` where an iteration ends. It also gives each
rank a GPU, since none is there to be found.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
from running_agent import PATIENCE_S, RunningAgent, eventually

from joulecut_wire import codec
from joulecut_wire.messages import IterationReport
from joulecut_wire.v1 import agent_pb2 as pb

BIN = Path(sys.executable).parent
LIMIT_S = 300.0
OWN_CLOCK = """
import atexit, json, os, time
ends, me = [], os.getpid()
uuid = os.environ["GPUS"].split(",")[int(os.environ.get("LOCAL_RANK", "0"))]
os.environ["JOULECUT_UUID"] = uuid
def ended():
    ends.append(time.monotonic())
@atexit.register
def write():
    if os.getpid() == me:
        with open(os.path.join(os.environ["CLOCKS"], f"{me}.json"), "w") as file:
            json.dump({"uuid": uuid, "ends": ends}, file)
"""


@dataclass(frozen=True)
class Ran:
    """Reports by GPU, and the iteration times of each process by its own clock."""

    heard: dict[str, list[IterationReport]]
    own: dict[str, list[list[float]]]
    said: str

    def all(self) -> list[IterationReport]:
        return [report for reports in self.heard.values() for report in reports]

    def agree(self, ranks: int, iterations: int) -> Self:
        """Every rank reports `iterations`, in order, with the times of its own clock."""
        assert {uuid: len(reports) for uuid, reports in self.heard.items()} == dict.fromkeys(
            self.own, iterations
        ), self.said
        assert len(self.own) == ranks
        for uuid, reports in self.heard.items():
            (own_s,) = self.own[uuid]
            assert [report.iteration for report in reports] == list(range(1, iterations + 1))
            assert differ([report.duration_s for report in reports], own_s) <= 0.05
        return self


def differ(heard_s: list[float], own_s: list[float]) -> float:
    """By what share most iterations differ. Hook and script read their clocks some microseconds
    apart; where a loaded machine stops the process in between, one iteration and the next differ.
    """
    each = zip(heard_s, own_s, strict=True)
    return statistics.median(abs(heard - own) / own for heard, own in each)


class Jobs:
    """Runs jobs beside one agent, which may be started again."""

    def __init__(self, agent: RunningAgent, uuids: tuple[str, ...]) -> None:
        self.agent, self.uuids = agent, uuids
        self._heard: list[IterationReport] = []
        self.listen()

    def listen(self) -> None:
        """Follows the agent's `Watch` from here on."""
        call = self.agent.stub.Watch(pb.WatchRequest(interval_s=0.1))
        begun = threading.Event()

        def follow() -> None:
            try:
                for message in call:
                    begun.set()
                    self._heard.extend(codec.decode_tick(message).reports)
            except grpc.RpcError:
                pass  # the agent has ended

        threading.Thread(target=follow, daemon=True).start()
        assert begun.wait(PATIENCE_S)

    def run(self, script: str, *command: str, fails: bool = False, **env: str) -> Ran:
        """`command` is as the documentation prints it, in front of the script."""
        before = len(self._heard)
        with tempfile.TemporaryDirectory(prefix="jc") as folder:
            home = Path(folder)
            (home / "own_clock.py").write_text(OWN_CLOCK)
            (home / "train.py").write_text(textwrap.dedent(script))
            done = subprocess.run(
                [*command, str(home / "train.py")], cwd=home,
                env={
                    **os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                    "JOULECUT_SOCKET": str(self.agent.home / "jobs.sock"), "CLOCKS": folder,
                    "GPUS": ",".join(self.uuids), "PYTHONPATH": folder, "OMP_NUM_THREADS": "1",
                    "TORCHELASTIC_RUN_ID": "none", **env,
                },
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            said = done.stdout[-2000:] + done.stderr[-4000:]
            assert (done.returncode != 0) == fails, said
            own = defaultdict[str, list[list[float]]](list)
            for file in sorted(home.glob("*.json")):
                clock = json.loads(file.read_text())
                ends = clock["ends"]
                times_s = [end - begin for begin, end in itertools.pairwise(ends)]
                own[clock["uuid"]].append(times_s)
        expected = sum(len(times_s) for runs in own.values() for times_s in runs)
        eventually("the last report", lambda: len(self._heard) - before >= expected, 15.0)
        heard = defaultdict[str, list[IterationReport]](list)
        for report in self._heard[before:]:
            heard[report.uuid].append(report)
        return Ran(dict(heard), dict(own), said)
