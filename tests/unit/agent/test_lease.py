"""The lease machine against everything that a controller, a network or a clock may do to it."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from draws import SAFE
from hypothesis import example, given
from hypothesis import strategies as st
from keeper_requests import apply_of
from lease_machine import LeaseRequest, apply_event
from msgspec.structs import replace

from joulecut_agent.keeper import unleased
from joulecut_agent.keeper.evidence import READINGS, SETTLE_S, Verdict
from joulecut_agent.keeper.lease import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    EPOCH_STEP_S,
    HOLD_S_MAX,
    LATE_S,
    RETAKES_MAX,
    RETRY_S,
    RETRY_S_MAX,
    Gpu,
    PowerAfter,
    Restore,
    State,
    end_leases,
    ended_steps,
    restore_finished,
    write_unanswered,
)
from joulecut_agent.keeper.requests import (
    NO_LIMITS,
    Apply,
    Clear,
    ClockLimits,
    GpuSetting,
    Hold,
    Renew,
    Step,
    Yield,
)
from joulecut_agent.keeper.unleased import RETAKE_S, RETAKE_S_MAX, RETAKES_END

UUIDS = ("GPU-a", "GPU-b", "GPU-c")

clocks = st.sampled_from([(0, 600), (0, 900), (210, 900), (0, 1410)])
powers_mw = st.sampled_from([0, 0, 200_000, 300_000])
limits = st.builds(lambda mhz, power_mw: ClockLimits(*mhz, power_mw), clocks, powers_mw)
settings = st.builds(
    GpuSetting, limits=limits, keep_power_limit=st.booleans(), above_kept_limit=st.booleans()
)
numbers = st.integers(0, 3)
ttls_s = st.floats(0.5, 20.0)
jobs = st.sampled_from(["blue", "red"])
applies = st.builds(
    Apply,
    epoch=numbers,
    job=jobs,
    generation=numbers,
    ttl_s=ttls_s,
    settings=st.dictionaries(st.sampled_from(UUIDS), settings, min_size=1),
)
renews = st.builds(Renew, epoch=numbers, job=jobs, generation=numbers, ttl_s=ttls_s)
clears = st.builds(
    Clear,
    epoch=numbers,
    job=st.sampled_from(["", "blue", "red"]),
    uuids=st.lists(st.sampled_from(UUIDS), unique=True).map(tuple),
)
gaps_s = st.floats(0.0, 8.0)
histories = st.lists(st.tuples(gaps_s, st.one_of(applies, renews, clears, st.none())), max_size=30)


@dataclass
class World:
    """Performs the effects on pretended GPUs, and remembers each lease's promise."""

    state: State = field(default_factory=State)
    now_s: float = 100.0
    locked: dict[str, ClockLimits] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    restored: list[tuple[float, str, str]] = field(default_factory=list)

    def tell(
        self, event: LeaseRequest | None, refused: dict[str, str] | None = None,
        seen: Verdict = Verdict.UNCLEAR,
    ) -> dict[str, str]:  # fmt: skip
        """Why each GPU concerned was refused, "" where it was not."""
        done = apply_event(self.state, event, self.now_s, refused, seen)
        self.state = done.state
        for one in done.effects:
            works = one.uuid not in self.broken
            if works:
                self._restore(one)
                self.restored.append((self.now_s, one.uuid, one.cause))
            self.state = restore_finished(self.state, one.uuid, works, self.now_s)
        for write in done.writes:
            assert write.before == self.locked.get(write.uuid, NO_LIMITS)
            self.locked[write.uuid] = write.wanted
        return dict(done.reasons)

    def see(self, uuid: str, seen: Verdict, times: int = 1) -> None:
        """The keeper reads a GPU, as often as it does in so many seconds."""
        for _ in range(times):
            self.now_s += 1.0
            if uuid in unleased.due(self.state, self.now_s):
                self.state = unleased.read(self.state, uuid, seen, (), self.now_s)
            self.tell(None)

    def _restore(self, restore: Restore) -> None:
        """What the keeper does: clocks are reset, and the power limit unless it is kept."""
        self.locked.pop(restore.uuid, None)
        if restore.power is PowerAfter.KEPT:
            kept_mw = self.state.gpu(restore.uuid).kept_power_mw
            self.locked[restore.uuid] = ClockLimits(0, 0, kept_mw)

    def slowed(self) -> set[str]:
        """The GPUs whose clocks are locked."""
        return {uuid for uuid, one in self.locked.items() if one.max_mhz}

    def kept(self) -> dict[str, int]:
        """The power limits without a lease."""
        leased = self.promised()
        return {u: one.power_mw for u, one in self.locked.items() if u not in leased}

    def promised(self) -> dict[str, float]:
        gpus = self.state.gpus.items()
        return {uuid: gpu.lease.expires_s for uuid, gpu in gpus if gpu.lease}

    def after(self, history: list[tuple[float, LeaseRequest | None]]) -> "World":
        for gap_s, event in history:
            self.now_s += gap_s
            self.tell(None)  # as the keeper does before each message
            self.tell(event)
        return self


