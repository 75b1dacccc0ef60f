"""Checked access to the keys of a `config.json`."""

from collections.abc import Mapping
from typing import Any

WHOLE_MAX = 10**9


class Unreadable(ValueError):
    """A configuration that gives no architecture: key, fault, and what is allowed."""

    def __init__(self, key: str, what: str, allowed: str) -> None:
        super().__init__(f"{key}: {what}; allowed: {allowed}")
        self.key, self.what, self.allowed = key, what, allowed


class Keys:
    """Checked access to a configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = self.given = config

    def whole(self, *names: str, otherwise: int | None = None, low: int = 1) -> int:
        """The first of these keys that is there and not null."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise Unreadable(name, f"{value!r:.40} is no whole number", f"{low} or more")
            if not low <= value <= WHOLE_MAX:
                shown = f"{value}" if abs(value) <= WHOLE_MAX**2 else "a huge number"
                raise Unreadable(name, f"{shown} is out of range", f"{low} to {WHOLE_MAX}")
            return value
        if otherwise is None:
            raise Unreadable(names[0], "missing", "a whole number")
        return otherwise

    def times(self, name: str, width: int, otherwise: int = 0) -> int:
        """How many times `width` a key is."""
        given = self.whole(name, otherwise=otherwise, low=0)
        if given % width:
            raise Unreadable(name, f"{given} is no multiple of {width}", "a multiple")
        return given // width

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self._config.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise Unreadable(name, f"{value!r:.40} is neither", "true or false")
        return value

    def word(self, name: str) -> str:
        return str(self._config.get(name) or "")

    def counted(self, name: str, *words: str, otherwise: int = 0) -> int:
        """Entries of a list that are one of these words; of none what the code defaults to."""
        listed = self.listed(name)
        return sum(one in words for one in listed) if listed else otherwise

    def listed(self, name: str) -> list[Any]:
        value = self._config.get(name)
        return value if isinstance(value, list) else []
