"""URL of a PostgreSQL store, parsed before anything is loaded or connected.

Apart from the engine, so that a mistyped address is one line at start. The password is never shown,
and is read for every connection: it may change while the controller runs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from joulecut_wire import user_file
from joulecut_wire.address import is_loopback
from joulecut_wire.errors import BadInput, Unavailable

PREFIX = "postgresql://"
ALLOWED = f"{PREFIX}USER@HOST:PORT/DATABASE"
KEYS = ("host", "sslmode", "sslrootcert", "sslcert", "sslkey")
PASSWORD_ENV = "JOULECUT_STORE_PASSWORD"  # noqa: S105 -- a name
PORT_DEFAULT = 5432

Encryption = Literal["disable", "require", "verify-full"]


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """One database. `folder` holds the server's socket, where it is reached by one."""

    user: str
    host: str
    port: int
    database: str
    folder: str = ""
    encryption: Encryption = "disable"
    ca: Path | None = None  # None: the CA certificates of the machine
    cert: Path | None = None
    key: Path | None = None
    password_file: Path | None = None
    password_given: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The URL for messages, without the password."""
        where = self.folder or (f"[{self.host}]" if ":" in self.host else self.host)
        return f"{PREFIX}{self.user}@{where}:{self.port}/{self.database}"

    def password(self) -> str:
        """Raises Unavailable where its file cannot be read."""
        if self.password_file is None:
            return self.password_given or os.environ.get(PASSWORD_ENV, "")
        try:
            return user_file.line(self.password_file)
        except BadInput as error:
            raise Unavailable(f"store {self.name}: password file {error}") from None


def parse_postgres_url(
    url: str, base: Path = Path(), password_file: Path | None = None
) -> PostgresUrl:
    """Reads a URL; relative files in it are relative to `base`. Raises BadInput."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        port = parts.port or PORT_DEFAULT
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise BadInput(f"store {shown}", str(error), f"{ALLOWED}?KEY=VALUE&...") from None
    query = dict(given)
    database = unquote(parts.path.removeprefix("/"))
    for found, what in ((parts.username, "user"), (database, "database")):
        if not found or "\0" in found:
            raise BadInput(f"store {shown}", f"names no {what}", ALLOWED)
    if "/" in database:
        raise BadInput(f"store {shown}", f"database {database!r}", ALLOWED)
    for key in query:
        if key not in KEYS:
            raise BadInput(f"store {shown}", f"unknown key {key}", ", ".join(KEYS))
    host, folder = parts.hostname or "", query.get("host", "")
    if bool(host) == bool(folder) or (folder and not folder.startswith("/")):
        raise BadInput(f"store {shown}", "names no host", f"{ALLOWED}, or ?host=/DIRECTORY")
    return PostgresUrl(
        user=unquote(parts.username or ""),
        host=host,
        port=port,
        database=database,
        folder=folder,
        encryption=_encryption(shown, query, local=bool(folder) or is_loopback(host)),
        ca=_file(base, query, "sslrootcert"),
        cert=_file(base, query, "sslcert"),
        key=_file(base, query, "sslkey"),
        password_file=password_file,
        password_given=unquote(parts.password or ""),
    )


def _encryption(shown: str, query: Mapping[str, str], *, local: bool) -> Encryption:
    """`sslmode`; by default disable for local servers, else verify-full."""
    wanted = query.get("sslmode", "disable" if local else "verify-full")
    known = next((mode for mode in get_args(Encryption) if mode == wanted), None)
    if known is None:
        allowed = ", ".join(get_args(Encryption))
        raise BadInput(f"store {shown}", f"sslmode {wanted!r}", allowed)
    return known  # type: ignore[no-any-return]


def _file(base: Path, query: Mapping[str, str], key: str) -> Path | None:
    return base / query[key] if query.get(key) else None


def without_password(url: str) -> str:
    """The URL, well formed or not, without its password."""
    head, at, tail = url.rpartition("@")
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{tail}" if at else url.partition("?")[0]
