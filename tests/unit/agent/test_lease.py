"""The lease machine against everything that a controller, a network or a clock may do to it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from joulecut_agent.keeper.lease import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    NO_LIMITS,
    RETRY_S,
    RETRY_S_MAX,
    Command,
    Op,
    State,
    apply_event,
    restore_finished,
)
from joulecut_wire.messages import ClockLimits

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
HIGH = (0, 1410)

clocks = st.sampled_from([(0, 600), (0, 900), (210, 900), (0, 1410)])
settings = st.dictionaries(st.sampled_from(UUIDS), clocks, min_size=1)
powers = st.dictionaries(st.sampled_from(UUIDS), st.sampled_from([200_000, 300_000]))
numbers = st.integers(0, 3)
ttls_s = st.floats(0.5, 20.0)
jobs = st.sampled_from(["blue", "red"])
applies = st.builds(
    Command,
    op=st.just(Op.APPLY),
    epoch=numbers,
    job=jobs,
    generation=numbers,
    ttl_s=ttls_s,
    clocks_mhz=settings,
    power_mw=powers,
)
renews = st.builds(
    Command, op=st.just(Op.RENEW), epoch=numbers, job=jobs, generation=numbers, ttl_s=ttls_s
)
clears = st.builds(
    Command,
    op=st.just(Op.CLEAR),
    epoch=numbers,
    job=st.sampled_from(["", "blue", "red"]),
    clocks_mhz=st.one_of(st.just({}), settings),
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

    def tell(self, event: Command | None, refused: dict[str, str] | None = None) -> dict[str, str]:
        """Why each GPU concerned was refused, "" where it was not."""
        self.state, reasons, restores, locks = apply_event(
            self.state, event, self.now_s, refused or {}
        )
        for uuid, cause in restores:
            done = uuid not in self.broken
            if done:
                self.locked.pop(uuid, None)
                self.restored.append((self.now_s, uuid, cause))
            self.state = restore_finished(self.state, uuid, done, self.now_s)
        for lock in locks:
            assert lock.before == self.locked.get(lock.uuid, NO_LIMITS)
            self.locked[lock.uuid] = lock.wanted
        return dict(reasons)

    def promised(self) -> dict[str, float]:
        gpus = self.state.gpus.items()
        return {uuid: gpu.lease.expires_s for uuid, gpu in gpus if gpu.lease}

    def after(self, history: list[tuple[float, Command | None]]) -> "World":
        for gap_s, event in history:
            self.now_s += gap_s
            self.tell(None)  # as the keeper does before each message
            self.tell(event)
        return self


@given(histories)
def test_silence_always_returns_the_gpu_to_default(
    history: list[tuple[float, Command | None]],
) -> None:
    world = World().after(history)
    assert set(world.locked) == set(world.promised()), "no lock without a lease"
    while (due_s := world.state.due_s()) < float("inf"):
        world.now_s = due_s
        world.tell(None)
    assert not world.locked
    assert not world.promised()


@given(histories)
def test_a_lease_is_never_cut_short_by_time_alone(
    history: list[tuple[float, Command | None]],
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
        assert uuid not in world.locked
        assert world.restored[-1][2] == "lease_expired"


@given(histories, applies)
def test_an_older_command_changes_nothing(
    history: list[tuple[float, Command | None]], command: Command
) -> None:
    world = World().after(history)
    before, locked = world.state, dict(world.locked)
    newest = {uuid: gpu.last for uuid, gpu in before.gpus.items() if gpu.last}
    older = command.epoch < before.epoch_seen or any(
        (command.epoch, command.generation) < (newest[uuid].epoch, newest[uuid].generation)
        for uuid in command.clocks_mhz
        if uuid in newest
    )
    answers = world.tell(command)
    if older:
        assert all(answers.values())
    if any(answers.values()):
        assert (world.state, world.locked) == (before, locked)
        assert all(answers.values()), "all or nothing"
    assert set(answers) == set(command.clocks_mhz)


@given(histories, applies)
def test_the_same_command_twice_is_one_command(
    history: list[tuple[float, Command | None]], command: Command
) -> None:
    world = World().after(history)
    if any(world.tell(command).values()):
        return
    once = world.state
    again, reasons, _, locks = apply_event(once, command, world.now_s, {})
    assert again == once
    assert not locks, "nothing to write"
    assert not any(reasons.values())


@given(histories, applies, clocks)
def test_an_equal_number_with_other_content_is_refused(
    history: list[tuple[float, Command | None]], command: Command, other: tuple[int, int]
) -> None:
    world = World().after(history)
    if any(world.tell(command).values()):
        return
    changed = dict.fromkeys(command.clocks_mhz, other)
    if changed == command.clocks_mhz:
        return
    twin = replace(command, clocks_mhz=changed)
    before = world.state
    assert all(world.tell(twin).values())
    assert world.state == before


@given(histories, renews)
def test_a_heartbeat_moves_the_end_of_matching_leases_only(
    history: list[tuple[float, Command | None]], renew: Command
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
    history: list[tuple[float, Command | None]], clear: Command
) -> None:
    world = World().after(history)
    held = {uuid: gpu.lease.job for uuid, gpu in world.state.gpus.items() if gpu.lease}
    stale = 0 < clear.epoch < world.state.epoch_seen
    world.tell(clear)
    named = {
        uuid
        for uuid, job in held.items()
        if clear.job in {"", job} and (not clear.clocks_mhz or uuid in clear.clocks_mhz)
    }
    assert set(world.locked) == (set(held) if stale else set(held) - named)


@given(histories, applies, st.sampled_from(UUIDS))
def test_one_refusal_refuses_the_group(
    history: list[tuple[float, Command | None]], command: Command, uuid: str
) -> None:
    world = World().after(history)
    if uuid not in command.clocks_mhz:
        return
    before = world.state
    answers = world.tell(command, {uuid: "out of bounds"})
    assert all(answers.values())
    assert world.state == before


@given(histories)
def test_epoch_seen_never_falls(history: list[tuple[float, Command | None]]) -> None:
    world, seen = World(), 0
    for entry in history:
        world.after([entry])
        assert world.state.epoch_seen >= seen
        seen = world.state.epoch_seen


@pytest.mark.parametrize(("seen", "highest"), [
    (0, EPOCH_STEP_MAX), (7, 7 + EPOCH_STEP_MAX),
    (EPOCH_MAX - 1, EPOCH_MAX), (2**63, 2**63),
])  # fmt: skip
def test_a_term_that_no_controller_can_have_reached_is_refused(seen: int, highest: int) -> None:
    """Else one command with the largest number there is shuts out every controller for ever."""
    gpus = {"GPU-a": (0, 900)}
    first = Command(Op.APPLY, seen, "blue", 1, 5.0, gpus)
    for op, generation in ((Op.APPLY, 2), (Op.RENEW, 1), (Op.CLEAR, 0)):
        world = World(State(epoch_seen=seen))
        assert world.tell(first) == {"GPU-a": ""}
        before = world.state
        command = Command(op, highest + 1, "blue", generation, 5.0, gpus)
        reason = f"epoch {highest + 1}; allowed: {seen} to {highest}"
        assert world.tell(command) == {"GPU-a": reason}
        assert world.state == before
        assert world.tell(replace(command, epoch=highest)) == {"GPU-a": ""}
        assert world.state.epoch_seen == highest


def test_a_failed_restore_is_asked_for_again_ever_more_slowly() -> None:
    world = World()
    world.tell(Command(Op.APPLY, 1, "blue", 1, 5.0, {"GPU-a": (0, 900)}))
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
    refused = world.tell(Command(Op.APPLY, 1, "blue", 2, 5.0, {"GPU-a": (0, 900)}))
    assert refused["GPU-a"] == "its restore (lease_expired) is still pending"
    world.broken = set()
    world.now_s = world.state.due_s()
    world.tell(None)
    assert not world.locked
    assert world.state.due_s() == float("inf")


def test_critical_stages_go_up_before_others_come_down() -> None:
    world = World()
    first = {"GPU-a": (0, 900), "GPU-b": (0, 900), "GPU-c": (0, 900)}
    world.tell(Command(Op.APPLY, 1, "blue", 1, 5.0, first))
    then = {"GPU-a": (0, 600), "GPU-b": (0, 1410), "GPU-c": (0, 600)}
    done = apply_event(world.state, Command(Op.APPLY, 1, "blue", 2, 5.0, then), 100.0, {})
    assert [lock.uuid for lock in done.writes] == ["GPU-b", "GPU-a", "GPU-c"]


def test_a_newer_job_takes_over_and_the_old_one_cannot_renew() -> None:
    world = World()
    world.tell(Command(Op.APPLY, 1, "blue", 1, 5.0, {"GPU-a": (0, 900)}))
    taken = world.tell(Command(Op.APPLY, 1, "red", 2, 5.0, {"GPU-a": (0, 600)}))
    assert taken == {"GPU-a": ""}
    assert world.tell(Command(Op.RENEW, 1, "blue", 1, 5.0)) == {"": "job blue holds no lease here"}
    assert world.tell(Command(Op.RENEW, 1, "red", 2, 5.0)) == {"GPU-a": ""}


@given(histories, st.floats(0.1, 30.0))
def test_restores_with_jitter_are_all_done_within_the_bound(
    history: list[tuple[float, Command | None]], restore_jitter_s: float
) -> None:
    world = World(State(restore_jitter_s=restore_jitter_s)).after(history)
    until_s = max(world.promised().values(), default=world.now_s) + restore_jitter_s
    while (due_s := world.state.due_s()) < float("inf"):
        assert due_s <= max(until_s, world.now_s)
        world.now_s = due_s
        world.tell(None)
    assert not world.locked


def test_a_dead_controllers_gpus_rise_one_after_the_other_and_a_new_one_may_take_them() -> None:
    uuids = [f"GPU-{n}" for n in range(200)]
    world = World(State(restore_jitter_s=10.0))
    world.tell(Command(Op.APPLY, 1, "blue", 1, 5.0, dict.fromkeys(uuids, (0, 900))))
    world.now_s += 5.0
    world.tell(None)
    for second in range(1, 11):
        world.now_s = 105.0 + second
        world.tell(None)
        assert abs(len(world.restored) - 20 * second) <= 20, "no surge at any time"
        if second == 5:
            left = next(iter(world.locked))
            again = world.tell(Command(Op.APPLY, 2, "blue", 2, 30.0, {left: (0, 900)}))
            assert again == {left: ""}
    assert set(world.locked) == {left}


@given(histories, st.sampled_from(UUIDS))
def test_what_is_yielded_is_not_written_and_not_held(
    history: list[tuple[float, Command | None]], uuid: str
) -> None:
    world = World().after(history)
    held, before = uuid in world.promised(), dict(world.locked)
    answers = world.tell(Command(Op.YIELD, clocks_mhz={uuid: (0, 0)}))
    assert answers == {uuid: "" if held else "no lease to yield"}
    assert world.locked == before, "somebody else has set it: nothing is written"
    assert uuid not in world.promised()
    assert set(world.promised()) == set(before) - {uuid}
