"""Hold-out windows of a controlled job: what they measure, and what can come between."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise

import pytest
from held_out import (
    INTERVAL_S,
    SHARE,
    SLOT_S,
    HeldOutWorld,
    UnprofiledHeldOutWorld,
    controlled,
    held_out,
    run_while,
    until_held_out,
    windows,
)
from worlds import Controller

from joulecut_controller.orders import Order
from joulecut_controller.policy.policy import Verify
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_sim.plant import Noise

SLOTS = 15  # three hold-outs and more, with windows of the plan around them
PASSES = round(SLOTS * SLOT_S / INTERVAL_S)


def outcomes(controller: Controller) -> dict[str, int]:
    """Dropped windows by reason."""
    holdout = controller.job.holdout
    counts: dict[str, int] = {}
    for _, outcome, count in holdout.outcomes:
        counts[outcome] = counts.get(outcome, 0) + count
    return {reason: count for reason, count in counts.items() if reason != "kept"}


LongRun = tuple[HeldOutWorld, Controller, DatabaseStore]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LongRun]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('holdouts')}/controller.db")
    world = HeldOutWorld(noise=Noise(), checkpoint_every=47)
    controller = controlled(world, store)
    controller.run(PASSES)
    yield world, controller, store
    store.close()


@pytest.mark.first
def test_windows_measure_what_is_true(long_run: LongRun) -> None:
    world, _, store = long_run
    found = {arm: windows(store, arm) for arm in ("default", "plan")}
    assert len(found["default"]) >= 3
    assert len(found["plan"]) >= 6
    for arm, made in found.items():
        time_s, energy_j = world.truly(arm == "default", since_s=1060.0)
        for window in made:
            # 55 iterations of half a percent of noise; power between samples of a checkpoint.
            assert window.time_mean_s == pytest.approx(time_s, rel=0.003)
            assert window.energy_j == pytest.approx(energy_j, rel=0.006)
            assert window.time_sd_s < 0.02 * time_s
            assert window.iterations + window.left_out >= 40
            assert window.gpus == 4
            assert window.predicted_energy_j == pytest.approx(energy_j, rel=0.02)
            assert (window.generation > 0) is (arm == "plan")
            assert 30.0 <= window.ended_unix_s - window.begun_unix_s <= SLOT_S
    assert sum(window.left_out for window in windows(store)) >= 8


def test_saving_joules_and_slowdown_shown_are_those_of_the_plant(long_run: LongRun) -> None:
    world, controller, _ = long_run
    job, since_s = controller.job, 1060.0
    (default_s, default_j), (plan_s, plan_j) = (
        world.truly(d, since_s=since_s) for d in (True, False)
    )
    saved = job.holdout.saving.saved_ratio
    assert saved is not None, job.holdout.saving.reason
    assert saved.mid == pytest.approx(1.0 - plan_j / default_j, abs=0.005)
    assert saved.half_width < 0.02
    assert job.account.known_ratio >= 0.8
    true_j = sum(not one.default for one in world.truth) * (default_j - plan_j)
    assert job.account.measured_j == pytest.approx(true_j, rel=0.07)  # some of them still run
    assert job.slowdown.mid == pytest.approx(plan_s / default_s - 1.0, abs=0.003)


def test_windows_never_cross_a_change_of_clocks(long_run: LongRun) -> None:
    world, _, store = long_run
    for window in windows(store):
        begun_s, ended_s = window.begun_unix_s - 1.8e9, window.ended_unix_s - 1.8e9
        inside = [
            one
            for one in world.truth
            if one.ended_s - one.duration_s > begun_s - 1e-3 and one.ended_s < ended_s + 1e-3
        ]
        assert {one.default for one in inside} == {window.arm == "default"}
        changes_s = [
            after.ended_s - after.duration_s
            for before, after in pairwise(world.truth)
            if before.default != after.default
        ]
        # Half a minute after the command; an iteration runs on for up to 7 s of a checkpoint.
        assert all(begun_s - changed_s >= 22.0 for changed_s in changes_s if changed_s <= begun_s)


def test_the_promise_to_the_job_holds_meanwhile(long_run: LongRun) -> None:
    world, _, _ = long_run
    default_s, plan_s = world.truly(True)[0], world.truly(False, since_s=1100.0)[0]
    assert plan_s <= 1.02 * default_s * 1.002
    assert plan_s > 1.005 * default_s


def test_the_same_clocks_come_back_after_each(long_run: LongRun) -> None:
    _, controller, _ = long_run
    applied = [
        tuple((a.uuid, a.clock_mhz) for a in plan.actions)
        for board in controller.boards
        if (plan := board.jobs[0].applied) is not None
    ]
    # A first plan is careful; what is measured leads to better ones, and none swings back.
    changed = [clocks for clocks, _ in groupby(applied)]
    assert len(changed) == len(set(changed)) <= 3
    verified = controller.events("verify")
    begun = sum("it begins" in text for text in verified)
    ended = sum("ended: " in text for text in verified)
    assert begun - ended in (0, 1)
    assert begun >= 3
    numbers = [board.jobs[0].applied for board in controller.boards]
    generations = [plan.generation for plan in numbers if plan]
    assert generations == sorted(generations)
    # Each hold-out gives the clocks after it a number, and each better plan has one.
    assert len(set(generations)) - begun in (len(changed) - 1, len(changed))


def test_job_and_board_say_what_runs(long_run: LongRun) -> None:
    _, controller, _ = long_run
    shown = [(b.jobs[0], b.jobs[0].holdout) for b in controller.boards]
    during = [job for job, holdout in shown if holdout and holdout.held_out]
    assert during
    for job in during:
        assert "default clocks until" in job.sentence
        assert "to measure the saving" in job.sentence
        assert job.applied is None
    between = [holdout.text for _, holdout in shown if holdout and not holdout.held_out]
    assert any(text.startswith("next hold-out window at ") for text in between)


def test_the_share_of_time_is_the_policys_and_clocks_come_back_soon(long_run: LongRun) -> None:
    world, controller, _ = long_run
    begun = sum("it begins" in text for text in controller.events("verify"))
    since_s = world.truth[0].ended_s + 60.0  # after the baseline
    wanted = begun * SLOT_S / (world.now_s - since_s)
    # Every hold-out may last two passes longer: one to see the end, one to bring clocks back.
    assert world.share_at_default(since_s) < wanted * (1.0 + 3 * INTERVAL_S / SLOT_S) + 0.03
    assert abs(wanted - SHARE) < 0.12


# -- what comes between --------------------------------------------------------------------


def test_a_restarted_controller_drops_the_open_window(store: DatabaseStore) -> None:
    world = HeldOutWorld()
    first = controlled(world, store)
    until_held_out(first)
    first.run(9)
    assert held_out(first)
    assert world.at_default()
    second = controlled(world, store)  # the first is dead: it says nothing any more
    kept = windows(store)
    second.run(12)
    assert not world.at_default()  # the plan is back long before the hold-out would have ended
    assert not held_out(second)
    slots_left = round(3 * SLOT_S / INTERVAL_S)
    second.run(slots_left, until=lambda: held_out(second))
    new = windows(store)[len(kept) :]
    assert not [window for window in new if window.arm == "default"]
    until_held_out(second)  # a later cycle's
    run_while(second, lambda: held_out(second))
    assert len(windows(store, "default")) == 1


def test_a_straggler_ends_the_window_and_the_plan_comes_back(store: DatabaseStore) -> None:
    world = HeldOutWorld()
    controller = controlled(world, store)
    until_held_out(controller)
    controller.run(8)
    assert controller.job.holdout.measuring == "default"
    world.peer_s = 1.3
    run_while(controller, lambda: held_out(controller), passes=3)
    controller.run(4)
    assert not world.at_default()
    assert outcomes(controller)
    assert not windows(store, "default")
    assert any("ended early" in text for text in controller.events("verify"))
    controller.run(round(2 * SLOT_S / INTERVAL_S))
    assert not held_out(controller)
    holdout = controller.job.holdout
    assert "waiting for a straggler" in holdout.text


@pytest.mark.parametrize("ends", ["silence", "pause"])
def test_where_control_ends_so_does_the_window(store: DatabaseStore, ends: str) -> None:
    world = HeldOutWorld()
    controller = controlled(world, store)
    until_held_out(controller)
    controller.run(8)
    if ends == "pause":
        order = Order("pause", world.job, by="a test")
        asyncio.run(controller.reconciler.commands.execute(order))
    world.running = ends != "silence"
    controller.run(5)
    assert world.at_default()
    assert not held_out(controller)
    assert not windows(store, "default")
    controller.run(round(2 * SLOT_S / INTERVAL_S))
    assert world.at_default()


def test_a_job_without_a_profile_is_held_out(store: DatabaseStore) -> None:
    world = UnprofiledHeldOutWorld()
    policy = world.unprofiled(budget=0.02)
    job = replace(policy.jobs[0], verify=Verify(SHARE, 60.0))
    controller = controlled(world, store, replace(policy, jobs=(job,)))
    until_held_out(controller, passes=250)
    before = next(p for b in reversed(controller.boards) if (p := b.jobs[0].applied))
    lowered_mhz = [a.clock_mhz or world.sku.clock_max_mhz for a in before.actions]
    run_while(controller, lambda: held_out(controller))
    assert len(windows(store, "default")) == 1
    controller.run(40)
    applied = controller.job.applied
    assert applied.generation > before.generation
    assert max(world.clocks_mhz().values()) <= max(lowered_mhz)
