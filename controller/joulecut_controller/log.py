"""Lines of the controller on standard error, its own and those of libraries."""

import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from joulecut_wire import log_line
from joulecut_wire.log_line import Level

if TYPE_CHECKING:  # the board takes a second to import, and `--help` has none
    from joulecut_controller.board import LogLine

NAME = "joulecut-controller"


def log(message: str, level: Level = "info", job: str = "") -> None:
    sys.stderr.write(log_line.rendered(NAME, message, level, job).decode(errors="replace"))
    sys.stderr.flush()


class EventLog:
    """Writes the lines of boards one after another. What stays wrong is in each board, and is
    written where it begins.
    """

    def __init__(self) -> None:
        self._before: frozenset[LogLine] = frozenset()

    def write(self, lines: "Iterable[LogLine]") -> None:
        """The lines of one board."""
        now = dict.fromkeys(lines)
        for line in now:
            if line not in self._before:
                log(f"{line.job}: {line.text}" if line.job else line.text, line.level, line.job)
        self._before = frozenset(now)


class LibraryLog(logging.Handler):
    """Renders what libraries log from WARNING on. Without it Python prints bare text."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        log(f"{record.name}: {self.format(record)}", level)


def use(log_format: str) -> None:
    """Sets the format of this process. In text, tracebacks of libraries keep their lines."""
    log_line.use(log_format)
    if log_format == log_line.JSON:
        logging.getLogger().addHandler(LibraryLog(logging.WARNING))
