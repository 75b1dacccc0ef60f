"""S7, the process that reads: what hangs is left, what dies is replaced, nothing is left behind.

The back end is `ordered_reader`: it does what its `orders` file says, in a real child process.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ordered_reader
import pytest
from running_agent import eventually

from joulecut_agent import eye as eyes
from joulecut_agent.eye import Eye
from joulecut_agent.eye_protocol import DRIVER
from joulecut_agent.eye_trouble import BACK_OFF_S
from joulecut_agent.ports.failure import DeviceError, Gone, Transient
from joulecut_agent.ports.reader import Burst, Reading
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import GpuSnapshot


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order(gpus=3)
        self.eye = Eye("ordered_reader:backend", {"orders": "orders"}, str(folder))

    def order(self, **orders: Any) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text(json.dumps({"gpus": 3, **orders}))
        fresh.rename(self.folder / "orders")

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]

    def shown(self) -> list[str]:
        return [r.uuid for r in self.eye.read() if r.snapshot is not None]

    def codes(self) -> dict[str, str]:
        return {r.uuid: r.error.code for r in self.eye.read() if r.error is not None}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("PYTHONPATH", str(Path(ordered_reader.__file__).parent))
    rig = Rig(tmp_path)
    yield rig
    rig.eye.close()
    assert not [pid for pid in rig.pids() if Path(f"/proc/{pid}").exists()]


def test_it_tells_what_its_reader_tells(rig: Rig) -> None:
    assert [gpu.clocks_mhz for gpu in rig.eye.describe()] == [(1, 2)] * 3
    first = rig.eye.read()[0]
    snapshot = GpuSnapshot("g0", energy_j=1.5, event_reasons=("idle",))
    assert first == Reading("g0", snapshot, None, (("read", 0.1),), 7.0)
    assert rig.eye.burst(1) == Burst(power_w=((1.0, 2.0),))


def test_a_gpu_that_hangs_costs_itself_and_comes_back(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(hang=[1])
    assert rig.shown() == ["g0", "g2"]
    assert rig.eye.unresponsive == {1}
    assert rig.codes() == {"g1": "driver_unresponsive"}
    assert len(rig.pids()) == 2
    rig.order()
    eventually("it is read again", lambda: rig.shown() == ["g0", "g1", "g2"])
    assert rig.eye.unresponsive == frozenset()


def test_it_is_left_alone_for_longer_each_time(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(hang=[0])
    began_s = time.monotonic()
    for count in (2, 3, 4):
        eventually("another process", lambda count=count: rig.shown() and len(rig.pids()) == count)
    waited_s = time.monotonic() - began_s
    assert waited_s > BACK_OFF_S + 2 * BACK_OFF_S, "two rests in between"


def test_all_hang_one_after_the_other(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(hang=[0, 1, 2])
    eventually("all are left out", lambda: rig.eye.unresponsive >= {0, 1, 2} or rig.shown() == 1)
    rig.order()
    eventually("all are back", lambda: rig.shown() == ["g0", "g1", "g2"])


def test_a_driver_that_hangs_when_opened_takes_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.eye.describe()
    monkeypatch.setattr(eyes, "OPEN_WAIT_S", 0.5)
    rig.order(open="hang")
    rig.eye.close()
    assert rig.codes() == dict.fromkeys(("g0", "g1", "g2"), "driver_unresponsive")
    assert DRIVER in rig.eye.unresponsive
    began_s = time.monotonic()
    rig.eye.read()
    assert time.monotonic() - began_s < 0.4, "nobody waits for it twice"
    rig.order()
    eventually("all are back", lambda: rig.shown() == ["g0", "g1", "g2"])


def test_a_process_that_dies_is_replaced_and_not_in_a_hurry(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(die=[2])
    eventually("the others are read without it", lambda: rig.shown() == ["g0", "g1"])
    until_s = time.monotonic() + 3.0
    while time.monotonic() < until_s:
        assert "g2" not in rig.shown()
        time.sleep(0.01)
    assert len(rig.pids()) <= 6
    rig.order()
    eventually("all are back", lambda: rig.shown() == ["g0", "g1", "g2"])


def test_killed_from_outside_it_is_back_at_the_next_tick(rig: Rig) -> None:
    rig.eye.describe()
    os.kill(rig.pids()[0], signal.SIGKILL)
    eventually("all are back", lambda: rig.shown() == ["g0", "g1", "g2"], 2.0)


def test_whoever_waits_can_be_cut_short(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(hang=[0])
    waiting = threading.Thread(target=rig.eye.read)
    waiting.start()
    rig.eye.cut()
    waiting.join(5.0)
    assert not waiting.is_alive()


@pytest.mark.parametrize(("how", "kind"), [("gone", Gone), ("bad", BadInput)])
def test_what_cannot_be_opened_is_said_to_who_asks(rig: Rig, how: str, kind: type) -> None:
    rig.order(open=how)
    with pytest.raises(kind):
        rig.eye.describe()


def test_a_gpu_that_is_no_longer_there_is_missed(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(gpus=2)
    assert rig.codes() == {"g2": "gpu_not_found"}
    rig.eye.close()
    assert [gpu.uuid for gpu in rig.eye.describe()] == ["g0", "g1", "g2"]
    assert not rig.eye.gpus[2].controllable


def test_a_burst_of_a_gpu_that_hangs_is_refused(rig: Rig) -> None:
    rig.eye.describe()
    rig.order(hang=[1])
    for _ in range(2):
        with pytest.raises(DeviceError) as refused:
            rig.eye.burst(1)
        assert refused.value.code == "driver_unresponsive"
    assert rig.eye.burst(0).power_w


def test_without_processes_to_spare_nothing_is_read_and_nothing_raised(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.eye.describe()
    rig.eye.close()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert set(rig.codes().values()) == {"no_process"}
    with pytest.raises(Transient):
        rig.eye.burst(0)


def _heard(rig: Rig) -> set[str]:
    return {r.uuid for _, readings in rig.eye.arrived() for r in readings if r.snapshot is not None}


def test_it_reads_by_itself_where_it_was_told_to(rig: Rig) -> None:
    rig.eye.describe()
    assert rig.eye.arrived() == []
    rig.eye.read(0.02)
    eventually("all are read", lambda: _heard(rig) == {"g0", "g1", "g2"})
    assert rig.eye.is_reading(0.02)
    assert not rig.eye.is_reading(0.1), "it was told another pace"
    rig.eye.read()
    assert rig.eye.arrived() == []


def test_one_that_hangs_while_it_reads_by_itself_is_found_by_who_asks(rig: Rig) -> None:
    rig.eye.describe()
    rig.eye.read(0.02)
    rig.order(hang=[1])
    eventually("it is late", lambda: rig.eye.arrived() == [] and not rig.eye.is_reading(0.02))
    assert {r.uuid for r in rig.eye.read(0.02) if r.snapshot is not None} == {"g0", "g2"}
    assert rig.eye.unresponsive == {1}
    eventually("the others are read", lambda: _heard(rig) == {"g0", "g2"})


def test_killed_while_it_reads_by_itself_it_is_missed_at_once(rig: Rig) -> None:
    rig.eye.describe()
    rig.eye.read(0.02)
    os.kill(rig.pids()[0], signal.SIGKILL)
    eventually("it is missed", lambda: rig.eye.arrived() == [] and not rig.eye.is_reading(0.02))
    assert rig.shown() == ["g0", "g1", "g2"]
