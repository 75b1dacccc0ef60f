"""GPUs whose driver calls hang, are carried out late or not at all, below real processes."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import RunningAgent, accepted, eventually

from fixture import FOREVER, FakeNvml
from joulecut_wire.messages import Result

pytestmark = pytest.mark.long

GPUS, TTL_S, BOUND_S = 8, 3.0, 2.0  # the published bound: ttl + 2 s whatever hangs elsewhere
RESET = "nvmlDeviceResetGpuLockedClocks"
LOCK = "nvmlDeviceSetGpuLockedClocks"


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(GPUS, load=dict.fromkeys(range(GPUS), 1.0)) as fake:
        yield fake


@pytest.fixture
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    with agent_on(driver, sample_interval_s=0.2) as agent:
        yield agent.start()


def _apply(
    node: RunningAgent, uuids: tuple[str, ...], generation: int, ttl_s: float
) -> tuple[Result, ...]:
    clock_mhz = node.describe().gpus[0].clocks_mhz[3]
    return node.order(*uuids, clock_mhz=clock_mhz, generation=generation, ttl_s=ttl_s)


def _locked(driver: FakeNvml) -> set[int]:
    return {gpu for gpu, lock in enumerate(driver.locks()) if lock}


def _writers(driver: FakeNvml, node: RunningAgent) -> int:
    """Processes of the keeper that have the driver open."""
    parents = [Path(f"/proc/{pid}/stat") for pid in driver.clients()]
    stats = [path.read_text().rpartition(")")[2].split() for path in parents if path.exists()]
    return sum(int(stat[1]) == node.keeper_pid for stat in stats)


@pytest.mark.parametrize("calls", [RESET, "*"])
def test_seven_hung_gpus_do_not_delay_the_eighth(
    driver: FakeNvml, node: RunningAgent, calls: str
) -> None:
    assert accepted(_apply(node, driver.uuids, 1, TTL_S))
    ends_s = time.monotonic() + TTL_S
    for gpu in range(GPUS - 1):
        driver.hang(calls, gpu=gpu, count=FOREVER)
    eventually("the last GPU is restored", lambda: GPUS - 1 not in _locked(driver))
    late_s = time.monotonic() - ends_s
    assert late_s <= BOUND_S, f"{late_s:.2f} s after the end of its lease"
    assert _locked(driver) == set(range(GPUS - 1))
    assert accepted(_apply(node, driver.uuids[-1:], 2, 60.0)), "and takes commands"
    assert 0 < _writers(driver, node) <= GPUS + 1
    driver.clear_errors()
    eventually("all are restored", lambda: _locked(driver) == {GPUS - 1})


def test_a_driver_that_hangs_as_a_whole_ends_no_process(
    driver: FakeNvml, node: RunningAgent
) -> None:
    assert accepted(_apply(node, driver.uuids, 1, TTL_S))
    keeper_pid = node.keeper_pid
    driver.hang("*", count=FOREVER)
    eventually("the cause is exported", lambda: "driver_unresponsive" in node.metrics())
    time.sleep(TTL_S + 5.0)
    assert node.keeper_pid == keeper_pid
    assert _writers(driver, node) <= GPUS + 1
    driver.clear_errors()
    eventually("all are restored", lambda: not _locked(driver))


def test_a_lock_whose_call_hung_and_comes_after_its_caller_is_dead_is_reset(
    driver: FakeNvml, node: RunningAgent
) -> None:
    """No load shows it, and the keeper that made the call has been killed since."""
    for gpu in range(GPUS):
        driver.set_load(gpu, 0.0)
    driver.hang(LOCK, gpu=0)
    assert not accepted(_apply(node, driver.uuids[:1], 1, 60.0))
    assert driver.hits(LOCK) == 1
    time.sleep(3.0)  # its caller has been killed
    driver.foreign_lock(0, 210, 900)
    eventually("it is reset", lambda: not _locked(driver))


def test_a_reset_that_does_nothing_is_repeated_and_then_called_stuck(
    driver: FakeNvml, node: RunningAgent
) -> None:
    rule = driver.set_error(RESET, 0, gpu=0, lies=True, count=FOREVER)
    assert accepted(_apply(node, driver.uuids[:2], 1, TTL_S))
    eventually("the other is free", lambda: _locked(driver) == {0})
    eventually("told", lambda: "joulecut_gpu_stuck_locked" in node.metrics())
    about = node.describe().gpus[0]
    assert not about.controllable
    assert about.reason.startswith("stuck_locked")
    assert not accepted(_apply(node, driver.uuids[:1], 2, 60.0))
    driver.withdraw(rule)
    eventually("it is reset", lambda: not _locked(driver))
    eventually("it is controllable", lambda: node.describe().gpus[0].controllable)