@SAFE
@given(histories)
def test_silence_always_returns_the_gpu_to_default(
    history: list[tuple[float, LeaseRequest | None]],
) -> None:
    world = World().after(history)
    assert world.slowed() == set(world.promised()), "no lock without a lease"
    while (due_s := world.state.due_s()) < float("inf"):
        world.now_s = due_s
        world.tell(None)
    assert not world.slowed()
    assert not world.promised()


@given(histories)
def test_a_lease_is_never_cut_short_by_time_alone(
    history: list[tuple[float, LeaseRequest | None]],
) -> None:
    world = World().after(history)
    for uuid, expires_s in sorted(world.promised().items(), key=lambda pair: pair[1]):
        if expires_s - 1e-6 <= world.now_s:
            continue  # ends together with the one before
        held = world.locked[uuid]
        world.now_s = expires_s - 1e-6
        world.tell(None)
        assert world.locked[uuid] == held
        world.now_s = expires_s
        world.tell(None)
        assert uuid not in world.slowed()
        assert world.restored[-1][2] == "lease_expired"


@given(histories, gaps_s)
def test_gpus_without_a_lease_and_a_reset_are_read_and_leased_ones_until_their_clocks_showed(
    history: list[tuple[float, LeaseRequest | None]], wait_s: float
) -> None:
    world = World(broken={"GPU-a"}).after(history)
    world.now_s += wait_s
    world.tell(None)
    pending = {uuid for uuid, gpu in world.state.gpus.items() if gpu.pending_restore}
    locked = {uuid for uuid, gpu in world.state.gpus.items() if gpu.may_be_ours}
    due = {*unleased.due(world.state, world.now_s + SETTLE_S)}
    held = {u: gpu.lease for u, gpu in world.state.gpus.items() if gpu.lease}
    unshown = {uuid for uuid, lease in held.items() if lease.clocks_mhz}
    assert due == (locked - pending - {*held}) | unshown
    for uuid in unshown:
        world.state = unleased.read(world.state, uuid, Verdict.UNCLEAR, (), world.now_s)
    assert not unshown & {*unleased.due(world.state, world.now_s + SETTLE_S)}


@SAFE
@given(histories, applies)
def test_an_older_command_changes_nothing(
    history: list[tuple[float, LeaseRequest | None]], command: Apply
) -> None:
    world = World().after(history)
    before, locked = world.state, dict(world.locked)
    newest = {uuid: gpu.last for uuid, gpu in before.gpus.items() if gpu.last}
    older = command.epoch < before.epoch_seen or any(
        (command.epoch, command.generation) < (newest[uuid].epoch, newest[uuid].generation)
        for uuid in command.settings
        if uuid in newest
    )
    answers = world.tell(command)
    if older:
        assert all(answers.values())
    if any(answers.values()):
        assert (world.state, world.locked) == (before, locked)
        assert all(answers.values()), "all or nothing"
    assert set(answers) == set(command.settings)


