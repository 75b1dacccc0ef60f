"""The sections of the agent's configuration that say who may do what.

Here an unknown key is refused, unlike elsewhere in the file: a mistyped role would be a role
that nobody wrote down.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulecut_agent.control.access import PATTERNS_MAX, ROLES, LocalSocket, Rules
from joulecut_agent.control.audit_log import Limits
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.tls import TlsFiles

KEYS = ("tls", "access", "audit", "web_config")
LISTEN_KEYS = ("grpc_socket", "grpc_socket_group")
PATTERN_LENGTH_MAX = 256
AUDIT_BYTES_MIN, AUDIT_BYTES_MAX = 1 << 16, 1 << 30  # one long line fits, a disk survives
AUDIT_FILES_MAX = 100


def tls(doc: Document, folder: Path) -> TlsFiles | None:
    """Raises BadInput; so does every function here."""
    given = _mapping(doc, ("tls",), ("cert", "key", "client_ca"))
    if given is None:
        return None
    for key in ("cert", "key", "client_ca"):
        if key not in given:
            raise doc.bad(("tls",), f"{key} is missing", "cert, key and client_ca")
    cert, key_, ca = (_path(doc, ("tls", k), folder) for k in ("cert", "key", "client_ca"))
    assert cert is not None
    assert key_ is not None
    assert ca is not None
    return TlsFiles(cert, key_, ca)


def rules(doc: Document) -> Rules:
    given = _mapping(doc, ("access",), (*ROLES, "loopback"))
    if given is None:
        return Rules()
    patterns = {
        role: _patterns(doc, ("access", role), given[role]) for role in given.keys() & ROLES
    }
    if "loopback" not in given:
        return Rules(patterns)
    words = _texts(doc, ("access", "loopback"), given["loopback"])
    for i, word in enumerate(words):
        if word not in ROLES:
            raise doc.bad(("access", "loopback", i), f"{word!r}", ", ".join(ROLES))
    return Rules(patterns, words)


def audit(doc: Document) -> Limits:
    plain = Limits()
    given = _mapping(doc, ("audit",), ("bytes_max", "files_max")) or {}
    size = given.get("bytes_max", plain.bytes_max)
    files = given.get("files_max", plain.files_max)
    return Limits(
        _whole(doc, ("audit", "bytes_max"), size, AUDIT_BYTES_MIN, AUDIT_BYTES_MAX),
        _whole(doc, ("audit", "files_max"), files, 1, AUDIT_FILES_MAX),
    )


def web_config(doc: Document, folder: Path) -> Path | None:
    return _path(doc, ("web_config",), folder)


def local_socket(doc: Document, folder: Path) -> LocalSocket | None:
    path = _path(doc, ("listen", "grpc_socket"), folder)
    group = _value(doc, ("listen", "grpc_socket_group"))
    if group is None:
        return None if path is None else LocalSocket(str(path))
    if path is None:
        where = ("listen", "grpc_socket_group")
        raise doc.bad(where, "without listen.grpc_socket", "both, or none")
    if not isinstance(group, str) or not group.isprintable() or not group:
        raise doc.bad(("listen", "grpc_socket_group"), f"{group!r}", "the name of a group")
    return LocalSocket(str(path), group)


def _mapping(doc: Document, path: KeyPath, keys: Sequence[str]) -> dict[str, Any] | None:
    value = _value(doc, path)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise doc.bad(path, f"{value!r}", f"a mapping of {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise doc.bad((*path, key), "unknown key", ", ".join(keys))
    return value


def _value(doc: Document, path: KeyPath) -> Any:
    value = doc.data
    for key in path:
        value = value.get(str(key)) if isinstance(value, dict) else None
    return value


def _path(doc: Document, path: KeyPath, folder: Path) -> Path | None:
    value = _value(doc, path)
    if value is None:
        return None
    if not isinstance(value, str) or not value or not value.isprintable():
        raise doc.bad(path, f"{value!r}", "a path")
    return folder / value


def _texts(doc: Document, path: KeyPath, value: Any) -> tuple[str, ...]:
    allowed = f"a list of up to {PATTERNS_MAX} texts"
    if not isinstance(value, list) or len(value) > PATTERNS_MAX:
        raise doc.bad(path, "is no list" if not isinstance(value, list) else "too long", allowed)
    for i, text in enumerate(value):
        fine = isinstance(text, str) and text.isprintable() and 0 < len(text) <= PATTERN_LENGTH_MAX
        if not fine:
            raise doc.bad((*path, i), f"{text!r}", f"a text of up to {PATTERN_LENGTH_MAX} letters")
    return tuple(value)


def _patterns(doc: Document, path: KeyPath, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = _texts(doc, path, value)
    for i, text in enumerate(texts):
        if text != text.strip() or text.count("*") > 8:
            allowed = "a DNS name, a URI, CN=NAME, or *, with at most 8 stars"
            raise doc.bad((*path, i), f"{text!r}", allowed)
    return texts


def _whole(doc: Document, path: KeyPath, value: Any, low: int, high: int) -> int:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value != int(value) or not low <= value <= high:
        raise doc.bad(path, f"{value!r}", f"a whole number from {low} to {high}")
    return int(value)
