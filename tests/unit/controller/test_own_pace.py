"""Times of GPUs beside the slowest of their stage: when one may be taken for faster."""

from joulecut_controller.observe.own_pace import time_ratios
from joulecut_controller.view import StageLoad

STAGES = (("a", "b", "c", "d"),)
GROUPS = ((("a", "b"), ("c", "d")),)


def load(uuid: str, forward_s: float, backward_s: float, clock_mhz: int = 1410) -> StageLoad:
    return StageLoad(uuid, 0, clock_mhz, {"forward": forward_s, "backward": backward_s}, 960, None)


def test_a_faster_replica_is_known_by_the_worst_of_its_kinds() -> None:
    slow = [load("a", 1.0, 2.0), load("b", 1.0, 2.0)]
    fast = [load("c", 0.9, 1.9), load("d", 0.9, 1.9)]
    assert time_ratios(slow + fast, STAGES, GROUPS) == {"a": 1.0, "b": 1.0, "c": 0.95, "d": 0.95}


def test_members_differ_only_beyond_the_noise_of_their_timers() -> None:
    """Times within a group that contain the waiting for the slowest are equal but for noise."""
    noisy = [load("a", 1.0, 2.0), load("b", 0.995, 1.99), load("c", 0.9, 1.8), load("d", 0.8, 1.6)]
    found = time_ratios(noisy, STAGES, GROUPS)
    assert found["a"] == found["b"] == 1.0
    assert (found["c"], found["d"]) == (0.9, 0.8)


def test_a_gpu_that_is_fast_by_a_higher_clock_is_not_faster_at_equal_clocks() -> None:
    """Under a power cap the others run at 1300 MHz."""
    capped = [load(uuid, 1.0, 2.0, 1300) for uuid in "abc"]
    found = time_ratios([*capped, load("d", 1300 / 1410, 2600 / 1410, 1410)], STAGES, GROUPS)
    assert set(found.values()) == {1.0}


def test_groups_that_are_unknown_make_no_gpu_faster() -> None:
    loads = [load(uuid, 1.0 - 0.02 * i, 2.0) for i, uuid in enumerate("abcd")]
    assert set(time_ratios(loads, STAGES, ()).values()) == {1.0}


def test_nothing_is_known_unless_every_gpu_reports_operations() -> None:
    loads = [load(uuid, 1.0, 2.0) for uuid in "abc"]
    assert time_ratios(loads, STAGES, GROUPS) == {}
    assert time_ratios([*loads, StageLoad("d", 0, 1410, {}, 0, 300.0)], STAGES, GROUPS) == {}