@SAFE
@given(histories, applies)
def test_the_same_command_twice_is_one_command(
    history: list[tuple[float, LeaseRequest | None]], command: Apply
) -> None:
    world = World().after(history)
    if any(world.tell(command).values()):
        return
    once = world.state
    again = apply_event(once, command, world.now_s)
    assert again.state == once
    assert not again.writes, "nothing to write"
    assert not any(again.reasons.values())


@SAFE
@given(histories, applies, clocks)
def test_an_equal_number_with_other_content_is_refused(
    history: list[tuple[float, LeaseRequest | None]], command: Apply, other: tuple[int, int]
) -> None:
    world = World().after(history)
    if any(world.tell(command).values()):
        return
    changed = dict.fromkeys(command.settings, GpuSetting(ClockLimits(*other)))
    if changed == command.settings:
        return
    twin = replace(command, settings=changed)
    before = world.state
    assert all(world.tell(twin).values())
    assert world.state == before


@given(histories, renews)
def test_a_heartbeat_moves_the_end_of_matching_leases_only(
    history: list[tuple[float, LeaseRequest | None]], renew: Renew
) -> None:
    world = World().after(history)
    before, locked = world.promised(), dict(world.locked)
    seen = world.state.epoch_seen
    matching = {
        uuid
        for uuid, gpu in world.state.gpus.items()
        if gpu.lease and (gpu.lease.job, gpu.lease.generation) == (renew.job, renew.generation)
    }
    answers = world.tell(renew)
    if renew.epoch < seen:
        matching = set()
    assert {uuid for uuid, reason in answers.items() if not reason} == matching
    assert answers, "never silence"
    after = world.promised()
    for uuid, expires_s in before.items():
        assert after[uuid] == (world.now_s + renew.ttl_s if uuid in matching else expires_s)
    assert world.locked == locked


@given(histories, clears)
def test_clear_ends_what_it_names_and_nothing_else(
    history: list[tuple[float, LeaseRequest | None]], clear: Clear
) -> None:
    world = World().after(history)
    held = {uuid: gpu.lease.job for uuid, gpu in world.state.gpus.items() if gpu.lease}
    stale = 0 < clear.epoch < world.state.epoch_seen
    world.tell(clear)
    named = {
        uuid
        for uuid, job in held.items()
        if clear.job in {"", job} and (not clear.uuids or uuid in clear.uuids)
    }
    assert world.slowed() == (set(held) if stale else set(held) - named)


@given(histories, applies, st.sampled_from(UUIDS))
def test_one_refusal_refuses_the_group(
    history: list[tuple[float, LeaseRequest | None]], command: Apply, uuid: str
) -> None:
    world = World().after(history)
    if uuid not in command.settings:
        return
    before = world.state
    answers = world.tell(command, {uuid: "out of bounds"})
    assert all(answers.values())
    assert world.state == before


@given(histories)
def test_epoch_seen_never_falls(history: list[tuple[float, LeaseRequest | None]]) -> None:
    world, seen = World(), 0
    for entry in history:
        world.after([entry])
        assert world.state.epoch_seen >= seen
        seen = world.state.epoch_seen


@given(st.lists(st.tuples(st.floats(0.0, EPOCH_STEP_S / 4), st.integers(0, 2 * EPOCH_STEP_MAX))))
def test_no_storm_of_commands_raises_the_epoch_by_more_than_a_step_an_hour(
    storm: list[tuple[float, int]],
) -> None:
    state, now_s, history = State(epoch_seen=7), 0.0, [(-EPOCH_STEP_S, 7)]
    for wait_s, rise in storm:
        now_s += wait_s
        state = apply_event(state, Clear(state.epoch_seen + rise), now_s).state
        history.append((now_s, state.epoch_seen))
        hour_ago = max(seen for at_s, seen in history if at_s <= now_s - EPOCH_STEP_S)
        # An hour begins with a rise: two of them may touch. Each command may add one more.
        assert state.epoch_seen <= hour_ago + 2 * EPOCH_STEP_MAX + len(storm)


