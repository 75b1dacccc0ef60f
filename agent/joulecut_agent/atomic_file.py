"""A small text file that every process of the node may read, replaced whole.

Written for people and scripts who cannot ask the agent, so trouble with it is said once and
hinders nothing.
"""

import contextlib
import os
from pathlib import Path

from joulecut_agent.log import say


class Notice:
    """One file. Whoever reads it sees the old text or the new one, never a part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = ""
        self._said = ""

    def put(self, text: str) -> None:
        """Only where something changed. Never raises: it says so once."""
        if text == self._written:
            return
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(text)
            fresh.chmod(0o644)
            os.replace(fresh, self._path)
            self._written, self._said = text, ""
        except OSError as error:
            if str(error) != self._said:
                say("agent", f"{self._path}: {error.strerror}")
            self._said = str(error)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
