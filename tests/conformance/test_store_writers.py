"""Several writers of one store, and writers that die: numbers never come twice or go back."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from databases import WRITER, Database, event_of
from postgres_server import Postgres

from joulecut_controller.ports import Store
from joulecut_controller.store.schema import MIGRATIONS
from joulecut_wire.errors import Unavailable

Reopen = Callable[[], Store]


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


def test_two_controllers_that_start_at_once_migrate_once(server: Postgres) -> None:
    database = Database(server.make("store at once"), server.secret)
    database.open()
    database.close()
    database.run(
        "create table plan (generation integer primary key, content text)",
        "drop table part",
        "drop table claim",
        "drop table reach",
        "drop table power",
        "alter table baseline drop column measured_unix_s",
        "drop table record",
        "update joulecut_schema set version = 3",
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, database.url, str(server.secret)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        first = [writer.stdout.readline().split() for writer in writers if writer.stdout]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert all(len(line) == 2 for line in first), "one of them could not open the store"
    assert database.run("select version from joulecut_schema") == [[len(MIGRATIONS) + 1]]


def test_several_controllers_and_threads_never_get_the_same_number(database: Database) -> None:
    shared = database.open()
    stores = [shared, shared, *(database.beside() for _ in range(3))]
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


def test_controllers_that_open_a_store_at_once_have_one_name_for_it(database: Database) -> None:
    found: set[str] = set()
    stores = [database.open(), database.beside(), database.beside()]
    threads = [threading.Thread(target=lambda s=s: found.add(s.identity())) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1
    assert database.open().identity() in found


def test_a_store_held_to_a_term_writes_nothing_once_there_is_a_newer_one(
    database: Database,
) -> None:
    older, newer = database.open(), database.beside()
    term = older.next_epoch(0)
    older.fence(term)
    older.record(event_of(1))
    assert newer.next_epoch(0) == term + 1
    newer.fence(term + 1)
    for write in (
        lambda: older.record(event_of(2)),
        lambda: older.keep_learnt("predictors", "old"),
        older.next_generation,
    ):
        with pytest.raises(Unavailable, match=f"another controller leads with epoch {term + 1}"):
            write()
    assert older.events() == (event_of(1),), "reading is for everybody"
    newer.record(event_of(3))
    assert newer.events() == (event_of(3), event_of(1))
    older.fence(0)
    assert older.next_epoch(0) == term + 2