def test_after_a_storm_the_next_controller_is_accepted() -> None:
    state, commands = State(), 0
    while commands < 4096:
        for rise in (EPOCH_STEP_MAX, 1):
            state = apply_event(state, Clear(state.epoch_seen + rise), 1.0).state
            commands += 1
    assert state.epoch_seen <= EPOCH_STEP_MAX + commands
    for now_s in (1.0, EPOCH_STEP_S, 2 * EPOCH_STEP_S):
        first = apply_of(state.epoch_seen + 1, "blue", 1, 5.0, {"GPU-a": (0, 900)})
        assert apply_event(state, first, now_s).reasons == {"GPU-a": ""}


def test_forgotten_epochs_are_set_by_the_next_command() -> None:
    world = World(State())
    assert world.tell(apply_of(900, "blue", 7, 5.0, {"GPU-a": (0, 900)})) == {"GPU-a": ""}
    state = world.state.without_epochs()
    assert state.epoch_seen == 0
    first = apply_of(1, "blue", 1, 5.0, {"GPU-a": (0, 1200)})
    assert apply_event(state, first, 1.0).reasons == {"GPU-a": ""}


@pytest.mark.parametrize(("seen", "highest"), [
    (0, EPOCH_STEP_MAX), (7, 7 + EPOCH_STEP_MAX),
    (EPOCH_MAX - 1, EPOCH_MAX), (2**63, 2**63),
])  # fmt: skip
def test_a_term_that_no_controller_can_have_reached_is_refused(seen: int, highest: int) -> None:
    """Else one command with the largest number there is shuts out every controller for ever."""
    gpus = {"GPU-a": (0, 900)}
    first = apply_of(seen, "blue", 1, 5.0, gpus)
    for command in (
        apply_of(highest + 1, "blue", 2, 5.0, gpus),
        Renew(highest + 1, "blue", 1, 5.0),
        Clear(highest + 1, "blue", ("GPU-a",)),
    ):
        world = World(State(epoch_seen=seen))
        assert world.tell(first) == {"GPU-a": ""}
        before = world.state
        reason = f"epoch {highest + 1}; allowed: {seen} to {highest}"
        assert world.tell(command) == {"GPU-a": reason}
        assert world.state == before
        assert world.tell(replace(command, epoch=highest)) == {"GPU-a": ""}
        assert world.state.epoch_seen == highest


def test_a_failed_restore_is_asked_for_again_ever_more_slowly() -> None:
    world = World()
    world.tell(apply_of(1, "blue", 1, 5.0, {"GPU-a": (0, 900)}))
    world.broken = {"GPU-a"}
    world.now_s += 5.0
    world.tell(None)
    waits_s = []
    for _ in range(12):
        waits_s.append(world.state.due_s() - world.now_s)
        world.now_s = world.state.due_s()
        world.tell(None)
    assert waits_s == sorted(waits_s)
    assert (waits_s[0], waits_s[-1]) == (RETRY_S, RETRY_S_MAX)
    refused = world.tell(apply_of(1, "blue", 2, 5.0, {"GPU-a": (0, 900)}))
    assert refused["GPU-a"] == "its restore (lease_expired) is still pending"
    world.broken = set()
    world.now_s = world.state.due_s()
    world.tell(None)
    assert not world.locked
    assert world.state.due_s() == float("inf")


def test_critical_stages_go_up_before_others_come_down() -> None:
    world = World()
    first = {"GPU-a": (0, 900), "GPU-b": (0, 900), "GPU-c": (0, 900)}
    world.tell(apply_of(1, "blue", 1, 5.0, first))
    then = {"GPU-a": (0, 600), "GPU-b": (0, 1410), "GPU-c": (0, 600)}
    done = apply_event(world.state, apply_of(1, "blue", 2, 5.0, then), 100.0, {})
    assert [lock.uuid for lock in done.writes] == ["GPU-b", "GPU-a", "GPU-c"]


def test_a_newer_job_takes_over_and_the_old_one_cannot_renew() -> None:
    world = World()
    world.tell(apply_of(1, "blue", 1, 5.0, {"GPU-a": (0, 900)}))
    taken = world.tell(apply_of(1, "red", 2, 5.0, {"GPU-a": (0, 600)}))
    assert taken == {"GPU-a": ""}
    assert world.tell(Renew(1, "blue", 1, 5.0)) == {"": "job blue holds no lease here"}
    assert world.tell(Renew(1, "red", 2, 5.0)) == {"GPU-a": ""}


