"""What every seat of a leader must do: a lock on a file, and one of a real PostgreSQL."""

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
from postgres_server import Postgres

from joulecut_controller.election.file_lock import FileSeat
from joulecut_controller.election.leader_lock import Seat
from joulecut_controller.election.postgres_lock import PostgresSeat
from joulecut_controller.election.timing import Timing
from joulecut_controller.store.link import Link
from joulecut_controller.store.place import place_of
from joulecut_wire.errors import Unavailable

LIMIT_S = 60.0
NUMBERS = itertools.count(1)
Make = Callable[..., Seat]


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture(params=["file", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Arguments of `_seat`, in this process or another."""
    if request.param == "file":
        return [str(tmp_path / "store.db")]
    server: Postgres = request.getfixturevalue("server")
    return [server.make(f"seat {next(NUMBERS)}"), str(server.secret)]


def _seat(where: list[str], name: str, hold_s: float = 600.0) -> Seat:
    if len(where) == 1:
        return FileSeat(Path(where[0]), name)
    place = place_of(where[0], password_file=Path(where[1]))
    return PostgresSeat(place, Timing(0.1, hold_s, LIMIT_S), name)


@pytest.fixture
def make(where: list[str]) -> Iterator[Make]:
    made: list[Seat] = []

    def one(name: str = "somebody", hold_s: float = 600.0) -> Seat:
        made.append(_seat(where, name, hold_s))
        return made[-1]

    yield one
    for seat in made:
        seat.leave()


def test_one_sits_and_the_others_see_who(make: Make) -> None:
    first, second = make("controller a:9440"), make("controller b:9440")
    assert first.gone
    assert not first.prove()
    assert first.take()
    assert first.prove()
    assert not first.gone
    assert not second.take()
    assert not second.prove()
    assert second.holder == "controller a:9440"


def test_who_leaves_frees_it_at_once_and_may_come_back(make: Make) -> None:
    first, second = make(), make()
    assert first.take()
    assert not second.take()
    first.leave()
    assert first.gone
    assert not first.prove()
    until(second.take)
    assert second.prove()
    assert not first.take()
    second.leave()
    second.leave()
    until(first.take)


SITTER = """
import sys, time
from pathlib import Path
from joulecut_controller.election.file_lock import FileSeat
from joulecut_controller.election.postgres_lock import PostgresSeat
from joulecut_controller.election.timing import Timing
from joulecut_controller.store.place import place_of
if len(sys.argv) == 2:
    seat = FileSeat(Path(sys.argv[1]), "child")
else:
    place = place_of(sys.argv[1], password_file=Path(sys.argv[2]))
    seat = PostgresSeat(place, Timing(0.1, 600.0, 60.0), "child")
print(seat.take(), flush=True)
time.sleep(600)
"""


def test_a_killed_process_frees_it(make: Make, where: list[str]) -> None:
    argv = [sys.executable, "-c", SITTER, *where]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "True\n"
        seat = make()
        assert not seat.take()
        assert seat.holder == "child"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        until(seat.take)


# -- of PostgreSQL alone ----------------------------------------------------------------------


@pytest.fixture
def url(server: Postgres) -> str:
    return server.make(f"seat {next(NUMBERS)}")


def test_who_is_not_heard_for_long_loses_it(server: Postgres, url: str) -> None:
    """As a frozen leader is: its connection stays open, and nothing comes over it."""
    hold_s = 0.5
    first = _seat([url, str(server.secret)], "first", hold_s=hold_s)
    second = _seat([url, str(server.secret)], "second")
    until(lambda: _took(first))  # a busy machine may lose it while it is being taken
    begun_s = time.monotonic()
    assert not second.take() or time.monotonic() - begun_s > hold_s / 2
    until(second.take)
    with pytest.raises(Unavailable, match=r"heard nothing|does not answer|57P05"):
        first.prove()
    until(lambda: _is_gone(first))  # a busy machine may only have been slow the first time
    assert not first.prove()
    assert second.prove()
    assert not first.take()
    first.leave()
    second.leave()


def _is_gone(seat: Seat) -> bool:
    with contextlib.suppress(Unavailable):
        seat.prove()
    return seat.gone


def test_who_is_heard_in_time_keeps_it(server: Postgres, url: str) -> None:
    hold_s = 2.0
    first = _seat([url, str(server.secret)], "first", hold_s=hold_s)
    second = _seat([url, str(server.secret)], "second")
    until(lambda: _kept(first, second, hold_s))
    first.leave()
    second.leave()


def _kept(first: Seat, second: Seat, hold_s: float) -> bool:
    """It is kept for twice as long as silence would lose it; False where this machine stood
    still for so long that nothing can be said.
    """
    until(lambda: _took(first))
    begun_s = heard_s = time.monotonic()
    while time.monotonic() < begun_s + 2 * hold_s:
        kept = _proved(first) and not second.take()
        asked_s, heard_s = heard_s, time.monotonic()
        if heard_s - asked_s > hold_s / 2:
            first.leave()
            second.leave()
            return False
        assert kept
        time.sleep(0.05)
    return True


def _proved(seat: Seat) -> bool:
    try:
        return seat.prove()
    except Unavailable:
        return False


def test_a_session_that_an_operator_ends_is_lost(server: Postgres, url: str) -> None:
    seat = _seat([url, str(server.secret)], "seat")
    assert seat.take()
    ended = server.sql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        f" WHERE application_name = 'seat' AND datname = '{url.rpartition('/')[2]}'"
    )
    assert ended == "1"
    with pytest.raises(Unavailable):
        until(lambda: not seat.prove())
    assert seat.gone
    until(lambda: _took(seat))
    seat.leave()


def test_a_connection_that_breaks_while_it_is_read_is_lost(server: Postgres, url: str) -> None:
    seat = _seat([url, str(server.secret)], "seat")
    assert isinstance(seat, PostgresSeat)
    assert seat.take()
    assert seat._session is not None
    link = seat._session.connection.dbapi_connection
    assert isinstance(link, Link)
    link._sock = Breaking(link._sock)
    with pytest.raises(Unavailable, match=r"does not answer.*Connection reset"):
        seat.prove()
    assert seat.gone
    until(lambda: _took(seat))
    seat.leave()


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
    seat = _seat([url, str(server.secret)], "seat")
    assert isinstance(seat, PostgresSeat)
    assert seat.take()
    assert seat._session is not None
    seat._session.exec_driver_sql("SELECT pg_advisory_unlock_all()").scalar()
    assert not seat.prove()
    seat.leave()


def test_a_database_that_hangs_proves_nothing_and_the_call_ends(server: Postgres, url: str) -> None:
    place = place_of(url, password_file=server.secret)
    seat = PostgresSeat(place, Timing(0.1, 600.0, 0.5), "seat")
    until(lambda: _took(seat))
    server.freeze()
    try:
        with pytest.raises(Unavailable, match="does not answer"):
            seat.prove()
        assert seat.gone
        with pytest.raises(Unavailable, match="does not answer"):
            seat.take()
    finally:
        server.freeze(signal.SIGCONT)
    until(lambda: _took(seat))
    seat.leave()


def _took(seat: Seat) -> bool:
    try:
        return seat.take()
    except Unavailable:
        return False


# -- of a file alone --------------------------------------------------------------------------


def test_a_lock_file_that_somebody_deletes_is_no_proof(tmp_path: Path) -> None:
    first, second = FileSeat(tmp_path / "store.db", "a"), FileSeat(tmp_path / "store.db", "b")
    assert first.take()
    (tmp_path / "store.db.leader").unlink()
    assert not first.prove()
    assert second.take()
    first.leave()
    assert second.prove()
    second.leave()


def test_a_folder_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    seat = FileSeat(tmp_path / "nowhere" / "store.db", "a")
    with pytest.raises(Unavailable, match=r"store\.db\.leader: No such file"):
        seat.take()
