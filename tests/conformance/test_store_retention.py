"""What a store keeps is bounded, and what it keeps of one job is not another's loss."""

from collections.abc import Callable

import pytest
from databases import Database, event_of

from joulecut_controller.ports import Event, Record, Store, StoredBaseline
from joulecut_controller.store.database import LEARNT_MAX, RECORD_MAX, Retention
from joulecut_controller.view import Window

Reopen = Callable[[], Store]
DAY_S = 86_400.0


def test_what_grows_is_pruned(database: Database) -> None:
    kept = Retention(events=10, baselines=4)
    store = database.open(kept)
    for number in range(1, 31):
        store.record(event_of(number))
        window = Window(1, 1.0, 0.0, None, None)
        store.keep_baseline(f"job-{number}", "shape", StoredBaseline(window))
    store.close()
    assert database.run("select generation from event order by id") == [[n] for n in range(21, 31)]
    baselines = database.run("select job from baseline order by job")
    assert baselines == [["job-27"], ["job-28"], ["job-29"], ["job-30"]]


def test_events_are_kept_by_job_and_for_their_age(database: Database) -> None:
    store = database.open(Retention(events_per_job=3, events_s=20.0))
    store.record(Event(0.0, "plan", "quiet", 1, "the first", ""))
    for at in range(20):
        store.record(Event(float(at), "plan", "busy", at, "", ""))
    assert [one.generation for one in store.events(job="busy")] == [19, 18, 17]
    assert store.events(job="quiet"), "a busy job pushes out its own events alone"
    store.record(Event(21.0, "plan", "busy", 21, "", ""))
    assert not store.events(job="quiet")


def test_records_are_pruned_by_job_and_in_all_and_none_is_too_long(database: Database) -> None:
    kept = Retention(records_per_job=3, records=5)
    store = database.open(kept)
    for at in range(10):
        store.keep_record(Record(float(at), "window", "a", "{}"))
    assert [one.at_unix_s for one in store.records("window")] == [9.0, 8.0, 7.0]
    made = [Record(float(at), "window", f"b{at}", "{}") for at in range(10, 14)]
    with pytest.raises(ValueError, match="are kept at most"):
        store.keep_record(made[0], Record(0.0, "window", "a", "x" * (RECORD_MAX + 1)))
    assert [one.at_unix_s for one in store.records("window")] == [9.0, 8.0, 7.0], "all or none"
    store.keep_record(*made)  # in one transaction
    assert [one.at_unix_s for one in store.records("window")] == [13.0, 12.0, 11.0, 10.0, 9.0]


MONTH = """insert into record (at_unix_s, topic, job, content)
    with recursive n(i) as (select 0 union all select i + 1 from n where i < 287999)
    select i * 9.0, 'window', 'job-' || (i - i / 100 * 100), '{}' from n"""


def test_a_month_at_a_hundred_jobs_is_kept(database: Database) -> None:
    """A window of each job every quarter of an hour: 288,000 records."""
    store = database.open()
    store.keep_record(Record(0.0, "power_limit", "node-1", "{}"))
    database.run(MONTH)
    store.keep_record(Record(30 * DAY_S, "window", "job-7", "{}"), kept_s=35 * DAY_S)
    counts = "select topic, count(*), min(at_unix_s) from record group by topic order by topic"
    assert database.run(counts) == [["power_limit", 1, 0.0], ["window", 288_001, 0.0]]
    assert len(store.records("window", job="job-7", limit=5_000)) == 2_881


def test_records_of_a_topic_end_with_their_age_and_a_state_does_not(database: Database) -> None:
    """Those of a job that is gone too; a clock that leaps once costs two of them."""
    store = database.open()
    store.keep_record(Record(0.0, "hold", "gone", "{}"))
    for at in range(10):
        store.keep_record(Record(float(at), "window", "gone", "{}"), kept_s=20.0)
    store.keep_record(Record(1e9, "window", "leapt", "{}"), kept_s=20.0)
    assert len(store.records("window", job="gone")) == 8
    for at in range(25, 35):
        store.keep_record(Record(float(at), "window", "a", "{}"), kept_s=20.0)
    assert not store.records("window", job="gone")
    assert len(store.records("window", job="a")) == 10
    store.keep_record(Record(1e9, "hold", "a", "{}"))
    assert store.records("hold", job="gone"), "an old state is one still"


def test_a_topic_with_an_age_is_bounded_in_all_as_well(database: Database) -> None:
    store = database.open(Retention(records=5))
    store.keep_record(Record(0.0, "hold", "a", "{}"))
    for at in range(10):
        store.keep_record(Record(float(at), "window", f"job-{at}", "{}"), kept_s=20.0)
    assert database.run("select count(*) from record where topic = 'window'") == [[5]]
    assert store.records("hold", job="a"), "windows push out no other topic"


def test_of_a_state_the_newest_of_each_is_kept(database: Database) -> None:
    """However often one changes, it pushes out no other."""
    store = database.open(Retention(records=4))
    store.keep_record(Record(0.0, "power_limit", "quiet", "{}"), per_job=1)
    for at in range(10):
        changed = (Record(float(at), "power_limit", agent, "{}") for agent in ("a", "b"))
        store.keep_record(*changed, per_job=1)
    kept = [(one.job, one.at_unix_s) for one in store.records("power_limit")]
    assert kept == [("b", 9.0), ("a", 9.0), ("quiet", 0.0)]


def test_what_was_learnt_is_bounded_and_what_was_kept_before_stays(reopen: Reopen) -> None:
    store = reopen()
    store.keep_learnt("predictors", "x" * LEARNT_MAX)
    with pytest.raises(ValueError, match="are kept at most"):
        store.keep_learnt("predictors", "x" * (LEARNT_MAX + 1))
    assert len(store.learnt("predictors")) == LEARNT_MAX
