"""What holds a job survives whoever decided it, and ends only as it should."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from joulecut_controller.orders import ALL, Hold, HoldKind
from joulecut_controller.plan.veto import first
from joulecut_controller.ports import Record
from joulecut_controller.reconcile.holds import (
    STAND_BACK_S,
    TOPIC,
    TRIP_MEMORY_S,
    TRIPS_MAX,
    Holds,
)
from joulecut_controller.store.database import DatabaseStore, Retention, open_store
from joulecut_wire.errors import Unavailable


class Clock:
    def __init__(self) -> None:
        self.unix_s = 1.8e9

    def __call__(self) -> float:
        return self.unix_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    made = open_store(f"sqlite:///{tmp_path}/c.db", Retention(records=200))
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def said(holds: Holds, job: str) -> str:
    """What the operator reads of a job."""
    veto = first(holds.vetoes(job))
    return veto.text if veto else ""


def paused(job: str, kind: HoldKind = "pause") -> Hold:
    return Hold(job, kind, "maintenance", "alice", 1.8e9)


def test_a_hold_survives_a_restart_and_ends_with_a_word(store: DatabaseStore, clock: Clock) -> None:
    first = Holds(store, clock)
    first.place(paused("a"))
    first.place(paused(ALL, "restore"))
    second = Holds(store, clock)
    assert second.of("a") == (paused("a"), paused(ALL, "restore"))
    assert second.of("b") == (paused(ALL, "restore"),)
    assert said(second, "a") == "paused by alice: maintenance; `joulecut resume a` ends it"
    assert "`joulecut resume --all` ends it" in said(second, "b")
    assert second.lift("a", ("pause", "restore", "breaker")) == (paused("a"),)
    assert second.lift(ALL, ("pause",)) == ()
    assert Holds(store, clock).all == (paused(ALL, "restore"),)


def test_a_hold_is_not_crowded_out_by_other_records(store: DatabaseStore, clock: Clock) -> None:
    holds = Holds(store, clock)
    holds.place(paused("a"))
    for hour in range(10):
        for number in range(100):
            store.keep_record(Record(clock(), "window", f"job{number}", "{}"))
        clock.unix_s += 3600.0
        assert Holds(store, clock).of("a"), hour


def test_three_trips_in_a_day_end_control_until_a_person_speaks(
    store: DatabaseStore, clock: Clock
) -> None:
    holds = Holds(store, clock)
    for number in range(1, TRIPS_MAX):
        hold = holds.trip("a", "late")
        assert hold.until_unix_s == clock() + STAND_BACK_S[number - 1]
        assert holds.expire("a", measured_again=True) is None
        clock.unix_s += STAND_BACK_S[number - 1]
        assert holds.expire("a", measured_again=False) is None
        assert holds.expire("a", measured_again=True) == hold
        assert not holds.of("a")
        holds = Holds(store, clock)
        assert holds.trips("a") == number
    last = holds.trip("a", "late")
    assert last.until_unix_s is None
    clock.unix_s += 10 * TRIP_MEMORY_S
    holds = Holds(store, clock)
    assert holds.expire("a", measured_again=True) is None
    assert "`joulecut resume a` arms it again" in said(holds, "a")
    assert holds.lift("a", ("pause", "restore")) == ()
    assert holds.lift("a", ("breaker",)) == (last,)
    assert holds.trips("a") == 0


def test_old_and_withdrawn_trips_are_forgotten(store: DatabaseStore, clock: Clock) -> None:
    holds = Holds(store, clock)
    holds.trip("a", "late")
    holds.acquit("a")
    assert not holds.of("a")
    assert holds.trips("a") == 0
    for _ in range(2 * TRIPS_MAX):
        assert holds.trip("a", "late").ends_itself
        clock.unix_s += TRIP_MEMORY_S / 2
    assert holds.trips("a") == 1


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"holds": 1, "trips_unix_s": []}',
     '{"holds": [{"kind": "odd"}], "trips_unix_s": []}', '{"holds": [], "trips_unix_s": ["x"]}',
     '{"holds": [], "trips_unix_s": [NaN]}'],
)  # fmt: skip
def test_what_cannot_be_read_holds(store: DatabaseStore, clock: Clock, content: str) -> None:
    store.keep_record(Record(clock(), TOPIC, "a", content))
    holds = Holds(store, clock)
    assert "cannot be read" in said(holds, "a")
    assert not holds.vetoes("b")
    holds.lift("a", ("pause",))
    assert not Holds(store, clock).all


def test_a_store_that_fails_does_not_undo_a_word(store: DatabaseStore, clock: Clock) -> None:
    class Full(DatabaseStore):
        def keep_record(self, *_: object, **how: object) -> None:
            raise Unavailable("the disk is full")

    store.__class__ = Full
    holds = Holds(store, clock)
    with pytest.raises(Unavailable):
        holds.place(paused("a"))
    assert holds.of("a")
    with pytest.raises(Unavailable):
        holds.trip("b", "late")
    assert holds.of("b")
    store.__class__ = DatabaseStore
    holds.catch_up()
    kept = Holds(store, clock)
    assert kept.of("a")
    assert kept.of("b")


def test_what_another_controller_placed_and_lifted_is_followed(
    store: DatabaseStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Holds(store, clock), Holds(store, clock)
    first.place(paused("a"))
    assert second.follow(second.stored()) == {"a"}
    assert second.of("a") == (paused("a"),)
    assert second.follow(second.stored()) == set()
    second.lift("a", ("pause",))
    assert first.follow(first.stored()) == {"a"}
    assert first.of("a") == ()

    def full(*_: object, **how: object) -> None:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patched:  # a hold that is in memory alone stays
        patched.setattr(store, "keep_record", full)
        with pytest.raises(Unavailable):
            first.place(paused("b"))
    second.place(paused("c"))
    assert first.follow(first.stored()) == {"c"}
    assert first.of("b") == (paused("b"),)
