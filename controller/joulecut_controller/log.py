"""Lines of the controller on standard error, its own and those of libraries."""

import logging
import sys

from joulecut_wire import log_line
from joulecut_wire.log_line import Level

NAME = "joulecut-controller"


def log(message: str, level: Level = "info") -> None:
    sys.stderr.write(log_line.rendered(NAME, message, level).decode(errors="replace"))
    sys.stderr.flush()


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
