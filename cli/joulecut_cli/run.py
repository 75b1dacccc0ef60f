"""`joulecut run -- COMMAND ...`: runs a training command whose Python processes report iterations.

The command is executed in place of this process, with the hooks of `joulecut.auto` in front of its
`PYTHONPATH`. Its arguments, exit status and signals are its own.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import joulecut
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput, Unavailable

# The names that a policy can have: a report under any other one reaches no job.
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
NAMES_ALLOWED = "the name in the policy: letters, digits and . _ : - after a letter or digit"
# Hooks never fail a job: what they cannot use is a warning before it starts.
VARIABLES = {
    "JOULECUT_JOB": (JOB_NAME, NAMES_ALLOWED),
    "JOULECUT_STAGE": (re.compile(r"\d{1,5}"), "a pipeline stage from 0"),
    "JOULECUT_SOCKET": (re.compile(r"[^\0]{1,107}"), "the path of a socket, at most 107 bytes"),
}
USAGE = """\
usage: joulecut run [--job NAME] -- COMMAND [ARGUMENT ...]

Runs a training command, torchrun for instance, whose Python processes report their iterations to
the agent of their node. Nothing else of the command changes.

  --job NAME  name of the job in the policy; default: $JOULECUT_JOB, else the scheduler's job id
"""


def run(argv: list[str]) -> int:
    """Does not return where the command was started. Raises BadInput, Unavailable."""
    words = list(argv)
    if words[:1] and words[0] in {"-h", "--help"}:
        print(USAGE, end="")
        return FINE
    if words[:1] == ["--job"] and len(words) > 1:
        if not JOB_NAME.fullmatch(words[1]):
            raise BadInput("--job", f"{words[1]!r:.60}", NAMES_ALLOWED)
        os.environ["JOULECUT_JOB"] = words[1]
        words = words[2:]
    for name, (allowed, meaning) in VARIABLES.items():
        if (given := os.environ.get(name)) and not allowed.fullmatch(given):
            wrong = BadInput(name, f"{given!r:.60}", meaning)
            print(f"joulecut: warning: {wrong}; the command starts anyway", file=sys.stderr)
    if words[:1] == ["--"]:
        words = words[1:]
    elif words and words[0].startswith("-"):
        raise BadInput("joulecut run", f"{words[0]!r}", "joulecut run [--job NAME] -- COMMAND ...")
    if not words:
        raise BadInput("joulecut run", "no command", "joulecut run -- COMMAND ...")
    if shutil.which(words[0]) is None:
        why = "is not executable" if Path(words[0]).exists() else "no such command"
        raise Unavailable(f"joulecut run: {words[0]}: {why}")
    return _execute(words)


def _execute(words: list[str]) -> NoReturn:
    boot = str(Path(joulecut.__file__).parent / "boot")
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([boot, rest] if rest else [boot])
    os.execvp(words[0], words)  # noqa: S606 -- the user's own command, without a shell
