"""The lease machine where two things meet: a debt and a second end, two jobs, two terms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keeper_requests import apply_of
from lease_machine import apply_event

from joulecut_agent.keeper.evidence import READINGS, Verdict
from joulecut_agent.keeper.lease import (
    HOLD_S_MAX,
    Gpu,
    State,
    end_leases,
    ended_steps,
    restore_finished,
)
from joulecut_agent.keeper.requests import Clear, Hold, Renew, Step, Yield

GPU = "GPU-a"


def _held(
    job: str = "blue", epoch: int = 5, generation: int = 1, program: tuple[int, ...] = ()
) -> State:
    """A GPU at 900 MHz at most, for a minute from second 0 on."""
    order = apply_of(
        epoch, job, generation, 60.0, {GPU: (0, 900)}, schedules={GPU: program} if program else {}
    )
    done = apply_event(State(), order, 0.0, {})
    assert done.reasons == {GPU: ""}
    return done.state


def test_a_second_end_does_not_forget_how_often_the_first_one_failed() -> None:
    """Or whoever clears a GPU each second would hide that it is stuck, and never let it wait."""
    state = end_leases(_held(), [GPU], "lease_expired", 1.0)
    for now_s in (1.0, 2.0, 4.0):
        state = restore_finished(state, GPU, False, now_s)
    state = end_leases(state, [GPU], "cleared", 5.0)
    owed = state.gpu(GPU).pending_restore
    assert owed is not None
    assert (owed.cause, owed.failures) == ("cleared", 3)


def test_repeated_ends_do_not_lengthen_the_wait_for_a_driver() -> None:
    state = end_leases(_held(), [GPU], "lease_expired", 1.0)
    for tenth in range(20):
        now_s = 1.0 + tenth / 10.0
        state = restore_finished(end_leases(state, [GPU], "cleared", now_s), GPU, False, now_s)
    pending = state.gpu(GPU).pending_restore
    assert pending is not None
    assert pending.failures == 20
    assert pending.due_s == pytest.approx(2.9 + 1.9)  # as long again as it has failed


def test_a_job_clears_nothing_that_another_one_holds() -> None:
    for named in ({}, {GPU: (0, 0)}):
        done = apply_event(_held("blue"), Clear(5, "red", uuids=tuple(named)), 1.0, {})
        assert done.state.gpu(GPU).lease is not None
        assert done.restores == ()
        assert all(reason == "held by job blue" for reason in done.reasons.values())
    assert done.reasons == {GPU: "held by job blue"}, "who names it is told why"


def test_who_names_no_job_clears_every_one() -> None:
    done = apply_event(_held("blue"), Clear(5), 1.0, {})
    assert done.reasons == {GPU: ""}
    assert done.restores == ((GPU, "cleared"),)


def test_the_largest_term_is_never_forgotten() -> None:
    state = _held(epoch=5, program=(600,))
    for epoch in (0, 1, 5):
        event = Step("blue", 1, GPU, 600, HOLD_S_MAX)
        assert apply_event(state, event, 10.0, {}).state.epoch_seen == 5
        renewal = Renew(epoch, "blue", 1, 60.0)
        assert apply_event(state, renewal, 10.0, {}).state.epoch_seen == 5
        clearing = Clear(epoch, "blue")
        assert apply_event(state, clearing, 10.0, {}).state.epoch_seen == 5


def _step(state: State, clock_mhz: int, now_s: float) -> tuple[State, str]:
    event = Step("blue", 1, GPU, clock_mhz, HOLD_S_MAX)
    done = apply_event(state, event, now_s, {})
    return done.state, done.reasons[GPU]


def test_a_step_up_never_waits_however_far_below_the_top_it_ends() -> None:
    state, refused = _step(_held(program=(600, 750)), 600, 10.0)
    assert not refused
    state, refused = _step(state, 750, 10.0)
    assert not refused
    lease = state.gpu(GPU).lease
    assert lease is not None
    assert lease.in_force == (0, 750, 0)


def test_what_was_seen_under_another_order_ends_no_lease() -> None:
    for epoch, generation, ends in ((4, 1, False), (5, 2, False), (5, 1, True), (0, 0, True)):
        state, now_s = _held(epoch=5, generation=1), 1.0
        for _ in range(READINGS):
            now_s += 1.0
            event = Yield(GPU, epoch, generation)
            done = apply_event(state, event, now_s, {}, Verdict.OTHER)
            state = done.state
        assert (state.gpu(GPU).lease is None) == ends
        assert done.reasons == {GPU: "" if ends else "no lease to yield"}


OTHER = "GPU-b"


def test_a_gpu_that_was_free_comes_down_after_others_have_gone_up() -> None:
    """It is at its own default, above whatever is asked of it."""
    order = apply_of(5, "blue", 2, 60.0, {OTHER: (0, 600), GPU: (0, 1200)})
    done = apply_event(_held(), order, 1.0, {})
    assert [lock.uuid for lock in done.writes] == [GPU, OTHER]


def test_a_clear_of_everything_names_what_is_held_or_pending_and_nothing_else() -> None:
    state = restore_finished(end_leases(_held(), [GPU], "lease_expired", 1.0), GPU, False, 1.0)
    state = state.updated({OTHER: Gpu(), "GPU-c": Gpu()})
    done = apply_event(state, Clear(), 1.1, {})
    assert done.reasons == {GPU: ""}, "nobody holds it, and it was never given back"
    assert done.restores == ((GPU, "cleared"),), "a person does not wait for the next try"
    assert apply_event(state, Clear(5, "blue"), 1.1, {}).reasons == {}


def test_a_gpu_that_is_pending_and_named_is_tried_again_at_once() -> None:
    state = restore_finished(end_leases(_held(), [GPU], "lease_expired", 1.0), GPU, False, 1.0)
    done = apply_event(state, Clear(5, "blue", uuids=(GPU,)), 1.1, {})
    assert done.restores == ((GPU, "cleared"),)
    assert apply_event(state, None, 1.1, {}).restores == (), "time alone would have waited"


@given(st.lists(st.tuples(st.floats(0.0, 1.5), st.sampled_from(["down", "up", "hold", ""]))))
def test_a_lowered_step_lasts_no_longer_than_it_is_held(acts: list[tuple[float, str]]) -> None:
    """What an agent that is gone, hangs or is stopped leaves low is up within a second."""
    state, now_s, held_s = _held(program=(600,)), 0.0, 0.0
    for gap_s, act in acts:
        now_s += gap_s
        for up in ended_steps(state, now_s):  # as the keeper does when it is due
            state = apply_event(state, up, now_s).state
        if act in {"down", "up"}:
            clock_mhz = 600 if act == "down" else 900
            done = apply_event(state, Step("blue", 1, GPU, clock_mhz, HOLD_S_MAX), now_s)
        else:
            done = apply_event(state, Hold((GPU,), HOLD_S_MAX) if act else None, now_s)
        state = done.state
        held_s = now_s if act and not done.reasons[GPU] else held_s
        lease = state.gpu(GPU).lease
        if lease is not None and lease.in_force.max_mhz == 600:
            assert now_s - held_s < HOLD_S_MAX
            assert state.due_s() <= held_s + HOLD_S_MAX
    assert [one.clock_max_mhz for one in ended_steps(state, now_s + HOLD_S_MAX)] in ([], [900])


@pytest.mark.parametrize("hold_s", [0.0, -1.0, HOLD_S_MAX + 0.1, math.inf, math.nan])
def test_a_step_that_would_last_is_refused(hold_s: float) -> None:
    done = apply_event(_held(program=(600,)), Step("blue", 1, GPU, 600, hold_s), 1.0)
    assert "allowed: above 0 and up to 1 s" in done.reasons[GPU]
    assert not done.writes
    low = apply_event(_held(program=(600,)), Step("blue", 1, GPU, 600, 1.0), 1.0).state
    assert "allowed" in apply_event(low, Hold((GPU,), hold_s), 1.5).reasons[GPU]
    assert apply_event(low, Step("blue", 1, GPU, 900, hold_s), 1.5).reasons == {GPU: ""}
