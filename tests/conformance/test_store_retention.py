"""What a store keeps is bounded, and what it keeps of one job is not another's loss."""

from collections.abc import Callable

import pytest
from databases import Database, event_of, plan_of

from joulecut_controller.ports import Record, Store, StoredBaseline
from joulecut_controller.store.database import LEARNT_MAX, RECORD_MAX, Retention
from joulecut_controller.view import Window

Reopen = Callable[[], Store]


def test_what_grows_is_pruned(database: Database) -> None:
    kept = Retention(events=10, plans_per_job=3, plans=5, baselines=4)
    store = database.open(kept)
    for number in range(1, 31):
        store.record(event_of(number))
        store.keep_plan(plan_of(job=f"job-{number % 3}", generation=number))
        window = Window(1, 1.0, 0.0, None, None)
        store.keep_baseline(f"job-{number}", "shape", StoredBaseline(window))
    store.close()
    assert database.run("select generation from event order by id") == [[n] for n in range(21, 31)]
    plans = database.run("select generation from plan order by generation")
    assert plans == [[26], [27], [28], [29], [30]]
    baselines = database.run("select job from baseline order by job")
    assert baselines == [["job-27"], ["job-28"], ["job-29"], ["job-30"]]


def test_one_busy_job_does_not_push_out_the_plan_of_another(database: Database) -> None:
    kept = Retention(events=10, plans_per_job=3, plans=100, baselines=4)
    store = database.open(kept)
    store.keep_plan(plan_of(job="quiet", generation=1))
    for generation in range(2, 50):
        store.keep_plan(plan_of(job="busy", generation=generation))
    assert store.last_plan_json("quiet")


def test_records_are_pruned_by_job_and_in_all_and_none_is_too_long(database: Database) -> None:
    kept = Retention(records_per_job=3, records=5)
    store = database.open(kept)
    for at in range(10):
        store.keep_record(Record(float(at), "window", "a", "{}"))
    assert [one.at_unix_s for one in store.records("window")] == [9.0, 8.0, 7.0]
    for at in range(10, 14):
        store.keep_record(Record(float(at), "window", f"b{at}", "{}"))
    assert [one.at_unix_s for one in store.records("window")] == [13.0, 12.0, 11.0, 10.0, 9.0]
    with pytest.raises(ValueError, match="are kept at most"):
        store.keep_record(Record(0.0, "window", "a", "x" * (RECORD_MAX + 1)))


def test_what_was_learnt_is_bounded_and_what_was_kept_before_stays(reopen: Reopen) -> None:
    store = reopen()
    store.keep_learnt("predictors", "x" * LEARNT_MAX)
    with pytest.raises(ValueError, match="are kept at most"):
        store.keep_learnt("predictors", "x" * (LEARNT_MAX + 1))
    assert len(store.learnt("predictors")) == LEARNT_MAX
