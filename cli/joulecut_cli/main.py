"""Finds the module of a subcommand and hands it the rest of the line.

Each subcommand is one module with `run(argv) -> exit status`; it is imported only when
asked for, so that a missing role costs one sentence and `--help` costs nothing.
"""

import importlib
import sys

from joulecut_wire.command import FINE, guarded
from joulecut_wire.errors import BadInput, Unavailable

COMMANDS: dict[str, tuple[str, str]] = {
    "plan": ("joulecut_cli.plan", "the clocks that use least energy within a deadline"),
    "frontier": ("joulecut_cli.frontier", "energy against iteration time for a job"),
    "compare": ("joulecut_lab.compare.command", "what other rules for clocks would save"),
    "fit": ("joulecut_cli.fit.command", "time and power at every clock, from a few probed ones"),
    "policy": ("joulecut_cli.policy", "check a policy file, or compare it with the one in force"),
    "audit": ("joulecut_cli.audit.command", "what a cluster wastes, before anything is changed"),
    "report": ("joulecut_cli.report.command", "what was saved, measured; receipts of jobs"),
    "status": ("joulecut_cli.status", "fleet and jobs on one screen"),
    "explain": ("joulecut_cli.explain", "why a job has the clocks it has"),
    "recommend": ("joulecut_cli.recommend", "what would change for a job, as a difference"),
    "pause": ("joulecut_cli.pause", "keep the controller from a job, or all, for now"),
    "resume": ("joulecut_cli.resume", "end a pause of a job, or a release window of a node"),
    "restore": ("joulecut_cli.restore", "give GPUs back now, and keep them at their default"),
    "clear": ("joulecut_cli.clear", "give the GPUs of a node back now"),
    "release": ("joulecut_cli.release", "drop every device handle of a node for a while"),
    "completion": ("joulecut_cli.completion", "completion for bash, zsh or fish"),
    "demo": ("joulecut_cli.demo", "the whole system on a simulated cluster"),
    "study": ("joulecut_lab.study.command", "decoder layers over clocks: sweep, report, fit"),
}


def main() -> int:
    return guarded("joulecut", lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand. Raises BadInput, Unavailable."""
    if not argv:
        raise BadInput("joulecut", "no command", f"{', '.join(COMMANDS)}; see joulecut --help")
    if argv[0] in {"-h", "--help", "help"}:
        print(_overview())
        return FINE
    if argv[0] == "--version":
        print(_version())
        return FINE
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        raise BadInput(f'"{name}"', "no such command", ", ".join(COMMANDS))
    try:
        module = importlib.import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("joulecut_cli"):
            raise
        raise Unavailable(
            f"{name} needs {error.name}, which is not installed: pip install 'joulecut[all]'"
        ) from None
    status: int = module.run(rest)
    return status


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: joulecut COMMAND ...\n\n"
        + "\n".join(lines)
        + "\n\njoulecut COMMAND --help says more."
    )


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 -- costs 20 ms nobody else needs

    return f"joulecut {version('joulecut')}"


if __name__ == "__main__":
    sys.exit(main())
