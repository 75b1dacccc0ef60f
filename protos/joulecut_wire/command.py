"""Start and exit status of every command: 0 fine, 1 failed, 2 bad input.

Bad input is one line on standard error, never a usage screen and never a traceback. A daemon that
logs JSON ends with such a line too.
"""

import argparse
import errno
import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from joulecut_wire import log_line
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable
from joulecut_wire.quantity import Fault, nearest

FINE = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
# In the message of an import that the system had no room for.
EXHAUSTED = tuple(map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM)))
# Libraries that refuse a variable of the environment with a ValueError, when they are imported.
READERS = {"numba": "NUMBA_", "matplotlib": "MPL"}


def retired(what: str, why: str) -> None:
    """One line of a word that an earlier version had. It is read until 0.3."""
    sys.stderr.write(f"joulecut: {what} {why}; it goes with 0.3\n")


class _Gone(argparse.Action):
    """A flag that an earlier version had; `const` is what does its work."""

    def __call__(self, _parser: Any, _given: Any, _values: Any, option: str | None = None) -> None:
        raise BadInput(option or "", "is gone", self.const)


def gone(parser: argparse.ArgumentParser, flag: str, instead: str) -> None:
    """Answers a flag of an earlier version with one line, until 0.3."""
    hidden = argparse.SUPPRESS
    parser.add_argument(flag, action=_Gone, const=instead, nargs="?", dest=hidden, help=hidden)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `BadInput`, so that errors fit one line."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split("=")[0].split(" ")[0]
        flags = tuple(flag for flag in self._option_string_actions if flag.startswith("--"))
        close = nearest(unknown, flags) if unknown.startswith("--") else ""
        raise BadInput(self.prog, f"{message}{close}", f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = ", ".join(map(str, action.choices))
            close = nearest(value, tuple(map(str, action.choices)))
            raise argparse.ArgumentError(action, f"{value!r:.100} is not one of {allowed}{close}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """A word that a reader of `flags` refuses; argparse itself says of which type it is not."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            fault = error.__context__
            if not isinstance(fault, Fault):
                raise
            name = action.option_strings[-1] if action.option_strings else str(action.metavar)
            raise BadInput(name, fault.what, fault.allowed) from None

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        found = super()._get_values(action, arg_strings)
        if found == [] and action.nargs in {None, argparse.ONE_OR_MORE}:
            # Before Python 3.13 `--flag=--` loses its value and leaves a list, whatever the type.
            wanted = "one argument" if action.nargs is None else "at least one argument"
            raise argparse.ArgumentError(action, f"expected {wanted}")
        return found


def guarded(name: str, run: Callable[[], int]) -> int:
    """Runs a command and turns its errors into a line and an exit status.

    Output is flushed here, where a full disk becomes an error line and a closed pipe is accepted;
    the interpreter would print a traceback for both.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    # Some of its variables numba only warns of, with a traceback in the warning.
    warnings.filterwarnings("error", "Environment variable", RuntimeWarning, r"numba\.")
    try:
        status = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except JoulecutError as error:
        _complain(name, str(error))
        return BAD_INPUT if isinstance(error, BadInput) else FAILED
    except BrokenPipeError:  # `joulecut plan --json | head` is no error
        _silence(sys.stdout)
        return FINE
    except (OSError, ImportError) as error:
        if isinstance(error, ImportError):  # of a module that is there, where the system is full
            if not (what := next((word for word in EXHAUSTED if word in str(error)), "")):
                raise
        else:
            about = f"{error.filename}: " if error.filename else ""
            what = about + (error.strerror or str(error))
        _silence(sys.stdout)  # what it holds cannot be written at the end either
        _complain(name, str(Unavailable(what)))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, RuntimeWarning) as error:
        variables = _refused_variables(error)
        if not variables:
            raise
        what = str(error.__context__ or error)
        _complain(name, str(BadInput(f"environment: {variables}", what)))
        return BAD_INPUT
    return status


def _refused_variables(error: ValueError | RuntimeWarning) -> str:
    """The variables of the library that raised the error; "" where it is none of READERS."""
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    library = frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""
    prefix = READERS.get(library)
    return ", ".join(n for n in sorted(os.environ) if n.startswith(prefix)) if prefix else ""


def _complain(name: str, error: str) -> None:
    """On standard error where it is open; the exit status does not depend on it."""
    if sys.stderr is None:  # closed by the parent process
        return
    # An error of the arguments already begins with the command.
    line = error if error.startswith(name) else f"{name}: {error}"
    if log_line.in_use() == log_line.JSON:
        line = log_line.rendered(name, error, "error").decode().rstrip("\n")
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO | None) -> None:
    """Redirects the stream to /dev/null, so that the interpreter can flush it at its end."""
    with suppress(OSError):  # a stream without a file
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
