"""A probe tells a process that no longer turns from a driver that no longer answers."""

import time
from pathlib import Path

import pytest
from quiet_source import QuietSource

from joulecut_agent.control.health import LOOP_SILENT_S, READ_SILENT_S, HealthChecks
from joulecut_agent.control.maintenance_window import MaintenanceWindow
from joulecut_agent.control.release_file import ReleaseFile
from joulecut_agent.counters import Counters
from joulecut_agent.keeper.client import KeeperClient
from joulecut_agent.monitor.energy_account import EnergyFile
from joulecut_agent.monitor.sampler import Sampler
from joulecut_agent.ports.reader import Reading
from joulecut_wire.messages import GpuDescription, GpuSnapshot


class Source(QuietSource):
    """One GPU, as the eye shows it."""

    gpus = (GpuDescription("GPU-0", 0, "A100", (210, 1410)),)

    def read(self) -> tuple[Reading, ...]:
        return (Reading("GPU-0", GpuSnapshot("GPU-0", 1.0, 1.0), None),)


class World:
    def __init__(self, folder: Path, interval_s: float = 1.0) -> None:
        self.source = Source()
        self.now_s = time.monotonic()
        file = EnergyFile(folder / "energy.json", "boot")
        self.sampler = Sampler(self.source, interval_s, Counters(), jobs=dict, file=file)
        release = ReleaseFile(str(folder), "boot")
        self.window = MaintenanceWindow(
            self.sampler, KeeperClient(""), release, keeper_wanted=False
        )
        self.beat = HealthChecks(self.sampler, self.window, interval_s, lambda: self.now_s)

    def passes(self, seconds: float, *, sampler: bool = True, loop: bool = True) -> None:
        """Time goes by; the loops that turn do."""
        self.now_s += seconds
        if sampler:
            self.sampler.turned_s = self.now_s
        if loop:
            self.beat.turn()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_loop_that_does_not_turn_is_named(world: World) -> None:
    world.passes(LOOP_SILENT_S - 1.0, loop=False)
    assert world.beat.live().well
    world.passes(2.0, loop=False)
    assert not world.beat.live().well
    assert world.beat.live().text == "the main loop has not run for 31 s\n"
    world.passes(0.0)
    assert world.beat.live().well


def test_a_sampler_that_does_not_turn_is_named(world: World) -> None:
    world.passes(READ_SILENT_S - 1.0, sampler=False)
    assert world.beat.live().well, "a driver that hangs costs a reading that much"
    world.passes(2.0, sampler=False)
    assert world.beat.live().lines == ("the sampler has not run for 73 s",)


def test_a_slow_sampler_is_not_a_dead_one(tmp_path: Path) -> None:
    world = World(tmp_path, interval_s=60.0)
    world.passes(179.0, sampler=False)
    assert world.beat.live().well
    world.passes(2.0, sampler=False)
    assert not world.beat.live().well


def test_a_driver_that_hangs_costs_no_life(world: World) -> None:
    world.source.unresponsive = frozenset([0, -1])
    assert world.beat.live().well
    assert world.beat.live().lines == ("ok", "driver_unresponsive: the driver, GPU-0")
    assert world.beat.ready().lines[0] == "no GPU was read recently"
    assert not world.beat.ready().well


def test_ready_means_measured(world: World) -> None:
    assert not world.beat.ready().well
    world.sampler.start()
    try:
        assert world.beat.ready().text == "ok\n"
    finally:
        world.sampler.stop()
    world.beat.leaving = True
    assert (world.beat.ready().well, world.beat.ready().text) == (False, "leaving\n")


def test_a_release_window_is_as_it_should_be(world: World) -> None:
    world.sampler.start()
    try:
        assert world.window.open(60.0) == ""
        assert world.beat.ready().well
        assert world.beat.ready().lines[1].startswith("released for ")
    finally:
        world.sampler.stop()
