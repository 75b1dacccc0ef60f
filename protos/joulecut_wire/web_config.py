"""TLS, client certificates, passwords and headers of an HTTP page, from a web configuration file.

The format is that of the Prometheus exporter toolkit's `--web.config.file` (github.com/prometheus/
exporter-toolkit, docs/web-configuration.md). Reloaded on change; an invalid new file leaves the old
one in force. Unsupported keys are refused: an ignored one would be a missing protection.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joulecut_wire import section, tls
from joulecut_wire.document import Document, parse
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import Fault, choice, flag, shown, text
from joulecut_wire.section import Key, Named, Section, flat

HEADERS = (
    "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options", "X-XSS-Protection",
    "Content-Security-Policy",
)  # fmt: skip
CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
COST_MIN, COST_MAX = 4, 15  # two seconds of work; more would let unknown senders block the page
PASSWORD_BYTES_MAX = 72  # bcrypt ignores the rest
USERS_MAX = 1000
KNOWN_MAX = 100  # accepted passwords, so that not every scrape runs bcrypt
_PATH, _VERSION = text(4096, "a path"), choice(*VERSIONS)


def _header(value: object) -> str:
    if not (isinstance(value, str) and value.isascii() and len(value) <= 1000):
        raise Fault(f"{shown(value)} does not fit", "one line of ASCII text")
    return text(1000, "one line of text")(value)


def _hash(value: object) -> str:
    match = HASH.fullmatch(value) if isinstance(value, str) else None
    if match is None or not COST_MIN <= int(match[1]) <= COST_MAX:
        # The value is not shown: it may be a password in plain text.
        allowed = f"as htpasswd -B prints it, of a cost from {COST_MIN} to {COST_MAX}"
        raise Fault("is not a bcrypt hash", allowed)
    return match[0]


_TLS = flat(
    dict, strict=True, required=("cert_file", "key_file"), cert_file=_PATH, key_file=_PATH,
    client_ca_file=_PATH, client_auth_type=choice(*CLIENT_AUTH),
    min_version=_VERSION, max_version=_VERSION,
)  # fmt: skip
_HEADERS = Section(dict, {name: Key(name, _header) for name in HEADERS}, strict=True)
_HTTP = flat(dict, strict=True, http2=flag, headers=_HEADERS)
_FILE = flat(
    dict, strict=True, tls_server_config=_TLS, http_server_config=_HTTP,
    basic_auth_users=Named(_hash),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Read:
    context: ssl.SSLContext | None
    expires_unix_s: float | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    client_certificates: bool = False


class WebConfig:
    """One web configuration file. Thread-safe."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Raises BadInput with file, line and key."""
        self._path = path
        self._files: tls.Rotating[_Read] | None = None
        self._files = tls.Rotating(self._read_all, complain)
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._hashing = threading.Lock()
        self._dummy_hash = ""

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; None without TLS."""
        return self._now().context

    @property
    def expires_unix_s(self) -> float | None:
        """End of the certificate in use; None without TLS."""
        return self._now().expires_unix_s

    def headers(self) -> Mapping[str, str]:
        return self._now().headers

    @property
    def users(self) -> frozenset[str]:
        """Those with a password; empty where none is asked for."""
        return frozenset(self._now().users)

    @property
    def authenticates(self) -> bool:
        """Whether readers must authenticate."""
        return bool(self._now().users) or self._now().client_certificates

    def admits(self, authorization: str | None) -> bool:
        """Whether this Authorization header is that of a user; True where there are none."""
        users = self._now().users
        if not users:
            return True
        user, password = basic(authorization)
        hashed = users.get(user, "")
        mark = hmac.new(self._secret, repr((user, hashed)).encode() + password, hashlib.sha256)
        if mark.digest() in self._known:
            return True
        return self._checked(hashed, password) and self._remember(mark.digest())

    def _checked(self, hashed: str, password: bytes) -> bool:
        import bcrypt  # noqa: PLC0415 -- only where there are users

        if b"\0" in password:
            return False
        with self._hashing:  # one at a time: guessing must not take every core
            if not self._dummy_hash:
                self._dummy_hash = bcrypt.hashpw(b"unknown user", bcrypt.gensalt(10)).decode()
            # An unknown user takes as long as a wrong password.
            right = bcrypt.checkpw(
                password[:PASSWORD_BYTES_MAX], (hashed or self._dummy_hash).encode()
            )
        return right and bool(hashed)

    def _remember(self, mark: bytes) -> bool:
        with self._hashing:
            self._known[mark] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return True

    def _now(self) -> _Read:
        assert self._files is not None
        return self._files.current()

    def _read_all(self) -> tuple[_Read, list[Path]]:
        doc = parse(tls.contents(self._path), str(self._path))
        read, paths = _document(doc, self._path.absolute().parent)
        if self._files is not None:
            before = self._files.peek().context
            if (before is None) != (read.context is None):
                raise doc.bad(
                    ("tls_server_config",),
                    "TLS cannot be switched on or off at runtime",
                    "a restart",
                )
        return read, [self._path, *paths]


class RotatingContext(ssl.SSLContext):
    """For servers that keep one context: each connection gets the newest one."""

    newest: Callable[[], ssl.SSLContext | None]

    @classmethod
    def of(cls, web: WebConfig) -> "RotatingContext":
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.newest = web.context
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        context = self.newest()
        assert context is not None
        return context.wrap_bio(*args, **kwargs)


def _document(doc: Document, folder: Path) -> tuple[_Read, list[Path]]:
    # Keys without a value count as left out; with `strict` no key is unknown.
    data = section.read(doc, _FILE, {} if doc.data is None else doc.data, unknown=_raised)
    users = dict(data.get("basic_auth_users", ()))
    at = ("basic_auth_users",)
    if len(users) > USERS_MAX:
        raise doc.bad(at, f"{len(users)} users", f"up to {USERS_MAX}")
    if users and find_spec("bcrypt") is None:
        raise doc.bad(at, "passwords need bcrypt, which is not installed", "pip install bcrypt")
    headers = data.get("http_server_config", {}).get("headers", {})
    if "tls_server_config" not in data:
        return _Read(None, None, users, headers), []
    context, expires_unix_s, paths = _context(doc, folder, data["tls_server_config"])
    required = context.verify_mode is ssl.CERT_REQUIRED
    return _Read(context, expires_unix_s, users, headers, required), paths


def _raised(error: BadInput) -> None:
    raise error


def _context(
    doc: Document, folder: Path, words: Mapping[str, Any]
) -> tuple[ssl.SSLContext, float, list[Path]]:
    """Context, end of its certificate, and files."""
    at = ("tls_server_config",)
    cert, key = folder / words["cert_file"], folder / words["key_file"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[words.get("min_version", "TLS12")]
    context.maximum_version = VERSIONS[words.get("max_version", "TLS13")]
    if context.minimum_version > context.maximum_version:
        raise doc.bad((*at, "min_version"), "above max_version", "at most that")
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    chain = tls.contents(cert)
    tls.load_chain(context, (cert, chain), (key, tls.contents(key)))
    paths = [cert, key]
    auth = words.get("client_auth_type", "NoClientCert")
    ca = folder / words["client_ca_file"] if "client_ca_file" in words else None
    if (ca is None) != (auth == "NoClientCert"):
        allowed = "client_ca_file, and a client_auth_type that verifies"
        raise doc.bad(at, "one without the other", allowed)
    if ca is not None:
        tls.load_ca(context, ca, tls.contents(ca))
        paths.append(ca)
    context.verify_mode = CLIENT_AUTH[auth]
    return context, tls.expires_unix_s(cert, chain), paths


def basic(header: str | None) -> tuple[str, bytes]:
    """User and password; empty where the header has none."""
    scheme, _, token = (header or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return "", b""
    try:
        raw = base64.b64decode(token.strip(), validate=True)
    except (binascii.Error, ValueError):
        return "", b""
    user, _, password = raw.partition(b":")
    return user.decode(errors="replace"), password
