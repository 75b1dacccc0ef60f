"""A small text file that any process of the node may read, replaced as a whole."""

import contextlib
import os
from pathlib import Path

from joulecut_agent.log import Warnings


class AtomicFile:
    """A reader sees the old text or the new one, never a part. A failure is logged once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = ""
        self._warnings = Warnings()

    def replace(self, text: str) -> None:
        """Writes if the text has changed. Never raises."""
        if text == self._written:
            return
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(text)
            fresh.chmod(0o644)
            os.replace(fresh, self._path)
        except OSError as error:
            self._warnings.say(f"{self._path}: {error.strerror}")
        else:
            self._written = text
            self._warnings.say("")

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