@given(histories, st.floats(0.1, 30.0))
def test_restores_with_jitter_are_all_done_within_the_bound(
    history: list[tuple[float, LeaseRequest | None]], restore_jitter_s: float
) -> None:
    world = World(State(restore_jitter_s=restore_jitter_s)).after(history)
    until_s = max(world.promised().values(), default=world.now_s) + restore_jitter_s
    while (due_s := world.state.due_s()) < float("inf"):
        assert due_s <= max(until_s, world.now_s)
        world.now_s = due_s
        world.tell(None)
    assert not world.slowed()


def test_a_dead_controllers_gpus_rise_one_after_the_other_and_a_new_one_may_take_them() -> None:
    uuids = [f"GPU-{n}" for n in range(200)]
    world = World(State(restore_jitter_s=10.0))
    world.tell(apply_of(1, "blue", 1, 5.0, dict.fromkeys(uuids, (0, 900))))
    world.now_s += 5.0
    world.tell(None)
    for second in range(1, 11):
        world.now_s = 105.0 + second
        world.tell(None)
        assert abs(len(world.restored) - 20 * second) <= 20, "no surge at any time"
        if second == 5:
            left = next(iter(world.locked))
            again = world.tell(apply_of(2, "blue", 2, 30.0, {left: (0, 900)}))
            assert again == {left: ""}
    assert set(world.locked) == {left}


@example(  # the second reading comes too soon to count, and differs
    [(0.0, apply_of(1, "blue", 1, 20.0, {"GPU-a": (0, 900)}))], "GPU-a",
    [(2.0, Verdict.OURS), (0.0, Verdict.UNCLEAR), (1.0, Verdict.OURS), (1.0, Verdict.OURS)],
)  # fmt: skip
@SAFE
@given(histories, st.sampled_from(UUIDS), st.lists(st.tuples(gaps_s, st.sampled_from(Verdict))))
def test_a_yield_ends_no_lease_but_by_readings_in_a_row_and_leaves_what_is_theirs(
    history: list[tuple[float, LeaseRequest | None]], uuid: str,
    asked: list[tuple[float, Verdict]],
) -> None:  # fmt: skip
    """Whoever asks, and however often: one reading never ends a lease."""
    world = World().after(history)
    row: list[Verdict] = []
    for gap_s, seen in asked:
        world.now_s += gap_s
        world.tell(None)
        held, locked = uuid in world.promised(), dict(world.locked)
        row = [*row, seen] if seen in {*row} else [seen]
        (reason,) = world.tell(Yield(uuid), seen=seen).values()
        assert not reason or (uuid in world.promised()) == held
        if not reason:
            assert held
            assert len(row) >= READINGS
            assert seen is not Verdict.UNCLEAR
            left = seen in {Verdict.FREE, Verdict.OTHER}
            assert world.restored[-1][1:] == (uuid, "clocks_left" if left else "cleared")
            assert world.state.gpu(uuid).left == left
            assert {**world.locked, uuid: None} == {**locked, uuid: None}, "this GPU alone"


@SAFE
@given(histories)
def test_a_kept_power_limit_changes_by_a_new_command_alone(
    history: list[tuple[float, LeaseRequest | None]],
) -> None:
    """Whatever ends leases: time, a heartbeat that is missing, a clear, the end of a job."""
    world = World()
    for entry in history:
        before = world.kept()
        world.after([entry])
        newer = entry[1].settings if isinstance(entry[1], Apply) else {}
        for uuid, power_mw in before.items():
            assert uuid in newer or world.locked[uuid].power_mw == power_mw
        for uuid, gpu in world.state.gpus.items():
            if not gpu.lease:
                assert world.locked.get(uuid, NO_LIMITS).power_mw == gpu.kept_power_mw


@given(histories)
def test_kept_limits_are_lifted_on_request(
    history: list[tuple[float, LeaseRequest | None]],
) -> None:
    world = World().after(history)
    world.tell(Clear(lift_power_limit=True))
    assert not world.locked
    assert not any(gpu.kept_power_mw for gpu in world.state.gpus.values())


