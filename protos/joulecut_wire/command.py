"""How every command of ours starts and fails: exit status 0 fine, 1 failed, 2 bad input.

Bad input is one line on standard error, never a usage screen and never a traceback.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from joulecut_wire.errors import BadInput, JoulecutError, Unavailable

FINE = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are `BadInput`, so that they fit one line."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise BadInput(self.prog, message, f"see {self.prog} --help")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        found = super()._get_values(action, arg_strings)
        if found == [] and action.nargs in {None, argparse.ONE_OR_MORE}:
            # Before Python 3.13 `--flag=--` loses its value and leaves a list, whatever the type.
            wanted = "one argument" if action.nargs is None else "at least one argument"
            raise argparse.ArgumentError(action, f"expected {wanted}")
        return found


def guarded(name: str, run: Callable[[], int]) -> int:
    """Runs a command and turns its errors into a line and an exit status.

    Output is flushed here, while a full disk can still be told and a reader who has left
    can still be forgiven; afterwards the interpreter would only print a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except JoulecutError as error:
        line = str(error)  # a complaint about arguments already begins with the command
        _complain(line if line.startswith(name) else f"{name}: {line}")
        return BAD_INPUT if isinstance(error, BadInput) else FAILED
    except BrokenPipeError:  # `joulecut plan --json | head` is no error
        _silence(sys.stdout)
        return FINE
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        _silence(sys.stdout)  # what it holds cannot be written at the end either
        _complain(f"{name}: {Unavailable(about + (error.strerror or str(error)))}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _complain(line: str) -> None:
    """On standard error, where there is one; the exit status must not hang on it."""
    if sys.stderr is None:  # closed by whoever started us
        return
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO | None) -> None:
    """Lets the interpreter flush in peace when it ends."""
    with suppress(OSError):  # a stream without a file
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
