"""How every command of ours starts and fails: exit status 0 fine, 1 failed, 2 bad input.

Bad input is one line on standard error, never a usage screen and never a traceback.
"""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from joulecut_wire.errors import BadInput, JoulecutError

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


def guarded(name: str, run: Callable[[], int]) -> int:
    """Runs a command and turns its errors into a line and an exit status."""
    try:
        return run()
    except JoulecutError as error:
        line = str(error)  # a complaint about arguments already begins with the command
        print(line if line.startswith(name) else f"{name}: {line}", file=sys.stderr)  # noqa: T201
        return BAD_INPUT if isinstance(error, BadInput) else FAILED
    except BrokenPipeError:  # `joulecut plan --json | head` is no error
        sys.stderr.close()
        return FINE
    except KeyboardInterrupt:
        return INTERRUPTED
