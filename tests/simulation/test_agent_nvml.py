"""The same agent over the unmodified NVML binding and the fake driver below it."""

import asyncio
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import PATIENCE_S, RunningAgent, accepted, eventually

from fixture import FakeNvml
from joulecut_controller.fleet import grpc_fleet
from joulecut_wire.messages import Command, Setting


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(4) as fake:
        yield fake


@pytest.fixture
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    with agent_on(driver) as agent:
        yield agent


def test_measured_controlled_and_restored(driver: FakeNvml, node: RunningAgent) -> None:
    node.start()
    about = node.describe()
    assert [gpu.uuid for gpu in about.gpus] == list(driver.uuids)
    assert all(gpu.controllable for gpu in about.gpus), about.gpus[0].reason
    driver.set_load(0, 1.0)
    clock_mhz = about.gpus[0].clocks_mhz[len(about.gpus[0].clocks_mhz) // 2]
    assert accepted(node.order(*driver.uuids, clock_mhz=clock_mhz))
    assert [lock[1] for lock in driver.locks() if lock] == [clock_mhz] * 4

    def seen() -> bool:
        gpu = node.gpu()
        return gpu.clock_sm_mhz == clock_mhz and gpu.lease is not None

    eventually("the clock seen at the lock", seen)
    assert node.kill(signal.SIGTERM) == 0
    assert driver.locks() == (None,) * 4
    setters = {write.function for write in driver.writes()}
    assert setters == {"nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"}


def test_a_right_that_is_missing_is_found_at_the_first_write(
    driver: FakeNvml, node: RunningAgent
) -> None:
    driver.set_permission(False)
    node.start()
    clock_mhz = node.describe().gpus[0].clocks_mhz[3]
    for number in (1, 2):
        refused = node.order(*driver.uuids, clock_mhz=clock_mhz, generation=number)
        assert {result.accepted for result in refused} == {False}
    eventually("said", lambda: not any(gpu.controllable for gpu in node.describe().gpus))
    assert "no permission" in node.describe().gpus[0].reason
    assert node.log.count("cannot set clocks") == 1
    assert node.gpu().energy_j is not None
    assert driver.locks() == (None,) * 4


def test_without_a_driver_it_does_not_start_and_says_why(tmp_path: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    with RunningAgent(env=env, device="nvml") as node:
        node.process = node._spawn("run")
        status = node.process.wait(timeout=PATIENCE_S)
        if status == 0:
            pytest.skip("this machine has an NVIDIA driver")
        assert status == 1
        assert len(node.log.splitlines()) == 1
        assert "NVIDIA driver" in node.log


def test_a_driver_that_was_away_is_described_again_when_it_is_back(
    driver: FakeNvml, node: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was refused meanwhile had the agent described without control; the next turn
    would be half a minute away, and with it the limits of a power budget."""
    monkeypatch.setattr(grpc_fleet, "DESCRIBE_EVERY_S", math.inf)
    address = node.start().address

    async def body() -> None:
        fleet = grpc_fleet.GrpcFleet((address,), watch_s=0.25)
        await fleet.start()

        def controlled() -> set[bool]:
            return {gpu.description.controllable for gpu in fleet.observe(time.monotonic()).gpus}

        settings = (Setting(driver.uuids[0], 1200),)
        command, end_s = Command(1, "demo", 1, 60.0, settings, "test"), time.monotonic() + 60.0
        try:
            assert await fleet.all_read(PATIENCE_S)
            driver.unload_driver()
            while controlled() != {False}:
                assert time.monotonic() < end_s
                await fleet.apply(address, command)
                await asyncio.sleep(0.1)
            driver.load_driver()
            while controlled() != {True}:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.1)
        finally:
            await fleet.stop()

    asyncio.run(body())
