"""A store on PostgreSQL when the server is not as it should be. What every store does is in
test_store.py.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from certificates import Authority
from postgres_server import Postgres
from running_agent import PATIENCE_S, eventually

from joulecut_controller.ports import Event, Record
from joulecut_controller.store import postgres
from joulecut_controller.store.database import DatabaseStore, Retention, open_store
from joulecut_controller.store.postgres import WRITERS_KEY
from joulecut_controller.store.postgres_url import PASSWORD_ENV, parse_postgres_url
from joulecut_wire.errors import BadInput, Unavailable

NUMBERS = itertools.count(1)


@pytest.fixture
def database(server: Postgres) -> str:
    name = f"kept {next(NUMBERS)}"
    server.make(name)
    return name


@pytest.fixture
def store(server: Postgres, database: str) -> Iterator[DatabaseStore]:
    made = open_store(server.url(database), password_file=server.secret, timeout_s=PATIENCE_S)
    yield made
    made.close()


@pytest.fixture
def hasty(server: Postgres, database: str, store: DatabaseStore) -> Iterator[DatabaseStore]:
    """The same store, for calls that are to end in vain; it may be too hasty for any other."""
    made = eventually("it opens", lambda: _hasty(server.url(database), server.secret))
    yield made
    made.close()


def _hasty(url: str, secret: Path) -> DatabaseStore | None:
    with contextlib.suppress(Unavailable):
        return open_store(url, password_file=secret, timeout_s=0.5)
    return None


def _refuses(act: Callable[[], object], sentence: str) -> bool:
    """Whether it ends with that sentence: a busy server may be too late to tell."""
    with pytest.raises(Unavailable) as caught:
        act()
    return sentence in str(caught.value)


def _event(number: int) -> Event:
    return Event(float(number), "apply", "job", number, f"event {number}")


def _says(url: str, match: str, **how: Path) -> None:
    with pytest.raises(Unavailable, match=match) as caught:
        open_store(url, timeout_s=PATIENCE_S, **how)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("store postgresql://")
    assert "geheim" not in line


def test_a_server_that_went_and_came_back_costs_a_sentence(
    server: Postgres, store: DatabaseStore
) -> None:
    store.record(_event(1))
    assert store.next_generation() == 1
    server.stop()
    for _ in range(2):
        with pytest.raises(
            Unavailable, match=r"it does not answer .*: check that it runs and is reachable"
        ):
            store.next_generation()
    server.start()
    assert store.next_generation() == 2
    assert store.events() == (_event(1),)


def test_a_crash_of_the_server_between_two_calls_goes_unnoticed(
    server: Postgres, store: DatabaseStore
) -> None:
    store.record(_event(1))
    server.stop(signal.SIGQUIT)
    server.start()
    store.record(_event(2))
    assert store.events() == (_event(2), _event(1))


def test_a_server_that_hangs_ends_the_call_and_not_the_pass(
    server: Postgres, store: DatabaseStore, hasty: DatabaseStore
) -> None:
    eventually("an open connection", lambda: _kept(hasty, _event(1)))
    server.freeze()
    try:
        for _ in range(2):  # on an open connection, and for want of a new one
            with pytest.raises(Unavailable, match="does not answer"):
                hasty.record(_event(2))
    finally:
        server.freeze(signal.SIGCONT)
    eventually("it goes on", lambda: _kept(hasty, _event(3)))
    assert store.events()[0] == _event(3)


def _kept(store: DatabaseStore, event: Event) -> bool:
    try:
        store.record(event)
    except Unavailable:
        return False
    return True


def test_a_writer_that_never_ends_is_waited_for_in_vain(
    server: Postgres, database: str, store: DatabaseStore, hasty: DatabaseStore
) -> None:
    holding = f"SELECT pg_advisory_lock({WRITERS_KEY}); SELECT pg_sleep(600)"
    other = threading.Thread(target=server.sql, args=(holding, database), kwargs={"check": False})
    other.start()
    locked = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {WRITERS_KEY & 0xFFFFFFFF} AND granted"  # noqa: E501
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%'"
    try:
        eventually("it holds the lock", lambda: server.sql(locked, database) == "1")
        sentence = "another writer holds it"
        eventually(sentence, lambda: _refuses(hasty.next_generation, sentence))
        assert store.events() == (), "reading goes on"
    finally:
        server.sql(ending + " AND pid <> pg_backend_pid()", database)
        other.join()
    assert store.next_generation() == 1


def test_controllers_write_events_beside_each_other_and_count_alone(
    server: Postgres, database: str, store: DatabaseStore, hasty: DatabaseStore
) -> None:
    sentence = "another writer holds it"
    with store.writing(beside_others=True):  # of another controller, and slow
        eventually("an event is written", lambda: _kept(hasty, _event(1)))
        eventually(sentence, lambda: _refuses(lambda: hasty.next_epoch(1), sentence))
    with store.writing():
        eventually(sentence, lambda: _refuses(lambda: hasty.record(_event(2)), sentence))
    assert {event.generation for event in store.events()} == {1}


def test_no_writer_fails_because_another_one_deletes_the_same_rows(
    server: Postgres, database: str
) -> None:
    place, few = server.url(database), Retention(events_per_job=3, events=8, records_per_job=3)
    stores = [open_store(place, few, password_file=server.secret) for _ in range(4)]
    failed: list[Exception] = []

    def write(one: DatabaseStore) -> None:
        try:
            for n in range(40):
                one.record(*[_event(n)] * 5)
                one.keep_record(*[Record(float(n), "topic", "job", "{}")] * 5, kept_s=10.0)
        except Unavailable as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    stores[0].record(_event(99))
    assert len(stores[0].events(limit=100)) <= 8, "the next one deletes what each left to another"
    for one in stores:
        one.close()


def test_one_connection_is_all_it_takes(
    server: Postgres, database: str, store: DatabaseStore
) -> None:
    threads = [
        threading.Thread(target=lambda: [store.next_generation() for _ in range(10)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
    assert server.sql(count) == "1"
    assert store.next_generation() == 81
    settings = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'joulecut'"
    assert int(server.sql(settings)) >= 1


def test_a_server_set_to_forget_commits_is_told_not_to(server: Postgres, database: str) -> None:
    server.sql(f"ALTER DATABASE \"{database}\" SET synchronous_commit = 'off'")
    place = parse_postgres_url(server.url(database), password_file=server.secret)
    engine = postgres.engine(place, timeout_s=PATIENCE_S)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    engine.dispose()


def test_a_user_without_rights_is_told_which(server: Postgres, database: str) -> None:
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'geheim'")
    server.sql(f'CREATE ROLE nobody_much NOLOGIN; REVOKE ALL ON DATABASE "{database}" FROM PUBLIC')
    url = server.url(database).replace("joulecut@", "guest:geheim@")
    _says(url, r"permission denied: make this user the owner|permission denied")
    server.sql(f'GRANT CONNECT ON DATABASE "{database}" TO guest')
    _says(url, r"make this user the owner of the database: permission denied")


def test_wrong_words_are_one_sentence_each(
    server: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, right = server.url(database), server.secret
    wrong = tmp_path / "wrong"
    wrong.write_text("geheim\n")
    _says(url, "the password is wrong: correct it", password_file=wrong)
    _says(url, "nowhere: No such file", password_file=tmp_path / "nowhere")
    wrong.write_bytes(b"\xff\xfe")
    _says(url, "wrong: not one printable line", password_file=wrong)
    _says(url, "password is (missing or )?wrong")
    _says(server.url("none"), "no such database: create it", password_file=right)
    _says(url.replace(str(server.port), "1"), "does not answer", password_file=right)
    _says(f"{url}?sslmode=require", "does not support TLS", password_file=right)
    _says(f"{url}?sslmode=verify-full&sslrootcert=/no/ca", "/no/ca does not exist")
    monkeypatch.setenv(PASSWORD_ENV, postgres_server.PASSWORD)
    open_store(url, timeout_s=PATIENCE_S).close()


def test_it_is_reached_by_its_socket_as_well(server: Postgres, database: str) -> None:
    url = f"postgresql://joulecut@:{server.port}/{database}?host={server.folder}"
    store = open_store(url, password_file=server.secret, timeout_s=PATIENCE_S)
    assert store.next_epoch(0) == 1
    store.close()


def test_the_password_may_change_while_it_runs(
    server: Postgres, database: str, tmp_path: Path
) -> None:
    server.sql("CREATE ROLE rotating LOGIN PASSWORD 'one'")
    server.sql(f'ALTER DATABASE "{database}" OWNER TO rotating')
    secret = tmp_path / "password"
    secret.write_text("one")
    url = server.url(database).replace("joulecut@", "rotating@")
    store = open_store(url, password_file=secret, timeout_s=PATIENCE_S)
    server.sql("ALTER ROLE rotating PASSWORD 'two'")
    assert store.next_generation() == 1
    secret.write_text("two\n")
    sessions = "FROM pg_stat_activity WHERE usename = 'rotating'"
    server.sql(f"SELECT pg_terminate_backend(pid) {sessions}")
    eventually("it has ended", lambda: server.sql(f"SELECT count(*) {sessions}") == "0")
    assert store.next_generation() == 2
    store.close()


def test_it_is_spoken_to_in_tls_and_has_to_be_who_it_says(
    server: Postgres, database: str, tmp_path: Path
) -> None:
    ours, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    leaf = ours.leaf("db", "IP:127.0.0.1")
    cert, key = server.adopt(leaf.cert, "db.pem"), server.adopt(leaf.key, "db.key")
    server.stop()
    server.start("ssl=on", f"ssl_cert_file={cert}", f"ssl_key_file={key}")
    try:
        full = f"{server.url(database)}?sslmode=verify-full&sslrootcert="
        how: Any = {"password_file": server.secret, "timeout_s": PATIENCE_S}
        store = open_store(full + str(ours.cert), **how)
        sessions = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
        assert server.sql(f"{sessions} WHERE ssl AND datname = '{database}'") == "1"
        store.close()
        said = "the TLS connection failed: .*certificate verify failed"
        _says(full + str(other.cert), said, password_file=server.secret)
        elsewhere = full.replace("127.0.0.1", "localhost") + str(ours.cert)
        _says(elsewhere, said, password_file=server.secret)
        open_store(f"{server.url(database)}?sslmode=require", **how).close()
    finally:
        server.stop()
        server.start()


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """A server on a disk of its own, which is filled up and emptied again."""
    folder = Path(tempfile.mkdtemp(prefix="jcfull"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("no small disk: only root may mount one")
    server = Postgres(folder)
    try:
        server.make("kept")
        store = open_store(server.url("kept"), password_file=server.secret, timeout_s=PATIENCE_S)
        store.record(_event(1))
        generation = store.next_generation()
        filler = folder / "filler"
        with filler.open("wb") as out:
            free = shutil.disk_usage(folder).free
            out.write(bytes(free))
        with pytest.raises(Unavailable, match="the disk is full: make room"):
            _fill(store)
        filler.unlink()
        store.record(_event(2))
        assert store.next_generation() == generation + 1
        assert _event(1) in store.events(limit=10_000)
        store.close()
    finally:
        server.end()
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def _fill(store: DatabaseStore) -> None:
    for number in range(2, 2_000):
        store.record(Event(0.0, "plan", "job", number, "x" * 2_000, "y" * 9_000))


# -- addresses -------------------------------------------------------------------------------


def test_what_an_address_means() -> None:
    place = parse_postgres_url(
        "postgresql://ctl@db.example/joule?sslrootcert=ca.crt", Path("/etc/j")
    )
    assert (place.user, place.host, place.port) == ("ctl", "db.example", 5432)
    assert (place.encryption, place.ca) == ("verify-full", Path("/etc/j/ca.crt"))
    assert place.name == "postgresql://ctl@db.example:5432/joule"
    near = parse_postgres_url("postgresql://ctl:p%40ss@[::1]:5433/a%20b")
    assert (near.host, near.port, near.database, near.encryption) == ("::1", 5433, "a b", "disable")
    assert near.password() == "p@ss"
    assert "p@ss" not in repr(near)
    assert "p@ss" not in near.name


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://h/db", "names no user"),
        ("postgresql://u@h", "names no database"),
        ("postgresql://u@h/", "names no database"),
        ("postgresql://u@/db", "names no host"),
        ("postgresql://u@h/a/b", "database 'a/b'"),
        ("postgresql://u@h:99999/db", "out of range"),
        ("postgresql://u@h:x/db", "could not be cast"),
        ("postgresql://u:geheim@h/db?options=-c", "unknown key options"),
        ("postgresql://u:geheim@h/db?sslmode=prefer", "sslmode 'prefer'"),
        ("postgresql://u:geheim@h/db?sslmode", "bad query field"),
        ("postgresql://u@h/db?host=/run", "names no host"),
        ("postgresql://u@/db?host=run", "names no host"),
    ],
)
def test_other_addresses_are_bad_input(url: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        parse_postgres_url(url)
    assert "geheim" not in str(caught.value)
