"""What every store must do. One suite, whatever holds the rows: a file, or a real PostgreSQL."""

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import postgres_server
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import Postgres
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from joulecut_controller.hardware import ClockOption
from joulecut_controller.plan.plan import Action, Forecast, Plan
from joulecut_controller.plan.record import plan_json
from joulecut_controller.ports import Event, Record, Store
from joulecut_controller.solve.problem import Solution
from joulecut_controller.store import postgres, sqlite
from joulecut_controller.store.database import (
    LEARNT_MAX,
    RECORD_MAX,
    DatabaseStore,
    Kept,
    open_store,
)
from joulecut_controller.store.place import place_of
from joulecut_controller.store.schema import MIGRATIONS, migrate
from joulecut_controller.view import Window
from joulecut_wire.errors import BadInput, Unavailable

Reopen = Callable[[], Store]
NUMBERS = itertools.count(1)


class Database:
    """One empty database, and ways to look behind the store's back."""

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        self.url, self.password_file = url, password_file
        self._opened: list[DatabaseStore] = []

    def open(self, kept: Kept | None = None) -> DatabaseStore:
        """Opens it again, as a restarted controller would: the one before is closed."""
        self.close()
        self._opened.append(open_store(self.url, kept, password_file=self.password_file))
        return self._opened[-1]

    def beside(self) -> DatabaseStore:
        """Opens it once more, as a second controller would."""
        self._opened.append(open_store(self.url, password_file=self.password_file))
        return self._opened[-1]

    def engine(self) -> Engine:
        if self.password_file is None:
            return sqlite.engine(sqlite.file_of(self.url))
        return postgres.engine(place_of(self.url, password_file=self.password_file))

    def run(self, *statements: str) -> list[list[object]]:
        """What the last of these statements answers."""
        engine = self.engine()
        rows: list[list[object]] = []
        try:
            with engine.begin() as connection:
                for statement in statements:
                    answer = connection.exec_driver_sql(statement)
                    rows = [list(row) for row in answer] if answer.returns_rows else []
        finally:
            engine.dispose()
        return rows

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self._opened.clear()


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres_server.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        made = Database(f"sqlite:///{tmp_path / 'store.db'}")
    else:
        server: Postgres = request.getfixturevalue("server")
        made = Database(server.make(f"store {next(NUMBERS)}"), server.secret)
    yield made
    made.close()


@pytest.fixture
def reopen(database: Database) -> Reopen:
    """Opens the same store again, as a restarted controller would."""
    return database.open


def _plan(job: str = "job", generation: int = 1, reason: str = "because") -> Plan:
    option = ClockOption(1200, 0.05, 14.0)
    return Plan(
        job=job,
        generation=generation,
        parent=generation - 1,
        mode="recommend",
        granularity="gpu",
        actions=(Action("GPU-a", 0, "lower", 1200, "slack"),),
        reason=reason,
        made_at_unix_s=1.5e9,
        deadline_s=6.25,
        forecast=Forecast(6.2, 900.0, 6.0, 1000.0, 890.0, 0.01, (("gpu", 0.1),)),
        solution=Solution(
            "gpu", (option, option), (0.0, 0.05), 6.2, 900.0, 890.0, "computation", 0.3
        ),
    )


def _event(number: int, job: str = "job") -> Event:
    return Event(float(number), "apply", job, number, f"event {number}", '{"n": 1}')


# -- counters --------------------------------------------------------------------------------


def test_generations_count_up_and_go_on_after_a_restart(reopen: Reopen) -> None:
    store = reopen()
    before = [store.next_generation() for _ in range(5)]
    after = [reopen().next_generation() for _ in range(3)]
    assert before == [1, 2, 3, 4, 5]
    assert after == [6, 7, 8]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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


def test_threads_never_get_the_same_number(reopen: Reopen) -> None:
    store = reopen()
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.extend(store.next_generation() for _ in range(25)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 101))


# -- events ----------------------------------------------------------------------------------


def test_events_come_back_whole_and_newest_first(reopen: Reopen) -> None:
    store = reopen()
    for number in range(5):
        store.record(_event(number))
    assert reopen().events(limit=3) == (_event(4), _event(3), _event(2))


def test_events_of_one_job(reopen: Reopen) -> None:
    store = reopen()
    for number in range(6):
        store.record(_event(number, job=f"job-{number % 2}"))
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


# -- plans and baselines ---------------------------------------------------------------------


def test_the_newest_plan_of_a_job_comes_back_as_it_was(reopen: Reopen) -> None:
    store = reopen()
    assert store.last_plan_json("job") == ""
    for generation in (1, 2, 4):
        store.keep_plan(_plan(generation=generation))
    store.keep_plan(_plan(job="other", generation=3))
    assert json.loads(reopen().last_plan_json("job")) == plan_json(_plan(generation=4))


