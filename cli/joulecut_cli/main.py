"""`joulecut`: finds the module of a subcommand and hands it the rest of the line.

A command is `run(argv) -> exit status` in a module of its own, imported once the command is
known, so that `--help` is fast and a missing extra is one line.
"""

import gc
import importlib
import sys

from joulecut_cli.commands import LAB, all_commands, find, groups
from joulecut_wire.command import FINE, guarded, retired
from joulecut_wire.errors import BadInput, not_installed
from joulecut_wire.quantity import nearest

GONE = {  # answered until 0.3
    "clear": "joulecut restore --direct --agents NODE --all",
    "completion": "joulecut --help, and joulecut COMMAND --help",
    "profile": "a sweep of your own for joulecut fit; the controller keeps what jobs showed",
}
HELP = {"-h", "--help", "help"}
VERSION = {"-V", "--version"}


def main() -> int:
    gc.set_threshold(100_000)  # imports leave no garbage, and searches would take a tenth
    try:
        return guarded("joulecut", lambda: dispatch(sys.argv[1:]))
    finally:
        gc.freeze()  # the process ends: the last search would take another


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand. Raises BadInput, Unavailable."""
    name, rest = (argv[0], argv[1:]) if argv else ("help", [])
    if name == "help" and len(rest) == 1:  # as COMMAND --help
        name, rest = rest[0], ["--help"]
    if rest and name in HELP | VERSION:
        raise BadInput(name, f'"{rest[0]}" behind it', "nothing; joulecut COMMAND --help")
    if name in HELP:
        print(_overview())
        return FINE
    if name in VERSION:
        print(_version())
        return FINE
    if name == "recommend":
        name = "explain"
        retired("recommend", "is a part of joulecut explain")
    command = find(name)
    if command is None and name in GONE:
        raise BadInput(name, "is gone", GONE[name])
    if command is None and name in LAB:
        raise not_installed(f"{name} is a command of the lab, which is not installed", "", lab=True)
    if command is None:
        known = tuple(all_commands())
        what = f"no such command{nearest(name, (*known, *HELP, *VERSION))}"
        raise BadInput(f'"{name}"', what, ", ".join(known))
    module, _, function = command.target.partition(":")
    try:
        status: int = getattr(importlib.import_module(module), function)(rest)
    except ModuleNotFoundError as error:  # also where the command itself imports later
        if (error.name or "").startswith("joulecut"):
            raise
        what = f"{name} needs {error.name}, which is not installed"
        raise not_installed(what, command.extra, lab=name in LAB) from None
    return status


def _overview() -> str:
    shown = tuple(groups())
    width = max(len(name) for group in shown for name in group.commands)
    lines = ["usage: joulecut COMMAND ...", ""]
    for group in shown:
        rows = (f"  {name:<{width}}  {one.summary}" for name, one in group.commands.items())
        lines += [group.title, *rows, ""]
    return "\n".join([*lines, "joulecut help COMMAND shows its flags."])


def _version() -> str:
    from importlib.metadata import version

    return f"joulecut {version('joulecut')}"


if __name__ == "__main__":
    sys.exit(main())
