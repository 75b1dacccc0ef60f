"""What every store must keep, and give back as it was. One suite, whatever holds the rows: a
file, or a real PostgreSQL.
"""

import json
from collections.abc import Callable

import pytest
from databases import event_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulecut_controller.ports import Event, Record, Store, StoredBaseline
from joulecut_controller.view import Window
from joulecut_wire.errors import Unavailable

Reopen = Callable[[], Store]


# -- counters --------------------------------------------------------------------------------


def test_generations_count_up_and_go_on_after_a_restart(reopen: Reopen) -> None:
    store = reopen()
    before = [store.next_generation() for _ in range(5)]
    after = [reopen().next_generation() for _ in range(3)]
    assert before == [1, 2, 3, 4, 5]
    assert after == [6, 7, 8]


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seen=st.lists(st.integers(0, 2**40), min_size=1, max_size=8))
def test_an_epoch_is_larger_than_any_before_and_than_any_agent_has_seen(
    reopen: Reopen, seen: list[int]
) -> None:
    last = 0
    for at_least in seen:
        epoch = reopen().next_epoch(at_least)
        assert epoch > at_least
        assert epoch > last
        last = epoch


def test_epochs_and_generations_do_not_share_numbers(reopen: Reopen) -> None:
    store = reopen()
    store.next_epoch(100)
    assert store.next_generation() == 1


def test_a_damaged_epoch_of_an_agent_is_refused_and_costs_nothing(reopen: Reopen) -> None:
    store = reopen()
    with pytest.raises(Unavailable, match="damaged number"):
        store.next_epoch(2**64 - 1)
    assert store.next_epoch(0) == 1


# -- events ----------------------------------------------------------------------------------


def test_events_come_back_whole_and_newest_first(reopen: Reopen) -> None:
    store = reopen()
    for number in range(5):
        store.record(event_of(number))
    assert reopen().events(limit=3) == (event_of(4), event_of(3), event_of(2))


def test_events_of_one_job(reopen: Reopen) -> None:
    store = reopen()
    for number in range(6):
        store.record(event_of(number, job=f"job-{number % 2}"))
    assert [event.generation for event in store.events(job="job-1")] == [5, 3, 1]
    assert store.events(job="nobody") == ()
    assert store.events(limit=0) == ()


def test_words_that_no_database_takes_are_kept_as_well_as_can_be(reopen: Reopen) -> None:
    store = reopen()
    store.record(Event(0.0, "apply", "job", 1, 'half \ud800, "quoted"; DROP TABLE event; \x00'))
    (kept,) = store.events()
    assert kept.text.startswith('half ?, "quoted"; DROP TABLE event;')


def test_a_huge_event_is_cut_but_stays_readable(reopen: Reopen) -> None:
    store = reopen()
    store.record(Event(0.0, "plan", "job", 1, "x" * 10_000, json.dumps(["y" * 1_000_000])))
    (kept,) = store.events()
    assert len(kept.text) == 2_000
    assert json.loads(kept.detail)["cut_from_characters"] > 1_000_000
    assert len(kept.detail) < 5_000


# -- baselines, records ---------------------------------------------------------------


def test_baselines_belong_to_a_job_in_a_shape(reopen: Reopen) -> None:
    store = reopen()
    kept = StoredBaseline(Window(40, 6.125, 0.0625, None, 1.0 / 3.0), 1_700_000_000.25)
    unaged = StoredBaseline(Window(1, 1.0, 0.0, 2.0, 3.0))
    store.keep_baseline("job", "8 stages", unaged)
    assert store.baselines("job") == {"8 stages": unaged}
    store.keep_baseline("job", "8 stages", kept)
    store.keep_baseline("job", "4 stages", unaged)
    store = reopen()
    assert store.baselines("job") == {"8 stages": kept, "4 stages": unaged}
    assert store.baselines("other") == {}


def test_a_baseline_that_is_no_number_is_not_kept(reopen: Reopen) -> None:
    store = reopen()
    kept = StoredBaseline(Window(1, float("nan"), 0.0, None, None))
    with pytest.raises(ValueError, match="not finite"):
        store.keep_baseline("job", "shape", kept)
    assert store.baselines("job") == {}


def test_records_are_told_apart_by_topic_job_and_time(reopen: Reopen) -> None:
    store = reopen()
    for at, topic, job in [(1, "window", "a"), (2, "window", "b"), (3, "shadow", "a")]:
        store.keep_record(Record(float(at), topic, job, f'{{"at": {at}}}'))
    store.keep_record(Record(4.0, "window", "a", "{}"))
    store = reopen()
    assert [one.at_unix_s for one in store.records("window")] == [4.0, 2.0, 1.0]
    assert [one.at_unix_s for one in store.records("window", job="a")] == [4.0, 1.0]
    assert [one.at_unix_s for one in store.records("window", since_unix_s=2.0)] == [4.0, 2.0]
    assert [one.at_unix_s for one in store.records("window", limit=1)] == [4.0]
    assert [one.content for one in store.records("shadow")] == ['{"at": 3}']
    assert store.records("nothing") == ()
