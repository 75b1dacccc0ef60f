"""A pipeline small enough for tests and real enough for margins: its last stage is heavier."""

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Problem

BLOCKING_POWER_W = 80.0
STAGES = (1.0, 1.0, 1.1)
WORK: tuple[tuple[Kind, float], ...] = (("forward", 1.0), ("backward", 1.9))


def job(microbatches: int = 8) -> Problem:
    """Three stages of six clocks; power falls faster than speed."""
    clocks = [(1400 - 100 * k, 1.0 + 0.06 * k, 1.0 - 0.09 * k + 0.008 * k * k) for k in range(6)]
    menus = {
        (stage, kind): tuple(
            ClockOption(clock, 0.05 * heavy * work * time, 20 * heavy * work * energy)
            for clock, time, energy in clocks
        )
        for stage, heavy in enumerate(STAGES)
        for kind, work in WORK
    }
    return problem(Pipeline("1f1b", 3, microbatches), Profile(menus), BLOCKING_POWER_W)
