"""Device back ends as agent and keeper use them, and the hand that breaks them from outside.

Each device is used from child processes, as in production; what happens to the GPUs
themselves (load, faults) comes by each rig's own means.
"""

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixture import CompilerMissing, FakeNvml
from joulecut_sim.card import StateFile, now_s
from joulecut_sim.physics import Card, fresh

GPUS = 4
PATIENCE_S = 90.0  # for a machine that stands still now and then; met early on every other
COUNTER_STEP_S = 0.1  # how old an energy reading may be


class Failed(Exception):
    """A refusal, by the class of failure and its code."""

    def __init__(self, kind: str, code: str, text: str) -> None:
        self.kind, self.code = kind, code
        super().__init__(text)


class Timed(NamedTuple):
    value: Any
    began_s: float
    ended_s: float


class Client:
    """A child process with a reader and a writer of a device."""

    def __init__(self, name: str, options: dict[str, Any], state: Path, env: dict[str, str]):
        script = Path(__file__).with_name("device_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), name, json.dumps(options), str(state)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, port: str, method: str, *arguments: Any) -> Any:
        return self.timed(port, method, *arguments).value

    def timed(self, port: str, method: str, *arguments: Any) -> Timed:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([port, method, *arguments]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Failed(*answer["error"])
        return Timed(answer["value"], *answer["between_s"])

    def snapshot(self, gpu: int) -> dict[str, Any]:
        reading = self.ask("reader", "read")[gpu]
        assert reading["error"] is None
        return reading["snapshot"]

    def clock_mhz(self, gpu: int) -> int:
        return int(self.snapshot(gpu)["clock_sm_mhz"])

    def kill(self) -> None:
        self._process.kill()
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL
        self._close_pipes()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.stdin.close()
            assert self._process.wait(PATIENCE_S) == 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Rig(ABC):
    """A node of GPUs, and the hand that loads, breaks and watches them from outside."""

    name: str

    def __init__(self, state: Path) -> None:
        self.state = state
        self._clients = ExitStack()

    def start(self, **options: Any) -> Client:
        client = Client(self.name, {**self.options(), **options}, self.state, self.environment())
        self._clients.callback(client.close)
        return client

    def client(self, *, permitted: bool = True) -> Client:
        client = self.start(**({} if permitted else self.forbid()))
        client.ask("reader", "open")
        client.ask("writer", "open")
        return client

    def close(self) -> None:
        self._clients.close()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @abstractmethod
    def options(self) -> dict[str, Any]: ...

    @abstractmethod
    def forbid(self) -> dict[str, Any]:
        """Takes the right to set clocks; what must be among the options for that."""

    @abstractmethod
    def set_load(self, gpu: int, ratio: float) -> None: ...

    @abstractmethod
    def set_mig(self, gpu: int, enabled: bool) -> None: ...

    @abstractmethod
    def lose(self, gpu: int) -> None: ...

    @abstractmethod
    def find(self, gpu: int) -> None:
        """The lost GPU is back on the bus."""

    @abstractmethod
    def reload(self) -> None:
        """The driver goes and comes back; who had it open must open it again."""

    @abstractmethod
    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        """What was last written to each GPU, in MHz; None for the driver's default."""


class NvmlRig(Rig):
    name = "nvml"

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.fake = FakeNvml(state / "fake.state", GPUS)

    def options(self) -> dict[str, Any]:
        return {"permission": "driver"}  # containers that run tests lack the capability

    def environment(self) -> dict[str, str]:
        return self.fake.environment()

    def forbid(self) -> dict[str, Any]:
        self.fake.set_permission(False)
        return {}

    def set_load(self, gpu: int, ratio: float) -> None:
        self.fake.set_load(gpu, ratio)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        self.fake.set_mig(gpu, enabled)

    def lose(self, gpu: int) -> None:
        self.fake.lose(gpu)

    def find(self, gpu: int) -> None:
        self.fake.return_gpu(gpu)

    def reload(self) -> None:
        self.fake.reload_driver()

    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        return self.fake.locks()


class SimulatedRig(Rig):
    name = "simulated"

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.file = StateFile.open(state / "gpus.state", cards=GPUS)

    def close(self) -> None:
        super().close()
        self.file.close()

    def options(self) -> dict[str, Any]:
        return {"cards": GPUS}

    def forbid(self) -> dict[str, Any]:
        return {"permission": "none"}

    def set_load(self, gpu: int, ratio: float) -> None:
        self.file.put(gpu, load_ratio=ratio)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        self.file.put(gpu, mig=enabled)

    def lose(self, gpu: int) -> None:
        self.file.put(gpu, lost=True)

    def find(self, gpu: int) -> None:
        self.file.put(gpu, lost=False)

    def reload(self) -> None:
        new = fresh(self.file.sku, now_s())
        for gpu in range(GPUS):
            self.file.put(gpu, **{name: getattr(new, name) for name in Card.__slots__})

    def locks(self) -> tuple[tuple[int, int] | None, ...]:
        asked = [self.file.asked_mhz(gpu) for gpu in range(GPUS)]
        return tuple(lock if lock[1] else None for lock in asked)


@pytest.fixture(params=[NvmlRig, SimulatedRig], ids=["nvml", "simulated"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    try:
        made: Rig = request.param(tmp_path)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.005)


def uuid_and_clocks(client: Client, gpu: int = 0) -> tuple[str, list[int]]:
    description = client.ask("reader", "describe")[gpu]
    return description["uuid"], description["clocks_mhz"]


def middle(clocks_mhz: list[int]) -> int:
    return clocks_mhz[len(clocks_mhz) // 2]


def energy_at(client: Client, gpu: int = 0) -> Timed:
    readings, began_s, ended_s = client.timed("reader", "read")
    return Timed(readings[gpu]["snapshot"]["energy_j"], began_s, ended_s)