def test_a_limit_above_a_kept_one_ends_with_its_lease() -> None:
    world, gpus = World(), {"GPU-a": (0, 900)}
    above = {"GPU-a": 350_000}
    (why,) = world.tell(apply_of(1, "blue", 1, 5.0, gpus, above, above=True)).values()
    assert why == "above_kept_limit without a kept power limit that is lower"
    world.tell(apply_of(1, "blue", 2, 5.0, gpus, {"GPU-a": 300_000}, keep=True))
    (why,) = world.tell(apply_of(1, "blue", 3, 5.0, gpus, {"GPU-a": 200_000}, above=True)).values()
    assert why, "the end of its lease would raise the power"
    assert world.tell(apply_of(1, "blue", 4, 5.0, gpus, above, above=True)) == {"GPU-a": ""}
    assert world.locked == {"GPU-a": (0, 900, 350_000)}
    assert world.tell(apply_of(1, "blue", 5, 5.0, gpus)) == {"GPU-a": ""}
    assert world.locked == {"GPU-a": (0, 900, 300_000)}, "the next command names none"
    world.tell(apply_of(1, "blue", 6, 5.0, gpus, above, above=True))
    world.now_s += 5.0
    world.tell(None)
    assert world.locked == {"GPU-a": (0, 0, 300_000)}


def test_a_command_that_does_not_keep_its_limit_takes_the_kept_one_along() -> None:
    world = World()
    gpus = {"GPU-a": (0, 900)}
    world.tell(apply_of(1, "blue", 1, 5.0, gpus, {"GPU-a": 300_000}, keep=True))
    world.now_s += 5.0
    world.tell(None)
    assert world.locked == {"GPU-a": (0, 0, 300_000)}
    assert world.tell(apply_of(1, "red", 2, 5.0, gpus)) == {"GPU-a": ""}
    assert world.locked == {"GPU-a": (0, 900, 300_000)}, "it names no limit"
    assert world.tell(apply_of(1, "red", 3, 5.0, gpus, {"GPU-a": 350_000})) == {"GPU-a": ""}
    world.now_s += 5.0
    world.tell(None)
    assert not world.locked


@SAFE
@given(histories, st.sampled_from(UUIDS), st.booleans())
def test_after_an_unanswered_write_the_gpu_is_reset_until_it_can_no_longer_come(
    history: list[tuple[float, LeaseRequest | None]], uuid: str, killed: bool
) -> None:
    world = World().after(history)
    if killed:  # the journal names the GPU, and not whether its last write was answered
        ends = end_leases(World().state, [uuid], "keeper_start", world.now_s)
        world = World(state=ends, now_s=world.now_s)
    else:
        world.state = write_unanswered(world.state, uuid, world.now_s)
    world.state = end_leases(world.state, [uuid], "reverted", world.now_s)
    world.tell(None)
    until_s, resets_s = world.now_s + LATE_S, []
    while (due_s := world.state.due_s()) < float("inf"):
        world.now_s = max(world.now_s, due_s)
        world.locked.setdefault(uuid, ClockLimits(0, 600))  # carried out late, at any time
        world.tell(None)
        resets_s += [at_s for at_s, one, _ in world.restored[-3:] if one == uuid]
    assert max(resets_s) >= until_s
    assert not world.slowed()


def test_a_lock_that_shows_again_is_reset_ever_more_seldom_and_then_called_stuck() -> None:
    world = World()
    world.tell(apply_of(1, "blue", 1, 5.0, {"GPU-a": (0, 900)}))
    world.tell(Clear())
    resets_s: list[float] = []
    for _ in range(2000):
        before = len(world.restored)
        world.see("GPU-a", Verdict.OURS)
        resets_s += [world.now_s] * (len(world.restored) - before)
        assert world.state.gpu("GPU-a").is_stuck == (len(resets_s) > RETAKES_MAX)
    waits_s = [later - now for now, later in pairwise(resets_s)]
    assert waits_s == sorted(waits_s)
    assert (waits_s[0], waits_s[-1]) == (RETAKE_S, RETAKE_S_MAX)
    assert len(resets_s) == RETAKES_END
    refused = world.tell(apply_of(1, "blue", 2, 5.0, {"GPU-a": (0, 900)}))
    assert "resets have no effect" in refused["GPU-a"]
    world.see("GPU-a", Verdict.FREE, READINGS)
    assert not world.state.gpu("GPU-a").is_stuck
    assert world.tell(apply_of(1, "blue", 3, 5.0, {"GPU-a": (0, 900)})) == {"GPU-a": ""}


