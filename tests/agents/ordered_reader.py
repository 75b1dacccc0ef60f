"""A device back end that hangs, dies and refuses as a file tells it; for tests of who reads."""

import json
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from joulecut_agent.monitor.reader_protocol import DRIVER
from joulecut_agent.ports.failure import Gone
from joulecut_agent.ports.reader import Burst, Reading, ignore_step
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import GpuDescription, GpuSnapshot


class OrderedReader:
    """Reads `{"gpus": N, "hang": [INDEX], "open": "hang|gone|bad|die", "die": [INDEX]}`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with (path.parent / "pids").open("a") as file:
            file.write(f"{os.getpid()}\n")
        self._do(DRIVER, self._orders().get("open", ""))

    def _orders(self) -> dict[str, Any]:
        return json.loads(self._path.read_text())

    def _do(self, index: int, what: str) -> None:
        if what == "hang":
            (self._path.parent / f"hanging-{os.getpid()}").touch()
            time.sleep(3600.0)
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "gone":
            raise Gone("driver_not_loaded", "the driver is not loaded")
        if what == "bad":
            raise BadInput("colour", "'blue'", "red")

    def _touch(self, index: int, step: Callable[[int], None]) -> None:
        step(index)
        orders = self._orders()
        for what in ("hang", "die"):
            if index in orders.get(what, ()):
                self._do(index, what)

    def _indices(self, leave_out: Collection[int]) -> list[int]:
        return [index for index in range(self._orders()["gpus"]) if index not in leave_out]

    def describe(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = ignore_step
    ) -> tuple[GpuDescription, ...]:
        for index in self._indices(leave_out):
            self._touch(index, step)
        return tuple(GpuDescription(f"g{i}", i, "x", (1, 2)) for i in self._indices(leave_out))

    def read(
        self, leave_out: Collection[int] = (), step: Callable[[int], None] = ignore_step
    ) -> tuple[Reading, ...]:
        readings = []
        for index in self._indices(leave_out):
            self._touch(index, step)
            snapshot = GpuSnapshot(f"g{index}", energy_j=1.5, event_reasons=("idle",))
            readings.append(Reading(f"g{index}", snapshot, None, (("read", 0.1),), 7.0))
        return tuple(readings)

    def burst(self, index: int) -> Burst:
        self._touch(index, ignore_step)
        return Burst(power_w=((1.0, 2.0),))

    def close(self) -> None: ...


class Ordered:
    def open_reader(self, options: dict[str, Any], state_dir: str) -> OrderedReader:
        return OrderedReader(Path(state_dir) / options["orders"])


backend = Ordered()
