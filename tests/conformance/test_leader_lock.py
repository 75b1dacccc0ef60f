"""Every kind of leader lock keeps its contract: on a file, and in a real PostgreSQL."""

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import Database
from postgres_server import Postgres

from joulecut_controller.election.file_lock import FileLock
from joulecut_controller.election.leader_lock import LeaderLock, Timing
from joulecut_controller.election.postgres_lock import PostgresLock
from joulecut_controller.store.postgres import PostgresConnection
from joulecut_controller.store.postgres_url import parse_postgres_url
from joulecut_wire.errors import Unavailable

LIMIT_S = 60.0
NUMBERS = itertools.count(1)
Make = Callable[..., LeaderLock]


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture(params=["file", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Arguments of `_lock`, in this process or another."""
    if request.param == "file":
        return [str(tmp_path / "store.db")]
    server: Postgres = request.getfixturevalue("server")
    return [_store(server), str(server.secret)]


def _store(server: Postgres) -> str:
    """A database with the tables of a store, as every controller opens it before its lock."""
    database = Database(server.make(f"lock {next(NUMBERS)}"), server.secret)
    database.open()
    database.close()
    return database.url


def _lock(where: list[str], name: str, hold_s: float = 600.0) -> LeaderLock:
    if len(where) == 1:
        return FileLock(Path(where[0]), name)
    place = parse_postgres_url(where[0], password_file=Path(where[1]))
    return PostgresLock(place, Timing(0.1, hold_s, LIMIT_S), name)


@pytest.fixture
def make(where: list[str]) -> Iterator[Make]:
    made: list[LeaderLock] = []

    def one(name: str = "somebody", hold_s: float = 600.0) -> LeaderLock:
        made.append(_lock(where, name, hold_s))
        return made[-1]

    yield one
    for lock in made:
        lock.release()


def test_one_holds_it_and_the_others_see_which(make: Make) -> None:
    first, second = make("controller a:9440"), make("controller b:9440")
    assert first.lost
    assert not first.check()
    assert first.acquire()
    assert first.check()
    assert not first.lost
    assert not second.acquire()
    assert not second.check()
    assert second.holder == "controller a:9440"


def test_who_leaves_frees_it_at_once_and_may_come_back(make: Make) -> None:
    first, second = make(), make()
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert first.lost
    assert not first.check()
    until(second.acquire)
    assert second.check()
    assert not first.acquire()
    second.release()
    second.release()
    until(first.acquire)


HOLDER = """
import sys, time
from pathlib import Path
from joulecut_controller.election.file_lock import FileLock
from joulecut_controller.election.postgres_lock import PostgresLock
from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.store.postgres_url import parse_postgres_url
if len(sys.argv) == 2:
    lock = FileLock(Path(sys.argv[1]), "child")
else:
    place = parse_postgres_url(sys.argv[1], password_file=Path(sys.argv[2]))
    lock = PostgresLock(place, Timing(0.1, 600.0, 60.0), "child")
print(lock.acquire(), flush=True)
time.sleep(600)
"""


def test_a_killed_process_frees_it(make: Make, where: list[str]) -> None:
    argv = [sys.executable, "-c", HOLDER, *where]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "True\n"
        lock = make()
        assert not lock.acquire()
        assert lock.holder == "child"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        until(lock.acquire)


# -- of PostgreSQL alone ----------------------------------------------------------------------


@pytest.fixture
def url(server: Postgres) -> str:
    return _store(server)


def test_who_is_not_heard_for_long_loses_it(server: Postgres, url: str) -> None:
    """As a frozen leader is: its connection stays open, and nothing comes over it."""
    hold_s = 0.5
    first = _lock([url, str(server.secret)], "first", hold_s=hold_s)
    second = _lock([url, str(server.secret)], "second")
    until(lambda: _acquired(first))  # a busy machine may lose it while it is being taken
    begun_s = time.monotonic()
    assert not second.acquire() or time.monotonic() - begun_s > hold_s / 2
    until(second.acquire)
    with pytest.raises(Unavailable, match=r"idle for too long|does not answer|57P05"):
        first.check()
    until(lambda: _is_lost(first))  # a busy machine may only have been slow the first time
    assert not first.check()
    assert second.check()
    assert not first.acquire()
    first.release()
    second.release()


def _is_lost(lock: LeaderLock) -> bool:
    with contextlib.suppress(Unavailable):
        lock.check()
    return lock.lost


def test_who_is_heard_in_time_keeps_it(server: Postgres, url: str) -> None:
    hold_s = 2.0
    first = _lock([url, str(server.secret)], "first", hold_s=hold_s)
    second = _lock([url, str(server.secret)], "second")
    until(lambda: _kept(first, second, hold_s))
    first.release()
    second.release()


def _kept(first: LeaderLock, second: LeaderLock, hold_s: float) -> bool:
    """It is kept for twice as long as silence would lose it; False where this machine stood
    still for so long that nothing can be said.
    """
    until(lambda: _acquired(first))
    begun_s = heard_s = time.monotonic()
    while time.monotonic() < begun_s + 2 * hold_s:
        kept = _checked(first) and not second.acquire()
        asked_s, heard_s = heard_s, time.monotonic()
        if heard_s - asked_s > hold_s / 2:
            first.release()
            second.release()
            return False
        assert kept
        time.sleep(0.05)
    return True


def _checked(lock: LeaderLock) -> bool:
    try:
        return lock.check()
    except Unavailable:
        return False


def test_a_session_that_an_operator_ends_is_lost(server: Postgres, url: str) -> None:
    lock = _lock([url, str(server.secret)], "lock")
    assert lock.acquire()
    ended = server.sql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        f" WHERE application_name = 'lock' AND datname = '{url.rpartition('/')[2]}'"
    )
    assert ended == "1"
    with pytest.raises(Unavailable):
        until(lambda: not lock.check())
    assert lock.lost
    until(lambda: _acquired(lock))
    lock.release()


def test_a_connection_that_breaks_while_it_is_read_is_lost(server: Postgres, url: str) -> None:
    lock = _lock([url, str(server.secret)], "lock")
    assert isinstance(lock, PostgresLock)
    assert lock.acquire()
    link = lock._session.connection.dbapi_connection
    assert isinstance(link, PostgresConnection)
    link._sock = Breaking(link._sock)
    with pytest.raises(Unavailable, match=r"does not answer.*Connection reset"):
        lock.check()
    assert lock.lost
    until(lambda: _acquired(lock))
    lock.release()


class Breaking:
    """A socket's file that can be written; what was written is answered with a reset."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_lock_that_was_let_go_behind_our_back_is_no_proof(server: Postgres, url: str) -> None:
    """As a pooler does that gives the session to somebody else in between."""
    lock = _lock([url, str(server.secret)], "lock")
    assert isinstance(lock, PostgresLock)
    assert lock.acquire()
    lock._session.exec_driver_sql("SELECT pg_advisory_unlock_all()").scalar()
    assert not lock.check()
    lock.release()


def test_a_database_that_hangs_proves_nothing_and_the_call_ends(server: Postgres, url: str) -> None:
    place = parse_postgres_url(url, password_file=server.secret)
    lock = PostgresLock(place, Timing(0.1, 600.0, 0.5), "lock")
    until(lambda: _acquired(lock))
    server.freeze()
    try:
        with pytest.raises(Unavailable, match="does not answer"):
            lock.check()
        assert lock.lost
        with pytest.raises(Unavailable, match="does not answer"):
            lock.acquire()
    finally:
        server.freeze(signal.SIGCONT)
    until(lambda: _acquired(lock))
    lock.release()


def _acquired(lock: LeaderLock) -> bool:
    try:
        return lock.acquire()
    except Unavailable:
        return False


# -- of a file alone --------------------------------------------------------------------------


def test_a_lock_file_that_somebody_deletes_is_no_proof(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "store.db", "a"), FileLock(tmp_path / "store.db", "b")
    assert first.acquire()
    (tmp_path / "store.db.leader").unlink()
    assert not first.check()
    assert second.acquire()
    first.release()
    assert second.check()
    second.release()


def test_a_folder_that_is_lost_is_one_sentence(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "nowhere" / "store.db", "a")
    with pytest.raises(Unavailable, match=r"store\.db\.leader: No such file"):
        lock.acquire()
