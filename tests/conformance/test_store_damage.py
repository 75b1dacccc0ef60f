"""Databases that are not as they should be: one sentence that helps, and nothing is lost."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from databases import Database, event_of

from joulecut_controller.ports import Store
from joulecut_controller.store import sqlite
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.store.schema import MIGRATIONS
from joulecut_wire.errors import BadInput, Unavailable


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
    _says(file, "not a database")
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
    _refused(database, f"version {newest + 1}, this program supports versions up to {newest}")
    assert database.run("select version from joulecut_schema") == [[newest + 1]]
    assert database.run("select value from counter") == [[1]]


def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = open_store(f"sqlite:///{file}")
    for number in range(200):
        store.record(event_of(number))
    store.close()
    damaged = bytearray(file.read_bytes())
    damaged[100:4096] = Random(1).randbytes(3996)  # the page with the schema
    file.write_bytes(damaged)
    _says(file, "damaged|not a database")


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    _says(tmp_path / "nowhere" / "store.db", "check that its directory exists")


def _store_with_engine(file: Path) -> tuple[DatabaseStore, Callable[[str], None]]:
    """A store, and a way to run a pragma on its own connection."""
    engine = sqlite.engine(file)
    store = DatabaseStore(engine, lambda: sqlite.as_unavailable(file), f"store {file}")

    def pragma(text: str) -> None:
        connection = engine.raw_connection()
        connection.cursor().execute(f"PRAGMA {text}")
        connection.close()

    return store, pragma


def _fill(store: Store) -> None:
    for number in range(2, 500):
        store.record(event_of(number))


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """SQLite reports its page limit exactly as it does a full disk."""
    store, pragma = _store_with_engine(tmp_path / "store.db")
    store.record(event_of(1))
    generation = store.next_generation()
    pragma("max_page_count=1")  # means: no page more than there are now
    with pytest.raises(Unavailable, match="disk is full: free space"):
        _fill(store)
    written = store.events(limit=1000)
    assert event_of(1) in written
    pragma("max_page_count=100000")
    store.record(event_of(1000))
    assert store.events(limit=1000) == (event_of(1000), *written)
    assert store.next_generation() == generation + 1
    store.close()


def test_a_file_that_cannot_be_written_can_still_be_read(tmp_path: Path) -> None:
    store, pragma = _store_with_engine(tmp_path / "store.db")
    store.record(event_of(1))
    pragma("query_only=1")
    with pytest.raises(Unavailable, match="check its permissions"):
        store.next_generation()
    assert store.events() == (event_of(1),)
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