def test_keeping_a_plan_again_replaces_it(reopen: Reopen) -> None:
    store = reopen()
    store.keep_plan(_plan(reason="before the guard"))
    store.keep_plan(_plan(reason="after the guard"))
    assert json.loads(store.last_plan_json("job"))["reason"] == "after the guard"


def test_baselines_belong_to_a_job_in_a_shape(reopen: Reopen) -> None:
    store = reopen()
    window = Window(40, 6.125, 0.0625, None, 1.0 / 3.0)
    store.keep_baseline("job", "8 stages", Window(1, 1.0, 0.0, 2.0, 3.0))
    store.keep_baseline("job", "8 stages", window)
    store = reopen()
    assert store.baseline("job", "8 stages") == window
    assert store.baseline("job", "4 stages") is None
    assert store.baseline("other", "8 stages") is None


def test_a_baseline_that_is_no_number_is_not_kept(reopen: Reopen) -> None:
    store = reopen()
    with pytest.raises(ValueError, match="not finite"):
        store.keep_baseline("job", "shape", Window(1, float("nan"), 0.0, None, None))
    assert store.baseline("job", "shape") is None


# -- crashes ---------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from joulecut_controller.ports import Event
from joulecut_controller.store.database import open_store
store = open_store(sys.argv[1], password_file=Path(sys.argv[2]) if sys.argv[2:] else None)
while True:
    epoch, generation = store.next_epoch(0), store.next_generation()
    store.record(Event(0.0, "apply", "job", generation, "written"))
    print(epoch, generation, flush=True)
