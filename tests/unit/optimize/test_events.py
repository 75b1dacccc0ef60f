"""Events: moments that a plan really has, and bounds made of them below every plan."""

import numpy as np
import pytest

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import SENDS, Pipeline, Profile
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.events import events_of
from joulecut_engine.optimize.formulation import problem as made
from joulecut_engine.optimize.problem import Problem

SHAPES = [
    Pipeline("1f1b", 3, 5),
    Pipeline("1f1b", 3, 4, transfers="overlapped"),
    Pipeline("gpipe", 3, 3, transfers="synchronous"),
    Pipeline("interleaved-1f1b", 2, 4, chunks=2),
    Pipeline("zb-h1", 3, 5),
    Pipeline("zb-h1", 3, 4, transfers="synchronous"),
    Pipeline("zb-h2", 3, 4),
    Pipeline("zb-v", 2, 4, chunks=2),
    Pipeline("dualpipe-v", 2, 4, chunks=2),
]


def _job(pipeline: Pipeline, seed: int) -> Problem:
    """Three clocks like dice."""
    dice, rows = np.random.default_rng(seed), {}
    for stage in range(pipeline.stages):
        for kind in kinds_of(pipeline):
            times, joules = np.sort(dice.uniform(1, 1.6, 3)), np.sort(dice.uniform(1, 2, 3))
            rows[stage, kind] = tuple(
                ClockOption(1400 - 100 * k, 0.1 * float(t), 30 * float(e))
                for k, (t, e) in enumerate(zip(times, joules[::-1], strict=True))
            )
            if kind in SENDS:
                rows[stage, kind] = (ClockOption(0, 0.004, 0.1),)
    return made(pipeline, Profile(rows), 80.0)


@pytest.mark.parametrize("pipeline", SHAPES, ids=str)
def test_each_is_one_moment_of_any_plan(pipeline: Pipeline) -> None:
    """All that begin at an event begin at once; who has to be done for it is, and nothing that
    follows begins before."""
    network = Computation(_job(pipeline, 1)).network
    events, dice = events_of(network), np.random.default_rng(2)
    for _ in range(10):
        end = network.ends(network.fastest * dice.uniform(1.0, 2.0, network.size))
        start, when = network.starts(end), np.full(events.count, -np.inf)
        np.maximum.at(when, events.done, end)
        np.maximum.at(when, events.begin, start)
        assert (start >= when[events.begin] - 1e-12).all()
        assert (end <= when[events.done] + 1e-12).all()
        inner = (network.tails >= 0) & (network.heads < network.size)
        tails, heads = network.tails[inner], network.heads[inner]
        assert (when[events.done[tails]] <= start[heads] + 1e-12).all()


@pytest.mark.parametrize(
    ("pipeline", "most"),
    [
        # A stage's own wait and a neighbour's end are two moments; a send adds none to them.
        (Pipeline("1f1b", 4, 24, transfers="overlapped"), 340),
        # A weight gradient begins when its stage's input gradient ends, and that is one moment.
        (Pipeline("zb-h1", 4, 12), 165),
        (Pipeline("1f1b", 4, 12), 72),
    ],
    ids=str,
)
def test_there_are_no_more_than_are_needed(pipeline: Pipeline, most: int) -> None:
    """The fewer, the more a plan changes when one is moved: 610, 227 and 78 of them once."""
    assert events_of(Computation(_job(pipeline, 1)).network).count <= most
