"""A store of an older version is brought forward with all it holds; of a newer one, left alone."""

import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from databases import Database, event_of
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from joulecut_controller.ports import Record, StoredBaseline
from joulecut_controller.store.database import open_store
from joulecut_controller.store.schema import MIGRATIONS, migrate
from joulecut_controller.view import Window
from joulecut_wire.errors import Unavailable


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


BASELINE = StoredBaseline(Window(40, 1.5, 0.25, None, 2.0), 1_700_000_000.0)
# How what a version changed of the one before is taken back.
ADDED = {
    2: "drop table if exists notebook",
    3: "drop table learnt",
    4: "drop table record",
    5: "drop table if exists profile",
    6: "alter table baseline drop column measured_unix_s",
    7: "drop table claim",
    8: "drop table part",
    9: "create table plan (generation integer primary key, content text)",
    10: "drop table reach",
    11: "drop table power",
}


def test_every_version_there_ever_was_is_known_to_these_tests() -> None:
    assert set(ADDED) == set(range(2, len(MIGRATIONS) + 2))


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 2))
def test_every_released_version_is_brought_forward(database: Database, version: int) -> None:
    store = database.open()
    store.next_epoch(6)
    store.record(event_of(3))
    store.keep_baseline("job", "shape", BASELINE)
    if version >= 3:
        store.keep_learnt("predictors", "kept")
    database.close()
    database.run(
        *(undo for added, undo in ADDED.items() if added > version),
        f"update joulecut_schema set version = {version}",
    )
    store = database.open()
    assert database.run("select version from joulecut_schema") == [[len(MIGRATIONS) + 1]]
    assert store.next_epoch(0) == 8
    assert store.events() == (event_of(3),)
    aged = BASELINE if version >= 6 else StoredBaseline(BASELINE.window)
    assert store.baselines("job") == {"shape": aged}
    assert store.learnt("predictors") == ("kept" if version >= 3 else "")
    assert store.records("window") == ()
    store.keep_learnt("predictors", "second")
    store.keep_record(Record(1.0, "window", "a", "{}"))
    store = database.open()
    assert store.learnt("predictors") == "second"
    assert store.learnt("others") == ""
    assert store.records("window") == (Record(1.0, "window", "a", "{}"),)


def test_a_dump_of_before_among_the_tables_of_a_newer_program_is_brought_forward(
    database: Database,
) -> None:
    """`pg_restore --clean` drops what the dump has, and no other table."""
    database.open().record(event_of(3))
    database.close()
    database.run(ADDED[9], ADDED[6], "update joulecut_schema set version = 2")
    store = database.open()
    assert store.events() == (event_of(3),)
    store.keep_learnt("predictors", "kept")
    store.keep_record(Record(1.0, "window", "a", "{}"))


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_the_way_back_is_the_copy_that_was_made_before_the_migration(
    tmp_path: Path, version: int
) -> None:
    """The program of before opens it, with all it held."""
    file = tmp_path / "store.db"
    database = Database(f"sqlite:///{file}")
    store = database.open()
    store.next_epoch(6)
    store.record(event_of(3))
    database.close()
    database.run(
        *(undo for added, undo in ADDED.items() if added > version),
        f"update joulecut_schema set version = {version}",
    )
    database.open().next_epoch(40)
    database.close()
    copy = tmp_path / f"store.db.v{version}"
    assert sorted(tmp_path.iterdir()) == [file, copy]
    copy.replace(file)
    engine = database.engine()
    with engine.begin() as connection:
        assert migrate(connection, MIGRATIONS[: version - 1]) == version
    engine.dispose()
    assert database.run("select version from joulecut_schema") == [[version]]
    assert database.run("select value from counter where name = 'epoch'") == [[7]]
    assert len(database.run("select id from event")) == 1


def test_a_store_that_needs_no_migration_is_not_copied(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'store.db'}")
    database.open().next_generation()
    database.open().next_generation()
    database.close()
    assert [one.name for one in tmp_path.iterdir()] == ["store.db"]


def test_a_store_that_cannot_be_copied_is_not_migrated(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    database = Database(f"sqlite:///{file}")
    database.open().next_generation()
    database.close()
    database.run(ADDED[6], "update joulecut_schema set version = 5")
    (tmp_path / "store.db.v5").mkdir()
    before = file.read_bytes()
    with pytest.raises(Unavailable, match=r"store .*store\.db: "):
        database.open()
    assert file.read_bytes() == before


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


def test_the_page_s_backup_of_a_store_in_use_comes_back_whole(tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("Debian package sqlite3 is not installed")
    page = (Path(__file__).parents[2] / "docs" / "controller.md").read_text()
    lines = [line.strip().partition("   #")[0] for line in page.splitlines()]
    (backup,) = (line for line in lines if line.startswith("sqlite3 "))
    (restore,) = (line for line in lines if line.startswith("cd /var/lib/joulecut-controller "))

    def run(line: str) -> None:
        moved = line.replace("/var/lib/joulecut-controller", str(tmp_path))
        moved = moved.replace("/backup/store.db", str(tmp_path / "saved.db"))
        subprocess.run(["bash", "-ec", moved], check=True)

    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        epoch = store.next_epoch(6)
        store.record(event_of(2))
        run(backup)
        store.next_epoch(20)
    (tmp_path / "store.db").write_bytes(b"damaged")
    (tmp_path / "store.db-wal").write_bytes(b"of the damaged one")
    run(restore)
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        assert store.next_epoch(0) == epoch + 1
        assert store.events() == (event_of(2),)
