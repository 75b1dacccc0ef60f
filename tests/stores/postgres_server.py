"""A real PostgreSQL as an ordinary process: on a free port, in a folder of its own.

from postgres_server import Postgres, found

Stopped, frozen and started again by the tests. It refuses to run as root, so for root it runs
as the first unprivileged user there is.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from held_port import held_port

PASSWORD = "of the tests: 'quoted' @ 100 %"
LIMIT_S = 120.0
FAST = ("fsync=off", "shared_buffers=16MB", "max_connections=60", "jit=off")
MISSING = "no PostgreSQL server: apt-get install --no-install-recommends postgresql"


def binaries() -> Path | None:
    """Where initdb and postgres are; the newest, where there are several."""
    there = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: float(p.parts[-3])
    )
    which = shutil.which("postgres")
    chosen = there[-1] if there else Path(which) if which else None
    return chosen.resolve().parent if chosen else None


def _user() -> dict[str, Any]:
    """Who runs it: ourselves, or for root somebody who may do nothing."""
    if os.getuid() != 0:
        return {}
    entry = next(
        (e for name in ("postgres", "nobody") for e in pwd.getpwall() if e.pw_name == name), None
    )
    if entry is None:
        pytest.skip("PostgreSQL does not run as root, and there is no other user")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class Postgres:
    """One server. `url(database)` of a database that `make(database)` made."""

    def __init__(self, folder: Path) -> None:
        where = binaries()
        if where is None:
            pytest.skip(MISSING)
        self._bin, self._as = where, _user()
        self.folder, self.data = folder, folder / "data"
        self._log = (folder / "log").open("wb")
        self._child: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()
        self.port = self._held.enter_context(held_port())  # while it is stopped, too
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        if self._as:
            for path in (folder, secret):
                os.chown(path, self._as["user"], self._as["group"])
        done = self._run(
            "initdb", "-D", self.data, "-U", "joulecut", "-A", "scram-sha-256",
            "--pwfile", secret, "--no-sync", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.start()

    def _run(self, program: str, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._bin / program), *map(str, argv)],
            capture_output=True, text=True, check=False, cwd=self.folder,
            env={"PATH": os.environ["PATH"], "PGPASSWORD": PASSWORD, "LC_ALL": "C"}, **self._as,
        )  # fmt: skip

    def start(self, *more: str) -> None:
        """`more` are settings, `name=value`."""
        settings = (
            *FAST, f"port={self.port}", "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.folder}", *more,
        )  # fmt: skip
        options = [part for one in settings for part in ("-c", one)]
        self._child = subprocess.Popen(
            [str(self._bin / "postgres"), "-D", str(self.data), *options],
            stdout=self._log, stderr=subprocess.STDOUT, cwd=self.folder, **self._as,
        )  # fmt: skip
        end_s = time.monotonic() + LIMIT_S
        while self.sql("SELECT 1", check=False) != "1":
            assert self._child.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end_s, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, how: int = signal.SIGINT) -> None:
        """SIGINT ends all sessions at once; SIGQUIT is a crash."""
        if self._child is not None:
            self._child.send_signal(how)
            self._child.wait(LIMIT_S)
            self._child = None

    def end(self) -> None:
        self.freeze(signal.SIGCONT)
        self.stop(signal.SIGQUIT)
        self._held.close()
        self._log.close()

    def freeze(self, number: int = signal.SIGSTOP) -> None:
        """Stops it and all its sessions without closing anything; SIGCONT goes on."""
        if self._child is None:
            return
        me = self._child.pid
        children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
        for pid in (me, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def adopt(self, path: Path, name: str) -> Path:
        """A copy of a file that the server may read, and nobody else."""
        copy = self.folder / name
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        if self._as:
            os.chown(copy, self._as["user"], self._as["group"])
        return copy

    def sql(self, text: str, database: str = "postgres", *, check: bool = True) -> str:
        """What a query says, as text."""
        done = self._run(
            "psql", "-X", "-A", "-t", "-q", "-h", "127.0.0.1", "-p", str(self.port),
            "-U", "joulecut", "-d", database, "-c", text,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def make(self, database: str) -> str:
        """A new, empty database; its URL has no password (`PASSWORD`, or `secret`)."""
        self.sql(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def url(self, database: str) -> str:
        return f"postgresql://joulecut@127.0.0.1:{self.port}/{database}"

    @property
    def secret(self) -> Path:
        return self.folder / "secret"


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """A server for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="jcpg"))  # a socket's path must be short
    server: Postgres | None = None
    try:
        server = Postgres(folder)
        yield server
    finally:
        if server is not None:
            server.end()
        shutil.rmtree(folder, ignore_errors=True)
