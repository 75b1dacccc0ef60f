"""S7, the process that reads: what hangs is left, what dies is replaced, nothing is left behind.

The back end is `ordered_reader`: it does what its `orders` file says, in a real child process.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ordered_reader
import pytest
from held_clock import HeldClock
from running_agent import PATIENCE_S, alive, eventually

from joulecut_agent import driver_process
from joulecut_agent.driver_process import BACKOFF_S
from joulecut_agent.monitor import driver_reader
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.monitor.reader_protocol import DRIVER
from joulecut_agent.ports.failure import DeviceError, Gone, Transient
from joulecut_wire.errors import BadInput


class Clock(HeldClock):
    """Time passes where a test says so, and while the reading process hangs in a call: a machine
    that stands still is no driver that does.
    """

    def __init__(self, rig: "Rig") -> None:
        super().__init__()
        self._rig = rig
        self.flies = True

    def monotonic(self) -> float:
        if self.flies and self._rig.hangs():
            self.pass_s(driver_reader.READ_WAIT_S / 2.0)
        return super().monotonic()


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order(gpus=3)
        self.clock = Clock(self)
        self.reader = DriverReader("ordered_reader:backend", {"orders": "orders"}, str(folder))

    def order(self, **orders: Any) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text(json.dumps({"gpus": 3, **orders}))
        fresh.rename(self.folder / "orders")

    def hangs(self) -> bool:
        worker = self.reader._child
        return worker is not None and (self.folder / f"hanging-{worker.process.pid}").exists()

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]

    def shown(self) -> list[str]:
        return [r.uuid for r in self.reader.read() if r.snapshot is not None]

    def is_whole_later(self) -> bool:
        self.clock.pass_s(BACKOFF_S / 2)
        return self.shown() == ["g0", "g1", "g2"]

    def codes(self) -> dict[str, str]:
        return {r.uuid: r.error.code for r in self.reader.read() if r.error is not None}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("PYTHONPATH", str(Path(ordered_reader.__file__).parent))
    rig = Rig(tmp_path)
    for module in (driver_reader, driver_process):
        monkeypatch.setattr(module, "time", rig.clock)
    yield rig
    rig.reader.close()
    eventually("nobody is left behind", lambda: not any(map(alive, rig.pids())))


def test_a_gpu_that_hangs_costs_itself_and_comes_back(rig: Rig) -> None:
    rig.reader.describe()
    rig.order(hang=[1])
    assert rig.shown() == ["g0", "g2"]
    assert rig.reader.unresponsive == {1}
    assert rig.codes() == {"g1": "driver_unresponsive"}
    assert len(rig.pids()) == 2
    rig.order()
    rig.clock.pass_s(BACKOFF_S)
    assert rig.shown() == ["g0", "g1", "g2"]
    assert rig.reader.unresponsive == frozenset()


def test_it_is_left_alone_for_longer_each_time(rig: Rig) -> None:
    rig.reader.describe()
    rig.order(hang=[0])
    for count, rest_s in ((2, BACKOFF_S), (3, 2 * BACKOFF_S), (4, 4 * BACKOFF_S)):
        assert rig.shown() == ["g1", "g2"]
        assert len(rig.pids()) == count, "another process"
        rig.clock.pass_s(rest_s - 0.1)
        assert rig.shown() == ["g1", "g2"]
        assert len(rig.pids()) == count, "it rests"
        rig.clock.pass_s(0.1)


def test_a_driver_that_hangs_when_opened_takes_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.reader.describe()
    monkeypatch.setattr(driver_reader, "OPEN_WAIT_S", 0.5)  # a constant, so that the test is quick
    rig.order(open="hang")
    rig.reader.close()
    assert rig.codes() == dict.fromkeys(("g0", "g1", "g2"), "driver_unresponsive")
    assert DRIVER in rig.reader.unresponsive
    count = len(rig.pids())
    rig.reader.read()
    assert len(rig.pids()) == count, "nobody waits for it twice"
    rig.order()
    eventually("all are back", rig.is_whole_later)


def test_a_process_that_dies_is_replaced_and_not_in_a_hurry(rig: Rig) -> None:
    rig.reader.describe()
    rig.order(die=[2])
    eventually("the others are read without it", lambda: rig.shown() == ["g0", "g1"])
    for _ in range(30):
        assert "g2" not in rig.shown()
        rig.clock.pass_s(0.1)
    assert len(rig.pids()) <= 6
    rig.order()
    eventually("all are back", rig.is_whole_later)


def test_whoever_waits_can_be_cut_short(rig: Rig) -> None:
    rig.reader.describe()
    rig.order(hang=[0])
    rig.clock.flies = False
    waiting = threading.Thread(target=rig.reader.read)
    waiting.start()
    eventually("it waits", rig.hangs)
    rig.order()
    rig.reader.kill()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive(), "nobody would ever have told it"


@pytest.mark.parametrize(("how", "kind"), [("gone", Gone), ("bad", BadInput)])
def test_what_cannot_be_opened_is_said_to_who_asks(rig: Rig, how: str, kind: type) -> None:
    rig.order(open=how)
    with pytest.raises(kind):
        rig.reader.describe()


def test_a_gpu_that_is_no_longer_there_is_missed(rig: Rig) -> None:
    rig.reader.describe()
    rig.order(gpus=2)
    assert rig.codes() == {"g2": "gpu_not_found"}
    rig.reader.close()
    assert [gpu.uuid for gpu in rig.reader.describe()] == ["g0", "g1", "g2"]
    assert not rig.reader.gpus[2].controllable


def test_a_burst_of_a_gpu_that_hangs_is_refused(rig: Rig) -> None:
    rig.reader.describe()
    rig.order(hang=[1])
    for _ in range(2):
        with pytest.raises(DeviceError) as refused:
            rig.reader.burst(1)
        assert refused.value.code == "driver_unresponsive"
    assert rig.reader.burst(0).power_w


def test_without_processes_to_spare_nothing_is_read_and_nothing_raised(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.reader.describe()
    rig.reader.close()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert set(rig.codes().values()) == {"no_process"}
    with pytest.raises(Transient):
        rig.reader.burst(0)


class Undying:
    """A process in a driver call that no signal ends."""

    def kill(self) -> None: ...

    def poll(self) -> int | None:
        return None


def test_a_few_processes_that_do_not_end_are_many() -> None:
    """Then no other is started."""
    zombies = driver_process.Zombies[str]()
    for number in range(driver_process.ZOMBIES_MAX):
        assert not zombies.are_many
        zombies.kill(Undying(), f"GPU-{number}")
    assert zombies.are_many