"""


def test_counters_never_go_back_whenever_the_writer_is_killed(database: Database) -> None:
    argv = [database.url, *([str(database.password_file)] if database.password_file else [])]
    epoch_seen = generation_seen = 0
    told = set()
    for lines in (1, 7, 20):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, *argv], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout
            for _ in range(lines):
                epoch, generation = map(int, writer.stdout.readline().split())
                assert epoch > epoch_seen
                assert generation > generation_seen
                epoch_seen, generation_seen = epoch, generation
                told.add(generation)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            rest = [line.split() for line in writer.stdout.read().splitlines()]
        for epoch, generation in (map(int, words) for words in rest if len(words) == 2):
            epoch_seen, generation_seen = epoch, generation
            told.add(generation)
    store = database.open()
    assert store.next_epoch(0) > epoch_seen
    assert store.next_generation() > generation_seen
    kept = {event.generation for event in store.events(limit=100_000)}
    assert kept >= told, "what was said to be written is there"


# -- bounds ----------------------------------------------------------------------------------


def test_what_grows_is_pruned(database: Database) -> None:
    kept = Kept(events=10, plans_per_job=3, plans=5, baselines=4)
    store = database.open(kept)
    for number in range(1, 31):
        store.record(_event(number))
        store.keep_plan(_plan(job=f"job-{number % 3}", generation=number))
        store.keep_baseline(f"job-{number}", "shape", Window(1, 1.0, 0.0, None, None))
    store.close()
    assert database.run("select generation from event order by id") == [[n] for n in range(21, 31)]
    plans = database.run("select generation from plan order by generation")
    assert plans == [[26], [27], [28], [29], [30]]
    baselines = database.run("select job from baseline order by job")
    assert baselines == [["job-27"], ["job-28"], ["job-29"], ["job-30"]]


def test_one_busy_job_does_not_push_out_the_plan_of_another(database: Database) -> None:
    kept = Kept(events=10, plans_per_job=3, plans=100, baselines=4)
    store = database.open(kept)
    store.keep_plan(_plan(job="quiet", generation=1))
    for generation in range(2, 50):
        store.keep_plan(_plan(job="busy", generation=generation))
    assert store.last_plan_json("quiet")


# -- files that are not as they should be ----------------------------------------------------


def _says(file: Path, match: str) -> str:
    with pytest.raises(Unavailable, match=match) as caught:
        open_store(f"sqlite:///{file}")
    line = str(caught.value)
    assert "\n" not in line
    assert str(file) in line
    return line


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    file.write_bytes(b"not a database, but dear to somebody\n" * 100)
    before = file.read_bytes()
    _says(file, "holds something else")
    assert file.read_bytes() == before


def _refused(database: Database, match: str) -> None:
    """In one line that names the store; and it is left as it was."""
    with pytest.raises(Unavailable, match=match) as caught:
        database.open()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("store ")


def test_a_database_of_another_program_is_left_as_it_is(database: Database) -> None:
    database.run("create table letters (words text)", "insert into letters values ('dear')")
    _refused(database, "another program")
    assert database.run("select * from letters") == [["dear"]]


def test_a_newer_database_is_refused_and_left_as_it_is(database: Database) -> None:
    database.open().next_generation()
    database.close()
    database.run("update joulecut_schema set version = version + 1")
    newest = len(MIGRATIONS) + 1
    _refused(database, f"version {newest + 1}, this program knows versions up to {newest}")
    assert database.run("select version from joulecut_schema") == [[newest + 1]]
    assert database.run("select value from counter") == [[1]]


def test_a_newer_file_is_not_touched_at_all(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    open_store(f"sqlite:///{file}").close()
    with sqlite3.connect(file) as raw:
        raw.execute("update joulecut_schema set version = version + 1")
    raw.close()
    before = file.read_bytes()
    _says(file, "knows versions up to")
    assert file.read_bytes() == before


def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = open_store(f"sqlite:///{file}")
    for number in range(200):
        store.record(_event(number))
    store.close()
    damaged = bytearray(file.read_bytes())
    damaged[100:4096] = os.urandom(3996)  # the page with the schema
    file.write_bytes(damaged)
    _says(file, "damaged|holds something else")


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    _says(tmp_path / "nowhere" / "store.db", "is the directory there")


def _store_with_engine(file: Path) -> tuple[DatabaseStore, Callable[[str], None]]:
    """A store, and a way to run a pragma on its own connection."""
    engine = sqlite.engine(file)
    store = DatabaseStore(engine, lambda: sqlite.explaining(file), f"store {file}")

    def pragma(text: str) -> None:
        connection = engine.raw_connection()
        connection.cursor().execute(f"PRAGMA {text}")
        connection.close()

    return store, pragma


def _fill(store: Store) -> None:
    for number in range(2, 500):
        store.record(_event(number))


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """SQLite reports its page limit exactly as it does a full disk."""
    store, pragma = _store_with_engine(tmp_path / "store.db")
    store.record(_event(1))
    generation = store.next_generation()
    pragma("max_page_count=1")  # means: no page more than there are now
    with pytest.raises(Unavailable, match="disk is full: make room"):
        _fill(store)
    written = store.events(limit=1000)
    assert _event(1) in written
    pragma("max_page_count=100000")
    store.record(_event(1000))
    assert store.events(limit=1000) == (_event(1000), *written)
    assert store.next_generation() == generation + 1
    store.close()


def test_a_file_that_cannot_be_written_can_still_be_read(tmp_path: Path) -> None:
    store, pragma = _store_with_engine(tmp_path / "store.db")
    store.record(_event(1))
    pragma("query_only=1")
    with pytest.raises(Unavailable, match="mend its permissions"):
        store.next_generation()
    assert store.events() == (_event(1),)
    pragma("query_only=0")
    assert store.next_generation() == 1
    store.close()


def test_a_lock_held_by_another_process_ends_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = open_store(f"sqlite:///{file}")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable, match="another process holds it"):
        store.next_generation()
    other.execute("COMMIT")
    other.close()
    assert store.next_generation() == 1
    store.close()


@pytest.mark.parametrize(
    "url", ["store.db", "sqlite://", "sqlite:///", "mysql://u:geheim@h/db", ""]
)
def test_other_urls_are_bad_input(url: str) -> None:
    with pytest.raises(BadInput, match="sqlite:///FILE, or postgresql://USER@HOST") as caught:
        open_store(url)
    assert "geheim" not in str(caught.value)


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


def test_records_are_pruned_by_job_and_in_all_and_none_is_too_long(database: Database) -> None:
    kept = Kept(records_per_job=3, records=5)
    store = database.open(kept)
    for at in range(10):
        store.keep_record(Record(float(at), "window", "a", "{}"))
    assert [one.at_unix_s for one in store.records("window")] == [9.0, 8.0, 7.0]
    for at in range(10, 14):
        store.keep_record(Record(float(at), "window", f"b{at}", "{}"))
    assert [one.at_unix_s for one in store.records("window")] == [13.0, 12.0, 11.0, 10.0, 9.0]
    with pytest.raises(ValueError, match="are kept at most"):
        store.keep_record(Record(0.0, "window", "a", "x" * (RECORD_MAX + 1)))


# -- versions --------------------------------------------------------------------------------


def _widen(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE baseline ADD COLUMN note TEXT")


def _break(connection: Connection) -> None:
    _widen(connection)
    connection.exec_driver_sql("ALTER TABLE nothing ADD COLUMN note TEXT")


def test_an_older_database_is_brought_forward_with_its_rows(database: Database) -> None:
    database.open().next_generation()
    database.close()
    engine = database.engine()
    with engine.begin() as connection:
        assert migrate(connection, (*MIGRATIONS, _widen)) == len(MIGRATIONS) + 2
    engine.dispose()
    assert database.run("select version from joulecut_schema") == [[len(MIGRATIONS) + 2]]
    assert database.run("select value from counter") == [[1]]
    assert database.run("select note from baseline") == []


# What each version added to the one before, as tables.
ADDED = {2: "notebook", 3: "learnt", 4: "record"}


def test_every_version_there_ever_was_is_known_to_these_tests() -> None:
    assert set(ADDED) == set(range(2, len(MIGRATIONS) + 2))


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 2))
def test_every_released_version_is_brought_forward(database: Database, version: int) -> None:
    store = database.open()
    store.next_epoch(6)
    store.record(_event(3))
    store.keep_plan(_plan(generation=2))
    store.keep_baseline("job", "shape", Window(40, 1.5, 0.25, None, 2.0))
    if version >= 2:
        store.keep_notebook("a", "first")
    if version >= 3:
        store.keep_learnt("predictors", "kept")
    database.close()
    gone = [table for added, table in ADDED.items() if added > version]
    database.run(
        *(f"drop table {table}" for table in gone),
        f"update joulecut_schema set version = {version}",
    )
    store = database.open()
    assert database.run("select version from joulecut_schema") == [[len(MIGRATIONS) + 1]]
    assert store.next_epoch(0) == 8
    assert store.events() == (_event(3),)
    assert json.loads(store.last_plan_json("job")) == plan_json(_plan(generation=2))
    assert store.baseline("job", "shape") == Window(40, 1.5, 0.25, None, 2.0)
    assert store.notebook("a") == ("first" if version >= 2 else "")
    assert store.learnt("predictors") == ("kept" if version >= 3 else "")
    assert store.records("window") == ()
    store.keep_notebook("a", "second")
    store.keep_notebook("b", "other")
    store.keep_learnt("predictors", "second")
    store.keep_record(Record(1.0, "window", "a", "{}"))
    store = database.open()
    assert (store.notebook("a"), store.notebook("b")) == ("second", "other")
    assert store.learnt("predictors") == "second"
    assert store.learnt("others") == ""
    assert store.records("window") == (Record(1.0, "window", "a", "{}"),)


def test_two_controllers_that_start_at_once_migrate_once(server: Postgres) -> None:
    database = Database(server.make(f"store {next(NUMBERS)}"), server.secret)
    database.open()
    database.close()
    database.run("drop table record", "update joulecut_schema set version = 3")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, database.url, str(server.secret)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    first = [writer.stdout.readline().split() for writer in writers if writer.stdout]
    for writer in writers:
        writer.kill()
        writer.communicate()
    assert all(len(line) == 2 for line in first), "one of them could not open the store"
    assert database.run("select version from joulecut_schema") == [[len(MIGRATIONS) + 1]]


def test_what_was_learnt_is_bounded_and_what_was_kept_before_stays(reopen: Reopen) -> None:
    store = reopen()
    store.keep_learnt("predictors", "x" * LEARNT_MAX)
    with pytest.raises(ValueError, match="are kept at most"):
        store.keep_learnt("predictors", "x" * (LEARNT_MAX + 1))
    assert len(store.learnt("predictors")) == LEARNT_MAX


def test_a_migration_that_fails_leaves_the_old_version(database: Database) -> None:
    database.open()
    database.close()
    engine = database.engine()
    with pytest.raises(SQLAlchemyError), engine.begin() as connection:
        migrate(connection, (*MIGRATIONS, _break))
    engine.dispose()
    assert database.open().next_generation() == 1
    with pytest.raises(SQLAlchemyError):
        database.run("select note from baseline")


# -- several controllers ---------------------------------------------------------------------


def test_several_controllers_never_get_the_same_number(database: Database) -> None:
    stores = [database.open(), *(database.beside() for _ in range(3))]
    numbers: list[int] = []

    def count(store: Store) -> None:
        for _ in range(10):
            with contextlib.suppress(Unavailable):  # a slow disk, and three others before us
                numbers.append(store.next_generation())

    threads = [threading.Thread(target=count, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers
    assert len(set(numbers)) == len(numbers)


def test_a_store_held_to_a_term_writes_nothing_once_there_is_a_newer_one(
    database: Database,
) -> None:
    older, newer = database.open(), database.beside()
    term = older.next_epoch(0)
    older.hold_to(term)
    older.record(_event(1))
    assert newer.next_epoch(0) == term + 1
    newer.hold_to(term + 1)
    for write in (
        lambda: older.record(_event(2)),
        lambda: older.keep_learnt("predictors", "old"),
        lambda: older.keep_plan(_plan()),
        older.next_generation,
    ):
        with pytest.raises(Unavailable, match=f"another controller leads, in term {term + 1}"):
            write()
    assert older.events() == (_event(1),), "reading is for everybody"
    newer.record(_event(3))
    assert newer.events() == (_event(3), _event(1))
    older.hold_to(0)
    assert older.next_epoch(0) == term + 2
