"""Typed access to a configuration file, with file, line and key in every error."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from joulecut_agent.log import log
from joulecut_wire.document import Document, KeyPath
from joulecut_wire.errors import BadInput

SOCKET_PATH_BYTES_MAX = 107  # sun_path holds 108, the last of them zero


class ConfigReader:
    """Getters by key path. Each returns its default for a missing key, and raises BadInput."""

    def __init__(self, doc: Document, folder: Path) -> None:
        """Relative paths are relative to `folder`."""
        self._doc = doc
        self._folder = folder
        self.ignored = 0  # unknown keys so far

    def bad(self, path: KeyPath, what: str, allowed: str) -> BadInput:
        return self._doc.bad(path, what, allowed)

    def value(self, path: KeyPath) -> Any:
        value = self._doc.data
        for depth, key in enumerate(path):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self.bad(path[:depth], f"{value!r}", "a mapping of keys")
            value = value.get(str(key))
        return value

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        value = self.value(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.bad(path, f"{value!r}", "a mapping of keys")
        return value

    def strict_mapping(self, path: KeyPath, keys: Sequence[str]) -> dict[str, Any] | None:
        """As `mapping`; None if missing, and BadInput on an unknown key."""
        value = self.value(path)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(path, f"{value!r}", f"a mapping of {', '.join(keys)}")
        for key in value:
            if key not in keys:
                raise self.bad((*path, key), "unknown key", ", ".join(keys))
        return value

    def text(self, path: KeyPath, default: str | None, allowed: Iterable[str] | None = None) -> str:
        value = self.value(path)
        words = ", ".join(allowed) if allowed is not None else "printable text without spaces"
        if value is None:
            if default is None:
                raise self.bad(path, "is missing", words)
            return default
        if not is_word(value) or (allowed is not None and value not in allowed):
            raise self.bad(path, f"{value!r}", words)
        return str(value)

    def number(self, path: KeyPath, default: float, low: float, high: float) -> float:
        value = self.value(path)
        if value is None:
            return default
        return self._number(path, value, low, high, f"a number from {low:g} to {high:g}")

    def whole(self, path: KeyPath, default: int, low: int, high: int) -> int:
        value = self.value(path)
        if value is None:
            return default
        allowed = f"a whole number from {low} to {high}"
        number = self._number(path, value, low, high, allowed)
        if number != int(number):
            raise self.bad(path, f"{value!r}", allowed)
        return int(number)

    def path(self, path: KeyPath, default: str) -> Path:
        return self.optional_path(path) or Path(default)

    def optional_path(self, path: KeyPath) -> Path | None:
        value = self.value(path)
        if value is None:
            return None
        if not isinstance(value, str) or not value.isprintable() or not value:
            raise self.bad(path, f"{value!r}", "a path")
        return self._folder / value

    def address(self, path: KeyPath, default: str) -> tuple[str, int]:
        value = self.value(path)
        text = default if value is None else value
        host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        host = host.removeprefix("[").removesuffix("]")
        if (
            not host
            or not host.isprintable()
            or " " in host
            or not port.isascii()
            or not port.isdigit()
            or len(port) > 5
            or int(port) > 65_535
        ):
            raise self.bad(path, f"{value!r}", "HOST:PORT, port 0 for a free one")
        return host, int(port)

    def check_socket_path(self, key: KeyPath, path: Path) -> None:
        """The kernel bounds the length of a unix socket's path."""
        size = len(str(path).encode())
        if size > SOCKET_PATH_BYTES_MAX:
            what = f"{size} bytes is too long for the socket {path.name} in it"
            raise self.bad(key, what, f"at most {SOCKET_PATH_BYTES_MAX} bytes in all")

    def warn_unknown(self, path: KeyPath, known: Iterable[str]) -> None:
        """Logs and counts the unknown keys of a mapping."""
        value = self.value(path)
        words = list(known)
        for key in value if isinstance(value, dict) else ():
            if key not in words:
                self.warn((*path, key), "unknown key is ignored", ", ".join(words))
                self.ignored += 1

    def warn(self, path: KeyPath, what: str, allowed: str) -> None:
        """Logs a value that does not stop the start."""
        log("agent", f"warning: {BadInput(self._doc.where(path), what, allowed)}", "warning")

    def _number(self, path: KeyPath, value: Any, low: float, high: float, allowed: str) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not (good and math.isfinite(value) and low <= value <= high):
            raise self.bad(path, f"{value!r}", allowed)
        return float(value)


def is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value) and " " not in value