def test_while_a_command_settles_no_reading_ends_its_lease() -> None:
    world = World()
    world.tell(apply_of(1, "blue", 1, 50.0, {"GPU-a": (0, 900)}))
    for _ in range(4):
        world.now_s += SETTLE_S / 5
        assert world.tell(Yield("GPU-a"), seen=Verdict.OTHER)["GPU-a"]


@pytest.mark.parametrize("seen", [Verdict.FREE, Verdict.OTHER])
def test_what_was_left_to_another_writer_stays_our_concern(seen: Verdict) -> None:
    world = World()
    world.tell(apply_of(1, "blue", 1, 50.0, {"GPU-a": (0, 900)}))
    world.now_s += 10.0
    while "GPU-a" in world.promised():
        world.now_s += 1.0
        world.tell(Yield("GPU-a"), seen=seen)
    assert world.restored[-1][2] == "clocks_left"
    restores = len(world.restored)
    world.tell(Clear(uuids=("GPU-a",)))
    assert len(world.restored) == restores, "it shows another writer's clocks"
    world.see("GPU-a", Verdict.OURS, READINGS)
    assert world.restored[-1][2] == "lock_shows", "the driver carries it out late"


def test_a_lock_on_a_gpu_that_was_seen_free_is_not_ours() -> None:
    world = World()
    world.tell(apply_of(1, "blue", 1, 5.0, {"GPU-a": (0, 900)}))
    world.tell(Clear())
    written_s = world.now_s
    while world.state.gpu("GPU-a").may_be_ours:
        world.see("GPU-a", Verdict.FREE)
    assert world.now_s >= written_s + LATE_S, "a write may come late until then"
    before = len(world.restored)
    world.see("GPU-a", Verdict.OURS, READINGS)
    assert len(world.restored) == before


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
    """Else clearing a GPU each second would hide that it is stuck, and it would never wait."""
    state = end_leases(_held(), [GPU], "lease_expired", 1.0)
    for now_s in (1.0, 2.0, 4.0):
        state = restore_finished(state, GPU, False, now_s)
    state = end_leases(state, [GPU], "cleared", 5.0)
    owed = state.gpu(GPU).pending_restore
    assert (owed.cause, owed.failures) == ("cleared", 3)


def test_repeated_ends_do_not_lengthen_the_wait_for_a_driver() -> None:
    state = end_leases(_held(), [GPU], "lease_expired", 1.0)
    for tenth in range(20):
        now_s = 1.0 + tenth / 10.0
        state = restore_finished(end_leases(state, [GPU], "cleared", now_s), GPU, False, now_s)
    pending = state.gpu(GPU).pending_restore
    assert pending.failures == 20
    assert pending.due_s == pytest.approx(2.9 + 1.9)  # as long again as it has failed


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
    assert done.reasons == {GPU: ""}, "no lease holds the others, and none has to be restored"
    assert done.restores == ((GPU, "cleared"),), "a person does not wait for the next try"
    assert apply_event(state, Clear(5, "blue"), 1.1, {}).reasons == {}


def test_a_gpu_that_is_pending_and_named_is_tried_again_at_once() -> None:
    state = restore_finished(end_leases(_held(), [GPU], "lease_expired", 1.0), GPU, False, 1.0)
    done = apply_event(state, Clear(5, "blue", uuids=(GPU,)), 1.1, {})
    assert done.restores == ((GPU, "cleared"),)
    assert apply_event(state, None, 1.1, {}).restores == (), "time alone would have waited"


@SAFE
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
