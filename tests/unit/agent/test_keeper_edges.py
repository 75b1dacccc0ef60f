"""The keeper where two backoffs meet, and what it says of a restore."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from keeper_requests import apply_of

from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.lease import STUCK
from joulecut_agent.keeper.protocol import Slot
from joulecut_agent.keeper.requests import Apply, Clear, Request, Status, Step
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.ports.failure import Gone

GPU = "GPU-a"
PATIENCE_S = 90.0


@dataclass
class Board:
    """A `DeviceWriter` of one GPU, which may fall off the bus."""

    locked: dict[str, tuple[int, int]] = field(default_factory=dict)
    lost: bool = False

    def permission(self) -> str:
        return ""

    def clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        return (210, 600, 750, 900, 1410)

    def uncontrollable(self, uuid: str) -> str:
        return f"{uuid} fell off the bus" if self.lost else ""

    def lock(self, uuid: str, clock_min_mhz: int, clock_max_mhz: int) -> None:
        self.locked[uuid] = (clock_min_mhz, clock_max_mhz)

    def reset(self, uuid: str) -> None:
        if self.lost:
            raise Gone("gpu_is_lost", f"{uuid} fell off the bus")
        self.locked.pop(uuid, None)

    def power_limits_mw(self, uuid: str) -> tuple[int, int, int]:
        return 0, 0, 0

    def reading(self, uuid: str) -> tuple[int, float, tuple[str, ...]]:
        return 210, 0.0, ("idle",)

    def limit_power(self, uuid: str, limit_mw: int) -> None:
        """Nothing to limit."""

    def close(self) -> None:
        """Nothing to close."""


def _keeper(folder: Path, board: Board, min_dwell_s: float = 0.0) -> Keeper:
    return Keeper(Settings(str(folder), Bounds(min_dwell_s=min_dwell_s)), board)


def _ask(keeper: Keeper, command: Request) -> Slot:
    (slot,) = keeper.handle(1, command).slots
    return slot


def _order(generation: int, clock_mhz: int, program: tuple[int, ...] = ()) -> Apply:
    programs = {GPU: program} if program else {}
    clocks_mhz = {GPU: (0, clock_mhz)}
    return apply_of(1, "blue", generation, 30.0, clocks_mhz, schedules=programs)


def test_a_gpu_that_is_lost_and_locked_is_reported_stuck(tmp_path: Path) -> None:
    """That it was lost is no news to who looks for GPUs that were never given back."""
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _ask(keeper, _order(1, 900)).accepted
    board.lost = True
    keeper.handle(2, Clear(1, "blue"))
    slot = _ask(keeper, Status((GPU,)))
    assert slot.reason.startswith(f"{STUCK}: ")
    assert not slot.accepted


def test_after_a_step_down_the_way_back_up_does_not_wait(tmp_path: Path) -> None:
    """A new order for more than is in force now raises, though its top is below the old one."""
    board = Board()
    keeper = _keeper(tmp_path, board, min_dwell_s=600.0)
    assert _ask(keeper, _order(1, 900, (600, 900))).accepted
    down = Step("blue", 1, GPU, 600, 1.0)
    slot = _ask(keeper, down)
    assert slot.accepted, slot.reason
    assert board.locked[GPU][1] == 600
    slot = _ask(keeper, _order(2, 750))
    assert slot.accepted, slot.reason
    assert board.locked[GPU][1] == 750


def test_each_restore_is_logged_once_when_it_fails_and_once_when_it_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board = Board()
    keeper = _keeper(tmp_path, board)
    assert _ask(keeper, _order(1, 900)).accepted
    board.lost = True
    keeper.handle(2, Clear(1, "blue"))
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:  # a second failure, of which nothing is said
        keeper.tick()
        owed = keeper.state.gpu(GPU).pending_restore
        if owed and owed.failures >= 2:
            break
        time.sleep(0.02)
    board.lost = False
    assert keeper.restore_all("shutdown")
    said = capfd.readouterr().err
    assert said.count(f"restore {GPU} cause=cleared: {GPU} fell off the bus; will retry") == 1
    assert said.count(f"restore {GPU} cause=shutdown: done") == 1


def test_below_the_sites_own_lock_is_what_counts_as_lower(tmp_path: Path) -> None:
    """A site's GPU never runs above its lock: to ask for that clock slows nobody."""
    bounds = Bounds(min_dwell_s=60.0)
    keeper = Keeper(Settings(str(tmp_path), bounds, site_default=(0, 900)), Board())
    for generation in (1, 2):
        order = apply_of(1, "blue", generation, 30.0, {GPU: (0, 900)})
        assert _ask(keeper, order).accepted
        assert _ask(keeper, Clear(1, uuids=(GPU,))).accepted
    lower = apply_of(1, "blue", 3, 30.0, {GPU: (0, 600)})
    assert "dwell" in _ask(keeper, lower).reason


def test_a_restore_that_is_only_delayed_by_jitter_is_not_stuck(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path), Bounds(min_dwell_s=0.0), restore_jitter_s=3600.0)
    keeper = Keeper(settings, Board())
    assert _ask(keeper, apply_of(1, "blue", 1, 0.05, {GPU: (0, 900)})).accepted
    time.sleep(0.1)
    slot = _ask(keeper, Status((GPU,)))
    assert keeper.state.gpu(GPU).pending_restore
    assert (slot.accepted, slot.reason, slot.lease) == (True, "", None)
