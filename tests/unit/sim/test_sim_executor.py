"""The plant's pipeline against its definition, worked out in a second and slower way."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_sim.plant import SCHEDULES, Schedule, play, program
from joulecut_wire.errors import BadInput

sizes = st.integers(1, 5)
schedules = st.sampled_from(SCHEDULES)


def _order(schedule: Schedule, stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """A stage's program as the definition reads."""
    forwards = [("forward", m) for m in range(microbatches)]
    backwards = [("backward", m) for m in range(microbatches)]
    if schedule == "gpipe":
        return forwards + backwards
    order = [forwards.pop(0) for _ in range(min(stages - stage - 1, microbatches))]
    while forwards:
        order += [forwards.pop(0), backwards.pop(0)]
    return order + backwards


def _longest_path(
    schedule: Schedule, stages: int, microbatches: int, time_s: dict[tuple[int, str, int], float]
) -> float:
    """Relaxes every edge until nothing moves: slow, and with no order to get wrong."""
    edges = []
    for stage in range(stages):
        order = _order(schedule, stage, stages, microbatches)
        edges += [((stage, *a), (stage, *b)) for a, b in itertools.pairwise(order)]
    for m in range(microbatches):
        for stage in range(stages - 1):
            edges.append(((stage, "forward", m), (stage + 1, "forward", m)))
            edges.append(((stage + 1, "backward", m), (stage, "backward", m)))
        edges.append(((stages - 1, "forward", m), (stages - 1, "backward", m)))
    end_s = dict(time_s)
    moved = True
    while moved:
        moved = False
        for before, after in edges:
            wanted = end_s[before] + time_s[after]
            if wanted > end_s[after] + 1e-12:
                end_s[after], moved = wanted, True
    return max(end_s.values())


@given(schedules, sizes, sizes, st.integers(0, 10_000))
def test_playing_takes_the_longest_path(
    schedule: Schedule, stages: int, microbatches: int, seed: int
) -> None:
    dice = random.Random(seed)
    steps = program(schedule, stages, microbatches)
    durations = [dice.uniform(0.5, 2.0) for _ in steps]
    time_s = {
        (step.stage, str(step.instruction), step.microbatch): duration
        for step, duration in zip(steps, durations, strict=True)
    }
    played = play(steps, durations, stages)
    assert played.duration_s == pytest.approx(_longest_path(schedule, stages, microbatches, time_s))
    assert sum(played.busy_s) == pytest.approx(sum(durations))


@given(schedules, sizes, sizes)
def test_every_operation_once_and_in_its_stage_order(
    schedule: Schedule, stages: int, microbatches: int
) -> None:
    steps = program(schedule, stages, microbatches)
    assert len(set(steps)) == 2 * stages * microbatches
    for stage in range(stages):
        ran = [(step.instruction, step.microbatch) for step in steps if step.stage == stage]
        assert ran == _order(schedule, stage, stages, microbatches)
    assert all(step.needs < place for place, step in enumerate(steps))


@pytest.mark.parametrize(("stages", "microbatches"), [(0, 4), (4, 0), (1000, 100_000)])
def test_impossible_shapes_are_refused(stages: int, microbatches: int) -> None:
    with pytest.raises(BadInput, match="at least 1 each"):
        program("1f1b", stages, microbatches)
