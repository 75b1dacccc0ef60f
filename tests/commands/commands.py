"""Commands of ours, run in this process: status, standard output and standard error.

An interpreter with numpy, scipy and gRPC takes a second or more to start, a command some
milliseconds. Tests of streams, signals and exit of a real process start one of their own.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from joulecut_cli.main import main as joulecut


def run(
    *argv: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = Path(),
    stdin: str = "",
    main: Callable[[], int] = joulecut,
) -> CompletedProcess[str]:
    """Runs `joulecut ARGV`, or another entry point; `env` is added to the environment."""
    out, err = _stream(), _stream()
    with (
        patch.object(sys, "argv", [main.__module__, *argv]),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        patch.dict("os.environ", env or {}),
        chdir(cwd),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            status = main()
        except SystemExit as end:  # argparse after --help
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return CompletedProcess(argv, status, _written(out), _written(err))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()


def printed(*argv: str | Path) -> str:
    """What a command printed that ended well and had nothing to complain about."""
    done = run(*map(str, argv))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def answer(*argv: str | Path) -> Any:
    """What it answered to programs."""
    return json.loads(printed(*argv, "--json"))


def refusal(*argv: str | Path) -> str:
    """The one line of a command that was refused for its input."""
    done = run(*map(str, argv))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr
