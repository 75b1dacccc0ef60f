"""The granularity that a job's evidence allows: what leaves it, what takes it up again."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_states import changed
from planning import seen, view_of
from worlds import World

from joulecut_controller.plan.granularity import (
    AGAIN_DWELLS,
    GranularityChoice,
    choose_granularity,
    shortest_s,
    stretches_s,
)
from joulecut_controller.policy.policy import GranularityAsked
from joulecut_controller.view import GpuView, JobState, View, Window
from joulecut_engine.optimize.change_timing import STRETCH_S_MIN

DWELL_S = 10.0


def case(**timing: Any) -> tuple[JobState, View]:
    """A job with iterations of 8 s on agents that know their starts."""
    world = World(stages=3, microbatches=9, timed=True)
    world.history = [(8.0 * n, 8.0, {}) for n in range(4)]
    view = view_of(world, 1000.0)
    job = changed(seen(world, 0.0), baseline=Window(64, 8.0, 0.0, None, None))
    gpus = {uuid: _timed(gpu, **timing) for uuid, gpu in view.gpus.items()}
    return job, replace(view, gpus=gpus)


def _timed(gpu: GpuView, **timing: Any) -> GpuView:
    assert gpu.timing is not None
    return replace(gpu, timing=replace(gpu.timing, **timing))


def choice(
    job: JobState,
    view: View,
    held: GranularityChoice | None = None,
    asked: GranularityAsked = "auto",
) -> GranularityChoice:
    clocks = replace(job.policy.clocks, granularity=asked)
    job = replace(job, policy=replace(job.policy, clocks=clocks))
    return choose_granularity(job, view, held or GranularityChoice(), DWELL_S)


def test_evidence_that_is_there_gives_two_changes() -> None:
    found = choice(*case())
    assert (found.name, found.limits.per_iteration) == ("changes", 2)
    assert found.limits.min_dwell_s >= STRETCH_S_MIN
    assert found.why == ""


def test_every_gpu_must_have_starts() -> None:
    job, view = case()
    first = job.placement.stages[0][0]
    gpus = {**view.gpus, first: replace(view.gpus[first], timing=None)}
    found = choice(job, replace(view, gpus=gpus))
    assert found.name == "gpu"
    assert "known of 2 of 3 GPUs" in found.why


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        ({"missed_ratio": 0.25}, "25% of iteration starts missed"),
        ({"start_jitter_s": 2.1}, "jitter of iteration starts"),
        ({"starts_per_minute": 0.0}, "known of 0 of 3"),
        ({"start_jitter_s": float("nan")}, "known of 0 of 3"),
    ],
)
def test_unsound_timing_leaves_one_clock(timing: dict[str, float], why: str) -> None:
    found = choice(*case(**timing))
    assert found.name == "gpu"
    assert why in found.why


def test_an_agent_that_times_nothing_leaves_one_clock() -> None:
    job, view = case()
    nodes = tuple(replace(node, timed_steps_max=0) for node in view.nodes)
    assert "cannot time 2 changes" in choice(job, replace(view, nodes=nodes)).why


def test_what_was_left_is_taken_up_again_after_a_wait() -> None:
    held = choice(*case())
    missed = case(missed_ratio=0.5)
    left = choice(*missed, held)
    assert (left.name, left.left_s) == ("gpu", 1000.0)
    job, view = case()
    soon = replace(view, now_s=1000.0 + AGAIN_DWELLS * DWELL_S - 1.0)
    assert choice(job, soon, left).name == "gpu"
    assert choice(job, replace(view, now_s=soon.now_s + 2.0), left).name == "changes"


def test_a_share_of_misses_at_the_limit_does_not_flap() -> None:
    job, view = case(missed_ratio=0.25)
    assert choice(job, view, choice(*case())).name == "changes"
    assert choice(job, view).name == "gpu"


@given(st.floats(0.0, 1.0), st.floats(0.8, 1.25))
def test_stretches_asked_for_carry_what_is_measured(jitter_s: float, moves: float) -> None:
    """And a little more or less jitter asks the solver nothing new."""
    job, view = case(start_jitter_s=jitter_s)
    found = choice(job, view)
    assert found.limits.min_dwell_s >= shortest_s(job, view.gpus)
    job, view = case(start_jitter_s=jitter_s * moves)
    again = choice(job, view, found)
    assert again.limits.min_dwell_s >= shortest_s(job, view.gpus)
    assert choice(job, view, again).limits == again.limits


def test_the_policy_names_the_finest() -> None:
    assert choice(*case(), asked="gpu") == GranularityChoice()
    assert choice(*case(), asked="changes").why == ""


def test_stretches_go_over_the_end_of_an_iteration() -> None:
    assert stretches_s((0.5, 7.0), 8.0) == pytest.approx((6.5, 1.5))
    assert stretches_s((), 8.0) == ()
