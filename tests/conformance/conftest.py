"""Every store and every device there is, for whatever is asked of all of them."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import postgres_server
import pytest
from databases import Database
from device_rigs import rig
from postgres_server import Postgres

from joulecut_controller.ports import Store

__all__ = ["rig"]  # a fixture
NUMBERS = itertools.count(1)


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
def reopen(database: Database) -> Callable[[], Store]:
    """Opens the same store again, as a restarted controller would."""
    return database.open
