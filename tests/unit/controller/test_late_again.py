"""Clocks that come out late again and again are tried less and less often."""

from dataclasses import replace

from planning import case_of, seen, view_of
from worlds import World

from joulecut_controller.plan.goal import CAUTION_DWELLS, lateness
from joulecut_controller.plan.pace import Pace
from joulecut_controller.plan.planning_input import Lateness, PlannerState

WORLD = World(stages=3, microbatches=9)


def after(before: Lateness, now_s: float, *, late: bool) -> Lateness:
    inputs = case_of(seen(WORLD, 0.05), replace(view_of(WORLD, WORLD.now_s), now_s=now_s))
    return lateness(inputs, PlannerState(late=before), Pace(1.0, 1.0), late=late)


def test_each_late_plan_doubles_the_caution_and_as_long_without_one_ends_it() -> None:
    late, now_s, waits_s = Lateness(), 0.0, []
    for _ in range(4):
        late = after(after(late, now_s, late=False), now_s, late=True)
        waits_s.append(late.until_s - now_s)
        now_s = late.until_s + 1.0
    dwell_s = waits_s[0] / CAUTION_DWELLS
    assert waits_s == [CAUTION_DWELLS * dwell_s * 2.0**k for k in range(4)]
    assert after(late, late.until_s + late.caution_s - 1.0, late=False) == late
    assert after(late, late.until_s + late.caution_s, late=False) == Lateness()
