"""Databases to hold a store, the ways to look behind its back, and what is written into them."""

from pathlib import Path

from sqlalchemy import Engine

from joulecut_controller.ports import Event
from joulecut_controller.store import postgres, sqlite
from joulecut_controller.store.database import DatabaseStore, Retention, open_store
from joulecut_controller.store.postgres_url import parse_postgres_url

# A controller that writes as fast as it can, and says what was written.
WRITER = """
import sys
from pathlib import Path
from joulecut_controller.ports import Event
from joulecut_controller.store.database import open_store
secret = Path(sys.argv[2]) if sys.argv[2:] else None
store = open_store(sys.argv[1], password_file=secret, timeout_s=60.0)
while True:
    epoch, generation = store.next_epoch(0), store.next_generation()
    store.record(Event(0.0, "apply", "job", generation, "written"))
    print(epoch, generation, flush=True)
"""


PATIENCE_S = 60.0  # for a server on a machine that stands still now and then


class Database:
    """One empty database, and ways to look behind the store's back."""

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        self.url, self.password_file = url, password_file
        self._opened: list[DatabaseStore] = []

    def open(self, kept: Retention | None = None) -> DatabaseStore:
        """Opens it again, as a restarted controller would: the one before is closed."""
        self.close()
        self._opened.append(self._open(kept))
        return self._opened[-1]

    def beside(self) -> DatabaseStore:
        """Opens it once more, as a second controller would."""
        self._opened.append(self._open())
        return self._opened[-1]

    def _open(self, kept: Retention | None = None) -> DatabaseStore:
        secret = self.password_file
        return open_store(self.url, kept, password_file=secret, timeout_s=PATIENCE_S)

    def engine(self) -> Engine:
        if self.password_file is None:
            return sqlite.engine(sqlite.file_of(self.url))
        place = parse_postgres_url(self.url, password_file=self.password_file)
        return postgres.engine(place, timeout_s=PATIENCE_S)

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


def event_of(number: int, job: str = "job") -> Event:
    return Event(float(number), "apply", job, number, f"event {number}", '{"n": 1}')
